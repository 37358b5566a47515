"""The sums of dQ of the backward pass for Hopper: how they lie in memory, who adds to them, what makes dQ of them.

A block of keys has a share in the dQ of every query that sees it.  The kernel of :mod:`.hopper_backward` leaves each
block of that in shared memory, in the order in which threads hold it; two of its warps, the writers, add it to those of
other blocks of keys, in fp32, by TMA, in the order of :mod:`.hopper_schedule`.  A second kernel makes rows of the sums,
in dQ's dtype.  Of a block that holds all keys the groups themselves write dQ (:func:`leave_queries`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from .hopper_parts import columns_of
from .hopper_schedule import (
    STAGES,
    add_to_global,
    block_of,
    job_of,
    members_of,
    pass_turn,
    rank_of,
    wait_for_turn,
)

DQ_COLUMNS = gl.constexpr(64)
"""Columns of dQ that a group computes: half of a head's, or all; of the second half those that are there."""


@gluon.jit
def by_threads(x, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """A block of dQ [lines, 128] as threads hold it, 4 elements each to a line: none waits for a bank of memory.

    The first lines are those of the first columns.
    """
    x = x.reshape([ROWS // 16, 2, 8, COLUMNS // 8, 4, 2]).permute((3, 0, 2, 4, 1, 5))
    return x.reshape([ROWS * COLUMNS // 128, 128])


@gluon.jit
def add_in_turn(
    dq_desc, rest_desc, turns_ptr, buffers, barriers, sizes,
    CAUSAL: gl.constexpr, PARTS: gl.constexpr, SLOT: gl.constexpr,
):  # fmt: skip
    """Writer ``SLOT``: adds dQ of every other block of queries to what is in memory, when the turn comes.

    A turn takes longer than a block of queries, for what TMA adds has to arrive in memory: so there are two writers.
    They wait for their turn while the block is computed.  ``rest_desc``, if there is one, is for the second half of
    columns, of which a head has not all.
    """
    _, _, _, _, _, _, dq_smem = buffers
    _, _, _, _, _, _, _, _, dq_full, dq_empty = barriers
    _, _, _, _, m_blocks, _, _, _, jobs, _, _ = sizes
    lines: gl.constexpr = dq_desc.block_shape[0]
    ring = 0
    for number in range(jobs):
        head_all, n, first, count, there = job_of(number, sizes, CAUSAL)
        if there:
            first_head, members = members_of(head_all, sizes)
            for member in range(members):
                for i in range(SLOT, count, STAGES):  # an even number, so the writers go on in turn
                    m = block_of(number, i, first, m_blocks, CAUSAL)
                    rank = rank_of(number, head_all, member, n, m, sizes, CAUSAL)
                    place = (first_head + member) * m_blocks + m
                    wait_for_turn(turns_ptr + place, rank)
                    mbarrier.wait(dq_full.index(SLOT), ring & 1)
                    for c in gl.static_range(PARTS):
                        desc = dq_desc
                        block = dq_smem.index(SLOT * PARTS + c)
                        if c == 1 and rest_desc is not None:
                            desc = rest_desc
                            block = block._reinterpret(gl.float32, rest_desc.block_shape, rest_desc.layout)
                        if rank == 0:
                            tma.async_copy_shared_to_global(desc, [(place * PARTS + c) * lines, 0], block)
                        else:
                            add_to_global(desc, [(place * PARTS + c) * lines, 0], block)
                    tma.store_wait(0)  # read, that is
                    mbarrier.arrive(dq_empty.index(SLOT), count=1)
                    pass_turn(turns_ptr + place, rank)
                    ring += 1


@gluon.jit
def leave_queries(dq, smem, leaving, place, column: gl.constexpr):
    """Write a group's columns of dQ, from ``column`` on, of a block of queries: number ``place`` of all heads' blocks.

    They leave by way of shared memory that the group alone uses, and may still be on their way behind this.
    """
    dq_desc, scale_out, heads, m_blocks = leaving
    tma.store_wait(0)
    columns_of(smem, 0, dq.shape[1]).store((dq * scale_out).to(smem.dtype))
    fence_async_shared()
    head = place // m_blocks
    corner = [head // heads, head % heads, place % m_blocks * dq.shape[0], column]
    tma.async_copy_shared_to_global(dq_desc, corner, smem)


@gluon.jit(do_not_specialize=["heads", "len_q", "m_blocks"])
def finish_queries_kernel(
    sums_ptr, dq_ptr, scale, heads, len_q, m_blocks, stride_b, stride_h, stride_s,
    HEAD_DIM: gl.constexpr, ROWS: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr, ALIGNED: gl.constexpr,
):  # fmt: skip
    """dQ in its dtype of its sums, which lie as :func:`by_threads` says; a program owns a part of a block.

    ALIGNED: :func:`.blocks.aligned_rows`.
    """
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rows_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    pid = gl.program_id(0)
    parts: gl.constexpr = D // COLUMNS
    part = pid % parts
    head = pid // parts // m_blocks
    m = pid // parts % m_blocks
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, mma))[:, None]
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, mma))[None, :]
    offs = (column // 8 * (ROWS // 16) + row // 16) * 128 + row % 8 * 16 + column % 8 // 2 * 4 + row // 8 % 2 * 2
    there = (row >= 0) & (column < HEAD_DIM - part * COLUMNS)  # of the others there are no sums
    x = gl.load(sums_ptr + pid.to(gl.int64) * (ROWS * COLUMNS) + offs + column % 2, mask=there, other=0.0)
    x = gl.convert_layout((x * scale).to(dq_ptr.dtype.element_ty), rows_layout)
    rows = m * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, rows_layout))
    columns = part * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, rows_layout))
    dq_ptr += (head // heads).to(gl.int64) * stride_b + (head % heads).to(gl.int64) * stride_h
    dq_ptrs = dq_ptr + rows.to(gl.int64)[:, None] * stride_s + columns[None, :]
    if ALIGNED:
        dq_ptrs = gl.multiple_of(dq_ptrs, (1, 16))
    mask = (rows < len_q)[:, None]
    if HEAD_DIM < D:
        mask = mask & (columns < HEAD_DIM)[None, :]
    gl.store(dq_ptrs, x, mask=mask)
