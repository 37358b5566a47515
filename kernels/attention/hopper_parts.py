"""dK and dV of heads that many heads of queries share, on Hopper: where too few programs would have work, by parts.

A block of keys is one program's, with all heads of queries that share its head.  Where those blocks are too few for the
multiprocessors, or a few too many, the heads of a group are dealt out to several programs, each of which writes sums in
fp32; a kernel adds them up, in their order.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .blocks import block_d, place_of, write_rows
from .hopper_tiles import wide

BUSY = 0.85
"""The share of the multiprocessors' time with which one is content."""


def parts_of(group, blocks, sms):
    """Into how many parts to divide a group of heads, where all groups have so many blocks of keys of equal work."""

    def busy(parts):
        programs = blocks * parts
        return programs / (-(-programs // sms) * sms)

    choices = [parts for parts in range(1, group + 1) if group % parts == 0]
    return next((parts for parts in choices if busy(parts) >= BUSY), max(choices, key=busy))


def parts_for(q, k, keys, causal):
    """:func:`parts_of` for blocks of so many keys; under a causal mask two of them are the unit of equal work."""
    (batch, heads), (heads_k, len_k) = q.shape[:2], k.shape[1:3]
    blocks = -(-len_k // keys)
    return parts_of(heads // heads_k, batch * heads_k * (-(-blocks // 2) if causal else blocks), gpu_of(q.device).sms)


def sums_for(k, parts):
    """Memory for the sums of dK and dV: [2, b, g parts, s, columns that a head is computed in] of fp32."""
    batch, heads_k, len_k, d = k.shape
    return torch.empty((2, batch, heads_k * parts, len_k, wide(d)), dtype=torch.float32, device=k.device)


@gluon.jit
def write_sums(x, sums_ptr, head, first, len_k, width: gl.constexpr, column: gl.constexpr):
    """Write a block of one head's dK, or dV, from key ``first`` and ``column`` on, as it lies in :func:`sums_for`."""
    rows = first + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, x.type.layout))
    columns = column + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, x.type.layout))
    sums_ptr += head.to(gl.int64) * len_k * width
    gl.store(sums_ptr + rows.to(gl.int64)[:, None] * width + columns[None, :], x, mask=(rows < len_k)[:, None])


@triton.jit(do_not_specialize=["parts", "heads_k", "len_k"])
def _add_parts_kernel(
    sums_ptr, out_ptr, parts, heads_k, len_k, stride_b, stride_h, stride_s,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dK or dV of BLOCK_N keys: the sum of their parts, in the output's dtype."""
    place, _, block = place_of(tl.cdiv(len_k, BLOCK_N), 1, False)
    first = block * BLOCK_N
    offs_n = first + tl.arange(0, BLOCK_N)[:, None]
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (offs_n < len_k) & (offs_d < HEAD_DIM)
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for part in range(parts):
        head = tl.cast(place * parts + part, tl.int64)
        total += tl.load(sums_ptr + (head * len_k + offs_n) * WIDTH + offs_d, mask=mask, other=0.0)
    out_ptr += tl.cast(place // heads_k, tl.int64) * stride_b + tl.cast(place % heads_k, tl.int64) * stride_h
    write_rows(out_ptr, total, first, len_k - first, stride_s, HEAD_DIM, BLOCK_N, BLOCK_D)


def add_parts(sums, gradients, parts):
    """Fill dk and dv [b, g, s, d] with the sums of each group's parts."""
    for of_one, gradient in zip(sums, gradients, strict=True):
        batch, heads_k, len_k, d = gradient.shape
        launch(
            _add_parts_kernel, (batch * heads_k * -(-len_k // 32),),
            of_one, gradient, parts, heads_k, len_k, *gradient.stride()[:3],
            HEAD_DIM=d, WIDTH=sums.shape[4], BLOCK_N=32, BLOCK_D=block_d(d), num_warps=4,
        )  # fmt: skip
