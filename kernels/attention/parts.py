"""dK and dV of heads of K whose queries several programs go through: how many, and what adds up their sums.

A block of keys is one program's, with all queries that see it, of all heads that share its head.  Where those blocks
are too few for the multiprocessors, or a few too many, or the heads at work outgrow an L2, the queries are dealt out to
several programs, each of which writes sums in fp32; a kernel adds them up, in their order.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .blocks import aligned_rows, block_d, strides_of, wide, write_rows

BUSY = 0.85
"""The share of the multiprocessors' time with which one is content."""

LONG = 1024
"""Queries of which :func:`most_heads` may be all: the sums of so few cost what they save."""


def parts_of(group, blocks, sms):
    """Into how many parts to divide ``group`` equal shares of work that each of so many ``blocks`` of keys has."""

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


_ENTER, _SUMS, _ADD, _READ = 3.0, 1.0, 1.5, 0.03
"""What a block of keys costs beside the blocks of queries of its heads, and with sums of its own, in such blocks.

The kernel that adds them up, and what it reads for each of them (H200).
"""


def heads_of_part(group, blocks, steps, sms, most):
    """Of how many heads of queries, at most ``most``, a part of a group is; the last part has what is left.

    Each of so many ``blocks`` of keys goes through ``steps`` blocks of queries of each head.  That ends first whose
    rounds are fewest and longest: 8 heads on each of 12 heads of 554 keys are three parts, of one round, for eight, of
    three; 7 on 32 of 694 two, of three rounds, for seven, of eleven.
    """

    def cost(heads):
        parts = -(-group // heads)
        rounds = -(-blocks * parts // sms)
        sums = rounds * _SUMS + _ADD + blocks * parts * _READ if parts > 1 else 0
        return rounds * (heads * steps + _ENTER) + sums, parts

    return min((-(-group // parts) for parts in range(-(-group // most), group + 1)), key=cost)


def most_heads(group, width, len_q, causal):
    """The most heads of a group that a program goes through: under a causal mask one, or two of 64 columns.

    There programs have blocks of keys that more or fewer queries see, so within a group of heads they come apart: Q, dO
    and the sums of dQ of all its heads are in use at once, more than an L2 holds.  (H100, D 128, 32 heads on 8, 4096
    queries: 3.83 ms, with a program for each head, whose dK and dV are added up, 2.99 ms.)
    """
    return min(group, 128 // width) if causal and len_q > LONG else group


def sums_for(k, parts):
    """Memory for the sums of dK and dV: [2, b, g parts, s, columns that a head is computed in] of fp32.

    ``k`` is K, or V where its heads are wider.
    """
    batch, heads_k, len_k, d = k.shape
    return torch.empty((2, batch, heads_k * parts, len_k, wide(d)), dtype=torch.float32, device=k.device)


_AT_ONCE = tl.constexpr(4)
"""Parts that are read before the first of them is added: one after the other each would wait for its own."""


@triton.jit(do_not_specialize=["places", "parts", "heads_k", "len_k"])
def _add_kernel(
    sums_ptr, dk_ptr, dv_ptr, places, parts, heads_k, len_k,
    stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """BLOCK_N keys of dK, or behind the ``places`` heads of K of dV."""
    blocks = tl.cdiv(len_k, BLOCK_N)
    first, place = tl.program_id(0) % blocks * BLOCK_N, tl.program_id(0) // blocks
    offs_n = first + tl.arange(0, BLOCK_N)[:, None]
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (offs_n < len_k) & (offs_d < (HEAD_DIM if HEAD_DIM > VALUE_DIM else VALUE_DIM))
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for part in tl.range(0, parts, loop_unroll_factor=_AT_ONCE):
        head = tl.cast(place, tl.int64) * parts + part
        total += tl.load(sums_ptr + (head * len_k + offs_n) * WIDTH + offs_d, mask=mask, other=0.0)
    b, h = (place % places // heads_k).to(tl.int64), (place % places % heads_k).to(tl.int64)
    if place < places:
        out_ptr = dk_ptr + b * stride_kb + h * stride_kh
        write_rows(out_ptr, total, first, len_k - first, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, ALIGNED)
    else:
        out_ptr = dv_ptr + b * stride_vb + h * stride_vh
        write_rows(out_ptr, total, first, len_k - first, stride_vs, VALUE_DIM, BLOCK_N, BLOCK_D, ALIGNED)


def _keys_for(places, len_k, sms):
    """Keys of a program: at most 32, and fewer where the programs would be fewer than two to a multiprocessor."""
    return next((keys for keys in (32, 16, 8) if places * triton.cdiv(len_k, keys) >= 2 * sms), 4)


def add_parts(sums, gradients, parts):
    """Fill dk [b, g, s, d] and dv [b, g, s, e] with the sums of each head's ``parts``.

    Those are [2, b, g parts, s, columns] of fp32.
    """
    dk, dv = gradients
    (batch, heads_k, len_k, d), e = dk.shape, dv.shape[3]
    places = 2 * batch * heads_k
    keys = _keys_for(places, len_k, gpu_of(dk.device).sms)
    launch(
        _add_kernel, (places * triton.cdiv(len_k, keys),),
        sums, dk, dv, places // 2, parts, heads_k, len_k, *strides_of(dk), *strides_of(dv),
        HEAD_DIM=d, VALUE_DIM=e, WIDTH=sums.shape[4], BLOCK_N=keys, BLOCK_D=block_d(max(d, e)),
        ALIGNED=aligned_rows(dk, dv), num_warps=4,
    )  # fmt: skip
