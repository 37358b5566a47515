"""The forward pass under masks and windows: variants `tiled`, through pointers, and `descriptor`, by the copy engine.

A program owns a block of queries and goes through the blocks of keys within their window, with the mask's block beside
each.  A mask of bools leaves scores as they are or makes them -inf; one that is added is of natural units, so scores
are too, and log2(e) is multiplied in last: the least finite numbers, which stand for -inf in many models, would
overflow before.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.attention.blocks import (
    LN2,
    LOG2E,
    aligned_rows,
    head_of,
    place_of,
    span_of,
    strides_of,
    strides_of_lse,
)
from kernels.common.rows import LOWEST

from .aligned import aligned
from .blocks import (
    add_dots,
    columns_of,
    distance,
    dot_parts,
    inside,
    keys_seen,
    keys_within,
    kind_of,
    mask_of,
    mask_strides,
    parts_as_read,
    parts_of_head,
    read_mask,
    read_parts,
    step_of,
    tail_of,
    write_parts,
    zero_parts,
)


@triton.jit
def _attend(
    acc, l_i, m_i, q, k, v, mask_ptr, batch, head, first, bounds, len_q, len_k, shift, left, right, scale,
    stride_ks, stride_vs, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BORDERS: tl.constexpr, TAIL: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(acc, l_i, m_i) of queries from ``first`` on; m_i is in units of log2, or natural ones under numbers to add.

    Without BORDERS all keys are there and no window cuts a block.
    """
    ADDED: tl.constexpr = MASK == "added" or MASK == "added keys"
    start, since, whole, end = bounds
    offs_m = (first + tl.arange(0, BLOCK_M))[:, None]
    for n in tl.range(start, end, BLOCK_N):
        offs_n = (n + tl.arange(0, BLOCK_N))[None, :]
        k_n = read_parts(
            k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, REST, BORDERS, DESCRIPTORS
        )  # fmt: skip
        if MASK != "none":
            mask = read_mask(
                mask_ptr, first, n, len_q, len_k, stride_mm, stride_mn, MASK, BLOCK_M, BLOCK_N, TAIL, False
            )  # fmt: skip
        s = dot_parts(q, k_n, REST, PRECISION)
        if MASK == "bool":
            s = tl.where(mask, s, -float("inf"))
        elif MASK == "bool keys":
            s += mask
        elif ADDED:
            s = s * scale + mask.to(tl.float32)
        if BORDERS:  # noqa: SIM102 (settled when compiled, unlike the other)
            if (n < since) | (n >= whole):
                s = tl.where(inside(offs_m, offs_n, len_k, shift, left, right, WINDOW), s, -float("inf"))
        v_n = read_parts(
            v, batch, head, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, REST, BORDERS, DESCRIPTORS
        )  # fmt: skip
        if ADDED:
            m_new = tl.maximum(m_i, tl.max(s, axis=1))
            alpha = tl.exp2((m_i - m_new) * LOG2E)
            p = tl.exp2((s - m_new[:, None]) * LOG2E)
        else:
            m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)
            alpha = tl.exp2(m_i - m_new)
            p = tl.exp2(s * scale - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = add_dots(p.to(v_n[0].dtype), v_n, [part * alpha[:, None] for part in acc], REST, PRECISION)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["left", "right", "heads", "group", "len_q", "len_k"])
def _forward_kernel(
    q, k, v, q_rest, k_rest, v_rest, mask_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, scale, left, right,
    heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os, stride_lb, stride_lh, stride_mb, stride_mh, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BORDERS: tl.constexpr, TAIL: tl.constexpr,
    STEP: tl.constexpr, REVERSED: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head.  ``scale`` has log2(e) in it, but where numbers are added.

    A head has BLOCK_D columns, and REST more where that is not 0: they are read from ``q_rest`` and so on.

    With ``cu_q_ptr`` and ``cu_k_ptr`` sequences lie behind one another, len_q is the longest length, and a window is
    aligned to the last query and the last key of a sequence, else to the first.
    """
    batch, head, block = place_of(tl.cdiv(len_q, BLOCK_M), heads, REVERSED)
    first_q, rows_q = span_of(cu_q_ptr, batch, len_q)
    first_k, rows_k = span_of(cu_k_ptr, batch, len_k)
    shift = 0 if cu_q_ptr is None else rows_k - rows_q
    first, head_k = block * BLOCK_M, head // group
    if first >= rows_q:
        return
    b = batch.to(tl.int64)
    q = parts_of_head(q, q_rest, b, head, first_q, stride_qb, stride_qh, stride_qs, REST, DESCRIPTORS)
    k = parts_of_head(k, k_rest, b, head_k, first_k, stride_kb, stride_kh, stride_ks, REST, DESCRIPTORS)
    v = parts_of_head(v, v_rest, b, head_k, first_k, stride_vb, stride_vh, stride_vs, REST, DESCRIPTORS)
    if MASK != "none":
        mask_ptr, stride_mm = mask_of(mask_ptr, b, head, stride_mb, stride_mh, stride_mm, STEP)
    q_m = read_parts(
        q, batch, head, first, rows_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, REST, True, DESCRIPTORS
    )  # fmt: skip
    bounds = keys_within(first, rows_k, shift, left, right, WINDOW, BLOCK_M, BLOCK_N)
    if cu_q_ptr is None:  # or ptxas puts each wgmma on its own, for it does not see that the loop begins
        tl.assume(bounds[0] < bounds[3])
    acc = zero_parts(BLOCK_M, BLOCK_D, REST)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), LOWEST, tl.float32)
    acc, l_i, m_i = _attend(
        acc, l_i, m_i, q_m, k, v, mask_ptr, batch, head_k, first, bounds, rows_q, rows_k, shift, left, right, scale,
        stride_ks, stride_vs, stride_mm, stride_mn, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, REST, MASK, WINDOW,
        BORDERS, TAIL, DESCRIPTORS, PRECISION,
    )  # fmt: skip
    lse = tl.log2(l_i) * LN2 + (m_i if MASK == "added" or MASK == "added keys" else m_i * LN2)
    lse_ptr += b * stride_lb + tl.cast(head, tl.int64) * stride_lh + first_q
    offs_m = first + tl.arange(0, BLOCK_M)
    tl.store(lse_ptr + offs_m, lse, mask=offs_m < rows_q)
    out_ptr = head_of(out_ptr, b, head, first_q, stride_ob, stride_oh, stride_os, False)
    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # 0 for a query that sees no key
    out = [part / l_i[:, None] for part in acc]
    write_parts(out_ptr, out, first, rows_q - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D, REST, ALIGNED)


def launch_forward(descriptors, q, k, v, mask, scale, left, right, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d] under a mask [b or 1, h or 1, l or 1, s or 1], or None."""
    # The interpreter truncates to bf16, which the backward pass would show: it writes fp32, and torch rounds.
    out = as_interpreted(torch.empty_like(q))
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    into_forward(descriptors, q, k, v, mask, out, lse, None, None, lengths, scale, left, right, config)
    return out.to(q.dtype), lse


def into_forward(descriptors, q, k, v, mask, out, lse, cu_q, cu_k, lengths, scale, left, right, config):
    """``lengths`` are the number of sequences, and the longest of queries and of keys."""
    batch, len_q, len_k = lengths
    (heads, head_dim), heads_k = (q.shape[1], q.shape[-1]), k.shape[1]
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    q, k, v = (as_interpreted(x) for x in (q, k, v))  # before their strides are taken: a copy leaves no gaps
    parts = columns_of(head_dim)
    first, behind, descriptors = parts_as_read((q, k, v), (rows, columns, columns), descriptors, *parts)
    masked = kinds_of(mask, left, right)
    mask = aligned(mask, batch * heads * len_q * keys_seen(left, right, len_k))
    launch(
        _forward_kernel, (batch * heads * triton.cdiv(len_q, rows),),
        *first, *behind, mask, out, lse, cu_q, cu_k,
        scale if masked["MASK"].startswith("added") else scale / math.log(2), *window_of(masked, lengths, left, right),
        heads, heads // heads_k, len_q, len_k,
        *strides_of(q), *strides_of(k), *strides_of(v), *strides_of(out), *strides_of_lse(lse), *mask_strides(mask),
        HEAD_DIM=head_dim, BLOCK_D=parts[0], REST=parts[1], **masked,
        BORDERS=cu_q is not None or masked["WINDOW"] or len_k % columns != 0, TAIL=tail_of(mask, len_k, columns),
        STEP=step_of(mask), REVERSED=not left and right > 0, DESCRIPTORS=descriptors, PRECISION="ieee",
        ALIGNED=cu_q is None and aligned_rows(out), **config,
    )  # fmt: skip


def kinds_of(mask, left, right):
    """What kernels are compiled for: the kind of mask, and whether there is a window."""
    return {"MASK": kind_of(mask), "WINDOW": bool(left or right)}


def window_of(masked, lengths, left, right):
    """The window as kernels take it."""
    return (distance(left, sum(lengths[1:])), distance(right, sum(lengths[1:]))) if masked["WINDOW"] else (None, None)
