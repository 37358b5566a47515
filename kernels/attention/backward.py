"""The backward pass in two kernels, one for dK and dV, one for dQ: variants `tiled` and `descriptor`, as forward.

Both compute P again from the log-sum-exp, so each of their sums is in one program's registers, in a fixed order.  A
third kernel comes first: the statistics of each query, log2(e) lse and D.  On Hopper programs of the second kernel run
where the first one has none left.
"""

import itertools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .blocks import (
    LOG2E,
    aligned_rows,
    as_read,
    block_d,
    head_of,
    keys_of,
    place_of,
    read_rows,
    sees,
    span_of,
    strides_of,
    strides_of_lse,
    write_rows,
)
from .listing import listed, listed_place
from .spaces import PART_CONFIG


@triton.jit(do_not_specialize=["heads", "len_q"])
def _statistics_kernel(
    out_ptr, dout_ptr, lse_ptr, dlse_ptr, stats_ptr, turns_ptr, cu_q_ptr, heads, len_q,
    stride_ob, stride_oh, stride_os, stride_gb, stride_gh, stride_gs, stride_lb, stride_lh,
    stride_part, stride_sb, stride_sh,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PADDED: tl.constexpr, TURNS: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head: log2(e) lse, and D = sum(dout out) less the gradient of lse.

    Behind the last query, up to a multiple of PADDED, they are inf and 0, which make P and dS 0 there.  With
    ``turns_ptr`` also TURNS zeros for each program.
    """
    batch, head, block = place_of(tl.cdiv(len_q, PADDED) * (PADDED // BLOCK_M), heads, False)
    first_q, rows = span_of(cu_q_ptr, batch, len_q)
    first = block * BLOCK_M
    b, h = batch.to(tl.int64), tl.cast(head, tl.int64)
    if cu_q_ptr is not None:  # noqa: SIM102 (settled when compiled, unlike the other)
        if first >= tl.cdiv(rows, PADDED) * PADDED:
            return
    out_ptr = head_of(out_ptr, b, h, first_q, stride_ob, stride_oh, stride_os, False)
    dout_ptr = head_of(dout_ptr, b, h, first_q, stride_gb, stride_gh, stride_gs, False)
    out = read_rows(out_ptr, 0, 0, first, rows - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D, True, False, ALIGNED)
    dout = read_rows(dout_ptr, 0, 0, first, rows - first, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, True, False, ALIGNED)
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


def launch_statistics(saved, turns, cu_q, lengths):
    """[2, b, h, padded]: of each query log2(e) lse, and D; ``turns``, if given, become 0."""
    q, _, _, out, lse, dout, dlse = saved
    batch, len_q, _ = lengths
    padded = padded_length(len_q)
    stats = torch.empty((2, batch, q.shape[1], padded), dtype=torch.float32, device=q.device)
    programs = batch * q.shape[1] * padded // 64
    launch(
        _statistics_kernel, (programs,),
        out, dout, lse, dlse, stats, turns, cu_q, q.shape[1], len_q,
        *strides_of(out), *strides_of(dout), *strides_of_lse(lse), *stats.stride()[:3],
        HEAD_DIM=out.shape[-1], BLOCK_M=64, BLOCK_D=block_d(out.shape[-1]),
        PADDED=_STATISTICS, TURNS=1 if turns is None else turns.numel() // programs,
        ALIGNED=cu_q is None and aligned_rows(out, dout), num_warps=8,
    )  # fmt: skip
    return stats


def padded_length(len_q):
    return triton.cdiv(len_q, _STATISTICS) * _STATISTICS


_STATISTICS = 128
"""Queries for whose whole blocks there are statistics: a multiple of any kernel's block of queries."""


@triton.jit
def _gather_keys(
    dk, dv, k_n, v_n, q, dout, stats_ptr, batch, head, first, start, whole, end, len_q, shift, scale,
    stride_qs, stride_gs, stride_part, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, TAIL: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(dk, dv) of BLOCK_N keys after the queries from ``start``, a multiple of BLOCK_M, to ``end``; dk not yet scaled.

    With CAUSAL queries before ``whole`` do not see all keys.  Scores are computed as K Q^T, so that P^T and dS^T are in
    registers as the products of dV and dK take them.
    """
    for m in tl.range(start, end, BLOCK_M):
        offs_m = m + tl.arange(0, BLOCK_M)
        q_m = read_rows(q, batch, head, m, len_q - m, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, TAIL, DESCRIPTORS)
        s = tl.dot(k_n, tl.trans(q_m), input_precision=PRECISION)
        lse = tl.load(stats_ptr + offs_m)
        p = tl.exp2(s * scale - lse[None, :])
        if CAUSAL:  # noqa: SIM102
            if m < whole:
                offs_n = first + tl.arange(0, BLOCK_N)
                p = tl.where(offs_n[:, None] <= (offs_m + shift)[None, :], p, 0.0)
        dout_m = read_rows(
            dout, batch, head, m, len_q - m, stride_gs, VALUE_DIM, BLOCK_M, BLOCK_E, TAIL, DESCRIPTORS
        )  # fmt: skip
        dp = tl.dot(v_n, tl.trans(dout_m), input_precision=PRECISION)
        dv = tl.dot(p.to(dout_m.dtype), dout_m, dv, input_precision=PRECISION)
        delta = tl.load(stats_ptr + stride_part + offs_m)
        ds = (p * (dp - delta[None, :])).to(q_m.dtype)
        dk = tl.dot(ds, q_m, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _keys_kernel(
    q, k, v, dout, stats_ptr, dk_ptr, dv_ptr, list_ptr, scale, scale_out, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs,
    stride_part, stride_sb, stride_sh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, TAIL: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """dK and dV: one program owns BLOCK_N keys of one head of K and goes through the queries of its group's heads.

    TAIL: the last block of queries is not full.  ``heads`` are those of K.
    """
    if EARLY:  # the kernel of dQ, which reads nothing that this one writes
        gdc_launch_dependents()
    if list_ptr is None:
        batch, head_k, block = place_of(tl.cdiv(len_k, BLOCK_N), heads, False)
        first_q, rows_q, first_k, rows_k = 0, len_q, 0, len_k
        at_q, at_k, shift = batch, batch, 0
    else:
        head_k, block, batch, first_k, rows_k, first_q, rows_q = listed_place(list_ptr, heads)
        at_q, at_k, shift = first_q + rows_q, first_k + rows_k, rows_k - rows_q
    first = block * BLOCK_N
    if first >= rows_k:
        return
    b = batch.to(tl.int64)
    k = head_of(k, b, head_k, first_k, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, first_k, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    k_n = read_rows(k, at_k, head_k, first, rows_k - first, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    v_n = read_rows(v, at_k, head_k, first, rows_k - first, stride_vs, VALUE_DIM, BLOCK_N, BLOCK_E, True, DESCRIPTORS)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_E), tl.float32)
    start, whole = 0, 0
    if CAUSAL:  # the first query that sees a key of the block; the first from which on all see all
        start = tl.maximum(first - shift, 0) // BLOCK_M * BLOCK_M
        whole = tl.cdiv(tl.maximum(first + BLOCK_N - 1 - shift, 0), BLOCK_M) * BLOCK_M
        whole = tl.minimum(whole, tl.cdiv(rows_q, BLOCK_M) * BLOCK_M)
    for member in tl.range(0, group, num_stages=1):
        head = head_k * group + member
        q_h = head_of(q, b, head, first_q, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
        dout_h = head_of(dout, b, head, first_q, stride_gb, stride_gh, stride_gs, DESCRIPTORS)
        stats_h = stats_ptr + b * stride_sb + tl.cast(head, tl.int64) * stride_sh
        dk, dv = _gather_keys(
            dk, dv, k_n, v_n, q_h, dout_h, stats_h, at_q, head, first, start, whole, rows_q, rows_q, shift, scale,
            stride_qs, stride_gs, stride_part, CAUSAL, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, TAIL,
            DESCRIPTORS, PRECISION,
        )  # fmt: skip
    dk_ptr = head_of(dk_ptr, b, head_k, first_k, stride_dkb, stride_dkh, stride_dks, False)
    dv_ptr = head_of(dv_ptr, b, head_k, first_k, stride_dvb, stride_dvh, stride_dvs, False)
    write_rows(dk_ptr, dk * scale_out, first, rows_k - first, stride_dks, HEAD_DIM, BLOCK_N, BLOCK_D, ALIGNED)
    write_rows(dv_ptr, dv, first, rows_k - first, stride_dvs, VALUE_DIM, BLOCK_N, BLOCK_E, ALIGNED)


@triton.jit
def _gather_queries(
    dq, q_m, dout_m, lse, delta, k, v, batch, head, first, start, whole, end, len_k, shift, scale,
    stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M queries, without the scale, after the keys from ``start`` to ``end``; masks as in ``_attend``."""
    for n in tl.range(start, end, BLOCK_N):
        k_n = read_rows(k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        s = tl.dot(q_m, tl.trans(k_n), input_precision=PRECISION)
        v_n = read_rows(v, batch, head, n, len_k - n, stride_vs, VALUE_DIM, BLOCK_N, BLOCK_E, MASKED, DESCRIPTORS)
        dp = tl.dot(dout_m, tl.trans(v_n), input_precision=PRECISION)
        p = tl.exp2(s * scale - lse[:, None])
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:
                p = tl.where(sees(first, n, len_k, shift, CAUSAL, BLOCK_M, BLOCK_N), p, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k_n.dtype), k_n, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _queries_kernel(
    q, k, v, dout, stats_ptr, dq_ptr, list_ptr, scale, scale_out, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_dqb, stride_dqh, stride_dqs, stride_part, stride_sb, stride_sh,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, EVEN: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """dQ: one program owns BLOCK_M queries of one head, as in the forward pass.

    EARLY: it is launched while the kernel of dK and dV still runs, and ends after that one.
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
    dout = head_of(dout, b, head, first_q, stride_gb, stride_gh, stride_gs, DESCRIPTORS)
    k = head_of(k, b, head_k, first_k, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, first_k, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    q_m = read_rows(q, at_q, head, first, rows_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    dout_m = read_rows(
        dout, at_q, head, first, rows_q - first, stride_gs, VALUE_DIM, BLOCK_M, BLOCK_E, True, DESCRIPTORS
    )
    offs_m = first + tl.arange(0, BLOCK_M)
    stats_ptr += b * stride_sb + tl.cast(head, tl.int64) * stride_sh
    lse = tl.load(stats_ptr + offs_m)
    delta = tl.load(stats_ptr + stride_part + offs_m)
    whole, end = keys_of(first, rows_k, shift, CAUSAL, BLOCK_M, BLOCK_N)
    if EVEN:  # or ptxas puts each wgmma on its own, for it does not see that the loop begins
        tl.assume(whole > 0)
    elif list_ptr is None:
        tl.assume(end > 0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    start = 0
    if EVEN or not DESCRIPTORS:
        dq = _gather_queries(
            dq, q_m, dout_m, lse, delta, k, v, at_k, head_k, first, 0, whole, whole, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, False, DESCRIPTORS,
            PRECISION,
        )  # fmt: skip
        start = whole
    if not EVEN:
        dq = _gather_queries(
            dq, q_m, dout_m, lse, delta, k, v, at_k, head_k, first, start, whole, end, rows_k, shift, scale,
            stride_ks, stride_vs, CAUSAL, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_E, True, DESCRIPTORS,
            PRECISION,
        )  # fmt: skip
    dq_ptr = head_of(dq_ptr, b, head, first_q, stride_dqb, stride_dqh, stride_dqs, False)
    write_rows(dq_ptr, dq * scale_out, first, rows_q - first, stride_dqs, HEAD_DIM, BLOCK_M, BLOCK_D, ALIGNED)
    if EARLY:
        gdc_wait()


def launch_backward(descriptors, q, k, v, out, lse, dout, dlse, causal, scale, *, config):
    """(dq, dk, dv), which lie in memory as q, k and v do."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    lengths = q.shape[0], q.shape[2], k.shape[2]
    saved = q, k, v, out, lse, dout, dlse
    into_backward(descriptors, saved, gradients, None, None, lengths, causal, scale, config)
    return gradients


def into_backward(descriptors, saved, gradients, cu_q, cu_k, lengths, causal, scale, config):
    """``saved`` are q, k, v, out, lse, dout and dlse, which may be None; ``gradients`` dq, dk and dv."""
    q, k, v, _, _, dout, _ = saved
    given = (q, k, v, dout, launch_statistics(saved, None, cu_q, lengths))
    for part, written in (("KEYS", gradients[1:]), ("QUERIES", gradients[:1])):
        _launch_part(part, descriptors, given, written, cu_q, cu_k, lengths, causal, scale, config)


def beside(part, packed, device):
    """What lets the kernel of dQ begin while that of dK and dV ends, from compute capability 9.0 on (PDL).

    Not of packed sequences: a program without rows would not wait for the other kernel's end.
    """
    gpu = gpu_of(device)
    early = not packed and gpu.backend == "cuda" and int(gpu.arch) >= 90
    return {"EARLY": early, **({"launch_pdl": True} if early and part == "QUERIES" else {})}


def _launch_part(part, descriptors, given, gradients, cu_q, cu_k, lengths, causal, scale, config):
    """One of backward's kernels: ``part`` is what a program of it owns, ``gradients`` are what it writes."""
    q, k, v, dout, stats = given
    batch, len_q, len_k = lengths
    heads, heads_k, head_dim, value_dim = q.shape[1], k.shape[1], q.shape[-1], v.shape[-1]
    rows, columns, warps, stages = (config[f"{part}_{name}"] for name in PART_CONFIG)
    q, k, v, dout = (as_interpreted(x) for x in (q, k, v, dout))
    read, descriptors = as_read((q, k, v, dout), (rows, columns, columns, rows), descriptors)
    if part == "KEYS":
        kernel, owners, blocks = _keys_kernel, heads_k, batch * triton.cdiv(len_k, columns)
        special = {"TAIL": cu_q is not None or len_q % rows != 0}
    else:
        kernel, owners, blocks = _queries_kernel, heads, batch * triton.cdiv(len_q, rows)
        special = {"EVEN": cu_q is None and not causal and len_k % columns == 0}
    tiles = None
    if cu_q is not None and part == "KEYS":
        tiles, blocks = listed(cu_k, cu_q, k.shape[0], len_k, causal, True, columns, rows)
    elif cu_q is not None:
        tiles, blocks = listed(cu_q, cu_k, q.shape[0], len_q, causal, False, rows, columns)
    launch(
        kernel, (owners * blocks,),
        *read, stats, *gradients, tiles, scale / math.log(2), scale, owners, heads // heads_k, len_q, len_k,
        *itertools.chain.from_iterable(map(strides_of, (q, k, v, dout, *gradients))), *stats.stride()[:3],
        CAUSAL=causal, HEAD_DIM=head_dim, VALUE_DIM=value_dim, BLOCK_M=rows, BLOCK_N=columns,
        BLOCK_D=block_d(head_dim), BLOCK_E=block_d(value_dim), **special, DESCRIPTORS=descriptors, PRECISION="ieee",
        ALIGNED=cu_q is None and aligned_rows(*gradients), **beside(part, cu_q is not None, q.device),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
