"""Which variants there are, which cases they are timed and checked at, and against what."""

import torch
from atlas.declaration import Declaration, Pass, Variant, cases, elementwise, peers

from .flat import handles_flat, launch_flat, launch_flat_backward
from .tiles import launch_blocks, launch_blocks_backward, launch_rows, launch_rows_backward

_ONE_VECTOR = elementwise.default(vectors=1)

_VECTORS = 16
"""What the compiler can know to divide a number of elements, so that the mask of a tail is that of whole vectors."""


def _blocks_default(problem, gpu):
    """A vector a thread; half of one of 16 bits where each SM has a program at most and the last one's tail, on which
    all then wait, is read element by element (2 x 922 bf16: backward 1.24 us for 1.49, forward 1.27 for 1.41; H200)."""
    config, elements = _ONE_VECTOR(problem, gpu), problem["m"] * problem["n"]
    half = {**config, "BLOCK": config["BLOCK"] // 2}
    short = elements % _VECTORS and elements <= half["BLOCK"] * gpu.sms
    return half if short and cases.element_size(problem.dtype) == 2 else config


def _rows_default(problem, gpu):
    """Four elements a thread: rows of 16 bits off a vector are read one by one (400 x 3101: 9.1 us, of eight 9.8)."""
    return {"BLOCK": 512, "num_warps": 4}


def _variants(blocks, flat, rows):
    return (
        Variant(
            name="blocks",
            summary="one block of consecutive elements a program",
            launch=blocks,
            space=elementwise.SPACE,
            default=_blocks_default,
            fits=elementwise.fits(0.5, 2),
            handles=lambda problem, gpu: "the rows have gaps between them" if problem["gaps"] else "",
        ),
        Variant(
            name="flat",
            summary="a block of the result's consecutive elements a program, wherever rows end",
            launch=flat,
            space=elementwise.SPACE,
            default=_ONE_VECTOR,
            fits=elementwise.fits(1, 2),
            handles=handles_flat,
        ),
        Variant(
            name="rows",
            summary="a tile of rows a program, each tensor with a row stride of its own",
            launch=rows,
            space=elementwise.SPACE,
            default=_rows_default,
            fits=elementwise.fits(0.5, 2),
            handles=lambda problem, gpu: "" if problem["gaps"] else "without gaps `blocks` does the same with less",
        ),
    )


def _reference(input, tensor1, tensor2, value):
    return torch.addcmul(input, tensor1, tensor2, value=value)


def _backward_reference(dout, tensor1, tensor2, value):
    return value * dout * tensor2, value * dout * tensor1


def _torch_forward(tensor1, tensor2, value):
    return torch.addcmul(torch.zeros_like(tensor1), tensor1, tensor2, value=value)


_VALUE = 0.7
"""In all cases: it costs the same whatever it is, and left out it shows."""


def _inputs(problem, device, generator):
    m, n = problem["m"], problem["n"]
    draw = cases.normal(problem, device, generator)
    input = draw(m, n)
    tensor1, tensor2 = draw(m, 2 * n).chunk(2, dim=-1) if problem["gaps"] else (draw(m, n), draw(m, n))
    return {"input": input, "tensor1": tensor1, "tensor2": tensor2, "value": _VALUE}


def _backward_inputs(problem, device, generator):
    forward = _inputs(problem, device, generator)
    return {"dout": forward.pop("input")} | forward


DECLARATION = Declaration(
    name="multiply_add",
    family="elementwise",
    summary="out = input + value * tensor1 * tensor2",
    cases=cases.sweep(
        "m n gaps",
        {
            "bf16": (
                (128, 1024, False),  # the launch is the cost
                (4096, 1024, False),
                (8192, 2048, False),
                (4096, 5120, False),  # hidden sizes of language models
                (8192, 4096, False),
                (4096, 11008, True),  # the halves of one wide matrix, as gated layers have them
                (8192, 8192, False),
                (16384, 16384, False),  # 2 GiB of traffic
                (1021, 50257, False),  # an odd number of elements
            ),
            "fp16": ((4096, 1024, False), (4096, 5120, True), (8192, 8192, False)),
            "fp32": ((4096, 1024, False), (4096, 5120, True), (8192, 8192, False)),
        },
        tensors=5,
    ),
    edge_cases=cases.edge_cases(
        "m n gaps",
        (
            (1, 1, False, "one element"),
            (3, 5, False, "fewer elements than an access of 16 bytes holds, times two"),
            (4, 2048, False, "whole blocks only: no tail"),
            (7, 2341, False, "several blocks and a tail of an odd number of elements"),
            (3, 5, True, "several short rows a tile; the second half begins off 16 bytes"),
            (37, 64, True, "tiles of whole rows, the last of them not full"),
            (2, 4097, True, "rows one element longer than a tile"),
            (5, 2048, True, "whole tiles only: no masks"),
            (21, 384, True, "tiles a third of a row wide, the last of them not full"),
            (13, 331, True, "rows that end inside vectors and blocks, the last of them not full"),
        ),
    ),
    huge_cases=(
        cases.case("bf16", "offsets beyond 2^31, and a tail", m=1, n=2**31 + 7, gaps=False),
        cases.case("bf16", "row offsets beyond 2^31, of wide rows from the middle on", m=2**18 + 1, n=8192, gaps=True),
    ),
    call=lambda function, inputs: function(
        inputs["input"], inputs["tensor1"], inputs["tensor2"], value=inputs["value"]
    ),
    differentiable=("input", "tensor1", "tensor2"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=_variants(launch_blocks, launch_flat, launch_rows),
        peers={"torch": peers.eager(_reference), "torch.compile": peers.compiled(_reference)},
        bytes=cases.traffic("input", "tensor1", "tensor2", "out"),
        flops=lambda c: {"multiply": 2 * c["m"] * c["n"], "add": c["m"] * c["n"]},
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dtensor1", "dtensor2"),
        variants=_variants(launch_blocks_backward, launch_flat_backward, launch_rows_backward),
        peers={
            "torch": peers.gradients(_torch_forward, ("tensor1", "tensor2"), "dout"),
            "torch.compile": peers.compiled_gradients(_torch_forward, ("tensor1", "tensor2"), "dout"),
        },
        bytes=cases.traffic("dout", "tensor1", "tensor2", "dtensor1", "dtensor2"),
        flops=lambda c: {"multiply": 3 * c["m"] * c["n"]},
    ),
)
