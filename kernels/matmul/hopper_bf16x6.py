"""Products of fp32 on Hopper's tensor cores (sm_90), as exact as by FMA: six products of bf16.

A number of fp32 has 24 bits, those of three numbers of bf16: a = a0 + a1 + a2, each 2^-8 of the one before at most
(``bf16_terms``).  Of the nine products of terms a0 b0, a0 b1, a1 b0, a1 b1, a0 b2 and a2 b0 are made.  The other three
come to 2^-23 of a b at most, and in the mean to 2^-26, half of what rounding a product to fp32 does.

Tensor cores cut off what does not fit into their sums, where FMA rounds.  So a sum there is of CHUNK steps of K at
most; it is then added, rounded, to the tile's.  The five small products have a sum of their own, which is smaller than
the large one's by 2^-7, and so are its errors.  An infinity makes it NaN (times a term that is 0), or an infinity of
either sign: it is left out where it is not finite, and a0 b0 says what fp32 would.

A program has a multiprocessor for itself and takes one tile of C after the other.  One of its warps loads (the
producer): blocks of all terms go by TMA into a ring of shared memory, on into the next tile while this one is finished.
Two groups of four warps multiply (wgmma), each ROWS rows of a tile.  Barriers hand blocks over: a "full" one, on which
TMA counts the bytes, and an "empty" one, on which both groups arrive.
"""

import triton
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

from kernels.common.batches import by_columns, rows_of
from kernels.common.bf16_terms import TERMS, bf16_terms
from kernels.common.hopper import described_batch, tile_of

ROWS = gl.constexpr(64)
"""Rows of A of a group: those of one wgmma."""

GROUPS = gl.constexpr(2)

CHUNK = gl.constexpr(128)
"""Elements of K that tensor cores add up by themselves."""

_TERMS = gl.constexpr(TERMS)


@gluon.jit
def _place(position, M, N, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """(product, first row, first column) of the tile at ``position``."""
    tiles = gl.cdiv(M, GROUPS * ROWS) * gl.cdiv(N, BLOCK_N)
    m, n = tile_of(position % tiles, M, N, GROUPS * ROWS, BLOCK_N, GROUP_M)
    return position // tiles, m, n


@gluon.jit
def _tiles(BATCH, M, N, BLOCK_N: gl.constexpr):
    return BATCH * gl.cdiv(M, GROUPS * ROWS) * gl.cdiv(N, BLOCK_N)


@gluon.jit
def _fetch(desc, bar, buffer, matrix, row, k, BY_COLUMNS: gl.constexpr):
    """Fetch the block from row ``row`` (of A; of B's transpose) and ``k`` on, which lies along K unless BY_COLUMNS."""
    if BY_COLUMNS:
        tma.async_copy_global_to_shared(desc, [matrix, k, row], bar, buffer)
    else:
        tma.async_copy_global_to_shared(desc, [matrix, row, k], bar, buffer)


@gluon.jit
def _produce(
    a_desc, b_desc, a_smem, b_smem, full, empty, sizes, apart, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_ALONG_N: gl.constexpr, A_SHARED: gl.constexpr,
    B_SHARED: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    BATCH, M, N, K = sizes
    of_a, of_b = apart
    STAGES: gl.constexpr = full.shape[0]
    step = 0
    for position in range(gl.program_id(0), _tiles(BATCH, M, N, BLOCK_N), gl.num_programs(0)):
        batch, m, n = _place(position, M, N, BLOCK_N, GROUP_M)
        a_first = 0 if A_SHARED else batch
        b_first = 0 if B_SHARED else batch
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, _TERMS * (GROUPS * a_desc.block_type.nbytes + b_desc.block_type.nbytes))
            for term in gl.static_range(_TERMS):
                for group in gl.static_range(GROUPS):
                    block = a_smem.index((slot * _TERMS + term) * GROUPS + group)
                    _fetch(a_desc, bar, block, term * of_a + a_first, m + group * ROWS, k, A_BY_COLUMNS)
                _fetch(b_desc, bar, b_smem.index(slot * _TERMS + term), term * of_b + b_first, n, k, B_ALONG_N)
            step += 1


@gluon.jit
def _a(a_smem, slot, TERM: gl.constexpr, GROUP: gl.constexpr, BY_COLUMNS: gl.constexpr):
    """A term's block of the group's rows: [ROWS, BLOCK_K]."""
    block = a_smem.index((slot * _TERMS + TERM) * GROUPS + GROUP)
    block = block.reshape([block.shape[1], block.shape[2]])
    return block.permute((1, 0)) if BY_COLUMNS else block


@gluon.jit
def _b(b_smem, slot, TERM: gl.constexpr, ALONG_N: gl.constexpr):
    """A term's block of B: [BLOCK_K, BLOCK_N]."""
    block = b_smem.index(slot * _TERMS + TERM)
    block = block.reshape([block.shape[1], block.shape[2]])
    return block if ALONG_N else block.permute((1, 0))


@gluon.jit
def _consume(
    c_ptr, a_smem, b_smem, full, empty, sizes, GROUP: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_ALONG_N: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of each of the program's tiles."""
    BATCH, M, N, K = sizes
    STAGES: gl.constexpr = full.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    step = 0
    for position in range(gl.program_id(0), _tiles(BATCH, M, N, BLOCK_N), gl.num_programs(0)):
        batch, m, n = _place(position, M, N, BLOCK_N, GROUP_M)
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        for chunk in range(0, K, CHUNK):
            small = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
            large = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
            for k in range(chunk, gl.minimum(chunk + CHUNK, K), BLOCK_K):
                slot = step % STAGES
                mbarrier.wait(full.index(slot), step // STAGES & 1)
                a0 = _a(a_smem, slot, 0, GROUP, A_BY_COLUMNS)
                a1 = _a(a_smem, slot, 1, GROUP, A_BY_COLUMNS)
                a2 = _a(a_smem, slot, 2, GROUP, A_BY_COLUMNS)
                b0 = _b(b_smem, slot, 0, B_ALONG_N)
                b1 = _b(b_smem, slot, 1, B_ALONG_N)
                b2 = _b(b_smem, slot, 2, B_ALONG_N)
                small = warpgroup_mma(a0, b2, small, use_acc=k > chunk, is_async=True)
                small = warpgroup_mma(a2, b0, small, is_async=True)
                small = warpgroup_mma(a1, b1, small, is_async=True)
                small = warpgroup_mma(a0, b1, small, is_async=True)
                small = warpgroup_mma(a1, b0, small, is_async=True)
                large = warpgroup_mma(a0, b0, large, use_acc=k > chunk, is_async=True)
                small, large = warpgroup_mma_wait(6, deps=[small, large])  # the block before this one has been read
                mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > chunk)
                step += 1
            small, large = warpgroup_mma_wait(0, deps=[small, large])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
            acc += large + gl.where(gl.abs(small) < float("inf"), small, gl.full_like(small, 0.0))
        offs_m = m + GROUP * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        offs_n = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))
        at = c_ptr + (batch.to(gl.int64) * M + offs_m)[:, None] * N + offs_n[None, :]
        gl.store(at, acc, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@gluon.jit
def product_kernel(
    a_desc, b_desc, c_ptr, BATCH, M, N, K, of_a, of_b, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, A_BY_COLUMNS: gl.constexpr, B_ALONG_N: gl.constexpr,
    A_SHARED: gl.constexpr, B_SHARED: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks of terms, which follow one another by ``of_a`` and ``of_b`` matrices: BATCH, or 1."""
    a_block: gl.constexpr = a_desc.block_shape
    b_block: gl.constexpr = b_desc.block_shape
    a_smem = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES * _TERMS * GROUPS, 1, a_block[1], a_block[2]], a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES * _TERMS, 1, b_block[1], b_block[2]], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=GROUPS)
    fence_async_shared()
    sizes = (BATCH, M, N, K)
    gl.warp_specialize(
        [
            (_consume, (c_ptr, a_smem, b_smem, full, empty, sizes, 0,
                        BLOCK_N, BLOCK_K, GROUP_M, A_BY_COLUMNS, B_ALONG_N)),
            (_consume, (c_ptr, a_smem, b_smem, full, empty, sizes, 1,
                        BLOCK_N, BLOCK_K, GROUP_M, A_BY_COLUMNS, B_ALONG_N)),
            (_produce, (a_desc, b_desc, a_smem, b_smem, full, empty, sizes, (of_a, of_b),
                        BLOCK_N, BLOCK_K, GROUP_M, A_BY_COLUMNS, B_ALONG_N, A_SHARED, B_SHARED)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def products(a, b, c, *, config, programs):
    """Write A B into ``c`` [batch, m, n], contiguous; A [batch, m, k] and B [batch, k, n] are fp32, with a K.

    ``programs`` is the number of SMs.
    """
    batch, m, n = c.shape
    a, b = bf16_terms(a), bf16_terms(b)
    of_a, of_b = a.shape[0] // TERMS, b.shape[0] // TERMS
    block_k, block_n = config["BLOCK_K"], config["BLOCK_N"]
    tiles = batch * triton.cdiv(m, GROUPS.value * ROWS.value) * triton.cdiv(n, block_n)
    a_by_columns, b_along_n = by_columns(a), not by_columns(b)
    a_block = (block_k, ROWS.value) if a_by_columns else (ROWS.value, block_k)
    b_block = (block_k, block_n) if b_along_n else (block_n, block_k)
    launch(
        product_kernel, (min(tiles, programs),), described_batch(rows_of(a), *a_block),
        described_batch(rows_of(b), *b_block), c, batch, m, n, a.shape[2], of_a, of_b, A_BY_COLUMNS=a_by_columns,
        B_ALONG_N=b_along_n, A_SHARED=of_a < batch, B_SHARED=of_b < batch, num_warps=4, **config,
    )  # fmt: skip
