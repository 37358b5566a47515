"""What both variants do with a part of a cache, and variant `whole`, whose programs read all of one.

All heads of q that share a head of the cache, and their tokens, are rows of one product: a program reads its part of
the cache once for all of them.  Tensor cores take 16 rows at least; those that are missing cost nothing here.  A
program keeps maximum, sum and weighted sum of V as in flash attention.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.attention.blocks import LN2
from kernels.common.rows import LOWEST


@triton.jit
def _fold(
    q, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, scale, stride_ks, stride_vs,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """State (maximum m_i, sum l_i of exp2, weighted sum acc of V) after the cache's rows from ``start`` on.

    Of MASKED blocks each row of q sees the keys before its ``limit``, and those from ``last`` on are not read.
    """
    offs_n = start + tl.arange(0, BLOCK_N)
    mask_d = tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM
    k_block = k_ptrs + tl.cast(start, tl.int64) * stride_ks
    v_block = v_ptrs + tl.cast(start, tl.int64) * stride_vs
    if MASKED:
        # Zeros instead of what lies behind the cache's end: a weight of 0 times a NaN would be one.
        k = tl.load(k_block, mask=(offs_n < last)[:, None] & mask_d, other=0.0)
        v = tl.load(v_block, mask=(offs_n < last)[:, None] & mask_d, other=0.0)
    elif HEAD_DIM < BLOCK_D:
        k = tl.load(k_block, mask=mask_d, other=0.0)
        v = tl.load(v_block, mask=mask_d, other=0.0)
    else:
        k = tl.load(k_block)
        v = tl.load(v_block)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        s = tl.where(offs_n[None, :] < limit[:, None], s, -float("inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1))
    p = tl.exp2(s - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_new, l_i, acc


@triton.jit
def attend(
    q_ptr, k_ptr, v_ptr, sequence, head, first, last, length, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """(out, lse to base 2) of one head of a cache's rows from ``first``, a whole number of blocks, to ``last``.

    BLOCK_M rows are the GROUP heads of q that use the head, QUERIES tokens each; the cache holds ``length`` rows.
    """
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    member, query = offs_m // QUERIES, offs_m % QUERIES
    mask_md = (offs_m < GROUP * QUERIES)[:, None] & (offs_d < HEAD_DIM)[None, :]
    limit = length - (QUERIES - 1) + query
    b, h = sequence.to(tl.int64), head.to(tl.int64)
    q_ptr += b * stride_qb + h * GROUP * stride_qh
    q = tl.load(q_ptr + (member * stride_qh + query * stride_qt)[:, None] + offs_d[None, :], mask=mask_md, other=0.0)
    offs_n = tl.arange(0, BLOCK_N)[:, None]
    k_ptrs = k_ptr + b * stride_kb + h * stride_kh + offs_n * stride_ks + offs_d[None, :]
    v_ptrs = v_ptr + b * stride_vb + h * stride_vh + offs_n * stride_vs + offs_d[None, :]
    m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Whole blocks that every row sees, then those with the ends of some.
    seen = tl.maximum(tl.minimum(last, length - (QUERIES - 1)) - first, 0) // BLOCK_N * BLOCK_N + first
    for start in tl.range(first, seen, BLOCK_N):
        m_i, l_i, acc = _fold(
            q, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, scale, stride_ks, stride_vs,
            BLOCK_N, HEAD_DIM, BLOCK_D, False,
        )  # fmt: skip
    for start in tl.range(seen, last, BLOCK_N, num_stages=1):
        m_i, l_i, acc = _fold(
            q, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, scale, stride_ks, stride_vs,
            BLOCK_N, HEAD_DIM, BLOCK_D, True,
        )  # fmt: skip
    # A row that saw no key has the sum 0: its result is 0, of weight 0.
    none = l_i == 0.0
    total = tl.where(none, 1.0, l_i)
    return acc / total[:, None], tl.where(none, -float("inf"), m_i + tl.log2(total))


@triton.jit
def write(out_ptr, lse_ptr, place, out, lse, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Write ROWS rows of ``out`` and ``lse`` where those of number ``place`` are."""
    offs_m = tl.arange(0, out.shape[0])
    offs_d = tl.arange(0, out.shape[1])
    row = place * ROWS + offs_m
    mask = (offs_m < ROWS)[:, None] & (offs_d < HEAD_DIM)[None, :]
    tl.store(out_ptr + row[:, None] * HEAD_DIM + offs_d[None, :], out, mask=mask)
    tl.store(lse_ptr + row, lse, mask=offs_m < ROWS)


@triton.jit
def _whole_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, out_ptr, lse_ptr, kv_heads, seq, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_LENS: tl.constexpr,
):  # fmt: skip
    """One program owns one head of one sequence's cache."""
    pair = tl.program_id(0)
    length = seq
    if HAS_LENS:
        length = tl.minimum(tl.load(lens_ptr + pair // kv_heads), seq)
    out, lse = attend(
        q_ptr, k_ptr, v_ptr, pair // kv_heads, pair % kv_heads, 0, length, length, scale,
        stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
        GROUP, QUERIES, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    write(out_ptr, lse_ptr, pair.to(tl.int64), out, lse * LN2, GROUP * QUERIES, HEAD_DIM)


def prepared(q, k, v, scale, config):
    """(out and lse to be filled, what kernels read, the scale to base 2, the constants of their launch)."""
    batch, heads, queries, head_dim = q.shape
    group = heads // k.shape[1]
    out = torch.empty((batch, heads, queries, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    constants = {
        "GROUP": group, "QUERIES": queries, "HEAD_DIM": head_dim,
        "BLOCK_M": max(triton.next_power_of_2(group * queries), 16), "BLOCK_D": triton.next_power_of_2(head_dim),
        **{name: value for name, value in config.items() if name != "PROGRAMS"},
    }  # fmt: skip
    return (out, lse), tuple(map(as_interpreted, (q, k, v))), scale * math.log2(math.e), constants


def launch_whole(q, k, v, lens, scale, *, config):
    """Launch ``_whole_kernel``; out and lse."""
    results, read, scale, constants = prepared(q, k, v, scale, config)
    kv_heads, seq = k.shape[1:3]
    launch(
        _whole_kernel, (q.shape[0] * kv_heads,), *read, lens, *results, kv_heads, seq, scale,
        *(stride for x in read for stride in x.stride()[:3]), HAS_LENS=lens is not None, **constants,
    )  # fmt: skip
    return results


SPLIT_SPACE = {
    "BLOCK_N": (32, 64, 128),
    "PROGRAMS": (1, 2),
    "num_warps": (2, 4),
    "num_stages": (2, 3, 4),
}


def split_default(problem: Case, gpu: GPU) -> dict[str, int]:
    if _copies_asynchronously(gpu):
        block_n = min(max(8192 // triton.next_power_of_2(problem["head_dim"]), 32), 128)  # 16 KiB of K
        return {"BLOCK_N": block_n, "PROGRAMS": 2, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_N": 32, "PROGRAMS": 2, "num_warps": 4, "num_stages": 2}


def whole_default(problem: Case, gpu: GPU) -> dict[str, int]:
    return {name: value for name, value in split_default(problem, gpu).items() if name != "PROGRAMS"}


def _copies_asynchronously(gpu: GPU) -> bool:
    return gpu.backend == "cuda" and int(gpu.arch) >= 80


def fits(config, problem: Case, gpu: GPU) -> str:
    block = config["BLOCK_N"] * triton.next_power_of_2(problem["head_dim"]) * element_size(problem.dtype)
    asynchronous = _copies_asynchronously(gpu)
    # On sm_75 tl.dot is FMA, which holds its operands in registers as fp32.
    most = 64 if gpu.backend == "cuda" and not asynchronous else 256
    if block // (32 * config["num_warps"]) > most:
        return f"more than {most} bytes of a block of K a thread: registers spill"
    if gpu.functional:
        return ""
    if asynchronous and block < 16 * 1024:
        return "blocks of less than 16 KiB, which longer ones beat (H200)"
    if not asynchronous and config["num_stages"] > 2:
        return "no asynchronous copies, so further stages do nothing"
    # Blocks of K and V that are on their way while one is multiplied; without asynchronous copies one is all there is.
    shared = 2 * block * (config["num_stages"] - 1 if asynchronous else 1)
    if shared + 12 * 1024 > gpu.shared_bytes:
        return f"{shared // 1024} KiB of the cache in shared memory, beside what reductions need"
    under_way = shared * config.get("PROGRAMS", 2) // 1024
    if asynchronous and under_way < 48:  # latency times bandwidth asks for some 32 KiB
        return f"{under_way} KiB of the cache under way in an SM: too few to hide latency"
    return ""
