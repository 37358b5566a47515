"""What the forward kernels for Hopper (sm_90) share, of 16 bits and of fp8: memory, tiles, loads, scores, masks.

A program has a multiprocessor for itself.  One of its warps loads (the producer): Q, K and V go by TMA into rings of
shared memory.  CONSUMERS groups of four warps multiply, each for ROWS rows of Q.  Barriers in shared memory hand
buffers over: a "full" one, on which TMA counts the bytes, and an "empty" one, on which the readers arrive.

Blocks of keys are walked from the last to the first: those with masks (the diagonal's, the tail) come first, the loop
over the others has none.  Programs are persistent: the producer loads for the next tile under this one's end.
"""

import functools
import itertools
import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .blocks import FAR, ragged
from .hopper_parts import begin_products, columns_of
from .listing import tile_at

ROWS = 64
"""Queries of a group of warps: what one wgmma multiplies."""


@gluon.jit
def tile_of(turn, m_blocks, heads, section, CAUSAL: gl.constexpr):
    """(block of rows, head, whether there is one) of this program's ``turn``-th tile.

    Tiles of a head run at about the same time, for they read the same keys.  With CAUSAL that goes for the heads of a
    section: its longest tiles come first, and every other turn runs backwards over the programs.  How many heads those
    are is chosen (:func:`section_for`) so that all programs get about the same work.
    """
    width = gl.num_programs(0)
    pid = gl.program_id(0)
    if CAUSAL:
        place = turn * width + gl.where(turn % 2 == 0, pid, width - 1 - pid)
        first = place // (section * m_blocks) * section
        count = gl.maximum(gl.minimum(section, heads - first), 1)
        within = place - first * m_blocks
        block_m = m_blocks - 1 - within // count
        head = first + within % count
    else:
        place = turn * width + pid
        block_m = place % m_blocks
        head = place // m_blocks
    return block_m, head, place < m_blocks * heads


@gluon.jit
def turns_of(sizes, PACKED: gl.constexpr):
    """How many tiles a program has at most."""
    tiles = gl.load(sizes[6]) * sizes[2] if PACKED else sizes[4] * sizes[5]
    return gl.cdiv(tiles, gl.num_programs(0))


@gluon.jit
def tile_within(turn, sizes, CAUSAL: gl.constexpr, PACKED: gl.constexpr):
    """(block of rows, head, whether there is one, its (first query, queries, first key, keys)) of a program's tile.

    Tiles of a packed batch are those that :mod:`.listing` lists, the longest first, for all heads at once; every
    other turn runs backwards over the programs.
    """
    len_q, len_k, heads, _, m_blocks, all_heads, section = sizes
    if PACKED:
        pid = gl.program_id(0)
        width = gl.num_programs(0)
        place = turn * width + gl.where(turn % 2 == 0, pid, width - 1 - pid)
        there, block_m, _, first_q, rows_q, first_k, rows_k = tile_at(section, place // heads)
        head = place % heads
        span = (first_q, rows_q, first_k, rows_k)
    else:
        block_m, head, there = tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        span = (0, len_q, 0, len_k)
    return block_m, head, there, span


@gluon.jit
def corner_of(batch, head, row, column, first, rows, PACKED: gl.constexpr):
    """Where a block of a head's rows begins, as descriptors take it.

    Of a packed batch it is row ``row`` of the ``rows`` that a sequence has from ``first`` on.
    """
    return (FAR, first + rows, head, FAR - rows + row, column) if PACKED else (batch, head, row, column)


@gluon.jit
def blocks_of(block_m, len_k, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many blocks of keys a block of rows sees: one at least, for there is a key, and every row sees the first."""
    end = len_k
    if CAUSAL:
        end = gl.minimum(len_k, (block_m + 1) * BLOCK_M)
    return gl.cdiv(end, BLOCK_N)


@gluon.jit
def blocks_within(
    block_m, len_q, len_k, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, PACKED: gl.constexpr
):  # fmt: skip
    """:func:`blocks_of`; of a packed batch the last query sees the last key, and some may see none."""
    if PACKED:
        end = len_k
        if CAUSAL:
            end = gl.minimum(len_k, (block_m + 1) * BLOCK_M + len_k - len_q)
        blocks = gl.maximum(gl.cdiv(end, BLOCK_N), 1)
    else:
        blocks = blocks_of(block_m, len_k, CAUSAL, BLOCK_M, BLOCK_N)
    return blocks


@gluon.jit
def shared_memory(
    q_desc, k_desc, v_desc, o_desc, noted: gl.constexpr,
    ROWS: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr, Q_STAGES: gl.constexpr = 1,
):  # fmt: skip
    """(buffers, barriers) of a program, these ready to be waited for.

    Buffers are Q of each group for Q_STAGES tiles, rings of K and V, out of each group, and notes in dtype ``noted``,
    which nobody reads: a wait stays behind the store of sums to them.
    """
    queries: gl.constexpr = Q_STAGES * CONSUMERS
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [queries] + q_desc.block_shape, q_desc.layout)  # noqa: RUF005
    k_smem = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_shape, k_desc.layout)  # noqa: RUF005
    v_smem = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_shape, v_desc.layout)  # noqa: RUF005
    o_smem = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS] + o_desc.block_shape, o_desc.layout)  # noqa: RUF005
    notes = gl.allocate_shared_memory(noted, [CONSUMERS, ROWS, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [queries, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [queries, 1], barrier)
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for c in gl.static_range(CONSUMERS):
        for slot in gl.static_range(c, queries, CONSUMERS):
            mbarrier.init(q_full.index(slot), count=1)
            mbarrier.init(q_empty.index(slot), count=1)
        mbarrier.init(turns.index(c), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=CONSUMERS)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(v_empty.index(slot), count=CONSUMERS)
    fence_async_shared()
    return (q_smem, k_smem, v_smem, o_smem, notes), (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns)


@gluon.jit
def produce(
    q_desc, k_desc, v_desc, buffers, barriers, sizes,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    V_TRANSPOSED: gl.constexpr, PACKED: gl.constexpr, Q_STAGES: gl.constexpr = 1,
):  # fmt: skip
    """The producer: each tile's Q, and its K and V block by block from the last; blocks of V^T are columns.

    A buffer's n-th filling waits for its n-1-th emptying, by the parity of either; the first waits for none.
    """
    q_smem, k_smem, v_smem, _, _ = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, _ = barriers
    heads = sizes[2]
    group = sizes[3]
    step = 0
    done = 0
    for turn in range(turns_of(sizes, PACKED)):
        block_m, place, there, span = tile_within(turn, sizes, CAUSAL, PACKED)
        if there:
            first_q, len_q, first_k, len_k = span
            batch = place // heads
            head = place % heads
            head_k = head // group
            blocks = blocks_within(block_m, len_q, len_k, CAUSAL, ROWS * CONSUMERS, BLOCK_N, PACKED)
            for c in gl.static_range(CONSUMERS):
                slot = done % Q_STAGES * CONSUMERS + c
                mbarrier.wait(q_empty.index(slot), (done // Q_STAGES & 1) ^ 1)
                mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes)
                first = (block_m * CONSUMERS + c) * ROWS
                corner = corner_of(batch, head, first, 0, first_q, len_q, PACKED)
                tma.async_copy_global_to_shared(q_desc, corner, q_full.index(slot), q_smem.index(slot))
            for i in range(blocks):
                first = (blocks - 1 - i) * BLOCK_N
                slot = step % STAGES
                parity = (step // STAGES & 1) ^ 1
                for key_or_value in gl.static_range(2):
                    desc = k_desc if key_or_value == 0 else v_desc
                    empty = (k_empty if key_or_value == 0 else v_empty).index(slot)
                    full = (k_full if key_or_value == 0 else v_full).index(slot)
                    mbarrier.wait(empty, parity)
                    mbarrier.expect(full, desc.block_type.nbytes)
                    smem = (k_smem if key_or_value == 0 else v_smem).index(slot)
                    row = 0 if V_TRANSPOSED and key_or_value == 1 else first
                    column = first if V_TRANSPOSED and key_or_value == 1 else 0
                    corner = corner_of(batch, head_k, row, column, first_k, len_k, PACKED)
                    tma.async_copy_global_to_shared(desc, corner, full, smem)
                step += 1
            done += 1


@gluon.jit
def anew(index):
    """The index, of which the compiler does not know that it is the same in every pass of a loop.

    It would keep the addresses of all operands in registers otherwise, where there are none left.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [index], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def partial_sums(p, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Sums of P's rows [ROWS, 4]: each of the four threads that share a row keeps its own until the tile's end."""
    return gl.sum(gl.sum(p.reshape([ROWS, BLOCK_N // 8, 4, 2]), 3), 1)


@gluon.jit
def mask_scores(s, first_n, limit, BLOCK_N: gl.constexpr, s_layout: gl.constexpr):
    """Scores of keys from ``first_n`` on with -inf where a row, which sees ``limit`` keys, does not see the key."""
    offs_n = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s_layout))
    return gl.where(offs_n[None, :] < limit[:, None], s, -float("inf"))


@gluon.jit
def begin_scores(
    q, k_smem, step, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, RIGHT: gl.constexpr, s_layout: gl.constexpr
):
    """Begin S = Q K^T with the block of keys number ``step``; ``q`` are :func:`operands_of` Q."""
    rows: gl.constexpr = q[0].shape[0]
    zeros = gl.zeros([rows, BLOCK_N], gl.float32, s_layout)
    return begin_products(q, k_smem.index(step % STAGES), zeros, RIGHT)


@gluon.jit
def pass_block(
    barriers, step, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr
):
    """Give a block of keys and values back unread; not before it is there, or it would count for the one before it."""
    _, _, k_full, k_empty, v_full, v_empty, turns = barriers
    slot = step % STAGES
    mbarrier.wait(k_full.index(slot), step // STAGES & 1)
    mbarrier.arrive(k_empty.index(slot), count=1)
    mbarrier.wait(v_full.index(slot), step // STAGES & 1)
    mbarrier.arrive(v_empty.index(slot), count=1)
    if PINGPONG:
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)


@gluon.jit
def seen_by(
    blocks, first, len_k, CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, s_layout: gl.constexpr
):  # fmt: skip
    """What ROWS queries from ``first`` on see: (their numbers, how many keys each, of how many blocks, how many whole).

    Of ``blocks`` some may be for later groups alone; whole are those that every query of the group sees all of.
    """
    offs_m = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    limit = gl.zeros_like(offs_m) + len_k
    mine = blocks
    whole = len_k // BLOCK_N
    if CAUSAL:
        limit = gl.minimum(limit, offs_m + 1)
        whole = gl.minimum(whole, (first + 1) // BLOCK_N)
        mine = gl.minimum(blocks, gl.cdiv(first + ROWS, BLOCK_N))
    return offs_m, limit, mine, whole


@gluon.jit
def first_scores(
    q, k_smem, barriers, step, first_n, limit, MASKED: gl.constexpr, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, RIGHT: gl.constexpr,
    s_layout: gl.constexpr,
):  # fmt: skip
    """S of a tile's first block of keys, which runs under nothing."""
    _, _, k_full, k_empty, _, _, turns = barriers
    mbarrier.wait(k_full.index(step % STAGES), step // STAGES & 1)
    if PINGPONG:
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
    s = begin_scores(q, k_smem, step, BLOCK_N, STAGES, RIGHT, s_layout)
    if PINGPONG:
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(step % STAGES), count=1)
    if MASKED:
        s = mask_scores(s, first_n, limit, BLOCK_N, s_layout)
    return s


@gluon.jit
def write_tile(o, o_desc, out, place, heads, first, first_q, len_q, PACKED: gl.constexpr):
    """Write a group's rows of a tile, by way of shared memory, once those of the tile before have left it."""
    tma.store_wait(0)
    out.reshape([o.shape[0], o.shape[1]]).store(o.to(o_desc.dtype))
    fence_async_shared()
    corner = corner_of(place // heads, place % heads, first, 0, first_q, len_q, PACKED)
    tma.async_copy_shared_to_global(o_desc, corner, out)


@gluon.jit
def write_parts(parts, o_desc, out, place, heads, first, first_q, len_q, PACKED: gl.constexpr):
    """:func:`write_tile` of a head in two parts, by way of shared memory for one of them."""
    for part in gl.static_range(2):
        tma.store_wait(0)
        columns_of(out, 0, parts[part].shape[1]).store(parts[part].to(o_desc.dtype))
        fence_async_shared()
        column = part * parts[0].shape[1]
        corner = corner_of(place // heads, place % heads, first, column, first_q, len_q, PACKED)
        tma.async_copy_shared_to_global(o_desc, corner, out)


_DTYPES = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
}


def head_strides(x):
    """Strides of x [b, h, l, d]; a dimension of one element may have any, for none is taken along it."""
    strides = [x.shape[3] if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    return [*strides[:3], 1]


def descriptor_of(x, rows, columns):
    """Blocks of so many rows and columns of one head of x, as the copy engine and wgmma want them in shared memory."""
    block = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, _DTYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), head_strides(x), block, layout)


def ragged_descriptor_of(x, rows, columns):
    """The same of packed sequences x [rows, heads, d], :func:`.blocks.ragged`."""
    shape, strides, block = ragged(x, rows, columns)
    return TensorDescriptor(x, shape, strides, block, gl.NVMMASharedLayout.get_default_for(block, _DTYPES[x.dtype]))


def plain_descriptor_of(x, block):
    """A descriptor of fp32, of blocks that lie in shared memory as they do in memory."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, gl.NVMMASharedLayout(0, 32, len(block)))


def section_of(m_blocks, programs):
    """The least number of heads whose tiles fill an even number of turns."""
    return 2 * programs // math.gcd(2 * programs, m_blocks)


SHARERS = 3
"""Programs that at least read a head's K and V at about the same time, where heads at work outgrow L2."""

UNEVEN = 0.02
"""The share of a program's work that one may have more than the mean for that."""


def most_uneven(section, m_blocks, heads, programs):
    """How many of the longest tiles a program has more than the mean, by sections that begin within two turns.

    A section that begins in the first turn of two gives the programs from there on one more, in the second one less.
    """
    starts = (k * section * m_blocks % (2 * programs) for k in range(1, -(-heads // section)))
    changes = sorted((min(start, 2 * programs - start), 1 if start <= programs else -1) for start in starts)
    mean = sum(change * (programs - first) for first, change in changes) / programs
    return max(itertools.accumulate((change for _, change in changes), initial=0)) - mean


@functools.lru_cache(maxsize=1024)
def section_for(m_blocks, programs, heads, group, head_bytes, l2_bytes):
    """How many heads a causal schedule takes together, so that what programs read comes from L2.

    As many as :func:`section_of` says are, of an odd number of blocks, all heads: each tile then reads K and V from
    memory, alone.  Where these, ``head_bytes`` of every ``group`` heads, are more than L2 holds, fewer heads are taken,
    the most even number of which SHARERS programs or up to twice as many share each.
    """
    section, most = section_of(m_blocks, programs), max(programs // SHARERS, 1) * group
    at_work = min(section, heads)
    if at_work <= most or -(-at_work // group) * head_bytes <= l2_bytes:
        return section
    # A last section of few turns would be more work for the programs that it reaches.
    fewer = range(most, max(most // 2, 1) - 1, -1)
    choices = [c for c in fewer if heads % c == 0 or 2 * (heads % c) * m_blocks >= 3 * programs]
    uneven, best = min(((most_uneven(c, m_blocks, heads, programs), c) for c in choices), default=(math.inf, 0))
    work = heads * m_blocks * (m_blocks + 1) / 2 / programs
    return best if uneven * m_blocks <= UNEVEN * work else section
