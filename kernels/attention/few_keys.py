"""The backward pass where all keys of a head are one block: dQ, dK and dV in one kernel, with nothing else in memory.

A program owns the keys of one head of K and goes through the queries of its group's heads.  As no other program has a
part of dQ, it is complete when it is computed: no sums of fp32, no second kernel, and D = sum(dout out) is computed
where dout is read anyhow.
"""

import itertools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from .blocks import LOG2E, as_read, block_d, head_of, read_rows, strides_of, strides_of_lse, write_rows


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _few_keys_kernel(
    q, k, v, dout, out, lse_ptr, dlse_ptr, dq_ptr, dk_ptr, dv_ptr, scale, scale_out, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_ob, stride_oh, stride_os, stride_dqb, stride_dqh, stride_dqs,
    stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs, stride_lb, stride_lh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``heads`` are those of K, of which each program owns one with its ``len_k`` keys, BLOCK_N at most."""
    batch, head_k = tl.program_id(0) // heads, tl.program_id(0) % heads
    b = batch.to(tl.int64)
    k = head_of(k, b, head_k, 0, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, 0, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    k_n = read_rows(k, batch, head_k, 0, len_k, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    v_n = read_rows(v, batch, head_k, 0, len_k, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    offs_n = tl.arange(0, BLOCK_N)
    blocks = tl.cdiv(len_q, BLOCK_M)
    for step in tl.range(0, blocks * group):
        head, m = head_k * group + step // blocks, step % blocks * BLOCK_M
        h = tl.cast(head, tl.int64)
        offs_m = m + tl.arange(0, BLOCK_M)
        q_h = head_of(q, b, head, 0, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
        dout_h = head_of(dout, b, head, 0, stride_gb, stride_gh, stride_gs, DESCRIPTORS)
        out_h = head_of(out, b, head, 0, stride_ob, stride_oh, stride_os, DESCRIPTORS)
        q_m = read_rows(q_h, batch, head, m, len_q - m, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
        dout_m = read_rows(dout_h, batch, head, m, len_q - m, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
        out_m = read_rows(out_h, batch, head, m, len_q - m, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
        statistic = b * stride_lb + h * stride_lh + offs_m
        lse = tl.load(lse_ptr + statistic, mask=offs_m < len_q, other=float("inf")) * LOG2E
        delta = tl.sum(out_m.to(tl.float32) * dout_m.to(tl.float32), axis=1)
        if dlse_ptr is not None:
            delta -= tl.load(dlse_ptr + statistic, mask=offs_m < len_q, other=0.0)
        s = tl.dot(k_n, tl.trans(q_m), input_precision=PRECISION)
        p = tl.exp2(s * scale - lse[None, :])
        seen = (offs_n < len_k)[:, None]
        if CAUSAL:
            seen = seen & (offs_n[:, None] <= offs_m[None, :])
        p = tl.where(seen, p, 0.0)
        dp = tl.dot(v_n, tl.trans(dout_m), input_precision=PRECISION)
        dv = tl.dot(p.to(dout_m.dtype), dout_m, dv, input_precision=PRECISION)
        ds = (p * (dp - delta[None, :])).to(q_m.dtype)
        dk = tl.dot(ds, q_m, dk, input_precision=PRECISION)
        dq = tl.trans(tl.dot(tl.trans(k_n), ds, input_precision=PRECISION))
        dq_h = head_of(dq_ptr, b, head, 0, stride_dqb, stride_dqh, stride_dqs, False)
        write_rows(dq_h, dq * scale_out, m, len_q - m, stride_dqs, HEAD_DIM, BLOCK_M, BLOCK_D)
    dk_ptr = head_of(dk_ptr, b, head_k, 0, stride_dkb, stride_dkh, stride_dks, False)
    dv_ptr = head_of(dv_ptr, b, head_k, 0, stride_dvb, stride_dvh, stride_dvs, False)
    write_rows(dk_ptr, dk * scale_out, 0, len_k, stride_dks, HEAD_DIM, BLOCK_N, BLOCK_D)
    write_rows(dv_ptr, dv, 0, len_k, stride_dvs, HEAD_DIM, BLOCK_N, BLOCK_D)


FEW = 128
"""The most keys of one block, and the largest head."""

ROWS = 64
"""Queries of a block.  With 32 Triton 3.6 wrote dQ wrong, or beyond the tensor (H200)."""


def backward_takes_few_keys(q, k):
    """Whether one block holds all keys, and programs, one for each head of K, are many or each is short."""
    (batch, heads, len_q, head_dim), (heads_k, len_k) = q.shape, k.shape[1:3]
    if len_k > FEW or head_dim > FEW:
        return False
    return 3 * batch * heads_k >= gpu_of(q.device).sms or heads // heads_k * triton.cdiv(len_q, ROWS) <= 8


def few_keys_config(head_dim, len_k):
    """The fastest config on an H200."""
    config = {"BLOCK_M": ROWS, "BLOCK_N": 64 if len_k <= 64 else FEW}
    small = head_dim <= 64 and len_k <= 64
    return config | ({"num_warps": 4, "num_stages": 1} if small else {"num_warps": 8, "num_stages": 2})


def backward_few_keys(descriptors, q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """(dq, dk, dv) of at most 128 keys; the arguments are those of :func:`.backward.launch_backward`."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    batch, heads, len_q, head_dim = q.shape
    heads_k, len_k = k.shape[1:3]
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    q, k, v, dout, out = (as_interpreted(x) for x in (q, k, v, dout, out))
    read, descriptors = as_read((q, k, v, dout, out), (rows, columns, columns, rows, rows), descriptors)
    launch(
        _few_keys_kernel, (batch * heads_k,),
        *read, lse, dlse, *gradients, scale / math.log(2), scale, heads_k, heads // heads_k, len_q, len_k,
        *itertools.chain.from_iterable(map(strides_of, (q, k, v, dout, out, *gradients))), *strides_of_lse(lse),
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_D=block_d(head_dim), DESCRIPTORS=descriptors, PRECISION="ieee",
        **config,
    )  # fmt: skip
    return gradients
