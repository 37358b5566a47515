"""The backward pass where all keys of a head are one block: dQ, dK and dV in one kernel, with each product made once.

A program owns the keys of one head of K and goes through the queries of its group's heads.  As no other block of keys
has a part of dQ, it is complete when it is computed, and D = sum(dout out) is computed where dout is read anyhow.
Where heads of K are too few for the multiprocessors, the blocks of queries are dealt out to programs that write sums of
dK and dV in fp32; a second kernel adds these.
"""

import functools
import itertools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from .blocks import LOG2E, aligned_rows, as_read, block_d, head_of, read_rows, strides_of, strides_of_lse, write_rows
from .parts import add_parts, sums_for


@triton.jit
def read_queries(
    q, dout, out, lse_ptr, dlse_ptr, batch, head, m, len_q, strides_q, strides_g, strides_o, strides_l,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """(q, dout, lse, D) of BLOCK_M queries of a head from ``m`` on; lse in base 2, and infinite where no key is seen.

    D is ``sum(dout out)``, less the gradient of lse where there is one.  Strides are (batch, head, row).
    """
    b = tl.cast(batch, tl.int64)
    q = head_of(q, b, head, 0, strides_q[0], strides_q[1], strides_q[2], DESCRIPTORS)
    dout = head_of(dout, b, head, 0, strides_g[0], strides_g[1], strides_g[2], DESCRIPTORS)
    out = head_of(out, b, head, 0, strides_o[0], strides_o[1], strides_o[2], DESCRIPTORS)
    dout_m = read_rows(dout, batch, head, m, len_q - m, strides_g[2], HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    out_m = read_rows(out, batch, head, m, len_q - m, strides_o[2], HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    offs_m = m + tl.arange(0, BLOCK_M)
    statistic = b * strides_l[0] + tl.cast(head, tl.int64) * strides_l[1] + offs_m
    lse = tl.load(lse_ptr + statistic, mask=offs_m < len_q, other=float("inf")) * LOG2E
    lse = tl.where(lse == -float("inf"), float("inf"), lse)
    delta = tl.sum(out_m.to(tl.float32) * dout_m.to(tl.float32), axis=1)
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + statistic, mask=offs_m < len_q, other=0.0)
    q_m = read_rows(q, batch, head, m, len_q - m, strides_q[2], HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    return q_m, dout_m, lse, delta


@triton.jit
def gradients_of_block(p, k_n, v_n, q_m, dout_m, delta, dk, dv, PRECISION: tl.constexpr):
    """(dq, dk, dv) of a block of weights ``p`` [keys, queries]: dq of it alone, dk and dv added to those given."""
    dp = tl.dot(v_n, tl.trans(dout_m), input_precision=PRECISION)
    dv = tl.dot(p.to(dout_m.dtype), dout_m, dv, input_precision=PRECISION)
    ds = (p * (dp - delta[None, :])).to(q_m.dtype)
    dk = tl.dot(ds, q_m, dk, input_precision=PRECISION)
    dq = tl.dot(tl.trans(ds), k_n, input_precision=PRECISION)
    return dq, dk, dv


@triton.jit(do_not_specialize=["heads", "group", "parts", "steps", "len_q", "len_k"])
def _few_keys_kernel(
    q, k, v, dout, out, lse_ptr, dlse_ptr, dq_ptr, dk_ptr, dv_ptr, scale, scale_out, heads, group, parts, steps,
    len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_ob, stride_oh, stride_os, stride_dqb, stride_dqh, stride_dqs,
    stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs, stride_lb, stride_lh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A program owns ``steps`` blocks of queries of the heads that share one of the ``heads`` of K, ``parts`` of each.

    The last part has those that are left.  K has ``len_k`` keys, BLOCK_N at most.  The gradients of keys are of
    ``heads`` times ``parts`` heads.
    """
    place = tl.program_id(0)
    batch, part = place // (heads * parts), place % (heads * parts)
    b, head_k = batch.to(tl.int64), part // parts
    k = head_of(k, b, head_k, 0, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, 0, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    k_n = read_rows(k, batch, head_k, 0, len_k, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    v_n = read_rows(v, batch, head_k, 0, len_k, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    offs_n = tl.arange(0, BLOCK_N)
    blocks, first = tl.cdiv(len_q, BLOCK_M), part % parts * steps
    for step in tl.range(first, tl.minimum(first + steps, group * blocks)):
        head, m = head_k * group + step // blocks, step % blocks * BLOCK_M
        q_m, dout_m, lse, delta = read_queries(
            q, dout, out, lse_ptr, dlse_ptr, batch, head, m, len_q, (stride_qb, stride_qh, stride_qs),
            (stride_gb, stride_gh, stride_gs), (stride_ob, stride_oh, stride_os), (stride_lb, stride_lh),
            HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS,
        )  # fmt: skip
        s = tl.dot(k_n, tl.trans(q_m), input_precision=PRECISION)
        seen = (offs_n < len_k)[:, None]
        if CAUSAL:
            seen = seen & (offs_n[:, None] <= (m + tl.arange(0, BLOCK_M))[None, :])
        p = tl.where(seen, tl.exp2(s * scale - lse[None, :]), 0.0)
        dq, dk, dv = gradients_of_block(p, k_n, v_n, q_m, dout_m, delta, dk, dv, PRECISION)
        dq_h = head_of(dq_ptr, b, head, 0, stride_dqb, stride_dqh, stride_dqs, False)
        write_rows(dq_h, dq * scale_out, m, len_q - m, stride_dqs, HEAD_DIM, BLOCK_M, BLOCK_D, ALIGNED)
    dk_ptr = head_of(dk_ptr, b, part, 0, stride_dkb, stride_dkh, stride_dks, False)
    dv_ptr = head_of(dv_ptr, b, part, 0, stride_dvb, stride_dvh, stride_dvs, False)
    write_rows(dk_ptr, dk * scale_out, 0, len_k, stride_dks, HEAD_DIM, BLOCK_N, BLOCK_D, ALIGNED)
    write_rows(dv_ptr, dv, 0, len_k, stride_dvs, HEAD_DIM, BLOCK_N, BLOCK_D, ALIGNED)


FEW = 128
"""The most keys of one block, and the largest head."""

ROWS = 64
"""Queries of a block.  With 32 Triton 3.6 wrote dQ wrong, or beyond the tensor (H200)."""


def backward_takes_few_keys(q, k):
    """Whether one block holds all keys, and a head."""
    return k.shape[2] <= FEW and q.shape[3] <= FEW


_ENTER, _ADD, _SUMS = 1.5, 0.7, 0.3
"""What a program costs beside its blocks, the kernel that adds sums up, and each round's sums, in blocks (H200)."""


def dealt_out(q, k, num_warps):
    """(parts, steps of each): of how many programs of so many warps each head of K is, which share its queries' blocks.

    The last one may have fewer.  Sums are worth what they let end sooner: 7 heads of 75 queries on each of 40 took 75
    us in 14 parts, five rounds of programs that had little to do but to write sums; three of five blocks are one round.
    """
    (batch, heads, len_q, _), heads_k = q.shape, k.shape[1]
    blocks = heads // heads_k * triton.cdiv(len_q, ROWS)
    return _dealt_out(batch * heads_k, blocks, gpu_of(q.device).sms * 8 // num_warps)


@functools.lru_cache(maxsize=1024)
def _dealt_out(places, all_steps, slots):
    """:func:`dealt_out` of so many heads of K, blocks of queries of each, and programs at a time."""

    def cost(steps):
        parts = triton.cdiv(all_steps, steps)
        rounds = triton.cdiv(places * parts, slots)
        return rounds * (_ENTER + steps) + (_ADD + rounds * _SUMS if parts > 1 else 0), parts

    most = min(all_steps, max(1, 2 * slots // places))  # parts: of more than two rounds none is sooner done
    steps = min({triton.cdiv(all_steps, parts) for parts in range(1, most + 1)}, key=cost)
    return triton.cdiv(all_steps, steps), steps


def few_keys_config(head_dim, len_k):
    """The fastest config on an H200."""
    config = {"BLOCK_N": 64 if len_k <= 64 else FEW}
    small = head_dim <= 64 and len_k <= 64
    return config | ({"num_warps": 4, "num_stages": 1} if small else {"num_warps": 8, "num_stages": 2})


def backward_few_keys(descriptors, q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """(dq, dk, dv) of at most 128 keys; the arguments are those of :func:`.backward.launch_backward`."""
    dq, *of_keys = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    (batch, heads, len_q, head_dim), (heads_k, len_k) = q.shape, k.shape[1:3]
    columns = config["BLOCK_N"]
    parts, steps = dealt_out(q, k, config["num_warps"])
    sums = of_keys if parts == 1 else sums_for(k, parts)
    q, k, v, dout, out = (as_interpreted(x) for x in (q, k, v, dout, out))
    read, descriptors = as_read((q, k, v, dout, out), (ROWS, columns, columns, ROWS, ROWS), descriptors)
    launch(
        _few_keys_kernel, (batch * heads_k * parts,),
        *read, lse, dlse, dq, *sums, scale / math.log(2), scale, heads_k, heads // heads_k, parts, steps, len_q, len_k,
        *itertools.chain.from_iterable(map(strides_of, (q, k, v, dout, out, dq, *sums))), *strides_of_lse(lse),
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_M=ROWS, BLOCK_D=block_d(head_dim), DESCRIPTORS=descriptors,
        PRECISION="ieee", ALIGNED=aligned_rows(dq, *of_keys), **config,
    )  # fmt: skip
    if parts > 1:
        add_parts(sums, of_keys, parts)
    return dq, *of_keys
