"""The product of 16-bit matrices for Hopper (sm_90) in one round of tiles that are no power of 2 columns wide.

A tile has 128 rows and 128 columns and BESIDE more, 32 or 64.  Blocks are powers of 2, so those are a block of B of
their own, with sums of their own; both multiply the same block of A.  As in `gluon` a warp loads into a ring of shared
memory, and two groups of four warps multiply 64 rows each.  A program has one tile, and ends with it: the groups are at
their epilogues together, once, so that none is made to stay behind the other.
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

from kernels.common.hopper import described, tile_of
from kernels.common.products import by_columns

from .hopper import begin_ring, write_parts

GROUPS = gl.constexpr(2)
ROWS = gl.constexpr(64)
"""Groups of warps, and rows of each."""

COLUMNS = gl.constexpr(128)
"""Columns of a tile without those beside."""


@gluon.jit
def _place(M, N, BESIDE: gl.constexpr, GROUP_M: gl.constexpr):
    """(first row, first column) of this program's tile."""
    return tile_of(gl.program_id(0), M, N, GROUPS * ROWS, COLUMNS + BESIDE, GROUP_M)


@gluon.jit
def _fetch(desc, bar, block, first, k, K_FIRST: gl.constexpr):
    """Fetch the block from row, or column, ``first`` and from ``k`` on; K_FIRST: the matrix lies with k's first."""
    if K_FIRST:
        tma.async_copy_global_to_shared(desc, [k, first], bar, block)
    else:
        tma.async_copy_global_to_shared(desc, [first, k], bar, block)


@gluon.jit
def _produce(
    a_desc, b_desc, beside_desc, a_smem, b_smem, beside_smem, full, empty, sizes, BESIDE: gl.constexpr,
    GROUP_M: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """The warp that loads; a slot's n-th filling waits for its n-1-th emptying, the first for none."""
    M, N, K = sizes
    STAGES: gl.constexpr = b_smem.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_shape[0 if A_BY_COLUMNS else 1]
    BYTES: gl.constexpr = GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes + beside_desc.block_type.nbytes
    m, n = _place(M, N, BESIDE, GROUP_M)
    for step in range(gl.cdiv(K, BLOCK_K)):
        k, slot = step * BLOCK_K, step % STAGES
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        mbarrier.expect(bar, BYTES)
        _fetch(b_desc, bar, b_smem.index(slot), n, k, not B_BY_COLUMNS)
        _fetch(beside_desc, bar, beside_smem.index(slot), n + COLUMNS, k, not B_BY_COLUMNS)
        for group in gl.static_range(GROUPS):
            _fetch(a_desc, bar, a_smem.index(slot * GROUPS + group), m + group * ROWS, k, A_BY_COLUMNS)


@gluon.jit
def _in_order(block, TURNED: gl.constexpr):
    """A block as its matrix is, whichever way it lies."""
    if TURNED:
        block = block.permute((1, 0))
    return block


@gluon.jit
def _consume(
    c_desc, c_ptr, a_smem, b_smem, beside_smem, c_smem, full, empty, sizes, GROUP: gl.constexpr, BESIDE: gl.constexpr,
    GROUP_M: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of the program's tile."""
    M, N, K = sizes
    STAGES: gl.constexpr = b_smem.shape[0]
    BLOCK_K: gl.constexpr = a_smem.shape[1 if A_BY_COLUMNS else 2]
    m, n = _place(M, N, BESIDE, GROUP_M)
    m += GROUP * ROWS
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16]))
    beside = gl.zeros([ROWS, BESIDE], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BESIDE, 16]))
    for step in range(gl.cdiv(K, BLOCK_K)):
        begun, slot = step > 0, step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        a = _in_order(a_smem.index(slot * GROUPS + GROUP), A_BY_COLUMNS)
        b, b_beside = _in_order(b_smem.index(slot), B_BY_COLUMNS), _in_order(beside_smem.index(slot), B_BY_COLUMNS)
        acc = warpgroup_mma(a, b, acc, use_acc=begun, is_async=True)
        beside = warpgroup_mma(a, b_beside, beside, use_acc=begun, is_async=True)
        acc, beside = warpgroup_mma_wait(2, deps=[acc, beside])  # those of the block before have read theirs
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=begun)
    acc, beside = warpgroup_mma_wait(0, deps=[acc, beside])
    write_parts(acc, c_desc, c_ptr, c_smem, m, n, M, N, GROUP, 0, 1)
    write_parts(beside, c_desc, c_ptr, c_smem, m, n + COLUMNS, M, N, GROUP, 0, 1)
    tma.store_wait(0)


@gluon.jit
def columns_kernel(
    a_desc, b_desc, beside_desc, c_desc, c_ptr, M, N, K, BESIDE: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: A's of a group's rows, B's of the columns and of those beside, C's of a part as wide.

    A group has one buffer for parts of C; ``c_desc`` is None where C's rows are off 16 bytes.
    """
    a_smem = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES * GROUPS, a_desc.block_shape[0], a_desc.block_shape[1]], a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES, b_desc.block_shape[0], b_desc.block_shape[1]], b_desc.layout
    )
    beside_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES, beside_desc.block_shape[0], beside_desc.block_shape[1]], beside_desc.layout
    )
    OF_PARTS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * BESIDE, element_bitwidth=16, rank=2)
    c_smem = gl.allocate_shared_memory(c_ptr.dtype.element_ty, [GROUPS, ROWS, BESIDE], OF_PARTS)
    full, empty, _ = begin_ring(STAGES, GROUPS, False)
    fence_async_shared()
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (_consume, (c_desc, c_ptr, a_smem, b_smem, beside_smem, c_smem, full, empty, sizes,
                        0, BESIDE, GROUP_M, A_BY_COLUMNS, B_BY_COLUMNS)),
            (_consume, (c_desc, c_ptr, a_smem, b_smem, beside_smem, c_smem, full, empty, sizes,
                        1, BESIDE, GROUP_M, A_BY_COLUMNS, B_BY_COLUMNS)),
            (_produce, (a_desc, b_desc, beside_desc, a_smem, b_smem, beside_smem, full, empty, sizes,
                        BESIDE, GROUP_M, A_BY_COLUMNS, B_BY_COLUMNS)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def product_by_columns(a, b, c, *, config):
    """Write A B into ``c`` [m, n], contiguous; A and B are of 16-bit elements that TMA can read, by rows or columns."""
    (m, n), k = c.shape, a.shape[1]
    rows, columns, beside, block_k = ROWS.value, COLUMNS.value, config["BESIDE"], config["BLOCK_K"]
    b_turned, of_b = by_columns(b), b.t() if by_columns(b) else b
    launch(
        columns_kernel, (-(-m // (GROUPS.value * rows)) * -(-n // (columns + beside)),),
        described(a.t(), block_k, rows) if by_columns(a) else described(a, rows, block_k),
        *(described(of_b, *((wide, block_k) if b_turned else (block_k, wide))) for wide in (columns, beside)),
        described(c if describable(c) else None, rows, beside), c, m, n, k,
        BESIDE=beside, GROUP_M=config["GROUP_M"], STAGES=config["STAGES"],
        A_BY_COLUMNS=by_columns(a), B_BY_COLUMNS=b_turned, num_warps=4,
    )  # fmt: skip
