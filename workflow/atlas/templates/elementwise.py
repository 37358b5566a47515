"""NAME: out = x * sigmoid(y), elementwise.

Reads x and y and writes out: three streams of N elements.  Arithmetic is fp32 whatever the dtype, rounded once.
"""

import torch
import triton
import triton.language as tl

from atlas.declaration import Declaration, Pass, cases, elementwise, peers
from atlas.operators import Differentiable, Operator, launch


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    """One program owns BLOCK consecutive elements; the last one masks its tail."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n_elements
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, x * tl.sigmoid(y), mask=mask)


def _launch(x, y, *, config):
    out = torch.empty_like(x)
    launch(_kernel, (triton.cdiv(x.numel(), config["BLOCK"]),), x, y, out, x.numel(), **config)
    return out


def _reference(x, y):
    return x * torch.sigmoid(y)


DECLARATION = Declaration(
    name="NAME",
    family="elementwise",
    summary="out = x * sigmoid(y)",
    cases=elementwise.cases(tensors=3),
    edge_cases=elementwise.EDGE_CASES,
    huge_cases=elementwise.HUGE_CASES,
    differentiable=("x", "y"),
    forward=Pass(
        inputs=elementwise.inputs("x", "y"),
        reference=_reference,
        outputs=("out",),
        variants=(elementwise.blocks(_launch),),
        peers={"torch": peers.eager(_reference), "torch.compile": peers.compiled(_reference)},
        bytes=cases.traffic("x", "y", "out"),
        flops=lambda c: {"sigmoid": 4 * c["n"], "multiply": c["n"]},
    ),
)
_operator = Operator(DECLARATION, "forward", "(Tensor x, Tensor y) -> Tensor", case_of=elementwise.case_of)
_NAME = Differentiable.by_torch(_operator, _reference)


@DECLARATION.public
def NAME(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(y) of two tensors of one shape, device and dtype; TypeError or ValueError for others."""
    elementwise.check(DECLARATION, x, y)
    return _NAME(x.contiguous(), y.contiguous())
