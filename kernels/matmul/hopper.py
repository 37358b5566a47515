"""The product of 16-bit matrices for Hopper (sm_90): a warp that copies, and groups of warps that multiply.

A program has a multiprocessor for itself and takes one tile of C after the other.  One of its warps loads (the
producer): blocks of A and B go by TMA into a ring of shared memory, on into the next tile while this one is finished.
GROUPS groups of four warps multiply (wgmma).  Barriers in shared memory hand blocks over: a "full" one, on which TMA
counts the bytes, and an "empty" one, on which the groups that read the block arrive.

The tensor cores stand still while all groups are at their epilogues, so the groups keep apart, in one of two ways:

- *Sharing* a tile: each multiplies ROWS rows of its own.  The blocks of B serve all, which saves traffic; a group
  stays some blocks behind the one before it, as far as the ring is long.  Three groups make tiles of 192 rows, which
  Triton's powers of two do not reach: where tiles of 128 leave most SMs idle in their last round, those often do not.
- *Alternating* (two groups): each has a tile of its own, and all of the tensor cores for it while the other finishes
  the one before.  An epilogue is hidden that takes no longer than a product; tiles are smaller, and read more from L2.

A last round of tiles for no more than half of the programs is cut: CUT programs take a part of the columns each.
"""

from atlas.declaration.products import describable
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.common.hopper import described, part_of_tile, tile_of, whole_tiles
from kernels.common.products import by_columns

from .hopper_spaces import parts_of_last

WIDTH = gl.constexpr(64)
"""Columns of the parts in which a tile is written: of 16 bits each they fill the widest swizzle, 128 bytes."""

SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))
"""How such a part lies in shared memory."""


@gluon.jit
def _load_tile(
    a_desc, b_desc, a_smem, b_smem, full, empty, step, m, n, K,
    BLOCKS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, A_BY_COLUMNS: gl.constexpr,
    B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Fetch the blocks of a tile of BLOCKS times ROWS rows and of COLUMNS; returns how often the ring was filled.

    A slot's n-th filling waits for its n-1-th emptying; the first waits for none.
    """
    STAGES: gl.constexpr = b_smem.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_shape[0 if A_BY_COLUMNS else 1]
    for k in range(0, K, BLOCK_K):
        slot = step % STAGES
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        mbarrier.expect(bar, BLOCKS * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        for block in gl.static_range(BLOCKS):
            a = a_smem.index(slot * BLOCKS + block)
            if A_BY_COLUMNS:
                tma.async_copy_global_to_shared(a_desc, [k, m + block * ROWS], bar, a)
            else:
                tma.async_copy_global_to_shared(a_desc, [m + block * ROWS, k], bar, a)
        if B_BY_COLUMNS:
            tma.async_copy_global_to_shared(b_desc, [n, k], bar, b_smem.index(slot).slice(0, COLUMNS))
        else:
            tma.async_copy_global_to_shared(b_desc, [k, n], bar, b_smem.index(slot).slice(0, COLUMNS, dim=1))
        step += 1
    return step


@gluon.jit
def produce(
    a_desc, b_desc, cut_desc, a_smem, b_smem, full, empty, sizes, BLOCKS: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, CUT: gl.constexpr, A_BY_COLUMNS: gl.constexpr,
    B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """The producer of tiles whose rows are those of BLOCKS blocks of A; ``sizes`` are M, N and K."""
    M, N, K = sizes
    BLOCK_M: gl.constexpr = BLOCKS * ROWS
    step = 0
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(gl.program_id(0), whole, gl.num_programs(0)):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        step = _load_tile(
            a_desc, b_desc, a_smem, b_smem, full, empty, step, m, n, K,
            BLOCKS, ROWS, BLOCK_N, A_BY_COLUMNS, B_BY_COLUMNS,
        )  # fmt: skip
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if there:
            _load_tile(
                a_desc, cut_desc, a_smem, b_smem, full, empty, step, m, n, K,
                BLOCKS, ROWS, BLOCK_N // CUT, A_BY_COLUMNS, B_BY_COLUMNS,
            )  # fmt: skip


@gluon.jit
def _clear(block, first):
    """Write 0 into a block's rows from ``first`` on."""
    rows: gl.constexpr = block.shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    offs = gl.arange(0, rows, layout=gl.SliceLayout(1, layout))
    values = block.load(layout)
    block.store(gl.where((offs < first)[:, None], values, gl.full_like(values, 0)))


@gluon.jit
def _multiply_block(
    acc, a_smem, b_smem, full, empty, step, begun, left, GROUP: gl.constexpr, BLOCKS: gl.constexpr,
    COLUMNS: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """Begin the product of block number ``step``, and wait for the one before, if it has ``begun``.

    With TAIL the rows of both blocks from ``left`` on are others' and become 0: one factor's might be infinite.
    """
    STAGES: gl.constexpr = b_smem.shape[0]
    slot = step % STAGES
    mbarrier.wait(full.index(slot), step // STAGES & 1)
    a = a_smem.index(slot * BLOCKS + (0 if BLOCKS == 1 else GROUP))
    b = b_smem.index(slot)
    if len(b.shape) == 3:
        b = b.reshape([b.shape[1], b.shape[2]])
    if TAIL:
        gl.static_assert(A_BY_COLUMNS and not B_BY_COLUMNS)
        _clear(a, left)
        _clear(b, left)
        fence_async_shared()
    if A_BY_COLUMNS:
        a = a.permute((1, 0))
    b = b.slice(0, COLUMNS).permute((1, 0)) if B_BY_COLUMNS else b.slice(0, COLUMNS, dim=1)
    acc = warpgroup_mma(a, b, acc, use_acc=begun, is_async=True)
    acc = warpgroup_mma_wait(1, deps=[acc])  # the product before this one has read its blocks
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=begun)
    return acc


@gluon.jit
def multiply(
    a_smem, b_smem, full, empty, turn, step, K, GROUP: gl.constexpr, GROUPS: gl.constexpr, ALTERNATE: gl.constexpr,
    COLUMNS: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr, RAGGED: gl.constexpr = False,
    TAIL: gl.constexpr = False,
):  # fmt: skip
    """(sums of the group's rows of a tile with COLUMNS, blocks there have been) from the blocks as they come.

    RAGGED: K differs from tile to tile.  With TAIL a last block that is not whole holds what does not belong to the
    sum.
    """
    STAGES: gl.constexpr = b_smem.shape[0]
    ROWS: gl.constexpr = a_smem.shape[2 if A_BY_COLUMNS else 1]
    BLOCK_K: gl.constexpr = a_smem.shape[1 if A_BY_COLUMNS else 2]
    BLOCKS: gl.constexpr = 1 if ALTERNATE else GROUPS
    LAG: gl.constexpr = 1 if RAGGED else (STAGES - 1) // (GROUPS - 1)  # which comes once, whatever the first tile's K
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    whole = K
    if TAIL:
        whole = K // BLOCK_K * BLOCK_K
    for k in range(0, whole, BLOCK_K):
        acc = _multiply_block(
            acc, a_smem, b_smem, full, empty, step, k > 0, 0,
            GROUP, BLOCKS, COLUMNS, A_BY_COLUMNS, B_BY_COLUMNS, False,
        )  # fmt: skip
        step += 1
        if not ALTERNATE and GROUP + 1 < GROUPS:  # the next group starts when this one is so far ahead
            mbarrier.arrive(turn.index(GROUP + 1), count=1, pred=step == gl.minimum(gl.cdiv(K, BLOCK_K), LAG))
    if TAIL:  # noqa: SIM102 - a constant, the other is none
        if whole < K:
            acc = _multiply_block(
                acc, a_smem, b_smem, full, empty, step, whole > 0, K - whole,
                GROUP, BLOCKS, COLUMNS, A_BY_COLUMNS, B_BY_COLUMNS, True,
            )  # fmt: skip
            step += 1
            if GROUP + 1 < GROUPS:
                mbarrier.arrive(turn.index(GROUP + 1), count=1, pred=step == gl.minimum(gl.cdiv(K, BLOCK_K), LAG))
    if ALTERNATE:
        mbarrier.arrive(turn.index(1 - GROUP), count=1)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    return acc, step


@gluon.jit
def put_elements(value, ptr, buffer, m, n, M, N):
    """Write a block of a matrix [M, N] whose rows begin anywhere: neighbouring threads write neighbouring elements."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    buffer.store(value)
    offs_m = m + gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, layout))
    offs_n = n + gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, layout))
    at = ptr + offs_m.to(gl.int64)[:, None] * N + offs_n[None, :]
    gl.store(at, buffer.load(layout), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@gluon.jit
def write_parts(
    acc, c_desc, c_ptr, buffers, m, n, M, N, FIRST: gl.constexpr, PART: gl.constexpr, BUFFERS: gl.constexpr
):  # fmt: skip
    """Write a block whose first element is (m, n), in parts as wide as a buffer, of which it is the PART-th.

    Parts go by way of the group's buffers, of which FIRST is the first, in turns: while one leaves the next is made.
    """
    COLUMNS: gl.constexpr = acc.shape[1]
    WIDTH: gl.constexpr = buffers.shape[2]
    if COLUMNS > WIDTH:
        half: gl.constexpr = COLUMNS // 2
        left, right = acc.reshape([acc.shape[0], 2, half]).permute(0, 2, 1).split()
        write_parts(left, c_desc, c_ptr, buffers, m, n, M, N, FIRST, PART, BUFFERS)
        write_parts(right, c_desc, c_ptr, buffers, m, n + half, M, N, FIRST, PART + half // WIDTH, BUFFERS)
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
        buffer = buffers.index(FIRST + PART % BUFFERS)
        c = gl.convert_layout(acc, layout).to(c_ptr.dtype.element_ty)
        if c_desc is None:
            put_elements(c, c_ptr, buffer, m, n, M, N)
        else:
            tma.store_wait(BUFFERS - 1)
            buffer.store(c)
            fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [m, n], buffer)


@gluon.jit
def _consume(
    c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, sizes, GROUP: gl.constexpr, GROUPS: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr, CUT: gl.constexpr,
    A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of each of the program's tiles."""
    M, N, K = sizes
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    step = 0
    if GROUP > 0:
        mbarrier.wait(turn.index(GROUP), 0)
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(gl.program_id(0), whole, gl.num_programs(0)):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc, step = multiply(
            a_smem, b_smem, full, empty, turn, step, K, GROUP, GROUPS, False, BLOCK_N, A_BY_COLUMNS, B_BY_COLUMNS
        )  # fmt: skip
        write_parts(acc, c_desc, c_ptr, c_smem, m + GROUP * ROWS, n, M, N, GROUP * BUFFERS, 0, BUFFERS)
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if there:
            acc, step = multiply(
                a_smem, b_smem, full, empty, turn, step, K,
                GROUP, GROUPS, False, BLOCK_N // CUT, A_BY_COLUMNS, B_BY_COLUMNS,
            )  # fmt: skip
            write_parts(acc, c_desc, c_ptr, c_smem, m + GROUP * ROWS, n, M, N, GROUP * BUFFERS, 0, BUFFERS)
    tma.store_wait(0)


@gluon.jit
def begin_ring(STAGES: gl.constexpr, GROUPS: gl.constexpr, ALTERNATE: gl.constexpr):
    """(full, empty, turn): the barriers of a ring, which the caller makes visible to the copy engine by a fence."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1 if ALTERNATE else GROUPS)
    for group in gl.static_range(GROUPS):
        mbarrier.init(turn.index(group), count=1)
    return full, empty, turn


@gluon.jit
def product_kernel(
    a_desc, b_desc, cut_desc, c_desc, c_ptr, M, N, K, GROUPS: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
    CUT: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: A's of a group's rows, B's of a tile's columns, C's of what a group writes at once.

    ``cut_desc`` is B's for a part of a tile, None where CUT is 1; ``c_desc`` is None where C's rows are off 16 bytes.
    """
    a_smem = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES * GROUPS, a_desc.block_shape[0], a_desc.block_shape[1]], a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES, b_desc.block_shape[0], b_desc.block_shape[1]], b_desc.layout
    )
    c_smem = gl.allocate_shared_memory(c_ptr.dtype.element_ty, [GROUPS * BUFFERS, ROWS, WIDTH], SWIZZLED)
    full, empty, turn = begin_ring(STAGES, GROUPS, False)
    fence_async_shared()
    sizes = (M, N, K)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, sizes,
                            0, GROUPS, ROWS, BLOCK_N, GROUP_M, BUFFERS, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
                (_consume, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, sizes,
                            1, GROUPS, ROWS, BLOCK_N, GROUP_M, BUFFERS, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
                (produce, (a_desc, b_desc, cut_desc, a_smem, b_smem, full, empty, sizes,
                           GROUPS, ROWS, BLOCK_N, GROUP_M, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.static_assert(GROUPS == 3)
        gl.warp_specialize(
            [
                (_consume, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, sizes,
                            0, GROUPS, ROWS, BLOCK_N, GROUP_M, BUFFERS, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
                (_consume, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, sizes,
                            1, GROUPS, ROWS, BLOCK_N, GROUP_M, BUFFERS, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
                (_consume, (c_desc, c_ptr, a_smem, b_smem, c_smem, full, empty, turn, sizes,
                            2, GROUPS, ROWS, BLOCK_N, GROUP_M, BUFFERS, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
                (produce, (a_desc, b_desc, cut_desc, a_smem, b_smem, full, empty, sizes,
                           GROUPS, ROWS, BLOCK_N, GROUP_M, CUT, A_BY_COLUMNS, B_BY_COLUMNS)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )  # fmt: skip


def product(a, b, c, *, config, programs):
    """Write A B into ``c`` [m, n], contiguous; A and B are of 16-bit elements that TMA can read, by rows or columns.

    ``programs`` is the number of SMs.
    """
    (m, n), k = c.shape, a.shape[1]
    rows, columns, block_k = config["ROWS"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = -(-m // (config["GROUPS"] * rows)) * -(-n // columns)
    cut = parts_of_last(tiles, programs, columns // WIDTH.value)
    launch(
        product_kernel, (min(tiles, programs),),
        _described(a, rows, block_k), _described(b, block_k, columns),
        _described(b, block_k, columns // cut) if cut > 1 else None,
        described(c if describable(c) else None, rows, WIDTH.value), c, m, n, k,
        CUT=cut, A_BY_COLUMNS=by_columns(a), B_BY_COLUMNS=by_columns(b), num_warps=4, **config,
    )  # fmt: skip


def _described(matrix, rows, columns):
    """The descriptor of blocks of a matrix, transposed where it lies by columns."""
    return described(matrix.t(), columns, rows) if by_columns(matrix) else described(matrix, rows, columns)
