"""Declaration of the activations: cases, inputs, variants, peers, costs."""

import triton
from atlas.declaration import Declaration, Pass, Variant, cases, elementwise, peers

from .flat import launch_flat, launch_flat_backward
from .references import backward_reference, liger, prepare_liger_backward, pulled_back, reference
from .rows import launch_rows, launch_rows_backward


def _inputs(problem, device, generator):
    kind, m, n = problem["kind"], problem["m"], problem["n"]
    gated, draw = kind == "swiglu", cases.normal(problem, device, generator)
    if problem["strided"]:  # both factors in one tensor, or every row followed by another's
        both = draw(m, 2 * n)
        return {"x": both if gated else both[:, :n], "up": None, "kind": kind}
    return {"x": draw(m, n), "up": draw(m, n) if gated else None, "kind": kind}


def _backward_inputs(problem, device, generator):
    forward = _inputs(problem, device, generator)
    dy = cases.normal(problem, device, generator)(problem["m"], problem["n"])
    return {"x": forward["x"], "up": forward["up"], "dy": dy, "kind": problem["kind"]}


def _bytes(*names):
    """Traffic of these tensors, of which `up` and `dup` are there for swiglu alone."""
    return lambda c: cases.traffic(*(x for x in names if x not in ("up", "dup") or c["kind"] == "swiglu"))(c)


_ONE_VECTOR, _TWO_VECTORS = (elementwise.default(vectors=vectors) for vectors in (1, 2))
"""One 16-byte vector of each tensor a thread: with two a small call starts half as many threads, and each waits for
twice as much (gradients of silu, 128 x 1024 of bf16: 6.5 us, and 5.8 with one; H200)."""

_MANY = 2**26


def _forward_default(problem, gpu):
    """Two vectors for many elements of 16-bit gelu, which is bound by instructions: these overlap with a thread's
    second loads, and half as many programs begin (8192 x 16384: 132.8 us, with one 137; H200).
    """
    busy = problem["kind"] == "gelu" and problem.dtype != "fp32" and problem["m"] * problem["n"] >= _MANY
    return (_TWO_VECTORS if busy else _ONE_VECTOR)(problem, gpu)


def _is_apart(problem):
    """Whether rows consist of no 8-byte vectors: nearly every element has an address and a mask of its own."""
    return problem["n"] * cases.element_size(problem.dtype) % 8 != 0


def _are_few(problem, gpu):
    """Whether 16-bit elements in tiles of a vector a thread make fewer programs than there are SMs."""
    tiles = problem["m"] * triton.cdiv(problem["n"], _ONE_VECTOR(problem, gpu)["BLOCK"])
    return cases.element_size(problem.dtype) == 2 and tiles < gpu.sms


def _rows_fits(most, few_halved):
    """``fits`` of `rows`: of elements that are read one by one, or are few where ``few_halved``, a part of a vector a
    thread is enough.
    """

    def fits(config, problem, gpu):
        least = 0.25 if _is_apart(problem) else 0.5 if few_halved and _are_few(problem, gpu) else 1
        return elementwise.fits(least, most)(config, problem, gpu)

    return fits


def _rows_default(default, few_halved):
    """``default`` of `rows`: where elements are read one by one and are soon over, four of them a thread, not eight one
    after the other (64 x 5803 of bf16: 6.3 us, 7.2 with eight; gradients 7.1 and 7.4; H200).  Where ``few_halved``, so
    are vectors of few elements (gradients of swiglu, 5 x 1408 of bf16: 4.35 us, 4.58 with eight; H200).
    """

    def chosen(problem, gpu):
        config = default(problem, gpu)
        soon = problem["m"] * triton.cdiv(problem["n"], config["BLOCK"]) < 8 * gpu.sms
        four = (soon and _is_apart(problem)) or (few_halved and _are_few(problem, gpu))
        return {"BLOCK": 512, "num_warps": 4} if four else config

    return chosen


def _variants(flat, rows, default, most, few_halved):
    """The two variants of a pass, for at most ``most`` vectors a thread; ``few_halved``: half a one of few elements."""
    return (
        Variant(
            name="flat",
            summary="blocks of consecutive elements",
            launch=flat,
            space=elementwise.SPACE,
            default=default,
            fits=elementwise.fits(1, most),
            handles=lambda problem, gpu: "rows lie apart" if problem["strided"] else "",
        ),
        Variant(
            name="rows",
            summary="tiles of rows that lie apart, such as halves of one tensor",
            launch=rows,
            space=elementwise.SPACE,
            default=_rows_default(default, few_halved),
            fits=_rows_fits(most, few_halved),
            handles=lambda problem, gpu: "" if problem["strided"] else "rows lie one after the other",
        ),
    )


DECLARATION = Declaration(
    name="activation",
    family="elementwise",
    summary="gelu(x), silu(x), silu(gate) * up",
    cases=cases.sweep(
        "kind strided m n",
        {
            "bf16": (
                ("silu", False, 128, 1024),  # the launch is the cost
                ("silu", False, 4096, 5120),
                ("silu", False, 16384, 16384),
                ("gelu", False, 4096, 5120),
                ("gelu", False, 8192, 16384),
                ("gelu_tanh", False, 8192, 16384),
                ("swiglu", False, 16, 11008),  # decoding: the launch is the cost
                ("swiglu", False, 4096, 11008),  # Llama's, no power of two
                ("swiglu", False, 8192, 14336),
                ("swiglu", False, 8192, 28672),
                ("swiglu", True, 4096, 11008),  # one projection for both factors
                ("swiglu", True, 8192, 14336),
            ),
            "fp16": (("silu", False, 8192, 8192), ("gelu", False, 8192, 16384), ("swiglu", False, 8192, 14336)),
            "fp32": (("silu", False, 8192, 8192), ("gelu", False, 8192, 8192), ("swiglu", False, 4096, 11008)),
        },
        tensors=5,
    ),
    edge_cases=cases.edge_cases(
        "kind strided m n",
        (
            ("silu", False, 1, 1, "one element"),
            ("silu", False, 37, 129, "an odd number of elements: a block and a tail that no vector divides"),
            ("silu", False, 32, 512, "whole blocks only: no tail"),
            ("gelu", False, 37, 129, "an odd number of elements"),
            ("gelu_tanh", False, 37, 129, "an odd number of elements"),
            ("swiglu", False, 37, 129, "an odd number of elements"),
            ("gelu", True, 9, 72, "rows that lie apart"),
            ("swiglu", True, 9, 72, "halves of rows; more rows than a multiple of the tile's"),
            ("swiglu", True, 5, 131, "halves of odd rows: no second half starts on 16 bytes"),
            ("swiglu", True, 6, 134, "halves of 67 pairs: of 16 bits each starts on 4 bytes"),
            ("swiglu", True, 3, 5000, "rows longer than a tile, and a tail"),
            ("swiglu", True, 64, 256, "whole tiles only"),
            ("swiglu", True, 19, 320, "tiles whole in their columns, not in their rows"),
        ),
    ),
    huge_cases=(
        cases.case("bf16", "offsets beyond 2^31, and a tail", kind="silu", strided=False, m=1, n=2**31 + 7),
        cases.case("bf16", "row offsets beyond 2^31", kind="swiglu", strided=True, m=2**17 + 1, n=8192),
    ),
    differentiable=("x", "up"),
    forward=Pass(
        inputs=_inputs,
        reference=reference,
        outputs=("out",),
        variants=_variants(launch_flat, launch_rows, _forward_default, most=4, few_halved=False),
        peers={
            "torch": peers.eager(reference),
            "torch.compile": peers.compiled(reference),
            "liger": peers.eager(liger, requires="liger_kernel"),
        },
        bytes=_bytes("x", "up", "out"),
        flops=lambda c: {"f(x)": 8 * c["m"] * c["n"]} | ({"* up": c["m"] * c["n"]} if c["kind"] == "swiglu" else {}),
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=backward_reference,
        outputs=("dx", "dup"),
        variants=_variants(launch_flat_backward, launch_rows_backward, _ONE_VECTOR, most=2, few_halved=True),
        peers={
            "torch": pulled_back(peers.gradients, compiles=False),
            "torch.compile": pulled_back(peers.compiled_gradients, compiles=True),
            "liger": peers.Peer(prepare_liger_backward, requires="liger_kernel"),
        },
        bytes=_bytes("x", "up", "dy", "dx", "dup"),
        flops=lambda c: {"f'(x)": 12 * c["m"] * c["n"]},
    ),
)
