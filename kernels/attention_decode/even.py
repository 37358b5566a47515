"""Variant `even`: all caches cut into as many equal parts as there are programs, wherever sequences begin and end.

All blocks of all caches stand in one row, sequence by sequence, head by head, and each program takes as many of them as
any other: all work as long, whatever the lengths, which the host does not read.  A cache that lies in one program's
part is finished there.  Of others a second kernel weighs the parts by their log-sum-exp, in their order, so two runs
agree bit by bit; it is launched while the first one runs.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.attention.blocks import LN2
from kernels.common.early import launch_early
from kernels.common.rows import LOWEST

from .reading import attend, prepared, weigh, weighed, write


@triton.jit
def _lengths(lens_ptr, batch, seq, BLOCK_N: tl.constexpr, BATCHES: tl.constexpr, HAS_LENS: tl.constexpr):
    """(filled rows, blocks, blocks up to its end) of each sequence, or of any; an empty one has a block, too."""
    if HAS_LENS:
        offs = tl.arange(0, BATCHES)
        lens = tl.maximum(tl.minimum(tl.load(lens_ptr + offs, mask=offs < batch, other=0), seq), 0)
        blocks = tl.where(offs < batch, tl.maximum(tl.cdiv(lens, BLOCK_N), 1), 0)
        ends = tl.cumsum(blocks, axis=0)
        total = tl.sum(blocks, axis=0)
    else:
        lens, ends = seq, 0
        blocks = tl.maximum(tl.cdiv(seq, BLOCK_N), 1)
        total = blocks * batch
    return lens, blocks, ends, total


@triton.jit
def _of(sequence, lens, blocks, ends, BATCHES: tl.constexpr, HAS_LENS: tl.constexpr):
    """(filled rows, blocks, blocks of all before) of a sequence."""
    if HAS_LENS:
        this = tl.arange(0, BATCHES) == sequence
        count = tl.sum(tl.where(this, blocks, 0), axis=0)
        length = tl.sum(tl.where(this, lens, 0), axis=0)
        before = tl.sum(tl.where(this, ends, 0), axis=0) - count
    else:
        length, count, before = lens, blocks, blocks * sequence
    return length, count, before


@triton.jit
def _even_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, out_ptr, lse_ptr, part_ptr, part_lse_ptr, batch, kv_heads, seq, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, REST: tl.constexpr, WIDTH: tl.constexpr, BATCHES: tl.constexpr, HAS_LENS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One program owns an equal share of the blocks of all caches.

    Of a cache that lies in its share it writes the results, of others parts in fp32, [programs, 2, GROUP, QUERIES, d]
    and [programs, 2, GROUP, QUERIES], to base 2: first that of the cache which the share begins in.
    """
    if EARLY:
        gdc_launch_dependents()
    lens, blocks, ends, total = _lengths(lens_ptr, batch, seq, BLOCK_N, BATCHES, HAS_LENS)
    total *= kv_heads
    share = tl.cdiv(total, tl.num_programs(0))
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, total)
    place = begin
    while place < end:
        if HAS_LENS:  # noqa: SIM108
            sequence = tl.sum((ends * kv_heads <= place).to(tl.int32), axis=0)
        else:
            sequence = place // (blocks * kv_heads)
        length, count, before = _of(sequence, lens, blocks, ends, BATCHES, HAS_LENS)
        within = place - before * kv_heads
        head = within // count
        block = within % count
        mine = tl.minimum(count - block, end - place)
        first = block * BLOCK_N
        last = tl.minimum(first + mine * BLOCK_N, length)
        out, rest, lse = attend(
            q_ptr, k_ptr, v_ptr, sequence, head, first, last, length, scale,
            stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
            GROUP, QUERIES, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, REST, WIDTH,
        )  # fmt: skip
        if mine == count:
            pair = sequence.to(tl.int64) * kv_heads + head
            write(out_ptr, lse_ptr, pair, out, rest, lse * LN2, GROUP * QUERIES, HEAD_DIM, REST)
        else:
            part = tl.program_id(0).to(tl.int64) * 2 + (place > begin)
            write(part_ptr, part_lse_ptr, part, out, rest, lse, GROUP * QUERIES, HEAD_DIM, REST)
        place += mine


@triton.jit
def _join_kernel(
    part_ptr, part_lse_ptr, lens_ptr, out_ptr, lse_ptr, batch, kv_heads, seq, programs,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    BATCHES: tl.constexpr, HAS_LENS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program owns one of the ROWS rows (head of q and token) of one head of one sequence's cache."""
    row = tl.program_id(0) % ROWS
    pair = tl.program_id(0) // ROWS
    lens, blocks, ends, all_blocks = _lengths(lens_ptr, batch, seq, BLOCK_N, BATCHES, HAS_LENS)
    share = tl.cdiv(all_blocks * kv_heads, programs)
    _, count, before = _of(pair // kv_heads, lens, blocks, ends, BATCHES, HAS_LENS)
    begin = before * kv_heads + pair % kv_heads * count
    first = begin // share
    parts = (begin + count - 1) // share - first + 1
    if EARLY:
        gdc_wait()
    if parts > 1:
        offs_s = tl.arange(0, BLOCK_S)
        offs_d = tl.arange(0, BLOCK_D)
        mask_d = offs_d < HEAD_DIM
        m_i = tl.full([BLOCK_S], LOWEST, tl.float32)
        l_i = tl.zeros([BLOCK_S], tl.float32)
        acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
        for start in tl.range(0, parts, BLOCK_S):
            number = start + offs_s
            mask_s = number < parts
            second = (number == 0) & (begin % share > 0)
            part = ((first + number) * 2 + second.to(tl.int32)).to(tl.int64) * ROWS + row
            lse = tl.load(part_lse_ptr + part, mask=mask_s, other=-float("inf"))
            out = tl.load(
                part_ptr + part[:, None] * HEAD_DIM + offs_d, mask=mask_s[:, None] & mask_d[None, :], other=0.0
            )
            m_i, l_i, acc = weigh(m_i, l_i, acc, out, lse)
        out, lse = weighed(m_i, l_i, acc)
        at = pair.to(tl.int64) * ROWS + row
        tl.store(out_ptr + at * HEAD_DIM + offs_d, out, mask=mask_d)
        tl.store(lse_ptr + at, lse)


def launch_even(q, k, v, lens, scale, *, config):
    """Launch ``_even_kernel``, and ``_join_kernel`` where there is more than one program; out and lse."""
    results, read, scale, constants = prepared(q, k, v, scale, config)
    (batch, heads, queries, head_dim), (kv_heads, seq) = q.shape, k.shape[1:3]
    gpu, rows = gpu_of(q.device), heads // kv_heads * queries
    blocks = batch * kv_heads * max(triton.cdiv(seq, config["BLOCK_N"]), 1)
    programs = min(gpu.sms * config["PROGRAMS"], blocks)
    part = torch.empty((programs, 2, rows, head_dim), dtype=torch.float32, device=q.device)
    part_lse = torch.empty((programs, 2, rows), dtype=torch.float32, device=q.device)
    lengths = {"BATCHES": triton.next_power_of_2(batch), "HAS_LENS": lens is not None}
    launch(
        _even_kernel, (programs,), *read, lens, *results, part, part_lse, batch, kv_heads, seq, scale,
        *(stride for x in read for stride in x.stride()[:3]), **constants, **lengths,
        EARLY=gpu.backend == "cuda" and int(gpu.arch) >= 90,
    )  # fmt: skip
    if programs > 1:
        launch_early(
            _join_kernel, (batch * heads * queries,), q.device, part, part_lse, lens, *results, batch, kv_heads, seq,
            programs, ROWS=rows, HEAD_DIM=head_dim, BLOCK_N=config["BLOCK_N"], BLOCK_D=triton.next_power_of_2(head_dim),
            BLOCK_S=min(triton.next_power_of_2(programs), 32), **lengths, num_warps=4,
        )  # fmt: skip
    return results
