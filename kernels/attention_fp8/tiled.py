"""Variant `tiled`: a block of queries a program; keys and values through pointers, masks on the diagonal alone.

The algorithm and its blocks are those of :mod:`kernels.attention.forward`.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, gpu_of
from atlas.operators import launch

from kernels.attention.blocks import LN2, head_of, keys_of, place_of, read_rows, sees, strides_of, write_rows
from kernels.attention.spaces import too_much_shared
from kernels.common.rows import LOWEST

LIFT = tl.constexpr(8.0)
"""log2 of what P is multiplied by before it is rounded: 256, below e4m3's largest number, 448."""


@triton.jit
def _attend(
    acc, l_i, m_i, q, k_ptr, v_ptr, first, start, whole, end, len_k, scale, stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """(acc, l_i, m_i) of queries from ``first`` on after the keys from ``start``, a multiple of BLOCK_N, to ``end``.

    With PROMOTE blocks' sums are added in fp32 registers: Hopper's tensor cores add fp8 products with some 14 bits.
    """
    for n in tl.range(start, end, BLOCK_N):
        k = read_rows(k_ptr, 0, 0, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, False)
        s = tl.dot(q, tl.trans(k))
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:
                s = tl.where(sees(first, n, len_k, 0, CAUSAL, BLOCK_M, BLOCK_N), s, -float("inf"))
        v = read_rows(v_ptr, 0, 0, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, False)
        m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s * scale - (m_new - LIFT)[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        if PROMOTE:
            acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        else:
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _tiled_kernel(
    q_ptr, k_ptr, v_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr, scale, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head.  ``scale`` has log2(e) in it; scales and lse are contiguous."""
    batch, head, block = place_of(tl.cdiv(len_q, BLOCK_M), heads, CAUSAL)
    first, head_k = block * BLOCK_M, head // group
    b, place = batch.to(tl.int64), batch * heads + head
    scale = scale * tl.load(q_scale_ptr + place) * tl.load(k_scale_ptr + place // group)
    v_scale = tl.load(v_scale_ptr + place // group)
    q_ptr = head_of(q_ptr, b, head, 0, stride_qb, stride_qh, stride_qs, False)
    k_ptr = head_of(k_ptr, b, head_k, 0, stride_kb, stride_kh, stride_ks, False)
    v_ptr = head_of(v_ptr, b, head_k, 0, stride_vb, stride_vh, stride_vs, False)
    q = read_rows(q_ptr, 0, 0, first, len_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, False)
    whole, end = keys_of(first, len_k, 0, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), LOWEST, tl.float32)
    acc, l_i, m_i = _attend(
        acc, l_i, m_i, q, k_ptr, v_ptr, first, 0, whole, whole, len_k, scale, stride_ks, stride_vs,
        CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, False, PROMOTE,
    )  # fmt: skip
    acc, l_i, m_i = _attend(
        acc, l_i, m_i, q, k_ptr, v_ptr, first, whole, whole, end, len_k, scale, stride_ks, stride_vs,
        CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, True, PROMOTE,
    )  # fmt: skip
    offs_m = first + tl.arange(0, BLOCK_M)
    lse_ptrs = lse_ptr + place.to(tl.int64) * len_q + offs_m
    tl.store(lse_ptrs, (m_i + (tl.log2(l_i) - LIFT)) * LN2, mask=offs_m < len_q)
    out_ptr = head_of(out_ptr, b, head, 0, stride_ob, stride_oh, stride_os, False)
    write_rows(out_ptr, acc * (v_scale / l_i)[:, None], first, len_q - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D)


def _block_d(head_dim):
    """Columns of a block: the least power of two that ``tl.dot`` takes of 8 bits and holds the head."""
    return max(32, triton.next_power_of_2(head_dim))


def launch_tiled(q, k, v, scales, causal, scale, out_dtype=torch.bfloat16, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d]; out lies in memory as q does, as far as q leaves no gaps."""
    batch, heads, len_q, head_dim = q.shape
    out = torch.empty_like(q, dtype=out_dtype)
    q, k, v, written = map(_as_interpreted, (q, k, v, out))
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    launch(
        _tiled_kernel, (batch * heads * triton.cdiv(len_q, config["BLOCK_M"]),),
        q, k, v, *scales, written, lse,
        scale / math.log(2), heads, heads // k.shape[1], len_q, k.shape[2],
        *strides_of(q), *strides_of(k), *strides_of(v), *strides_of(written),
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_D=_block_d(head_dim), PROMOTE=head_dim <= 128, **config,
    )  # fmt: skip
    return written.to(out_dtype), lse


def _as_interpreted(x):
    """For the interpreter in fp32: it takes e4m3's NaN for a number and truncates to bf16, as torch does not (3.7.1).

    P is not rounded there.
    """
    return x.float() if gpu_of(x.device).functional else x


TILED_SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2,)}

# The first that fits.
_DEFAULTS = ((128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 2), (64, 32, 4, 2))


def tiled_default(problem: Case, gpu: GPU) -> dict[str, int]:
    configs = [dict(zip(TILED_SPACE, values, strict=True)) for values in _DEFAULTS]
    return next((config for config in configs if not fits_tiled(config, problem, gpu)), configs[-1])


def _shared(config: Config, problem: Case) -> int:
    """Bytes of shared memory of ``tiled``: the queries, and two blocks of keys a stage; V's once more, transposed."""
    columns = (2 * config["num_stages"] + 1) * config["BLOCK_N"]
    return (config["BLOCK_M"] + columns) * _block_d(problem["d"]) + config["BLOCK_M"] * config["BLOCK_N"] + 2048


def fits_tiled(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    rows, columns, threads = config["BLOCK_M"], config["BLOCK_N"], 32 * config["num_warps"]
    if reason := too_much_shared(_shared(config, problem), gpu):
        return reason
    if gpu.functional:
        return "" if (rows, columns, threads) == (64, 64, 128) else "more programs than the interpreter has time for"
    d = _block_d(problem["d"])
    sums = d if d > 128 else 2 * d  # of the block and of all blocks
    live = rows * (sums + columns) // threads
    if not 64 <= live <= 160:
        return f"{live} sums and scores a thread: registers spill, or too little work"
    return "" if rows >= 16 * config["num_warps"] else "a warp multiplies at least 16 rows"


def multiplies_fp8(problem: Case, gpu: GPU) -> str:
    """Why no variant takes a case on a GPU: ``tl.dot`` of e4m3 does not compile there."""
    return "" if gpu.functional or Capability.FP8 in gpu.capabilities else f"{gpu.name} has no {Capability.FP8}"
