"""NAME: out = exp(x - max x) / sum exp(x - max x) along the last dimension.

Reads x [m, n] and writes out: two streams of m n elements, since a program holds its rows in registers.  Arithmetic is
fp32 whatever the dtype, rounded once.
"""

import torch
import triton
import triton.language as tl

from atlas.declaration import Declaration, Pass, cases, peers, rowwise
from atlas.operators import Differentiable, Operator, launch


@triton.jit
def _kernel(x_ptr, out_ptr, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program owns BLOCK_M rows; BLOCK_N >= n, so each is read once."""
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (offs_m < m) & (offs_n < n)
    # -inf is the identity of max, and becomes 0, the identity of the sum.
    x = tl.load(x_ptr + offs_m * n + offs_n, mask=mask, other=-float("inf")).to(tl.float32)
    x = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(out_ptr + offs_m * n + offs_n, x / tl.sum(x, axis=1)[:, None], mask=mask)


def _launch(x, *, config):
    out, (m, n) = torch.empty_like(x), x.shape
    grid = (triton.cdiv(m, config["BLOCK_M"]),)
    launch(_kernel, grid, x, out, m, n, BLOCK_N=triton.next_power_of_2(n), **config)
    return out


def _reference(x):
    return torch.softmax(x, dim=-1)


DECLARATION = Declaration(
    name="NAME",
    family="rows",
    summary="out = exp(x - max x) / sum exp(x - max x) over rows",
    cases=rowwise.cases(tensors=3),
    edge_cases=rowwise.EDGE_CASES,
    huge_cases=rowwise.HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=rowwise.inputs("x"),
        reference=_reference,
        outputs=("out",),
        variants=(rowwise.one_pass(_launch, live=1),),
        peers={"torch": peers.eager(_reference), "torch.compile": peers.compiled(_reference)},
        bytes=cases.traffic("x", "out"),
        flops=lambda c: {"max": c["m"] * c["n"], "exp": 2 * c["m"] * c["n"], "sum": c["m"] * c["n"]},
        reduction=lambda c: c["n"],
    ),
)
_operator = Operator(DECLARATION, "forward", "(Tensor x) -> Tensor", case_of=rowwise.case_of)
_NAME = Differentiable.by_torch(_operator, _reference)


@DECLARATION.public
def NAME(x: torch.Tensor) -> torch.Tensor:
    """exp(x - max x) / sum exp(x - max x) along the last dimension of a tensor in fp32, fp16 or bf16.

    Tensors that are not contiguous are copied first.  Raises TypeError for other dtypes, ValueError for no dimensions.
    """
    DECLARATION.dtype_of(x)
    if not x.dim():
        raise ValueError("NAME takes a tensor of at least one dimension")
    if not x.numel():
        return _reference(x)  # nothing to launch for
    return _NAME(x.contiguous().view(-1, x.shape[-1])).view(x.shape)
