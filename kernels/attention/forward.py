"""The forward pass by blocks of queries: variants `tiled`, through pointers, and `descriptor`, by the copy engine.

A program owns a block of queries and goes through the blocks of keys that they see; masks are for the diagonal's and
the last one alone.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .blocks import (
    LN2,
    aligned_rows,
    as_read,
    block_d,
    head_of,
    keys_of,
    out_for,
    place_of,
    read_rows,
    sees,
    strides_of,
    strides_of_lse,
    write_rows,
)
from .listing import listed, listed_place


@triton.jit
def _attend(
    acc, l_i, m_i, q, k, v, batch, head, first, start, whole, end, len_k, shift, scale, stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(acc, l_i, m_i) of queries from ``first`` on after the keys from ``start``, a multiple of BLOCK_N, to ``end``.

    With MASKED from ``whole`` on as many keys as each sees.
    """
    for n in tl.range(start, end, BLOCK_N):
        k_n = read_rows(k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        s = tl.dot(q, tl.trans(k_n), input_precision=PRECISION)
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:  # -inf is the identity of the maximum and becomes 0, the identity of the sums
                s = tl.where(sees(first, n, len_k, shift, CAUSAL, BLOCK_M, BLOCK_N), s, -float("inf"))
        v_n = read_rows(v, batch, head, n, len_k - n, stride_vs, VALUE_DIM, BLOCK_N, BLOCK_E, MASKED, DESCRIPTORS)
        m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s * scale - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v_n.dtype), v_n, acc * alpha[:, None], input_precision=PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _forward_kernel(
    q, k, v, out_ptr, lse_ptr, list_ptr, scale, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os, stride_lb, stride_lh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, EVEN: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head.  ``scale`` has log2(e) in it; EVEN: no block of keys needs a mask.

    With ``list_ptr`` sequences lie behind one another, their blocks are those of the list, and a causal mask lets the
    last query of a sequence see its last key.
    """
    if list_ptr is None:
        batch, head, block = place_of(tl.cdiv(len_q, BLOCK_M), heads, CAUSAL)
        first_q, rows_q, first_k, rows_k = 0, len_q, 0, len_k
        at_q, at_k, shift = batch, batch, 0
    else:
        head, block, batch, first_q, rows_q, first_k, rows_k = listed_place(list_ptr, heads)
        at_q, at_k, shift = first_q + rows_q, first_k + rows_k, rows_k - rows_q
    first, head_k = block * BLOCK_M, head // group
    if first >= rows_q:
        return
    b = batch.to(tl.int64)
    q = head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
    k = head_of(k, b, head_k, first_k, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, first_k, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    q_m = read_rows(q, at_q, head, first, rows_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    whole, end = keys_of(first, rows_k, shift, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), LOWEST, tl.float32)
    start = 0
    if EVEN or not DESCRIPTORS:  # loads through pointers have masks of their own: two loops
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q_m, k, v, at_k, head_k, first, 0, whole, whole, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, False, DESCRIPTORS,
            PRECISION,
        )  # fmt: skip
        start = whole
    if not EVEN:
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q_m, k, v, at_k, head_k, first, start, whole, end, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, True, DESCRIPTORS,
            PRECISION,
        )  # fmt: skip
    lse_ptr += b * stride_lb + tl.cast(head, tl.int64) * stride_lh + first_q
    offs_m = first + tl.arange(0, BLOCK_M)
    tl.store(lse_ptr + offs_m, (m_i + tl.log2(l_i)) * LN2, mask=offs_m < rows_q)
    out_ptr = head_of(out_ptr, b, head, first_q, stride_ob, stride_oh, stride_os, False)
    out = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]  # 0 for a query that sees no key
    write_rows(out_ptr, out, first, rows_q - first, stride_os, VALUE_DIM, BLOCK_M, BLOCK_E, ALIGNED)


def launch_forward(descriptors, q, k, v, causal, scale, *, config):
    """(out, lse) of q [b, h, l, d], k [b, g, s, d] and v [b, g, s, e]; out lies as :func:`out_for` says."""
    # The interpreter truncates to bf16, which the backward pass would show: it writes fp32, and torch rounds.
    out = as_interpreted(out_for(q, v))
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    into_forward(descriptors, q, k, v, out, lse, None, None, lengths, causal, scale, config)
    return out.to(q.dtype), lse


def into_forward(descriptors, q, k, v, out, lse, cu_q, cu_k, lengths, causal, scale, config):
    """``lengths`` are the number of sequences, and the longest of queries and of keys."""
    batch, len_q, len_k = lengths
    (heads, head_dim), (heads_k, value_dim) = (q.shape[1], q.shape[-1]), (v.shape[1], v.shape[-1])
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    q, k, v = (as_interpreted(x) for x in (q, k, v))  # before their strides are taken: a copy leaves no gaps
    read, descriptors = as_read((q, k, v), (rows, columns, columns), descriptors)
    tiles, blocks = None, batch * triton.cdiv(len_q, rows)
    if cu_q is not None:
        tiles, blocks = listed(cu_q, cu_k, q.shape[0], len_q, causal, False, rows, columns)
    launch(
        _forward_kernel, (heads * blocks,),
        *read, out, lse, tiles, scale / math.log(2), heads, heads // heads_k, len_q, len_k,
        *strides_of(q), *strides_of(k), *strides_of(v), *strides_of(out), *strides_of_lse(lse),
        CAUSAL=causal, HEAD_DIM=head_dim, VALUE_DIM=value_dim, BLOCK_D=block_d(head_dim), BLOCK_E=block_d(value_dim),
        EVEN=cu_q is None and not causal and len_k % columns == 0, DESCRIPTORS=descriptors, PRECISION="ieee",
        ALIGNED=cu_q is None and aligned_rows(out), **config,
    )  # fmt: skip
