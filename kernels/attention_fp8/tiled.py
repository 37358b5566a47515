"""Variants whose programs own a block of queries: `tiled`, through pointers, and `descriptor`, by the copy engine.

The algorithm and its blocks are those of :mod:`kernels.attention.forward`.  `tiled` multiplies P and V in e4m3, of
which Hopper's wgmma wants V transposed, byte by byte.  `descriptor` makes fp16 of V and of P, which wgmma takes as V
lies: half the rate of that product, and neither a transposition nor a kernel before, nor P's rounding to e4m3.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, gpu_of
from atlas.operators import launch

from kernels.attention.blocks import (
    LN2,
    as_read,
    head_of,
    keys_of,
    place_of,
    read_rows,
    sees,
    strides_of,
    write_rows,
)
from kernels.attention.spaces import forward_by_wgmma, too_much_shared
from kernels.common.rows import LOWEST

LIFT = tl.constexpr(8.0)
"""log2 of what P is multiplied by before it is rounded: 256, below e4m3's largest number, 448."""


@triton.jit
def _attend(
    acc, l_i, m_i, q, k, v, batch, head, first, start, whole, end, len_k, scale, stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PROMOTE: tl.constexpr, HALF: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """(acc, l_i, m_i) of queries from ``first`` on after the keys from ``start``, a multiple of BLOCK_N, to ``end``.

    With PROMOTE blocks' sums are added in fp32 registers: Hopper's tensor cores add fp8 products with some 14 bits.
    With HALF P and V are multiplied in fp16.
    """
    lift: tl.constexpr = 0.0 if HALF else LIFT
    for n in tl.range(start, end, BLOCK_N):
        k_n = read_rows(k, batch, head, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        s = tl.dot(q, tl.trans(k_n))
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:
                s = tl.where(sees(first, n, len_k, 0, CAUSAL, BLOCK_M, BLOCK_N), s, -float("inf"))
        v_n = read_rows(v, batch, head, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, DESCRIPTORS)
        if HALF:
            v_n = v_n.to(tl.float16)
        m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s * scale - (m_new - lift)[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        if PROMOTE:
            acc = acc * alpha[:, None] + tl.dot(p.to(v_n.dtype), v_n)
        else:
            acc = tl.dot(p.to(v_n.dtype), v_n, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _tiled_kernel(
    q, k, v, q_scale_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr, scale, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, PROMOTE: tl.constexpr, HALF: tl.constexpr, EVEN: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head.  ``scale`` has log2(e) in it; scales and lse are contiguous.

    EVEN: no block of keys needs a mask.
    """
    batch, head, block = place_of(tl.cdiv(len_q, BLOCK_M), heads, CAUSAL)
    first, head_k = block * BLOCK_M, head // group
    b, place = batch.to(tl.int64), batch * heads + head
    scale = scale * tl.load(q_scale_ptr + place) * tl.load(k_scale_ptr + place // group)
    v_scale = tl.load(v_scale_ptr + place // group)
    q = head_of(q, b, head, 0, stride_qb, stride_qh, stride_qs, DESCRIPTORS)
    k = head_of(k, b, head_k, 0, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, 0, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    q_m = read_rows(q, batch, head, first, len_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, DESCRIPTORS)
    whole, end = keys_of(first, len_k, 0, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), LOWEST, tl.float32)
    start = 0
    if EVEN or not DESCRIPTORS:  # loads through pointers have masks of their own: two loops
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q_m, k, v, batch, head_k, first, 0, whole, whole, len_k, scale, stride_ks, stride_vs,
            CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, False, PROMOTE, HALF, DESCRIPTORS,
        )  # fmt: skip
        start = whole
    if not EVEN:
        acc, l_i, m_i = _attend(
            acc, l_i, m_i, q_m, k, v, batch, head_k, first, start, whole, end, len_k, scale, stride_ks, stride_vs,
            CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, True, PROMOTE, HALF, DESCRIPTORS,
        )  # fmt: skip
    lift: tl.constexpr = 0.0 if HALF else LIFT
    offs_m = first + tl.arange(0, BLOCK_M)
    lse_ptrs = lse_ptr + place.to(tl.int64) * len_q + offs_m
    tl.store(lse_ptrs, (m_i + (tl.log2(l_i) - lift)) * LN2, mask=offs_m < len_q)
    out_ptr = head_of(out_ptr, b, head, 0, stride_ob, stride_oh, stride_os, False)
    write_rows(out_ptr, acc * (v_scale / l_i)[:, None], first, len_q - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D)


def _block_d(head_dim):
    """Columns of a block: the least power of two that ``tl.dot`` takes of 8 bits and holds the head."""
    return max(32, triton.next_power_of_2(head_dim))


def launch_tiled(q, k, v, scales, causal, scale, out_dtype=torch.bfloat16, half=False, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d]; out lies in memory as q does, as far as q leaves no gaps.

    ``half``: P and V in fp16, and all by descriptors, where the copy engine can read it.
    """
    (batch, heads, len_q, head_dim), len_k = q.shape, k.shape[2]
    out = torch.empty_like(q, dtype=out_dtype)
    q, k, v, written = map(_as_interpreted, (q, k, v, out))
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    read, descriptors = as_read((q, k, v), (rows, columns, columns), half and head_dim > 16)
    launch(
        _tiled_kernel, (batch * heads * triton.cdiv(len_q, rows),),
        *read, *scales, written, lse, scale / math.log(2), heads, heads // k.shape[1], len_q, len_k,
        *strides_of(q), *strides_of(k), *strides_of(v), *strides_of(written),
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_D=_block_d(head_dim), PROMOTE=not half and head_dim <= 128, HALF=half,
        EVEN=half and not causal and len_k % columns == 0, DESCRIPTORS=descriptors, **config,
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


HALF_SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (64, 128), "num_warps": (4, 8), "num_stages": (2, 3)}

HEADS = (64, 128, 256)
"""Heads that `gluon` has a kernel for."""

FEW_KEYS = {64: 640, 128: 256, 256: 128}
"""By the columns of a head, the keys up to which `descriptor` is faster than `gluon`.

There a tile of `gluon` begins and ends too often, and its transposed V is read too seldom, to pay.  At heads of 64 and
494 to 602 keys `descriptor` takes 0.76 to 0.85 of its time; at 128 and 128 to 256 keys 0.85 to 0.92, with 640 1.15; at
256 and 256 keys 1.04 (H200, H100).
"""

LONG_DIAGONAL = 1024
"""Keys from which on blocks of 128 queries are faster under a causal mask, too: 640 1.01, 2048 0.91 (H200, H100)."""


def half_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Small programs share a multiprocessor; of wide heads those of 128 queries take 0.7 to 0.93 of the time.

    Not where they are too few, nor with few keys under a causal mask, of whose diagonal they compute more.  Masks are
    cheaper by four warps than by eight: 0.78.  Beyond 128 columns a multiprocessor has room for one program, and for a
    third stage: 0.83, 0.9.  Narrow heads leave registers for scores of 128 keys, where these are no more blocks of 64
    than there are and no diagonal runs through them: 0.92, 0.94 (H200, H100).
    """
    queries, keys, causal = problem["l"], problem["s"], problem["causal"]
    tiles = problem["b"] * problem["h"] * -(-queries // 128)
    if problem["d"] > 128:
        tile = (128, 64, 8, 3)
    elif problem["d"] > 64 and queries > 64 and tiles >= gpu.sms and (not causal or keys >= LONG_DIAGONAL):
        tile = (128, 64, 4 if causal else 8, 3)
    elif problem["d"] <= 64 and not causal and keys > 128 and -keys % 128 < 64:
        tile = (64, 128, 4, 3)
    else:
        tile = (64, 64, 4, 3)
    return dict(zip(HALF_SPACE, tile, strict=True))


def fits_half(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``descriptor`` cannot launch, or cannot be the best."""
    rows, columns, warps, stages = (config[name] for name in HALF_SPACE)
    d = _block_d(problem["d"])
    # V once more, in fp16.
    if reason := too_much_shared((rows + 2 * stages * columns) * d + 2 * columns * d + 2048, gpu):
        return reason
    return forward_by_wgmma(rows, columns, warps, stages, d, False)


def handles_half(problem: Case, gpu: GPU) -> str:
    """Why ``descriptor`` does not take a case."""
    if gpu.functional:
        return "the interpreter has no wgmma, which is what fp16 is for"
    if problem["d"] % 16 or problem["d"] <= 16:
        return "rows of a head are not aligned to 16 bytes, or too short for a product of 8 bits"
    if problem["d"] not in HEADS:  # beside `tiled`, which transposes V once a block of queries
        return ""
    most = FEW_KEYS[problem["d"]]
    return "" if problem["s"] <= most else f"more than {most} keys: fp8 is worth a transposed V"


def multiplies_fp8(problem: Case, gpu: GPU) -> str:
    """Why no variant takes a case on a GPU: ``tl.dot`` of e4m3 does not compile there."""
    return "" if gpu.functional or Capability.FP8 in gpu.capabilities else f"{gpu.name} has no {Capability.FP8}"
