"""Kernels of a known duration, and a kernel with a variant that does as it is told."""

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Variant, case, eager
from triton.language.extra.cuda import globaltimer


@triton.jit
def spin_kernel(nanoseconds, out_ptr):
    """Waits until the GPU's own wall clock, which no change of its frequency touches, has gone on by so much."""
    start = globaltimer()
    now = start
    while now - start < nanoseconds:
        now = globaltimer()
    tl.store(out_ptr, now - start)


def spin(microseconds: float, out: torch.Tensor):
    """A thunk that keeps the GPU for so long, and writes the nanoseconds that it took into ``out`` (int64, one)."""
    nanoseconds = int(1000 * microseconds)
    return lambda: spin_kernel[(1,)](nanoseconds, out, num_warps=1)


HELD_BYTES = 48 * 2**20
"""What ``held`` below allocates besides its result."""


def _held(x, *, config):
    scratch = torch.empty(HELD_BYTES, dtype=torch.int8, device=x.device)
    y = torch.mul(x, 2.0)
    del scratch
    return y


def _none(problem, gpu):
    return {"BLOCK": 1}


def declare(n: int = 2**20) -> Declaration:
    """``double``: y = 2 x of ``n`` elements in fp32, by one variant, which needs :data:`HELD_BYTES` of scratch."""
    problem = case("fp32", "a plain size", n=n)
    return Declaration(
        name="double",
        family="toys",
        summary="y = 2 x",
        function=lambda x: 2 * x,
        call=lambda function, inputs: function(inputs["x"]),
        dtypes=("fp32",),
        cases=lambda gpu: [problem],
        edge_cases=(problem,),
        forward=Pass(
            inputs=lambda c, device, generator: {"x": torch.randn(c["n"], device=device, generator=generator)},
            reference=lambda x: x * 2,
            outputs=("y",),
            variants=(Variant("held", _held, {"BLOCK": (1,)}, _none),),
            peers={"torch": eager(lambda x: x * 2)},
            bytes=lambda c: {"x": 4 * c["n"], "y": 4 * c["n"]},
            flops=lambda c: {"double": c["n"]},
        ),
    )
