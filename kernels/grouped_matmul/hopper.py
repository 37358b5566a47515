"""Ragged rows of 16-bit matrices for Hopper (sm_90), by the loop of kernels/matmul/hopper.py.

Which rows of which group a tile has is known to the device alone.  A first kernel writes it down, one line for each
tile's height of rows; the product's programs read it.  A tile whose rows are all its group's leaves by TMA, another
element by element.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.common.hopper import described, described_batch, tile_of
from kernels.matmul.hopper import SWIZZLED, WIDTH, begin_ring, multiply, put_elements

FIELDS = gl.constexpr(4)
"""Numbers of a line: group, first row, end of the group's rows, and in the first line the count of lines."""


@triton.jit
def lines_kernel(offs_ptr, lines_ptr, groups, M, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK: tl.constexpr):
    """One program: the lines of all groups, in their order; number ``groups`` are the rows that belong to none."""
    group = tl.arange(0, BLOCK_G)
    ends = tl.load(offs_ptr + group, mask=group < groups, other=M)
    starts = tl.load(offs_ptr + group - 1, mask=(group > 0) & (group <= groups), other=0)
    rows = tl.where(group <= groups, tl.maximum(ends - starts, 0), 0)
    last_lines = tl.cumsum(tl.cdiv(rows, BLOCK_M), axis=0)
    count = tl.max(last_lines, axis=0)
    for first in tl.range(0, tl.maximum(count, 1), BLOCK):
        line = first + tl.arange(0, BLOCK)
        before = last_lines[None, :] <= line[:, None]
        of_group = tl.sum(before.to(tl.int32), axis=1)
        within = line - tl.max(tl.where(before, last_lines[None, :], 0), axis=1)
        start = tl.load(offs_ptr + of_group - 1, mask=(of_group > 0) & (line < count), other=0)
        end = tl.load(offs_ptr + of_group, mask=(of_group < groups) & (line < count), other=M)
        at = lines_ptr + line * 4
        tl.store(at, of_group, mask=line < count)
        tl.store(at + 1, start + within * BLOCK_M, mask=line < count)
        tl.store(at + 2, end, mask=line < count)
    tl.store(lines_ptr + 3, count)


@gluon.jit
def _line(lines_ptr, number, groups, M, K, BLOCK_K: gl.constexpr):
    """(group, first row, end, first row to load, length of the sum) of a line; rows of no group sum a block of 0."""
    at = lines_ptr + number * FIELDS
    group, row, end = gl.load(at), gl.load(at + 1), gl.load(at + 2)
    none = group >= groups
    return group, row, end, gl.where(none, M, row), gl.where(none, BLOCK_K, K)


@gluon.jit
def load_block(
    a_desc, b_desc, a_smem, b_smem, full, empty, step, row_a, k_a, row_b, batch, column, GROUPS: gl.constexpr,
    ROWS: gl.constexpr, A_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Fill the ring's slot number ``step``: a block of A for each group of warps, and one of B, of three dimensions."""
    STAGES: gl.constexpr = b_smem.shape[0]
    slot = step % STAGES
    bar = full.index(slot)
    mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
    mbarrier.expect(bar, GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    for group in gl.static_range(GROUPS):
        a = a_smem.index(slot * GROUPS + group)
        if A_BY_COLUMNS:
            tma.async_copy_global_to_shared(a_desc, [k_a, row_a + group * ROWS], bar, a)
        else:
            tma.async_copy_global_to_shared(a_desc, [row_a + group * ROWS, k_a], bar, a)
    tma.async_copy_global_to_shared(b_desc, [batch, row_b, column], bar, b_smem.index(slot))


@gluon.jit
def _produce_rows(
    a_desc, b_desc, a_smem, b_smem, full, empty, lines_ptr, sizes, GROUPS: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """The warp that fetches blocks of A and B for the tiles that its program owns."""
    groups, M, N, K = sizes
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    height = gl.load(lines_ptr + 3) * BLOCK_M
    step = 0
    for position in range(gl.program_id(0), height // BLOCK_M * gl.cdiv(N, BLOCK_N), gl.num_programs(0)):
        m, n = tile_of(position, height, N, BLOCK_M, BLOCK_N, GROUP_M)
        group, _, _, row, length = _line(lines_ptr, m // BLOCK_M, groups, M, K, BLOCK_K)
        for k in range(0, length, BLOCK_K):
            row_b, column = k, n
            if B_BY_COLUMNS:
                row_b, column = n, k
            load_block(
                a_desc, b_desc, a_smem, b_smem, full, empty, step, row, k, row_b, group, column, GROUPS, ROWS, False
            )  # fmt: skip
            step += 1


@gluon.jit
def _consume_rows(
    c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, lines_ptr, sizes, GROUP: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    BUFFERS: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of each of the program's tiles, each of one group of A."""
    groups, M, N, K = sizes
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    height = gl.load(lines_ptr + 3) * BLOCK_M
    tiles = height // BLOCK_M * gl.cdiv(N, BLOCK_N)
    step = 0
    if GROUP > 0:  # noqa: SIM102 (settled when compiled, unlike the other)
        if gl.program_id(0) < tiles:  # a program may have none: lines are fewer than the host allows for
            mbarrier.wait(turn.index(GROUP), 0)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = tile_of(position, height, N, BLOCK_M, BLOCK_N, GROUP_M)
        _, row, end, _, length = _line(lines_ptr, m // BLOCK_M, groups, M, K, BLOCK_K)
        acc, step = multiply(
            a_smem, b_smem, full, empty, turn, step, length,
            GROUP, GROUPS, False, BLOCK_N, False, B_BY_COLUMNS, True,
        )  # fmt: skip
        row += GROUP * ROWS
        _write_rows(acc, c_desc, c_ptr, c_smem, row, n, end, N, row + ROWS <= end, GROUP * BUFFERS, 0, BUFFERS)
    tma.store_wait(0)


@gluon.jit
def _write_rows(
    acc, c_desc, c_ptr, buffers, m, n, end, N, whole, FIRST: gl.constexpr, PART: gl.constexpr, BUFFERS: gl.constexpr
):  # fmt: skip
    """Write a block in parts of WIDTH columns; rows from ``end`` on belong to the next group."""
    COLUMNS: gl.constexpr = acc.shape[1]
    if COLUMNS > WIDTH:
        half: gl.constexpr = COLUMNS // 2
        left, right = acc.reshape([acc.shape[0], 2, half]).permute(0, 2, 1).split()
        _write_rows(left, c_desc, c_ptr, buffers, m, n, end, N, whole, FIRST, PART, BUFFERS)
        _write_rows(
            right, c_desc, c_ptr, buffers, m, n + half, end, N, whole, FIRST, PART + half // WIDTH, BUFFERS
        )  # fmt: skip
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
        buffer = buffers.index(FIRST + PART % BUFFERS)
        c = gl.convert_layout(acc, layout).to(c_ptr.dtype.element_ty)
        if whole:
            tma.store_wait(BUFFERS - 1)
            buffer.store(c)
            fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [m, n], buffer)
        else:
            tma.store_wait(0)  # the last block that left may have been in this buffer: none leaves from here
            put_elements(c, c_ptr, buffer, m, n, end, N)


@gluon.jit
def rows_kernel(
    a_desc, b_desc, c_desc, c_ptr, lines_ptr, groups, M, N, K, GROUPS: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
    B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: A's of a group of warps' rows, B's of a tile's columns in one matrix, C's of a part."""
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS, ROWS, BLOCK_K], a_desc.layout)
    b_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES, 1, b_desc.block_shape[1], b_desc.block_shape[2]], b_desc.layout
    )
    c_smem = gl.allocate_shared_memory(c_ptr.dtype.element_ty, [GROUPS * BUFFERS, ROWS, WIDTH], SWIZZLED)
    full, empty, turn = begin_ring(STAGES, GROUPS, False)
    fence_async_shared()
    sizes = (groups, M, N, K)
    gl.static_assert(GROUPS == 2)
    gl.warp_specialize(
        [
            (_consume_rows, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, lines_ptr, sizes,
                             0, GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M, BUFFERS, B_BY_COLUMNS)),
            (_consume_rows, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, lines_ptr, sizes,
                             1, GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M, BUFFERS, B_BY_COLUMNS)),
            (_produce_rows, (a_desc, b_desc, a_smem, b_smem, full, empty, lines_ptr, sizes,
                             GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M, B_BY_COLUMNS)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def rows_by_tma(a, b, offs, c, *, config):
    """Write c [m, n] of a [m, k] by rows and b [groups, k, n], whose matrices lie by rows or by columns."""
    (m, k), (groups, _, n) = a.shape, b.shape
    rows, columns, block_k = config["ROWS"], config["BLOCK_N"], config["BLOCK_K"]
    height = config["GROUPS"] * rows
    lines = torch.empty((triton.cdiv(m, height) + groups + 1) * FIELDS.value, dtype=torch.int32, device=a.device)
    launch(
        lines_kernel, (1,), offs, lines, groups, m,
        BLOCK_M=height, BLOCK_G=triton.next_power_of_2(groups + 1), BLOCK=32, num_warps=4,
    )  # fmt: skip
    most = (triton.cdiv(m, height) + groups) * triton.cdiv(n, columns)
    turned = b.stride(2) != 1
    launch(
        rows_kernel, (min(most, gpu_of(a.device).sms),),
        described(a, rows, block_k),
        described_batch(b.transpose(1, 2), columns, block_k) if turned else described_batch(b, block_k, columns),
        described(c, rows, WIDTH.value), c, lines, groups, m, n, k, B_BY_COLUMNS=turned, num_warps=4, **config,
    )  # fmt: skip
