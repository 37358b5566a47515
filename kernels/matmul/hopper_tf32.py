"""Products of fp32 in tf32 for Hopper (sm_90) of a factor that does not lie along K: it goes through registers.

wgmma reads elements of 32 bits in shared memory only along K; its first operand may come from registers, which take it
from shared memory in any order.  So a product is made as sums[x, y], where X, the operand that lies along its own rows
or columns, is the first one: X is A, or B, and then what is summed is C transposed.  Y lies along K.

A program has a multiprocessor for itself and takes one tile after the other.  One of its warps loads (the producer):
blocks of X and Y go by TMA, which rounds them to tf32, into a ring of shared memory, on into the next tile while this
one is finished.  GROUPS groups of four warps multiply, each ROWS of X with all of a tile's Y; the next block of X is
read into registers while this one is multiplied.  Barriers in shared memory hand blocks over: a "full" one, on which
TMA counts the bytes, and an "empty" one, on which every group arrives.

Where tiles are few, K goes to several programs in parts, each with a matrix of its own for what it sums.
"""

import triton
from atlas.operators import launch
from atlas.operators.rounding import rounding_to_tf32
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.common.batches import along_k, by_columns, copyable, padded_batch, rows_of
from kernels.common.hopper import described_batch, tile_of
from kernels.common.padded import padded_rows
from kernels.common.parts import part_of_k

ROWS = gl.constexpr(64)
"""Rows of X of a group: those of one wgmma."""

BLOCK_K = gl.constexpr(32)
"""Elements of Y along K in a step: a swizzled line of shared memory."""

WIDTH = gl.constexpr(32)
"""Columns of Y that a group writes at once."""

BUFFERS = gl.constexpr(2)
"""Parts of a tile on their way out."""

_SPREAD = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[4, 0], [0, 4], [0, 8], [0, 16]],
        lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [16, 0]],
        warp_bases=[[8, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)
"""Who reads which elements of X [ROWS, BLOCK_K]: as wgmma wants them, but for the order of rows.

A lane's row is 4 g1 + g0 as there, and 16 g2 where wgmma has 4: rows 4 apart along one line are 16 bytes apart, which
the swizzle exchanges with those of other lines, so that lanes would meet in a bank.
"""


@gluon.jit
def _place(position, X, Y, BLOCK_X: gl.constexpr, BLOCK_Y: gl.constexpr, GROUP_Y: gl.constexpr):
    """(matrix, first row of X, first row of Y) of the tile at ``position``."""
    tiles = gl.cdiv(X, BLOCK_X) * gl.cdiv(Y, BLOCK_Y)
    y, x = tile_of(position % tiles, Y, X, BLOCK_Y, BLOCK_X, GROUP_Y)
    return position // tiles, x, y


@gluon.jit
def _produce(
    x_desc, y_desc, x_smem, y_smem, full, empty, sizes, GROUPS: gl.constexpr, GROUP_Y: gl.constexpr,
    X_SHARED: gl.constexpr, Y_SHARED: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    BATCH, X, Y, K, K_PART = sizes
    STAGES: gl.constexpr = y_smem.shape[0]
    BLOCK_Y: gl.constexpr = y_desc.block_shape[1]
    BLOCK_X: gl.constexpr = GROUPS * ROWS
    step = 0
    tiles = gl.cdiv(X, BLOCK_X) * gl.cdiv(Y, BLOCK_Y)
    for position in range(gl.program_id(0), tiles * BATCH, gl.num_programs(0)):
        matrix, x, y = _place(position, X, Y, BLOCK_X, BLOCK_Y, GROUP_Y)
        of_x = 0 if X_SHARED else matrix
        of_y = 0 if Y_SHARED else matrix
        first = matrix * K_PART if CUT else 0
        last = gl.minimum(first + K_PART, K) if CUT else K
        for k in range(first, last, BLOCK_K):
            slot = step % STAGES
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, GROUPS * x_desc.block_type.nbytes + y_desc.block_type.nbytes)
            for group in gl.static_range(GROUPS):
                block = x_smem.index(slot * GROUPS + group)
                tma.async_copy_global_to_shared(x_desc, [of_x, k, x + group * ROWS], bar, block)
            tma.async_copy_global_to_shared(y_desc, [of_y, y, k], bar, y_smem.index(slot))
            step += 1


@gluon.jit
def _read(x_smem, full, step, GROUP: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr):
    """The group's block of X at ``step``, once it is there: wgmma's first operand [ROWS, BLOCK_K]."""
    slot = step % STAGES
    mbarrier.wait(full.index(slot), step // STAGES & 1)
    block = x_smem.index(slot * GROUPS + GROUP).reshape([BLOCK_K, ROWS]).permute((1, 0)).load(_SPREAD)
    ordered = block.reshape([2, 2, 2, 2, 4, BLOCK_K]).permute(0, 2, 3, 1, 4, 5).reshape([ROWS, BLOCK_K])
    return gl.convert_layout(ordered, layout, assert_trivial=True)


@gluon.jit
def _write(
    sums, c_desc, c_ptr, buffers, matrix, x, y, M, N, GROUP: gl.constexpr, PART: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    """Write sums from rows x of X and y of Y on, in parts as wide as a buffer, of which it is the PART-th.

    Rows of X are in the order of :data:`_SPREAD`.
    """
    COLUMNS: gl.constexpr = sums.shape[1]
    if COLUMNS > WIDTH:
        half: gl.constexpr = COLUMNS // 2
        left, right = sums.reshape([sums.shape[0], 2, half]).permute(0, 2, 1).split()
        _write(left, c_desc, c_ptr, buffers, matrix, x, y, M, N, GROUP, PART, TURNED)
        _write(right, c_desc, c_ptr, buffers, matrix, x, y + half, M, N, GROUP, PART + half // WIDTH, TURNED)
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 8])
        sums = gl.convert_layout(sums, layout)
        sums = sums.reshape([2, 2, 2, 2, 4, COLUMNS]).permute(0, 3, 1, 2, 4, 5).reshape([ROWS, COLUMNS])
        m, n = x, y
        if TURNED:
            m, n = y, x
        tma.store_wait(BUFFERS - 1)
        buffer = buffers.index(GROUP * BUFFERS + PART % BUFFERS)
        block = buffer.reshape([buffer.shape[1], buffer.shape[2]])
        if TURNED:
            block.permute((1, 0)).store(sums)
        else:
            block.store(sums)
        if c_desc is None:
            lines: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
            offs_m = m + gl.arange(0, buffer.shape[1], layout=gl.SliceLayout(1, lines))
            offs_n = n + gl.arange(0, buffer.shape[2], layout=gl.SliceLayout(0, lines))
            at = c_ptr + (matrix.to(gl.int64) * M + offs_m)[:, None] * N + offs_n[None, :]
            gl.store(at, block.load(lines), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
        else:
            fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [matrix, m, n], buffer)


@gluon.jit
def _consume(
    c_desc, c_ptr, x_smem, y_smem, c_smem, full, empty, sizes, GROUP: gl.constexpr, GROUPS: gl.constexpr,
    GROUP_Y: gl.constexpr, TURNED: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of X of each of the program's tiles."""
    BATCH, X, Y, K, K_PART = sizes
    STAGES: gl.constexpr = y_smem.shape[0]
    BLOCK_Y: gl.constexpr = y_smem.shape[2]
    BLOCK_X: gl.constexpr = GROUPS * ROWS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_Y, 8])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 1)
    M, N = X, Y
    if TURNED:
        M, N = Y, X
    step = 0
    tiles = gl.cdiv(X, BLOCK_X) * gl.cdiv(Y, BLOCK_Y)
    for position in range(gl.program_id(0), tiles * BATCH, gl.num_programs(0)):
        matrix, x, y = _place(position, X, Y, BLOCK_X, BLOCK_Y, GROUP_Y)
        sums = gl.zeros([ROWS, BLOCK_Y], gl.float32, layout)
        block = _read(x_smem, full, step, GROUP, GROUPS, STAGES, operand)
        length = gl.minimum(K_PART, K - matrix * K_PART) if CUT else K
        for _ in range(BLOCK_K, length, BLOCK_K):
            slot = step % STAGES
            others = y_smem.index(slot).reshape([BLOCK_Y, BLOCK_K]).permute((1, 0))
            sums = warpgroup_mma(block, others, sums, is_async=True)
            following = _read(x_smem, full, step + 1, GROUP, GROUPS, STAGES, operand)
            sums, block = warpgroup_mma_wait(0, deps=[sums, block])
            mbarrier.arrive(empty.index(slot), count=1)
            block = following
            step += 1
        others = y_smem.index(step % STAGES).reshape([BLOCK_Y, BLOCK_K]).permute((1, 0))
        sums = warpgroup_mma(block, others, sums, is_async=True)
        sums, block = warpgroup_mma_wait(0, deps=[sums, block])
        mbarrier.arrive(empty.index(step % STAGES), count=1)
        step += 1
        _write(sums, c_desc, c_ptr, c_smem, matrix, x + GROUP * ROWS, y, M, N, GROUP, 0, TURNED)
    tma.store_wait(0)


@gluon.jit
def product_kernel(
    x_desc, y_desc, c_desc, c_ptr, BATCH, X, Y, K, K_PART, GROUPS: gl.constexpr, GROUP_Y: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_Y: gl.constexpr, X_SHARED: gl.constexpr, Y_SHARED: gl.constexpr,
    TURNED: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: X's [1, BLOCK_K, ROWS], Y's [1, BLOCK_Y, BLOCK_K], C's of what a group writes at once.

    ``c_desc`` is None where C's rows are off 16 bytes.  TURNED: X is B, and C [Y, X].
    CUT: the matrices of C are one's sums over parts of K_PART, the last of what is left.
    """
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES * GROUPS, 1, BLOCK_K, ROWS], x_desc.layout)
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [STAGES, 1, BLOCK_Y, BLOCK_K], y_desc.layout)
    PART: gl.constexpr = [GROUPS * BUFFERS, 1, WIDTH, ROWS] if TURNED else [GROUPS * BUFFERS, 1, ROWS, WIDTH]
    c_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=3)
    c_smem = gl.allocate_shared_memory(gl.float32, PART, c_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=GROUPS)
    fence_async_shared()
    sizes = (BATCH, X, Y, K, K_PART)
    gl.static_assert(GROUPS == 2)
    gl.warp_specialize(
        [
            (_consume, (c_desc, c_ptr, x_smem, y_smem, c_smem, full, empty, sizes,
                        0, GROUPS, GROUP_Y, TURNED, CUT)),
            (_consume, (c_desc, c_ptr, x_smem, y_smem, c_smem, full, empty, sizes,
                        1, GROUPS, GROUP_Y, TURNED, CUT)),
            (_produce, (x_desc, y_desc, x_smem, y_smem, full, empty, sizes,
                        GROUPS, GROUP_Y, X_SHARED, Y_SHARED, CUT)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def products(a, b, c, *, config, programs):
    """Write A B into ``c`` [batch, m, n], contiguous; A [batch, m, k] and B [batch, k, n] are fp32, with a K.

    Where ``c`` is [parts, m, n], and A and B are one matrix each, it gets the products of parts of K.  ``programs`` is
    the number of SMs.
    """
    cut = c.shape[0] > a.shape[0] == b.shape[0] == 1
    a, b = _across_k(a, b)
    turned = not by_columns(b)
    x, y = (b, a) if turned else (a.transpose(1, 2), b.transpose(1, 2))
    x, y = rows_of(padded_batch(x)), rows_of(padded_batch(y))
    batch, m, n = c.shape
    (of_x, of_y), k, block_y = (n, m) if turned else (m, n), a.shape[2], config["BLOCK_Y"]
    tiles = batch * triton.cdiv(of_x, config["GROUPS"] * ROWS.value) * triton.cdiv(of_y, block_y)
    part = (WIDTH.value, ROWS.value) if turned else (ROWS.value, WIDTH.value)
    x_desc, y_desc = described_batch(x, BLOCK_K.value, ROWS.value), described_batch(y, block_y, BLOCK_K.value)
    launch(
        product_kernel, (min(tiles, programs),), rounding_to_tf32(x_desc), rounding_to_tf32(y_desc),
        described_batch(c, *part) if copyable(c) else None, c, batch, of_x, of_y, k,
        part_of_k(k, batch if cut else 1, BLOCK_K.value), X_SHARED=x.shape[0] < batch, Y_SHARED=y.shape[0] < batch,
        TURNED=turned, CUT=cut, num_warps=4,
        **{name: value for name, value in config.items() if name != "SPLITS"},
    )  # fmt: skip


def _across_k(a, b):
    """A and B of which one lies along K, and the other does not: copies of the smaller one where neither does."""
    if not by_columns(a) and by_columns(b):  # as no case has it that this is for
        return a, padded_rows(b)
    if by_columns(a) and not by_columns(b):
        if a.shape[1] <= b.shape[2]:
            return along_k(a.transpose(1, 2)).transpose(1, 2), b
        return a, along_k(b)
    return a, b
