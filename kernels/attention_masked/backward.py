"""The backward pass under masks and windows, in two kernels as :mod:`kernels.attention.backward`: dK and dV, then dQ.

A query that sees no key has an lse of -inf.  It counts as +inf here, which makes all its P 0; so does that of one whose
added mask is the least finite number for all keys, for in units of log2 that overflows.
"""

import itertools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import Capability, gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.backward import beside, launch_statistics
from kernels.attention.blocks import (
    LOG2E,
    aligned_rows,
    block_d,
    head_of,
    place_of,
    span_of,
    strides_of,
)
from kernels.attention.parts import add_parts, parts_of, sums_for
from kernels.attention.spaces import PART_CONFIG

from .aligned import aligned
from .blocks import (
    add_dots,
    columns_of,
    dot_parts,
    inside,
    keys_seen,
    keys_within,
    mask_of,
    mask_strides,
    parts_as_read,
    parts_of_head,
    queries_within,
    read_mask,
    read_parts,
    step_of,
    tail_of,
    write_parts,
    zero_parts,
)
from .forward import kinds_of, window_of


@triton.jit
def lse_of(stats_ptr, offs_m):
    """log2(e) lse of queries, +inf for those that see no key."""
    lse = tl.load(stats_ptr + offs_m)
    return tl.where(lse == -float("inf"), float("inf"), lse)


@triton.jit
def weights(s, mask, lse, scale, MASK: tl.constexpr):
    """P of scores before the scale, and of a mask's block, if any; ``lse`` and ``scale`` have log2(e) in them."""
    if MASK == "added" or MASK == "added keys":
        p = tl.exp2(s * scale + (mask.to(tl.float32) * LOG2E - lse))
    elif MASK == "bool keys":
        p = tl.exp2((s + mask) * scale - lse)
    else:
        p = tl.exp2(s * scale - lse)
        if MASK == "bool":
            p = tl.where(mask, p, 0.0)
    return p


@triton.jit
def _gather_keys(
    dk, dv, k_n, v_n, q, dout, stats_ptr, mask_ptr, batch, head, first, bounds, len_q, len_k, shift, left, right,
    scale, stride_qs, stride_gs, stride_part, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, CUT: tl.constexpr, TAIL: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(dk, dv) of BLOCK_N keys after the queries within their windows; dk not yet scaled.

    Scores are computed as K Q^T, so that P^T and dS^T are in registers as the products of dV and dK take them.
    """
    start, since, until, end = bounds
    offs_n = (first + tl.arange(0, BLOCK_N))[:, None]
    for m in tl.range(start, end, BLOCK_M):
        offs_m = m + tl.arange(0, BLOCK_M)
        q_m = read_parts(q, batch, head, m, len_q - m, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, REST, CUT, DESCRIPTORS)
        mask = 0
        if MASK != "none":
            mask = read_mask(
                mask_ptr, m, first, len_q, len_k, stride_mm, stride_mn, MASK, BLOCK_M, BLOCK_N, TAIL, True
            )  # fmt: skip
        s = dot_parts(k_n, q_m, REST, PRECISION)
        p = weights(s, mask, lse_of(stats_ptr, offs_m)[None, :], scale, MASK)
        if WINDOW:  # noqa: SIM102
            if (m < since) | (m + BLOCK_M > until):
                p = tl.where(inside(offs_m[None, :], offs_n, len_k, shift, left, right, WINDOW), p, 0.0)
        dout_m = read_parts(
            dout, batch, head, m, len_q - m, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, REST, CUT, DESCRIPTORS
        )  # fmt: skip
        dp = dot_parts(v_n, dout_m, REST, PRECISION)
        dv = add_dots(p.to(dout_m[0].dtype), dout_m, dv, REST, PRECISION)
        delta = tl.load(stats_ptr + stride_part + offs_m)
        ds = (p * (dp - delta[None, :])).to(q_m[0].dtype)
        dk = add_dots(ds, q_m, dk, REST, PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["left", "right", "heads", "group", "parts", "len_q", "len_k"])
def _keys_kernel(
    q, k, v, dout, q_rest, k_rest, v_rest, dout_rest, stats_ptr, mask_ptr, dk_ptr, dv_ptr, cu_q_ptr, cu_k_ptr,
    scale, scale_out, left, right, heads, group, parts, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs,
    stride_part, stride_sb, stride_sh, stride_mb, stride_mh, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, CUT: tl.constexpr, TAIL: tl.constexpr,
    STEP: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """dK and dV: one program owns BLOCK_N keys of one head of K and goes through the queries of its group's heads.

    CUT: the last block of queries is not full.  ``heads`` are those of the gradients: where a group's heads are dealt
    out, ``parts`` to a head of K, of ``group`` heads of Q each.
    """
    if EARLY:  # the kernel of dQ, which reads nothing that this one writes
        gdc_launch_dependents()
    batch, part, block = place_of(tl.cdiv(len_k, BLOCK_N), heads, False)
    head_k = part // parts
    first_q, rows_q = span_of(cu_q_ptr, batch, len_q)
    first_k, rows_k = span_of(cu_k_ptr, batch, len_k)
    shift = 0 if cu_q_ptr is None else rows_k - rows_q
    first = block * BLOCK_N
    if first >= rows_k:
        return
    b = batch.to(tl.int64)
    k = parts_of_head(k, k_rest, b, head_k, first_k, stride_kb, stride_kh, stride_ks, REST, DESCRIPTORS)
    v = parts_of_head(v, v_rest, b, head_k, first_k, stride_vb, stride_vh, stride_vs, REST, DESCRIPTORS)
    k_n = read_parts(
        k, batch, head_k, first, rows_k - first, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, REST, True, DESCRIPTORS
    )  # fmt: skip
    v_n = read_parts(
        v, batch, head_k, first, rows_k - first, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, REST, True, DESCRIPTORS
    )  # fmt: skip
    dk = zero_parts(BLOCK_N, BLOCK_D, REST)
    dv = zero_parts(BLOCK_N, BLOCK_D, REST)
    bounds = 0, 0, rows_q, rows_q
    if WINDOW:
        bounds = queries_within(first, rows_q, shift, left, right, BLOCK_M, BLOCK_N)
    for member in tl.range(0, group, num_stages=1):
        head = part * group + member
        q_h = parts_of_head(q, q_rest, b, head, first_q, stride_qb, stride_qh, stride_qs, REST, DESCRIPTORS)
        dout_h = parts_of_head(dout, dout_rest, b, head, first_q, stride_gb, stride_gh, stride_gs, REST, DESCRIPTORS)
        stats_h = stats_ptr + b * stride_sb + tl.cast(head, tl.int64) * stride_sh
        mask_h, stride_m = mask_ptr, stride_mm
        if MASK != "none":
            mask_h, stride_m = mask_of(mask_ptr, b, head, stride_mb, stride_mh, stride_mm, STEP)
        dk, dv = _gather_keys(
            dk, dv, k_n, v_n, q_h, dout_h, stats_h, mask_h, batch, head, first, bounds, rows_q, rows_k, shift, left,
            right, scale, stride_qs, stride_gs, stride_part, stride_m, stride_mn, HEAD_DIM, BLOCK_M, BLOCK_N,
            BLOCK_D, REST, MASK, WINDOW, CUT, TAIL, DESCRIPTORS, PRECISION,
        )  # fmt: skip
    dk_ptr = head_of(dk_ptr, b, part, first_k, stride_dkb, stride_dkh, stride_dks, False)
    dv_ptr = head_of(dv_ptr, b, part, first_k, stride_dvb, stride_dvh, stride_dvs, False)
    dk = [part * scale_out for part in dk]
    write_parts(dk_ptr, dk, first, rows_k - first, stride_dks, HEAD_DIM, BLOCK_N, BLOCK_D, REST, ALIGNED)
    write_parts(dv_ptr, dv, first, rows_k - first, stride_dvs, HEAD_DIM, BLOCK_N, BLOCK_D, REST, ALIGNED)


@triton.jit
def _gather_queries(
    dq, q_m, dout_m, lse, delta, k, v, mask_ptr, batch, head, first, bounds, len_q, len_k, shift, left, right, scale,
    stride_ks, stride_vs, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BORDERS: tl.constexpr, TAIL: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries, without the scale, after the keys within their windows; BORDERS as in the forward pass."""
    start, since, whole, end = bounds
    offs_m = (first + tl.arange(0, BLOCK_M))[:, None]
    for n in tl.range(start, end, BLOCK_N):
        offs_n = (n + tl.arange(0, BLOCK_N))[None, :]
        k_n = read_parts(
            k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, REST, BORDERS, DESCRIPTORS
        )  # fmt: skip
        mask = 0
        if MASK != "none":
            mask = read_mask(
                mask_ptr, first, n, len_q, len_k, stride_mm, stride_mn, MASK, BLOCK_M, BLOCK_N, TAIL, False
            )  # fmt: skip
        s = dot_parts(q_m, k_n, REST, PRECISION)
        v_n = read_parts(
            v, batch, head, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, REST, BORDERS, DESCRIPTORS
        )  # fmt: skip
        dp = dot_parts(dout_m, v_n, REST, PRECISION)
        p = weights(s, mask, lse[:, None], scale, MASK)
        if BORDERS:  # noqa: SIM102 (settled when compiled, unlike the other)
            if (n < since) | (n >= whole):
                p = tl.where(inside(offs_m, offs_n, len_k, shift, left, right, WINDOW), p, 0.0)
        ds = p * (dp - delta[:, None])
        dq = add_dots(ds.to(k_n[0].dtype), k_n, dq, REST, PRECISION)
    return dq


@triton.jit(do_not_specialize=["left", "right", "heads", "group", "len_q", "len_k"])
def _queries_kernel(
    q, k, v, dout, q_rest, k_rest, v_rest, dout_rest, stats_ptr, mask_ptr, dq_ptr, cu_q_ptr, cu_k_ptr,
    scale, scale_out, left, right, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dqb, stride_dqh, stride_dqs, stride_part, stride_sb, stride_sh,
    stride_mb, stride_mh, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, BORDERS: tl.constexpr, TAIL: tl.constexpr,
    STEP: tl.constexpr, REVERSED: tl.constexpr, DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """dQ: one program owns BLOCK_M queries of one head, as in the forward pass.

    EARLY: it is launched while the kernel of dK and dV still runs, and ends after that one.
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
    dout = parts_of_head(dout, dout_rest, b, head, first_q, stride_gb, stride_gh, stride_gs, REST, DESCRIPTORS)
    k = parts_of_head(k, k_rest, b, head_k, first_k, stride_kb, stride_kh, stride_ks, REST, DESCRIPTORS)
    v = parts_of_head(v, v_rest, b, head_k, first_k, stride_vb, stride_vh, stride_vs, REST, DESCRIPTORS)
    if MASK != "none":
        mask_ptr, stride_mm = mask_of(mask_ptr, b, head, stride_mb, stride_mh, stride_mm, STEP)
    q_m = read_parts(
        q, batch, head, first, rows_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, REST, True, DESCRIPTORS
    )  # fmt: skip
    dout_m = read_parts(
        dout, batch, head, first, rows_q - first, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, REST, True, DESCRIPTORS
    )
    offs_m = first + tl.arange(0, BLOCK_M)
    stats_ptr += b * stride_sb + tl.cast(head, tl.int64) * stride_sh
    lse = lse_of(stats_ptr, offs_m)
    delta = tl.load(stats_ptr + stride_part + offs_m)
    bounds = keys_within(first, rows_k, shift, left, right, WINDOW, BLOCK_M, BLOCK_N)
    if cu_q_ptr is None:  # as in the forward pass
        tl.assume(bounds[0] < bounds[3])
    dq = _gather_queries(
        zero_parts(BLOCK_M, BLOCK_D, REST), q_m, dout_m, lse, delta, k, v, mask_ptr, batch, head_k, first,
        bounds, rows_q, rows_k, shift, left, right, scale, stride_ks, stride_vs, stride_mm, stride_mn,
        HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, REST, MASK, WINDOW, BORDERS, TAIL, DESCRIPTORS, PRECISION,
    )  # fmt: skip
    dq_ptr = head_of(dq_ptr, b, head, first_q, stride_dqb, stride_dqh, stride_dqs, False)
    dq = [part * scale_out for part in dq]
    write_parts(dq_ptr, dq, first, rows_q - first, stride_dqs, HEAD_DIM, BLOCK_M, BLOCK_D, REST, ALIGNED)
    if EARLY:
        gdc_wait()


def launch_backward(descriptors, q, k, v, mask, out, lse, dout, dlse, scale, left, right, *, config):
    """(dq, dk, dv), which lie in memory as q, k and v do."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    saved = q, k, v, out, lse, dout, dlse
    into_backward(descriptors, saved, mask, gradients, None, None, lengths, scale, left, right, config)
    return gradients


def into_backward(descriptors, saved, mask, gradients, cu_q, cu_k, lengths, scale, left, right, config):
    """``saved`` are q, k, v, out, lse, dout and dlse, which may be None; ``gradients`` dq, dk and dv."""
    q, k, v, _, _, dout, _ = saved
    dq, *of_keys = gradients
    batch, len_q, len_k = lengths
    read_twice = aligned(mask, 2 * batch * q.shape[1] * len_q * keys_seen(left, right, len_k))
    given = q, k, v, dout, launch_statistics(saved, None, cu_q, lengths), read_twice
    parts = 1 if cu_q is not None else _parts_of(q, k, config)
    sums = of_keys if parts == 1 else sums_for(k, parts)
    _launch_part("KEYS", descriptors, given, sums, parts, cu_q, cu_k, lengths, scale, left, right, config)
    _launch_part("QUERIES", descriptors, given, (dq,), 1, cu_q, cu_k, lengths, scale, left, right, config)
    if parts > 1:
        add_parts(sums, of_keys, parts)


def _parts_of(q, k, config):
    """Into how many parts to deal out the heads of a group, so that multiprocessors have two programs each."""
    (batch, heads), (heads_k, len_k) = q.shape[:2], k.shape[1:3]
    blocks = batch * heads_k * triton.cdiv(len_k, config["KEYS_N"])
    return parts_of(heads // heads_k, blocks, gpu_of(q.device).sms * 8 // config["KEYS_WARPS"])


def _columns_of(head_dim, gpu):
    """:func:`.blocks.columns_of` on Hopper; elsewhere one part: where a warp multiplies for itself two spill."""
    in_parts = Capability.WGMMA in gpu.capabilities or gpu.functional
    return columns_of(head_dim) if in_parts else (block_d(head_dim), 0)


def _launch_part(part, descriptors, given, gradients, parts, cu_q, cu_k, lengths, scale, left, right, config):
    """One of the kernels: ``part`` is what a program of it owns, ``gradients`` are what it writes."""
    q, k, v, dout, stats, mask = given
    batch, len_q, len_k = lengths
    heads, heads_k, head_dim = q.shape[1], k.shape[1], q.shape[-1]
    rows, columns, warps, stages = (config[f"{part}_{name}"] for name in PART_CONFIG)
    q, k, v, dout = (as_interpreted(x) for x in (q, k, v, dout))
    of_first, of_rest = _columns_of(head_dim, gpu_of(q.device))
    sides = rows, columns, columns, rows
    first, behind, descriptors = parts_as_read((q, k, v, dout), sides, descriptors, of_first, of_rest)
    masked = kinds_of(mask, left, right)
    if part == "KEYS":
        kernel, blocks = _keys_kernel, triton.cdiv(len_k, columns)
        heads_of = heads_k * parts, heads // heads_k // parts, parts
        special = {"CUT": cu_q is not None or len_q % rows != 0}
    else:
        kernel, blocks = _queries_kernel, triton.cdiv(len_q, rows)
        heads_of = heads, heads // heads_k
        special = {
            "BORDERS": cu_q is not None or masked["WINDOW"] or len_k % columns != 0,
            "REVERSED": not left and right > 0,
        }
    launch(
        kernel, (batch * heads_of[0] * blocks,),
        *first, *behind, stats, mask, *gradients, cu_q, cu_k, scale / math.log(2), scale,
        *window_of(masked, lengths, left, right), *heads_of, len_q, len_k,
        *itertools.chain.from_iterable(map(strides_of, (q, k, v, dout, *gradients))), *stats.stride()[:3],
        *mask_strides(mask), HEAD_DIM=head_dim, BLOCK_M=rows, BLOCK_N=columns, BLOCK_D=of_first, REST=of_rest,
        **masked, **special, TAIL=tail_of(mask, len_k, columns), STEP=step_of(mask), DESCRIPTORS=descriptors,
        PRECISION="ieee", ALIGNED=cu_q is None and aligned_rows(*gradients),
        **beside(part, cu_q is not None, q.device), num_warps=warps, num_stages=stages,
    )  # fmt: skip
