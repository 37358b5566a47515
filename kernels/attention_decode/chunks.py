"""Variants `split`, whose programs read a chunk of a cache, and `whole`, whose programs read all of one.

A second kernel weighs the chunks' results by their log-sum-exp, in the order of the chunks, so two runs agree bit by
bit.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from kernels.attention.blocks import LN2
from kernels.common.rows import LOWEST

from .reading import attend, prepared, weigh, weighed, write


@triton.jit
def _chunk_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, out_ptr, lse_ptr, kv_heads, seq, chunk, splits, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
    HAS_LENS: tl.constexpr,
):  # fmt: skip
    """One program owns ``chunk`` rows, a multiple of BLOCK_N, of one head of one sequence's cache.

    WHOLE: the chunk is all of the cache, and out and lse are the results; else parts in fp32, [b, g, splits, GROUP,
    QUERIES, d] and [b, g, splits, GROUP, QUERIES], to base 2.  A program behind the sequence's end writes nothing.
    """
    split = tl.program_id(0) % splits
    head = tl.program_id(0) // splits % kv_heads
    batch = tl.program_id(0) // (splits * kv_heads)
    length = seq
    if HAS_LENS:
        length = tl.minimum(tl.load(lens_ptr + batch), seq)
    first = split * chunk
    if (first < length) | WHOLE:
        last = tl.minimum(first + chunk, length)
        out, rest, lse = attend(
            q_ptr, k_ptr, v_ptr, batch, head, first, last, length, scale,
            stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
            GROUP, QUERIES, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, REST, WIDTH,
        )  # fmt: skip
        if WHOLE:
            lse = lse * LN2
        place = (batch.to(tl.int64) * kv_heads + head) * splits + split
        write(out_ptr, lse_ptr, place, out, rest, lse, GROUP * QUERIES, HEAD_DIM, REST)


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
        m_i, l_i, acc = weigh(m_i, l_i, acc, out, lse)
    out, lse = weighed(m_i, l_i, acc)
    tl.store(out_ptr + (pair * ROWS + row) * HEAD_DIM + offs_d, out, mask=mask_d)
    tl.store(lse_ptr + pair * ROWS + row, lse)


def rows_of_chunk(pairs, seq, programs, block_n):
    """Rows of a chunk: a multiple of ``block_n``, so that ``pairs`` caches give about ``programs`` of them."""
    blocks = max(triton.cdiv(seq, block_n), 1)
    splits = min(max(programs // pairs, 1), blocks)
    return triton.cdiv(blocks, splits) * block_n


def launch_chunks(q, k, v, lens, scale, *, config):
    """Launch ``_chunk_kernel``, and ``_combine_kernel`` where a cache has several chunks; out and lse."""
    results, read, scale, constants = prepared(q, k, v, scale, config)
    (batch, heads, queries, head_dim), (kv_heads, seq) = q.shape, k.shape[1:3]
    pairs, rows = batch * kv_heads, heads // kv_heads * queries
    chunk = seq
    if "PROGRAMS" in config:
        chunk = rows_of_chunk(pairs, seq, gpu_of(q.device).sms * config["PROGRAMS"], config["BLOCK_N"])
    splits = max(triton.cdiv(seq, chunk), 1) if chunk else 1
    written = results
    if splits > 1:
        part = torch.empty((pairs, splits, rows, head_dim), dtype=torch.float32, device=q.device)
        written = part, torch.empty((pairs, splits, rows), dtype=torch.float32, device=q.device)
    launch(
        _chunk_kernel, (pairs * splits,), *read, lens, *written, kv_heads, seq, chunk, splits, scale,
        *(stride for x in read for stride in x.stride()[:3]), WHOLE=splits == 1, HAS_LENS=lens is not None,
        **constants,
    )  # fmt: skip
    if splits > 1:
        launch(
            _combine_kernel, (batch * heads * queries,), *written, lens, *results, kv_heads, seq, chunk, splits,
            ROWS=rows, HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim),
            BLOCK_S=min(triton.next_power_of_2(splits), 32), HAS_LENS=lens is not None, num_warps=4,
        )  # fmt: skip
    return results
