"""Attention: out = softmax(scale Q K^T) V for each head, without the matrix of scores in memory (flash attention).

With Q [b, h, l, d] and K, V [b, g, s, d] (head i of Q uses head i // (h / g) of K and V),

    S = scale Q K^T,    lse_i = log sum_j exp S_ij,    P_ij = exp(S_ij - lse_i),    out = P V

and with a causal mask S_ij = -inf where j > i.  A program owns a block of queries and goes through blocks of keys; of
each row it keeps the maximum m_i so far, the sum l_i of exp(S - m_i), and the sum of exp(S - m_i) V, and multiplies
both sums by exp(m_i - m_new) when the maximum grows.  Exponentials are exp2, log2(e) lies in the scale.

Backward computes P again from lse: with D_i = sum_d dout_id out_id (less the gradient of lse_i, where there is one),

    dV = P^T dout,    dS = P * (dout V^T - D),    dQ = scale dS K,    dK = scale dS^T Q

Forward takes 4 b h l s d operations, half of them under a causal mask; backward 2.5 times as many if each product is
computed once, as on Hopper (kernels.hopper.attention_backward), and 3.5 times elsewhere, where a kernel for dK, dV and
one for dQ both compute S and dout V^T: all sums are in registers and in a fixed order.  Q, K, V, out and the gradients
go through memory about once, so from some hundred tokens on tensor cores are the bound, and beside them the
exponentials, one for every 4 d operations.
"""

import functools
import itertools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    Declaration,
    Pass,
    Variant,
    case,
    choose,
    eager,
    gpu_of,
    gradients,
)
from atlas.declaration.products import as_interpreted
from atlas.operators import CustomOperator, Differentiable, autocast, autocasting, launch
from triton.tools.tensor_descriptor import TensorDescriptor

import kernels.hopper.attention_backward as hopper_backward
import kernels.hopper.attention_forward as hopper
from kernels._attention_cases import (
    _DTYPES,
    _EDGE_CASES,
    _HUGE_CASES,
    _LARGEST_HEAD,
    _NAMES,
    _backward_inputs,
    _by,
    _bytes,
    _cases,
    _inputs,
    _products,
    _reference,
    _reference_backward,
    _torch,
)
from kernels._attention_spaces import (
    _BACKWARD_SPACE,
    _FORWARD_SPACE,
    _HOPPER,
    _HOPPER_SPACE,
    _PART_CONFIG,
    _TMA,
    _backward_default,
    _block_d,
    _describes,
    _fits_backward,
    _fits_forward,
    _fits_hopper,
    _for_hopper,
    _for_hopper_backward,
    _forward_default,
    _hopper_default,
    _too_wide,
)

__all__ = ["attention_varlen", "attention_with_lse", "scaled_dot_product_attention"]

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32.  A running maximum starts here and not at -inf: exp2(-inf - LOWEST) is 0, while
exp2(-inf - -inf) would be NaN and spoil rows that merely begin with masked keys."""

LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))


@triton.jit
def _span(cu_ptr, batch, length):
    """(first row, rows) of a sequence: all of a tensor's, or as the cumulative lengths of a packed batch say."""
    if cu_ptr is None:
        first = 0
    else:
        first = tl.load(cu_ptr + batch)
        length = tl.load(cu_ptr + batch + 1) - first
    return first, length


@triton.jit
def _keys_of(first, len_k, shift, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(whole, end): each of BLOCK_M queries sees all keys before ``whole``, none sees one from ``end`` on.

    ``first`` is the block's first query, which sees the keys up to number ``first + shift`` under a causal mask.
    ``whole`` is a multiple of BLOCK_N: only the blocks between the two need masks, those on the diagonal and the tail.
    """
    end, seen_by_all = len_k, len_k
    if CAUSAL:
        end = tl.maximum(tl.minimum(len_k, first + BLOCK_M + shift), 0)
        seen_by_all = tl.maximum(tl.minimum(len_k, first + shift + 1), 0)
    return seen_by_all // BLOCK_N * BLOCK_N, end


@triton.jit
def _sees(first, n, len_k, shift, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which keys from ``n`` on each query from ``first`` on sees, [BLOCK_M, BLOCK_N] (or its columns alone)."""
    offs_n = n + tl.arange(0, BLOCK_N)[None, :]
    seen = offs_n < len_k
    if CAUSAL:
        seen = seen & (offs_n <= first + shift + tl.arange(0, BLOCK_M)[:, None])
    return seen


@triton.jit
def _rows_at(x_ptr, first, stride_xs, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Pointers to BLOCK rows from ``first`` on, [BLOCK, BLOCK_D]; the last dimension is contiguous."""
    offs = tl.arange(0, BLOCK)[:, None] * stride_xs + tl.arange(0, BLOCK_D)[None, :]
    return x_ptr + tl.cast(first, tl.int64) * stride_xs + offs


@triton.jit
def _read(
    x, batch, head, first, rows, stride_xs,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """BLOCK rows of a head from ``first`` on, [BLOCK, BLOCK_D], of which ``rows`` are there and HEAD_DIM columns.

    What is not there is 0 and adds nothing to a product; without MASKED all rows are there.  ``x`` is a descriptor of
    all heads, or a pointer to this one.
    """
    if DESCRIPTORS:
        block = x.load([batch, head, first, 0]).reshape(BLOCK, BLOCK_D)
    else:
        x_ptrs = _rows_at(x, first, stride_xs, BLOCK, BLOCK_D)
        mask_d = tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM
        if MASKED:
            block = tl.load(x_ptrs, mask=(tl.arange(0, BLOCK)[:, None] < rows) & mask_d, other=0.0)
        elif HEAD_DIM < BLOCK_D:
            block = tl.load(x_ptrs, mask=mask_d, other=0.0)
        else:
            block = tl.load(x_ptrs)
    return block


@triton.jit
def _write(x_ptr, x, first, rows, stride_xs, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """BLOCK rows of a head from ``first`` on, as far as they are there; rounded to the output's dtype."""
    mask = (tl.arange(0, BLOCK)[:, None] < rows) & (tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM)
    x_ptrs = _rows_at(x_ptr, first, stride_xs, BLOCK, BLOCK_D)
    tl.store(x_ptrs, x.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _head_of(x, batch, head, first, stride_xb, stride_xh, stride_xs, DESCRIPTORS: tl.constexpr):
    """What ``_read`` takes for a head: the descriptor, or a pointer to the sequence's first row."""
    if not DESCRIPTORS:
        x += batch * stride_xb + tl.cast(head, tl.int64) * stride_xh + tl.cast(first, tl.int64) * stride_xs
    return x


@triton.jit
def _place(blocks, heads, REVERSED: tl.constexpr):
    """(batch, head, block) of a program; blocks of a head run together, since they read the same keys.

    Under a causal mask the last block of queries is the longest: it goes first, or SMs would wait for it in the end.
    """
    pid = tl.program_id(0)
    block = pid % blocks
    if REVERSED:
        block = blocks - 1 - block
    return pid // blocks // heads, pid // blocks % heads, block


@triton.jit
def _attend(
    acc, l_i, m_i, q, k, v, batch, head, first, start, whole, end, len_k, shift, scale, stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, MASKED: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(acc, l_i, m_i) of queries from ``first`` on after the keys from ``start``, a multiple of BLOCK_N, to ``end``.

    With MASKED from ``whole`` on as many keys as each sees.
    """
    for n in tl.range(start, end, BLOCK_N):
        k_n = _read(k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        s = tl.dot(q, tl.trans(k_n), input_precision=PRECISION)
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:  # -inf is the identity of the maximum and becomes 0, the identity of the sums
                s = tl.where(_sees(first, n, len_k, shift, CAUSAL, BLOCK_M, BLOCK_N), s, -float("inf"))
        v_n = _read(v, batch, head, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s * scale - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v_n.dtype), v_n, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _forward_kernel(
    q, k, v, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, scale, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os, stride_lb, stride_lh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, EVEN: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head.  ``scale`` has log2(e) in it; EVEN: no block of keys needs a mask.

    With ``cu_q_ptr`` and ``cu_k_ptr`` sequences lie behind one another, len_q is the longest length, and a causal mask
    lets the last query of a sequence see its last key.
    """
    batch, head, block = _place(tl.cdiv(len_q, BLOCK_M), heads, CAUSAL)
    first_q, rows_q = _span(cu_q_ptr, batch, len_q)
    first_k, rows_k = _span(cu_k_ptr, batch, len_k)
    shift = 0 if cu_q_ptr is None else rows_k - rows_q
    first, head_k = block * BLOCK_M, head // group
    if first >= rows_q:
        return
    b = batch.to(tl.int64)
    q = _head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
    k = _head_of(k, b, head_k, first_k, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = _head_of(v, b, head_k, first_k, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    q_m = _read(q, batch, head, first, rows_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    whole, end = _keys_of(first, rows_k, shift, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), LOWEST, tl.float32)
    start = 0
    if EVEN or not DESCRIPTORS:  # loads through pointers have masks of their own: two loops
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q_m, k, v, batch, head_k, first, 0, whole, whole, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, False, DESCRIPTORS, PRECISION,
        )  # fmt: skip
        start = whole
    if not EVEN:
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q_m, k, v, batch, head_k, first, start, whole, end, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, True, DESCRIPTORS, PRECISION,
        )  # fmt: skip
    lse_ptr += b * stride_lb + tl.cast(head, tl.int64) * stride_lh + first_q
    offs_m = first + tl.arange(0, BLOCK_M)
    tl.store(lse_ptr + offs_m, (m_i + tl.log2(l_i)) * LN2, mask=offs_m < rows_q)
    out_ptr = _head_of(out_ptr, b, head, first_q, stride_ob, stride_oh, stride_os, False)
    out = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]  # 0 for a query that sees no key
    _write(out_ptr, out, first, rows_q - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D)


@triton.jit(do_not_specialize=["heads", "len_q"])
def _statistics_kernel(
    out_ptr, dout_ptr, lse_ptr, dlse_ptr, stats_ptr, turns_ptr, cu_q_ptr, heads, len_q,
    stride_ob, stride_oh, stride_os, stride_gb, stride_gh, stride_gs, stride_lb, stride_lh,
    stride_part, stride_sb, stride_sh,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PADDED: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head: log2(e) lse, and D = sum(dout out) less the gradient of lse.

    Behind the last query, up to a multiple of PADDED, they are inf and 0, which make P and dS 0 there.  With
    ``turns_ptr`` also TURNS zeros for each program.
    """
    batch, head, block = _place(tl.cdiv(len_q, PADDED) * (PADDED // BLOCK_M), heads, False)
    first_q, rows = _span(cu_q_ptr, batch, len_q)
    first = block * BLOCK_M
    b, h = batch.to(tl.int64), tl.cast(head, tl.int64)
    out_ptr = _head_of(out_ptr, b, h, first_q, stride_ob, stride_oh, stride_os, False)
    dout_ptr = _head_of(dout_ptr, b, h, first_q, stride_gb, stride_gh, stride_gs, False)
    out = _read(out_ptr, 0, 0, first, rows - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D, True, False)
    dout = _read(dout_ptr, 0, 0, first, rows - first, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, True, False)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    offs_m = first + tl.arange(0, BLOCK_M)
    statistic = b * stride_lb + h * stride_lh + first_q + offs_m
    lse = tl.load(lse_ptr + statistic, mask=offs_m < rows, other=float("inf")) * LOG2E
    if dlse_ptr is not None:
        delta -= tl.load(dlse_ptr + statistic, mask=offs_m < rows, other=0.0)
    stats_ptr += b * stride_sb + h * stride_sh + offs_m
    tl.store(stats_ptr, lse)
    tl.store(stats_ptr + stride_part, delta)
    if turns_ptr is not None:
        tl.store(turns_ptr + tl.program_id(0) * TURNS + tl.arange(0, TURNS), 0)


@triton.jit
def _gather_keys(
    dk, dv, k_n, v_n, q, dout, stats_ptr, batch, head, first, start, whole, end, len_q, shift, scale,
    stride_qs, stride_gs, stride_part, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TAIL: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(dk, dv) of BLOCK_N keys after the queries from ``start``, a multiple of BLOCK_M, to ``end``; dk not yet scaled.

    With CAUSAL queries before ``whole`` do not see all keys.  Scores are computed as K Q^T, so that P^T and dS^T are in
    registers as the products of dV and dK take them.
    """
    for m in tl.range(start, end, BLOCK_M):
        offs_m = m + tl.arange(0, BLOCK_M)
        q_m = _read(q, batch, head, m, len_q - m, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, TAIL, DESCRIPTORS)
        s = tl.dot(k_n, tl.trans(q_m), input_precision=PRECISION)
        lse = tl.load(stats_ptr + offs_m)
        p = tl.exp2(s * scale - lse[None, :])
        if CAUSAL:  # noqa: SIM102
            if m < whole:
                offs_n = first + tl.arange(0, BLOCK_N)
                p = tl.where(offs_n[:, None] <= (offs_m + shift)[None, :], p, 0.0)
        dout_m = _read(dout, batch, head, m, len_q - m, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, TAIL, DESCRIPTORS)
        dp = tl.dot(v_n, tl.trans(dout_m), input_precision=PRECISION)
        dv = tl.dot(p.to(dout_m.dtype), dout_m, dv, input_precision=PRECISION)
        delta = tl.load(stats_ptr + stride_part + offs_m)
        ds = (p * (dp - delta[None, :])).to(q_m.dtype)
        dk = tl.dot(ds, q_m, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _keys_kernel(
    q, k, v, dout, stats_ptr, dk_ptr, dv_ptr, cu_q_ptr, cu_k_ptr, scale, scale_out, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs,
    stride_part, stride_sb, stride_sh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, TAIL: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV: one program owns BLOCK_N keys of one head of K and goes through the queries of its group's heads.

    TAIL: the last block of queries is not full.  ``heads`` are those of K.
    """
    batch, head_k, block = _place(tl.cdiv(len_k, BLOCK_N), heads, False)
    first_q, rows_q = _span(cu_q_ptr, batch, len_q)
    first_k, rows_k = _span(cu_k_ptr, batch, len_k)
    shift = 0 if cu_q_ptr is None else rows_k - rows_q
    first = block * BLOCK_N
    if first >= rows_k:
        return
    b = batch.to(tl.int64)
    k = _head_of(k, b, head_k, first_k, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = _head_of(v, b, head_k, first_k, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    k_n = _read(k, batch, head_k, first, rows_k - first, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    v_n = _read(v, batch, head_k, first, rows_k - first, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    start, whole = 0, 0
    if CAUSAL:  # the first query that sees a key of the block; the first from which on all see all
        start = tl.maximum(first - shift, 0) // BLOCK_M * BLOCK_M
        whole = tl.cdiv(tl.maximum(first + BLOCK_N - 1 - shift, 0), BLOCK_M) * BLOCK_M
        whole = tl.minimum(whole, tl.cdiv(rows_q, BLOCK_M) * BLOCK_M)
    for member in tl.range(0, group, num_stages=1):
        head = head_k * group + member
        q_h = _head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
        dout_h = _head_of(dout, b, head, first_q, stride_gb, stride_gh, stride_gs, DESCRIPTORS)
        stats_h = stats_ptr + b * stride_sb + tl.cast(head, tl.int64) * stride_sh
        dk, dv = _gather_keys(
            dk, dv, k_n, v_n, q_h, dout_h, stats_h, batch, head, first, start, whole, rows_q, rows_q, shift, scale,
            stride_qs, stride_gs, stride_part, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, TAIL, DESCRIPTORS,
            PRECISION,
        )  # fmt: skip
    dk_ptr = _head_of(dk_ptr, b, head_k, first_k, stride_dkb, stride_dkh, stride_dks, False)
    dv_ptr = _head_of(dv_ptr, b, head_k, first_k, stride_dvb, stride_dvh, stride_dvs, False)
    _write(dk_ptr, dk * scale_out, first, rows_k - first, stride_dks, HEAD_DIM, BLOCK_N, BLOCK_D)
    _write(dv_ptr, dv, first, rows_k - first, stride_dvs, HEAD_DIM, BLOCK_N, BLOCK_D)


@triton.jit
def _gather_queries(
    dq, q_m, dout_m, lse, delta, k, v, batch, head, first, start, whole, end, len_k, shift, scale,
    stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, MASKED: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries, without the scale, after the keys from ``start`` to ``end``; masks as in ``_attend``."""
    for n in tl.range(start, end, BLOCK_N):
        k_n = _read(k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        s = tl.dot(q_m, tl.trans(k_n), input_precision=PRECISION)
        v_n = _read(v, batch, head, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        dp = tl.dot(dout_m, tl.trans(v_n), input_precision=PRECISION)
        p = tl.exp2(s * scale - lse[:, None])
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:
                p = tl.where(_sees(first, n, len_k, shift, CAUSAL, BLOCK_M, BLOCK_N), p, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k_n.dtype), k_n, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _queries_kernel(
    q, k, v, dout, stats_ptr, dq_ptr, cu_q_ptr, cu_k_ptr, scale, scale_out, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dqb, stride_dqh, stride_dqs, stride_part, stride_sb, stride_sh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, EVEN: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ: one program owns BLOCK_M queries of one head, as in the forward pass."""
    batch, head, block = _place(tl.cdiv(len_q, BLOCK_M), heads, CAUSAL)
    first_q, rows_q = _span(cu_q_ptr, batch, len_q)
    first_k, rows_k = _span(cu_k_ptr, batch, len_k)
    shift = 0 if cu_q_ptr is None else rows_k - rows_q
    first, head_k = block * BLOCK_M, head // group
    if first >= rows_q:
        return
    b = batch.to(tl.int64)
    q = _head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
    dout = _head_of(dout, b, head, first_q, stride_gb, stride_gh, stride_gs, DESCRIPTORS)
    k = _head_of(k, b, head_k, first_k, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = _head_of(v, b, head_k, first_k, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    q_m = _read(q, batch, head, first, rows_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    dout_m = _read(dout, batch, head, first, rows_q - first, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    offs_m = first + tl.arange(0, BLOCK_M)
    stats_ptr += b * stride_sb + tl.cast(head, tl.int64) * stride_sh
    lse = tl.load(stats_ptr + offs_m)
    delta = tl.load(stats_ptr + stride_part + offs_m)
    whole, end = _keys_of(first, rows_k, shift, CAUSAL, BLOCK_M, BLOCK_N)
    if EVEN:  # or ptxas puts each wgmma on its own, for it does not see that the loop begins
        tl.assume(whole > 0)
    elif cu_q_ptr is None:
        tl.assume(end > 0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    start = 0
    if EVEN or not DESCRIPTORS:
        dq = _gather_queries(
            dq, q_m, dout_m, lse, delta, k, v, batch, head_k, first, 0, whole, whole, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, False, DESCRIPTORS, PRECISION,
        )  # fmt: skip
        start = whole
    if not EVEN:
        dq = _gather_queries(
            dq, q_m, dout_m, lse, delta, k, v, batch, head_k, first, start, whole, end, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, True, DESCRIPTORS, PRECISION,
        )  # fmt: skip
    dq_ptr = _head_of(dq_ptr, b, head, first_q, stride_dqb, stride_dqh, stride_dqs, False)
    _write(dq_ptr, dq * scale_out, first, rows_q - first, stride_dqs, HEAD_DIM, BLOCK_M, BLOCK_D)


def _strides(x):
    """Of batch, head and row; a packed tensor (rows, heads, head_dim) has none of batch."""
    return x.stride()[:3] if x.dim() == 4 else (0, x.stride(1), x.stride(0))


def _lse_strides(lse):
    """Of batch and head; that of a packed batch is (heads, rows)."""
    return lse.stride()[:2] if lse.dim() == 3 else (0, lse.stride(0))


def _described(x, rows):
    """A descriptor of blocks of ``rows`` rows of a head; a dimension of one element may have any stride."""
    strides = [x.shape[-1] if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    strides[-1] = 1
    return TensorDescriptor(x, list(x.shape), strides, [1, 1, rows, _block_d(x.shape[-1])])


def _describable(x):
    """Whether the copy engine can read a tensor: rows and heads of whole 16 bytes that begin on 16 bytes."""
    size = x.element_size()
    for length, stride in zip(x.shape[:3], x.stride()[:3], strict=True):
        if length > 1 and (stride <= 0 or stride * size % 16):
            return False
    return x.shape[-1] * size % 16 == 0 and x.data_ptr() % 16 == 0


def _readable(tensors, rows, descriptors):
    """(what kernels read, whether they are descriptors): of blocks of so many rows each, where they can be."""
    if descriptors and all(map(_describable, tensors)):
        return [_described(x, block) for x, block in zip(tensors, rows, strict=True)], True
    return list(tensors), False


def _launch_forward(descriptors, q, k, v, causal, scale, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d]; out lies in memory as q does, as far as q leaves no gaps."""
    # The interpreter truncates to bf16, which the backward pass would show: it writes fp32, and torch rounds.
    out = as_interpreted(torch.empty_like(q))
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    _into_forward(descriptors, q, k, v, out, lse, None, None, lengths, causal, scale, config)
    return out.to(q.dtype), lse


def _into_forward(descriptors, q, k, v, out, lse, cu_q, cu_k, lengths, causal, scale, config):
    """``lengths`` are the number of sequences, and the longest of queries and of keys."""
    batch, len_q, len_k = lengths
    (heads, head_dim), heads_k = (q.shape[1], q.shape[-1]), k.shape[1]
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    q, k, v = (as_interpreted(x) for x in (q, k, v))  # before their strides are taken: a copy leaves no gaps
    read, descriptors = _readable((q, k, v), (rows, columns, columns), descriptors)
    launch(
        _forward_kernel, (batch * heads * triton.cdiv(len_q, rows),),
        *read, out, lse, cu_q, cu_k, scale / math.log(2), heads, heads // heads_k, len_q, len_k,
        *_strides(q), *_strides(k), *_strides(v), *_strides(out), *_lse_strides(lse),
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_D=_block_d(head_dim),
        EVEN=cu_q is None and not causal and len_k % columns == 0, DESCRIPTORS=descriptors, PRECISION="ieee", **config,
    )  # fmt: skip


def _launch_hopper(q, k, v, causal, scale, *, config):
    """:func:`_launch_forward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    if all(map(_describable, (q, k, v))):
        return hopper.forward(q, k, v, causal, scale, config=config)
    plain = _forward_default(_case_of(q, k, causal), gpu_of(q.device), pointers=True)
    return _launch_forward(False, q, k, v, causal, scale, config=plain)


def _launch_backward(descriptors, q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """(dq, dk, dv), which lie in memory as q, k and v do."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    saved = q, k, v, out, lse, dout, dlse
    _into_backward(descriptors, saved, gradients, None, None, lengths, causal, scale, config)
    return gradients


def _launch_hopper_backward(q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """:func:`_launch_backward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if not all(map(_describable, (q, k, v, dout, *gradients[1:]))):
        plain = _backward_default(_case_of(q, k, causal), gpu_of(q.device), pointers=True)
        return _launch_backward(False, q, k, v, out, lse, dout, dlse, causal, scale, config=plain)
    blocks = q.shape[0] * q.shape[1] * _padded(q.shape[2]) // hopper_backward.ROWS
    turns = torch.empty(blocks, dtype=torch.int32, device=q.device)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    stats = _launch_statistics((q, k, v, out, lse, dout, dlse), turns, None, lengths)
    hopper_backward.backward(q, k, v, dout, stats, turns, gradients, causal, scale, config=config)
    return gradients


def _into_backward(descriptors, saved, gradients, cu_q, cu_k, lengths, causal, scale, config):
    """``saved`` are q, k, v, out, lse, dout and dlse, which may be None; ``gradients`` dq, dk and dv."""
    q, k, v, _, _, dout, _ = saved
    given = (q, k, v, dout, _launch_statistics(saved, None, cu_q, lengths))
    for part, written in (("KEYS", gradients[1:]), ("QUERIES", gradients[:1])):
        _launch_part(part, descriptors, given, written, cu_q, cu_k, lengths, causal, scale, config)


def _launch_statistics(saved, turns, cu_q, lengths):
    """[2, b, h, padded]: of each query log2(e) lse, and D; ``turns``, if given, become 0."""
    q, _, _, out, lse, dout, dlse = saved
    batch, len_q, _ = lengths
    padded = _padded(len_q)
    stats = torch.empty((2, batch, q.shape[1], padded), dtype=torch.float32, device=q.device)
    programs = batch * q.shape[1] * padded // 64
    launch(
        _statistics_kernel, (programs,),
        out, dout, lse, dlse, stats, turns, cu_q, q.shape[1], len_q,
        *_strides(out), *_strides(dout), *_lse_strides(lse), *stats.stride()[:3],
        HEAD_DIM=q.shape[-1], BLOCK_M=64, BLOCK_D=_block_d(q.shape[-1]),
        PADDED=_STATISTICS, TURNS=1 if turns is None else turns.numel() // programs, num_warps=8,
    )  # fmt: skip
    return stats


def _padded(len_q):
    return triton.cdiv(len_q, _STATISTICS) * _STATISTICS


_STATISTICS = 128
"""Queries for whose whole blocks there are statistics: a multiple of any kernel's block of queries."""


def _launch_part(part, descriptors, given, gradients, cu_q, cu_k, lengths, causal, scale, config):
    """One of backward's kernels: ``part`` is what a program of it owns, ``gradients`` are what it writes."""
    q, k, v, dout, stats = given
    batch, len_q, len_k = lengths
    heads, heads_k, head_dim = q.shape[1], k.shape[1], q.shape[-1]
    rows, columns, warps, stages = (config[f"{part}_{name}"] for name in _PART_CONFIG)
    q, k, v, dout = (as_interpreted(x) for x in (q, k, v, dout))
    read, descriptors = _readable((q, k, v, dout), (rows, columns, columns, rows), descriptors)
    if part == "KEYS":
        kernel, owners, blocks = _keys_kernel, heads_k, triton.cdiv(len_k, columns)
        special = {"TAIL": cu_q is not None or len_q % rows != 0}
    else:
        kernel, owners, blocks = _queries_kernel, heads, triton.cdiv(len_q, rows)
        special = {"EVEN": cu_q is None and not causal and len_k % columns == 0}
    launch(
        kernel, (batch * owners * blocks,),
        *read, stats, *gradients, cu_q, cu_k, scale / math.log(2), scale, owners, heads // heads_k, len_q, len_k,
        *itertools.chain.from_iterable(map(_strides, (q, k, v, dout, *gradients))), *stats.stride()[:3],
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_M=rows, BLOCK_N=columns, BLOCK_D=_block_d(head_dim), **special,
        DESCRIPTORS=descriptors, PRECISION="ieee", num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _run_forward(q, k, v, causal, scale):
    variant, config = choose(DECLARATION, "forward", _case_of(q, k, causal), q.device)
    return variant.launch(q, k, v, causal, scale, config=config)


def _run_backward(q, k, v, out, lse, dout, dlse, causal, scale):
    variant, config = choose(DECLARATION, "backward", _case_of(q, k, causal), q.device)
    return variant.launch(q, k, v, out, lse, dout, dlse, causal, scale, config=config)


def _run_varlen(q, k, v, cu_q, cu_k, max_q, max_k, causal, scale):
    out = as_interpreted(torch.empty_like(q))
    lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
    config = _packed_config("forward", q, k, cu_q, max_q, max_k, causal)
    lengths = cu_q.shape[0] - 1, max_q, max_k
    _into_forward(False, q, k, v, out, lse, cu_q, cu_k, lengths, causal, scale, config)
    return out.to(q.dtype), lse


def _run_varlen_backward(q, k, v, out, lse, dout, dlse, cu_q, cu_k, max_q, max_k, causal, scale):
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    config = _packed_config("backward", q, k, cu_q, max_q, max_k, causal)
    lengths, saved = (cu_q.shape[0] - 1, max_q, max_k), (q, k, v, out, lse, dout, dlse)
    _into_backward(False, saved, gradients, cu_q, cu_k, lengths, causal, scale, config)
    return gradients


def _packed_config(direction, q, k, cu_q, max_q, max_k, causal):
    """The untuned config of the variant that reads through pointers, for as many sequences of the longest length."""
    sizes = {"b": cu_q.shape[0] - 1, "h": q.shape[1], "g": k.shape[1], "l": max_q, "s": max_k, "d": q.shape[-1]}
    problem = case(_NAMES[q.dtype], **sizes, causal=causal)
    return DECLARATION.passes[direction].variant("tiled").default(problem, gpu_of(q.device))


def _case_of(q, k, causal):
    b, h, length, d = q.shape
    sizes = {"b": b, "h": h, "g": k.shape[1], "l": length, "s": k.shape[2], "d": d}
    return case(_NAMES[q.dtype], **sizes, causal=causal)


def _fake_forward(q, k, v, causal, scale):
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _fake_varlen(q, k, v, cu_q, cu_k, max_q, max_k, causal, scale):
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _fake_backward(q, k, v, *others):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup(ctx, inputs, output):
    q, k, v, *ctx.parameters = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _setup_varlen(ctx, inputs, output):
    q, k, v, cu_q, cu_k, *ctx.parameters = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k)
    ctx.set_materialize_grads(False)


def _incoming(out, dout, dlse):
    """Gradients of out and lse as kernels take them; either may be None."""
    dout = torch.zeros_like(out) if dout is None else _rows_contiguous(dout)
    return dout, None if dlse is None else dlse.contiguous()


class _Once(torch.autograd.Function):
    """Gradients as they are, which hang on q, k and v in a way that nobody computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, *gradients):
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            "attention has no second derivatives, and none in forward mode: use torch's scaled_dot_product_attention "
            "under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        )


def _once(saved, gradients):
    """The gradients; with create_graph=True as an error to whoever differentiates them, not as constants."""
    return _Once.apply(*saved[:3], *gradients) if torch.is_grad_enabled() else gradients


def _pull_back(ctx, dout, dlse):
    if dout is None and dlse is None:
        return (None,) * 5
    saved = ctx.saved_tensors
    gradients = _backward(*saved, *_incoming(saved[3], dout, dlse), *ctx.parameters)
    return *_once(saved, gradients), None, None


def _pull_back_varlen(ctx, dout, dlse):
    if dout is None and dlse is None:
        return (None,) * 9
    *saved, cu_q, cu_k = ctx.saved_tensors
    gradients = _varlen_backward(*saved, *_incoming(saved[3], dout, dlse), cu_q, cu_k, *ctx.parameters)
    return *_once(saved, gradients), *(None,) * 6


_backward = CustomOperator(
    "attention_backward",
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, bool causal, float scale)"
    " -> (Tensor, Tensor, Tensor)",
    run=_run_backward,
    fake=_fake_backward,
)
_varlen_backward = CustomOperator(
    "attention_varlen_backward",
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, Tensor cu_q, Tensor cu_k, "
    "int max_q, int max_k, bool causal, float scale) -> (Tensor, Tensor, Tensor)",
    run=_run_varlen_backward,
    fake=_fake_backward,
)
_forward = CustomOperator(
    "attention_forward",
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)",
    run=_run_forward,
    fake=_fake_forward,
)
_varlen_forward = CustomOperator(
    "attention_varlen_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_k, int max_q, int max_k, bool causal, float scale)"
    " -> (Tensor, Tensor)",
    run=_run_varlen,
    fake=_fake_varlen,
)
_attention = Differentiable(_forward, setup_context=_setup, backward=_pull_back)
_attention_varlen = Differentiable(_varlen_forward, setup_context=_setup_varlen, backward=_pull_back_varlen)


def _rows_contiguous(x):
    """The tensor, copied if the elements of a head do not lie side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _checked(name, query, key, value, dims, layout, heads_at, grouped):
    """The three tensors as kernels take them; raises for what is not supported."""
    if autocasting():
        query, key, value = autocast("scaled_dot_product_attention", query, key, value)
    if query.dtype not in _NAMES or key.dtype is not query.dtype or value.dtype is not query.dtype:
        raise TypeError(
            f"{name} takes tensors of one dtype out of {', '.join(_DTYPES)}: {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if not query.dim() == key.dim() == value.dim() == dims:
        raise NotImplementedError(
            f"{name} takes tensors of {dims} dimensions, {layout}: {tuple(query.shape)}, {tuple(key.shape)}, "
            f"{tuple(value.shape)}; reshape them, or use torch"
        )
    if query.device != key.device or query.device != value.device:
        raise ValueError(f"{name} takes tensors of one device: {query.device}, {key.device}, {value.device}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"{name}: shapes do not agree: {shapes}")
    if value.shape[-1] != key.shape[-1] or query.shape[-1] > _LARGEST_HEAD:
        raise NotImplementedError(
            f"{name} takes heads of one size up to {_LARGEST_HEAD} for query, key and value: {shapes}; use torch, or "
            "pad the smaller one with zeros"
        )
    heads, heads_k = query.shape[heads_at], key.shape[heads_at]
    if heads != heads_k and not (grouped and heads_k and heads % heads_k == 0):
        raise ValueError(
            f"{name} takes as many heads of key and value as of query, or with enable_gqa=True a number that divides "
            f"them: {shapes}"
        )
    return _rows_contiguous(query), _rows_contiguous(key), _rows_contiguous(value)


def _scaled(query, scale):
    """(query, scale > 0) of the same scores: rows' maxima are taken before scores are scaled."""
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if 0 < scale < math.inf:
        return query, scale
    if -math.inf < scale < 0:
        return -query, -scale
    return query * scale, 1.0  # 0, infinite, or NaN: scores are what the product of the two is


def _one_wide(*heads):
    """Heads of no elements as such of one, 0: their scores are all 0, and kernels take them."""
    return (torch.nn.functional.pad(x, (0, 1)) for x in heads)


def attention_with_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of :func:`scaled_dot_product_attention`: lse [batch, heads, length] is each query's log-sum-exp.

    lse is fp32, the natural logarithm of the sum of exp(scale query @ key) over the keys that a query sees, -inf where
    it sees none.  Both outputs have gradients, so results on parts of the keys can be merged.
    """
    layout = "(batch, heads, length, head_dim)"
    query, key, value = _checked("attention", query, key, value, 4, layout, 1, enable_gqa)
    if query.shape[0] != key.shape[0]:
        raise ValueError(f"attention takes one batch for all: {tuple(query.shape)}, {tuple(key.shape)}")
    if not query.shape[-1]:
        out, lse = attention_with_lse(*_one_wide(query, key, value), is_causal, 1.0, enable_gqa)
        return out[..., :0], lse
    query, scale = _scaled(query, scale)
    if not (query.numel() and key.numel()):
        return _empty(query, key, value, query.shape[:3])
    return _attention(query, key, value, is_causal, scale)


def _empty(query, key, value, rows):
    """Attention to nothing, or of nothing: 0 and -inf, with gradients of 0, whatever the inputs hold."""
    never = torch.zeros((), dtype=torch.bool, device=query.device)
    out = torch.where(never, query, 0.0) + torch.where(never, key.sum() + value.sum(), 0.0)
    return out, torch.full(rows, -math.inf, dtype=torch.float32, device=query.device)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` of query [batch, heads, length, head_dim].

    ``is_causal`` lets query i see the keys 0 … i, as torch's does also where the lengths differ.  key and value are
    [batch, heads, length of its own, head_dim], with ``enable_gqa`` of fewer heads, which then serve groups of
    neighbouring heads of query.  head_dim is at most 256, dtypes are fp32 (multiplied in IEEE precision), fp16 and
    bf16; softmax and sums are fp32.  Strides may be any as long as the elements of a head lie side by side, else the
    tensor is copied.  Gradients are the same at every run.  There are no second derivatives.

    Raises NotImplementedError for ``attn_mask``, ``dropout_p``, other numbers of dimensions, larger heads, and heads of
    value of another size; TypeError for other dtypes, ValueError for shapes that do not agree.
    """
    if attn_mask is not None:
        raise NotImplementedError(
            "attn_mask is not supported: use is_causal, attention_varlen for sequences of different lengths, or "
            "torch's scaled_dot_product_attention or flex_attention"
        )
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p={dropout_p} is not supported: use torch's scaled_dot_product_attention, or 0.0 and dropout of "
            "the output (kernels.dropout)"
        )
    return attention_with_lse(query, key, value, is_causal, scale, enable_gqa)[0]


def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of sequences of different lengths that lie behind one another, as in flash attention's varlen.

    query is [all queries, heads, head_dim], key and value [all keys, heads that divide those of query, head_dim].
    Sequence i has the rows cu_seqlens[i] … cu_seqlens[i + 1] - 1; both are int32 on the tensors' device, from 0 to all
    rows, and are not looked at by the host, nor is it checked that ``max_q`` and ``max_k`` are the longest lengths:
    queries past ``max_q`` of a sequence are not written.  lse is [heads, all queries].

    ``is_causal`` lets a sequence's last query see its last key (bottom right), unlike scaled_dot_product_attention: the
    queries are the end of what the keys are.  A query that sees no key gets 0, and an lse of -inf.
    """
    layout = "(rows, heads, head_dim)"
    query, key, value = _checked("attention_varlen", query, key, value, 3, layout, 1, True)
    for cu_seqlens in (cu_seqlens_q, cu_seqlens_k):
        if cu_seqlens.dtype is not torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.device != query.device:
            raise TypeError(
                f"attention_varlen takes cumulative lengths as int32 vectors on {query.device}: {cu_seqlens.dtype} "
                f"{tuple(cu_seqlens.shape)} on {cu_seqlens.device}"
            )
    if cu_seqlens_q.shape != cu_seqlens_k.shape or not cu_seqlens_q.numel():
        raise ValueError(
            f"attention_varlen takes one more cumulative length than sequences, of queries as of keys: "
            f"{cu_seqlens_q.numel()}, {cu_seqlens_k.numel()}"
        )
    if not query.shape[-1]:
        wide = _one_wide(query, key, value)
        out, lse = attention_varlen(*wide, cu_seqlens_q, cu_seqlens_k, max_q, max_k, is_causal, 1.0)
        return out[..., :0], lse
    query, scale = _scaled(query, scale)
    if not (query.numel() and key.numel() and max_q > 0 and max_k > 0 and cu_seqlens_q.numel() > 1):
        return _empty(query, key, value, (query.shape[1], query.shape[0]))
    cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    return _attention_varlen(query, key, value, cu_seqlens_q, cu_seqlens_k, max_q, max_k, is_causal, scale)


DECLARATION = Declaration(
    name="attention",
    family="attention",
    summary="out = softmax(scale Q K^T) V by heads, causal or not, with log-sum-exp",
    function=scaled_dot_product_attention,
    call=lambda function, inputs: function(
        inputs["q"],
        inputs["k"],
        inputs["v"],
        is_causal=inputs["causal"],
        scale=inputs["scale"],
        enable_gqa=True,
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("q", "k", "v"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "lse"),
        offset_inputs=("v",),
        variants=(
            Variant(
                name="gluon",
                summary="a warp that loads and groups of warps that multiply; softmax under products (Hopper alone)",
                launch=_launch_hopper,
                space=_HOPPER_SPACE,
                default=_hopper_default,
                fits=_fits_hopper,
                handles=functools.partial(_for_hopper, hopper.HEADS),
                needs=_HOPPER,
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the blocks of `tiled`, moved by the copy engine (TMA) through descriptors",
                follows="tiled",
                launch=functools.partial(_launch_forward, True),
                space=_FORWARD_SPACE,
                default=_forward_default,
                fits=_fits_forward,
                handles=_describes,
                needs=_TMA,
            ),
            Variant(
                name="tiled",
                summary="a block of queries a program; keys and values through pointers, masks on the diagonal alone",
                launch=functools.partial(_launch_forward, False),
                space=_FORWARD_SPACE,
                default=functools.partial(_forward_default, pointers=True),
                fits=functools.partial(_fits_forward, pointers=True),
            ),
        ),
        peers={
            "torch": eager(_torch),
            "cudnn": eager(_by("CUDNN_ATTENTION")),
            "flash": eager(_by("FLASH_ATTENTION")),
        },
        bytes=_bytes("q out", "k v"),
        flops=_products("Q K^T", "P V"),
        reduction=lambda c: c["d"] + c["s"],  # scores are sums of d terms
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_reference_backward,
        outputs=("dq", "dk", "dv"),
        variants=(
            Variant(
                name="gluon",
                summary="one kernel: each product once, dQ added up in memory in a fixed order (Hopper alone)",
                launch=_launch_hopper_backward,
                space={"EVEN": (True, False)},
                default=lambda problem, gpu: {"EVEN": True},
                handles=_for_hopper_backward,
                needs=_HOPPER,
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the kernels of `tiled`, blocks moved by the copy engine (TMA)",
                follows="tiled",
                launch=functools.partial(_launch_backward, True),
                space=_BACKWARD_SPACE,
                default=_backward_default,
                fits=_fits_backward,
                handles=_describes,
                needs=_TMA,
            ),
            Variant(
                name="tiled",
                summary="a kernel for dK and dV, and one for dQ that computes P and dP again; loads through pointers",
                launch=functools.partial(_launch_backward, False),
                space=_BACKWARD_SPACE,
                default=functools.partial(_backward_default, pointers=True),
                fits=functools.partial(_fits_backward, pointers=True),
                handles=_too_wide,
            ),
        ),
        peers={
            "torch": gradients(_torch, ("q", "k", "v"), "dout"),
            "cudnn": gradients(_by("CUDNN_ATTENTION"), ("q", "k", "v"), "dout"),
            "flash": gradients(_by("FLASH_ATTENTION"), ("q", "k", "v"), "dout"),
        },
        bytes=_bytes("q out dout dq", "k v dk dv"),
        flops=_products("Q K^T", "dout V^T", "P^T dout", "dS^T Q", "dS K"),
        # dS has three sums of d terms in it (S, dP and D), and is summed over queries of a group, or keys.
        reduction=lambda c: 3 * c["d"] + max(c["l"] * c["h"] // c["g"], c["s"]),
    ),
)
