"""The kernels: a program reads a chunk of a cache (variant `split`), or all of it (`whole`).

All heads of q that share a head of the cache, and their tokens, are rows of one product: a program reads its part of
the cache once for all of them.  Tensor cores take 16 rows at least; those that are missing cost nothing here.  A
program keeps maximum, sum and weighted sum of V as in flash attention.  A second kernel weighs the chunks' results by
their log-sum-exp, in the order of the chunks, so two runs agree bit by bit.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size, gpu_of
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
def _chunk_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, out_ptr, lse_ptr, kv_heads, seq, chunk, splits, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr, HAS_LENS: tl.constexpr,
):  # fmt: skip
    """One program owns ``chunk`` rows, a multiple of BLOCK_N, of one head of one sequence's cache.

    Its BLOCK_M rows are the GROUP heads of q that use that head, QUERIES tokens each.  WHOLE: the chunk is all of the
    cache, and out and lse are the results; else parts in fp32, [b, g, splits, GROUP, QUERIES, d] and [b, g, splits,
    GROUP, QUERIES], to base 2.  A program behind the sequence's end writes nothing.
    """
    split = tl.program_id(0) % splits
    head = tl.program_id(0) // splits % kv_heads
    batch = tl.program_id(0) // (splits * kv_heads)
    batch_64, head_64 = batch.to(tl.int64), head.to(tl.int64)
    length = seq
    if HAS_LENS:
        length = tl.minimum(tl.load(lens_ptr + batch), seq)
    first = split * chunk
    if (first < length) | WHOLE:
        last = tl.minimum(first + chunk, length)
        offs_m = tl.arange(0, BLOCK_M)
        offs_d = tl.arange(0, BLOCK_D)
        member, query = offs_m // QUERIES, offs_m % QUERIES
        mask_m = offs_m < GROUP * QUERIES
        limit = length - (QUERIES - 1) + query
        mask_md = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
        q_ptr += batch_64 * stride_qb + head_64 * GROUP * stride_qh
        q = tl.load(
            q_ptr + (member * stride_qh + query * stride_qt)[:, None] + offs_d[None, :], mask=mask_md, other=0.0
        )
        offs_n = tl.arange(0, BLOCK_N)[:, None]
        k_ptrs = k_ptr + batch_64 * stride_kb + head_64 * stride_kh + offs_n * stride_ks + offs_d[None, :]
        v_ptrs = v_ptr + batch_64 * stride_vb + head_64 * stride_vh + offs_n * stride_vs + offs_d[None, :]
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
        acc = acc / total[:, None]
        lse = tl.where(none, -float("inf"), m_i + tl.log2(total))
        if WHOLE:
            lse = lse * LN2
        row = ((batch_64 * kv_heads + head) * splits + split) * GROUP * QUERIES + offs_m
        tl.store(out_ptr + row[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=mask_md)
        tl.store(lse_ptr + row, lse, mask=mask_m)


@triton.jit
def _combine_kernel(
    part_ptr, part_lse_ptr, lens_ptr, out_ptr, lse_ptr, kv_heads, seq, chunk, splits,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, HAS_LENS: tl.constexpr,
):  # fmt: skip
    """One program owns one of the ROWS rows (head of q and token) of one head of one sequence's cache."""
    row = tl.program_id(0) % ROWS
    pair = (tl.program_id(0) // ROWS).to(tl.int64)
    length = seq
    if HAS_LENS:
        length = tl.minimum(tl.load(lens_ptr + pair // kv_heads), seq)
    used = tl.cdiv(length, chunk)
    offs_s = tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    m_i = tl.full([BLOCK_S], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_S], tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for start in tl.range(0, used, BLOCK_S):
        mask_s = start + offs_s < used
        part = (pair * splits + start + offs_s) * ROWS + row
        lse = tl.load(part_lse_ptr + part, mask=mask_s, other=-float("inf"))
        out = tl.load(part_ptr + part[:, None] * HEAD_DIM + offs_d, mask=mask_s[:, None] & mask_d[None, :], other=0.0)
        m_new = tl.maximum(m_i, lse)
        alpha, weight = tl.exp2(m_i - m_new), tl.exp2(lse - m_new)
        l_i = l_i * alpha + weight
        acc = acc * alpha[:, None] + out * weight[:, None]
        m_i = m_new
    top = tl.max(m_i, axis=0)
    share = tl.exp2(m_i - top)
    total = tl.sum(l_i * share, axis=0)
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    out = tl.sum(acc * share[:, None], axis=0) / total
    lse = tl.where(none, -float("inf"), (top + tl.log2(total)) * LN2)
    tl.store(out_ptr + (pair * ROWS + row) * HEAD_DIM + offs_d, out, mask=mask_d)
    tl.store(lse_ptr + pair * ROWS + row, lse)


def rows_of_chunk(pairs, seq, programs, block_n):
    """Rows of a chunk: a multiple of ``block_n``, so that ``pairs`` caches give about ``programs`` of them."""
    blocks = max(triton.cdiv(seq, block_n), 1)
    splits = min(max(programs // pairs, 1), blocks)
    return triton.cdiv(blocks, splits) * block_n


def launch_chunks(q, k, v, lens, scale, *, config):
    """Launch ``_chunk_kernel``, and ``_combine_kernel`` where a cache has several chunks; out and lse."""
    (batch, heads, queries, head_dim), (kv_heads, seq) = q.shape, k.shape[1:3]
    pairs, group = batch * kv_heads, heads // kv_heads
    block_n, block_d = config["BLOCK_N"], triton.next_power_of_2(head_dim)
    chunk = seq
    if "PROGRAMS" in config:
        chunk = rows_of_chunk(pairs, seq, gpu_of(q.device).sms * config["PROGRAMS"], block_n)
    splits = max(triton.cdiv(seq, chunk), 1) if chunk else 1
    out = torch.empty((batch, heads, queries, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    part, part_lse = out, lse
    if splits > 1:
        part = torch.empty((pairs, splits, group * queries, head_dim), dtype=torch.float32, device=q.device)
        part_lse = torch.empty((pairs, splits, group * queries), dtype=torch.float32, device=q.device)
    q, k, v = as_interpreted(q), as_interpreted(k), as_interpreted(v)
    launch(
        _chunk_kernel, (pairs * splits,), q, k, v, lens, part, part_lse, kv_heads, seq, chunk, splits,
        scale * math.log2(math.e), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        GROUP=group, QUERIES=queries, HEAD_DIM=head_dim, BLOCK_M=max(triton.next_power_of_2(group * queries), 16),
        BLOCK_N=block_n, BLOCK_D=block_d, WHOLE=splits == 1, HAS_LENS=lens is not None,
        num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    if splits > 1:
        launch(
            _combine_kernel, (batch * heads * queries,), part, part_lse, lens, out, lse, kv_heads, seq, chunk, splits,
            ROWS=group * queries, HEAD_DIM=head_dim, BLOCK_D=block_d,
            BLOCK_S=min(triton.next_power_of_2(splits), 32), HAS_LENS=lens is not None, num_warps=4,
        )  # fmt: skip
    return out, lse


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
