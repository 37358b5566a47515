"""The declaration of broadcast: operands told by a letter each, cases, references and costs."""

import torch
from atlas.declaration import GPU, Case, Declaration, Pass, Variant, cases, elementwise, peers
from atlas.declaration.rows import VECTOR_BYTES

from .tiles import launch_tiles

_VALUE = 0.7
"""In all cases: it costs the same whatever it is, and left out it shows."""

_SHAPES = {
    "f": lambda m, n: (m, n),
    "r": lambda m, n: (n,),
    "c": lambda m, n: (m, 1),
    "s": lambda m, n: (),
    "g": lambda m, n: (m, n + 8),
    "t": lambda m, n: (n, m),
}
"""How an operand lies: all of it, a row, a column, a number; g with gaps between rows, t by columns."""


def of(problem: Case, operand: int, device, generator):
    """Operand number ``operand`` of a case; None where it has fewer."""
    m, n, letters = problem["m"], problem["n"], problem["of"]
    if operand >= len(letters):
        return None
    x = cases.normal(problem, device, generator)(*_SHAPES[letters[operand]](m, n))
    return {"g": lambda: x[:, :n], "t": lambda: x.t()}.get(letters[operand], lambda: x)()


def _inputs(problem: Case, device, generator):
    a, b, c = (of(problem, operand, device, generator) for operand in range(3))
    return {"a": a, "b": b, "c": c, "op": problem["op"], "value": _VALUE}


def reference(a, b, c, op, value):
    if op == "add":
        return a + b
    if op == "multiply":
        return value * a * b
    if op == "multiply_add":
        return torch.addcmul(a, b, c, value=value)
    if op == "swiglu":
        return torch.nn.functional.silu(a) * b
    sigmoid = torch.sigmoid(b)
    return a * c * sigmoid * (1 + b * (1 - sigmoid))


def _default(problem: Case, gpu: GPU):
    """Two 16-byte vectors a thread; one where that leaves SMs idle, or of three operands has few programs on an SM;
    four of many rows that are no whole vectors.

    16 x 16384 bf16: 6.0 us with one, 6.7 with two; 512 x 2048 fp16 of three operands: 6.9 and 7.3; 7864 x 333 fp16:
    9.4 with four, 10.1 with two; H200.
    """
    elements, size = problem["m"] * problem["n"], cases.element_size(problem.dtype)
    one, two, four = (elementwise.default(vectors)(problem, gpu) for vectors in (1, 2, 4))
    programs_per_sm = 4 if len(problem["of"]) > 2 else 1
    if elements < programs_per_sm * gpu.sms * two["BLOCK"]:
        return one
    odd = problem["n"] * size % VECTOR_BYTES != 0
    return four if odd and elements >= 4 * gpu.sms * four["BLOCK"] else two


def _bytes(problem: Case):
    m, n, size = problem["m"], problem["n"], cases.element_size(problem.dtype)
    elements = {"r": n, "c": m, "s": 1}
    letters = enumerate(problem["of"])
    return {f"operand {number}": elements.get(letter, m * n) * size for number, letter in letters} | {
        "out": m * n * size
    }


DECLARATION = Declaration(
    name="broadcast",
    family="elementwise",
    summary="sums and products of operands that are broadcast",
    cases=cases.sweep(
        "m n op of",
        {
            "bf16": (
                (8192, 4096, "add", "fr"),  # a bias
                (8192, 4096, "multiply_add", "rfr"),  # scale and shift of each channel
            ),
            "fp16": ((65536, 512, "swiglu", "fc"),),  # gates by rows
        },
        tensors=4,
    ),
    edge_cases=cases.edge_cases(
        "m n op of",
        (
            (1, 1, "add", "ss", "numbers"),
            (5, 7, "add", "fr", "odd rows and a row"),
            (64, 256, "add", "fr", "whole tiles and a row"),
            (37, 200, "add", "fc", "a column"),
            (33, 72, "multiply_add", "rfr", "scale and shift by a row"),
            (20, 129, "multiply_add", "fcs", "a column and a number"),
            (31, 64, "add", "cr", "a column and a row: no operand is whole"),
            (18, 136, "multiply", "gf", "rows with gaps"),
            (24, 40, "add", "tr", "a matrix by columns, whose order the result has"),
            (11, 515, "swiglu", "fr", "a gate of all, a row of ups"),
            (9, 72, "swiglu_gate", "ffr", "a gate's gradient"),
        ),
    ),
    huge_cases=(cases.case("bf16", "row offsets beyond 2^31", m=2**18 + 1, n=8192, op="add", of="fr"),),
    call=lambda function, inputs: function(inputs["a"], inputs["b"], inputs["c"], inputs["op"], inputs["value"]),
    forward=Pass(
        inputs=_inputs,
        reference=reference,
        outputs=("out",),
        variants=(
            Variant(
                name="tiles",
                summary="tiles of the two fastest axes, operands with strides of their own, 0 where broadcast",
                launch=launch_tiles,
                space=elementwise.SPACE,
                default=_default,
                fits=elementwise.fits(0.5, 4),
            ),
        ),
        peers={"torch": peers.eager(reference), "torch.compile": peers.compiled(reference)},
        bytes=_bytes,
        flops=lambda c: {"out": 3 * c["m"] * c["n"]},
    ),
)
