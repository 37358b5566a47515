"""Ragged sums of 16-bit matrices for Hopper (sm_90), by the loop of kernels/matmul/hopper.py.

A sum is of the blocks of a group's rows; of the last one the next group's rows become 0 where they lie.  Two groups of
warps share a tile, or, where groups are short and to write the sums is what costs, they alternate: each has tiles of
its own, and one multiplies while the other writes.
"""

import triton
from atlas.declaration import gpu_of
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.common.hopper import described, described_batch, tile_of
from kernels.matmul.hopper import WIDTH, begin_ring, multiply

from .hopper import load_block


@gluon.jit
def _tile_of_sums(position, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """(group, first row, first column): a group's tiles come one after the other."""
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    m, n = tile_of(position % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    return position // tiles, m, n


@gluon.jit
def _ends(offs_ptr, group):
    """(first row, rows, whether there are any) of a group."""
    start = gl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    count = gl.load(offs_ptr + group) - start
    return start, count, count > 0


@gluon.jit
def _produce_sums(
    a_desc, b_desc, a_smem, b_smem, full, empty, offs_ptr, sizes, GROUPS: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    """The warp that fetches blocks of A and B for the sums that its program owns."""
    groups, M, N, length = sizes
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    step = 0
    tiles = groups * gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        group, m, n = _tile_of_sums(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        start, count, some = _ends(offs_ptr, group)
        start, count = gl.where(some, start, length), gl.where(some, count, BLOCK_K)  # else a block of 0
        for k in range(0, count, BLOCK_K):
            load_block(
                a_desc, b_desc, a_smem, b_smem, full, empty, step, m, start + k, start + k, 0, n, GROUPS, ROWS, True
            )  # fmt: skip
            step += 1


@gluon.jit
def _consume_sums(
    c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, offs_ptr, sizes, GROUP: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    BUFFERS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of each of the program's sums."""
    groups, M, N, _ = sizes
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    step = 0
    if GROUP > 0:
        mbarrier.wait(turn.index(GROUP), 0)
    tiles = groups * gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        group, m, n = _tile_of_sums(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        _, count, some = _ends(offs_ptr, group)
        acc, step = multiply(
            a_smem, b_smem, full, empty, turn, step, gl.where(some, count, BLOCK_K),
            GROUP, GROUPS, False, BLOCK_N, True, False, True, True,
        )  # fmt: skip
        _write_sums(acc, c_desc, c_smem, group, m + GROUP * ROWS, n, GROUP * BUFFERS, 0, BUFFERS)
    tma.store_wait(0)


@gluon.jit
def _write_sums(acc, c_desc, buffers, group, m, n, FIRST: gl.constexpr, PART: gl.constexpr, BUFFERS: gl.constexpr):
    """Write a block of matrix ``group`` in parts of WIDTH columns."""
    COLUMNS: gl.constexpr = acc.shape[1]
    if COLUMNS > WIDTH:
        half: gl.constexpr = COLUMNS // 2
        left, right = acc.reshape([acc.shape[0], 2, half]).permute(0, 2, 1).split()
        _write_sums(left, c_desc, buffers, group, m, n, FIRST, PART, BUFFERS)
        _write_sums(right, c_desc, buffers, group, m, n + half, FIRST, PART + half // WIDTH, BUFFERS)
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
        buffer = buffers.index(FIRST + PART % BUFFERS)
        tma.store_wait(BUFFERS - 1)
        buffer.reshape([acc.shape[0], COLUMNS]).store(gl.convert_layout(acc, layout).to(c_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [group, m, n], buffer)


@gluon.jit
def sums_kernel(
    a_desc, b_desc, c_desc, c_ptr, offs_ptr, groups, M, N, length, GROUPS: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """``a_desc`` is of A^T, whose rows, as B's, the groups are of; ``length`` is their count."""
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS, BLOCK_K, ROWS], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, 1, BLOCK_K, BLOCK_N], b_desc.layout)
    c_smem = gl.allocate_shared_memory(c_ptr.dtype.element_ty, [GROUPS * BUFFERS, 1, ROWS, WIDTH], c_desc.layout)
    full, empty, turn = begin_ring(STAGES, GROUPS, False)
    fence_async_shared()
    sizes = (groups, M, N, length)
    gl.static_assert(GROUPS == 2)
    gl.warp_specialize(
        [
            (_consume_sums, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, offs_ptr, sizes,
                             0, GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M, BUFFERS)),
            (_consume_sums, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, offs_ptr, sizes,
                             1, GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M, BUFFERS)),
            (_produce_sums, (a_desc, b_desc, a_smem, b_smem, full, empty, offs_ptr, sizes,
                             GROUPS, ROWS, BLOCK_N, BLOCK_K, GROUP_M)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def sums_by_tma(a, b, offs, c, *, config):
    """Write c [groups, m, n] of a [m, k] by columns and b [k, n] by rows, whose k the groups are of."""
    (m, length), n, groups = a.shape, b.shape[1], offs.shape[0]
    rows, columns, block_k = config["ROWS"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = groups * triton.cdiv(m, config["GROUPS"] * rows) * triton.cdiv(n, columns)
    launch(
        sums_kernel, (min(tiles, gpu_of(a.device).sms),),
        described(a.t(), block_k, rows), described_batch(b[None], block_k, columns),
        described_batch(c, rows, WIDTH.value), c, offs, groups, m, n, length, num_warps=4, **config,
    )  # fmt: skip


@gluon.jit
def _blocks_of(position, offs_ptr, groups, M, N, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Blocks that the tile at ``position`` is the sum of: one at least; past the last tile nobody asks."""
    group = position // (gl.cdiv(M, ROWS) * gl.cdiv(N, BLOCK_N))
    _, count, _ = _ends(offs_ptr, gl.minimum(group, groups - 1))
    return gl.maximum(gl.cdiv(count, BLOCK_K), 1)


@gluon.jit
def _alternate(
    c_desc, a_smem, b_smem, c_smem, full, empty, turn, offs_ptr, sizes, GROUP: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: every other of the program's tiles, whose blocks lie between the other's."""
    groups, M, N, _ = sizes
    tiles = groups * gl.cdiv(M, ROWS) * gl.cdiv(N, BLOCK_N)
    programs = gl.num_programs(0)
    step, odd = 0, 0
    if GROUP > 0:
        step += _blocks_of(gl.program_id(0), offs_ptr, groups, M, N, ROWS, BLOCK_N, BLOCK_K)
    for position in range(gl.program_id(0) + GROUP * programs, tiles, 2 * programs):
        group, m, n = _tile_of_sums(position, M, N, ROWS, BLOCK_N, GROUP_M)
        _, count, some = _ends(offs_ptr, group)
        others = _blocks_of(position + programs, offs_ptr, groups, M, N, ROWS, BLOCK_N, BLOCK_K)
        # a "full" barrier that is still two fillings behind looks like one that is up to date
        mbarrier.wait(turn.index(GROUP), odd ^ (1 - GROUP))
        acc, step = multiply(
            a_smem, b_smem, full, empty, turn, step, gl.where(some, count, BLOCK_K),
            GROUP, 1, True, BLOCK_N, True, False, True, True,
        )  # fmt: skip
        _write_sums(acc, c_desc, c_smem, group, m, n, GROUP * BUFFERS, 0, BUFFERS)
        step += others
        odd = odd ^ 1
    tma.store_wait(0)


@gluon.jit
def alternating_sums_kernel(
    a_desc, b_desc, c_desc, offs_ptr, groups, M, N, length, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """The same by two groups of warps that alternate, each on tiles of ROWS rows."""
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_K, ROWS], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, 1, BLOCK_K, BLOCK_N], b_desc.layout)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [2 * BUFFERS, 1, ROWS, WIDTH], c_desc.layout)
    full, empty, turn = begin_ring(STAGES, 2, True)
    fence_async_shared()
    sizes = (groups, M, N, length)
    gl.warp_specialize(
        [
            (_alternate, (c_desc, a_smem, b_smem, c_smem, full, empty, turn, offs_ptr, sizes,
                          0, ROWS, BLOCK_N, BLOCK_K, GROUP_M, BUFFERS)),
            (_alternate, (c_desc, a_smem, b_smem, c_smem, full, empty, turn, offs_ptr, sizes,
                          1, ROWS, BLOCK_N, BLOCK_K, GROUP_M, BUFFERS)),
            (_produce_sums, (a_desc, b_desc, a_smem, b_smem, full, empty, offs_ptr, sizes,
                             1, ROWS, BLOCK_N, BLOCK_K, GROUP_M)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def alternating_sums(a, b, offs, c, *, config):
    """As ``sums_by_tma``, for short groups."""
    (m, length), n, groups = a.shape, b.shape[1], offs.shape[0]
    rows, columns, block_k = config["ROWS"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = groups * triton.cdiv(m, rows) * triton.cdiv(n, columns)
    launch(
        alternating_sums_kernel, (min(tiles, gpu_of(a.device).sms),),
        described(a.t(), block_k, rows), described_batch(b[None], block_k, columns),
        described_batch(c, rows, WIDTH.value), offs, groups, m, n, length, num_warps=4, **config,
    )  # fmt: skip
