"""`clustered`: products of 8 bits of few tiles, by clusters of programs that share k, for Hopper (sm_90).

A program has one role: four warps multiply, and a thread of them brings blocks by TMA.  P is the side of C that wgmma
takes 64 of: A's rows, or B's columns where tiles have fewer rows.  A program sums a part of k and adds its sums to
those of its cluster in shared memory (:mod:`kernels.common.clusters`); alone it has all of k.
"""

import triton
from atlas.operators import Clustered, launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.common import clusters
from kernels.common.hopper import described

BLOCK_P = gl.constexpr(64)
"""Elements of P of a tile: those of one wgmma."""

BLOCK_K = gl.constexpr(128)
"""Bytes of a swizzled line of shared memory, and the elements that fp8 is summed over without promotion."""

STEP = gl.constexpr(256)
"""Elements of k that come at a time, in two blocks of each operand."""

_SHARED_BYTES = 225 * 1024
"""Shared memory of a program for blocks and for what its cluster sends; 2 KiB are for barriers and the driver."""


@gluon.jit
def _load(p_desc, q_desc, p_smem, q_smem, full, i, p, q, begin, end):
    """Bring both blocks of step begin + i of each operand, if it is before ``end``, to the ring."""
    slot, there = i % full.shape[0], begin + i < end
    bar = full.index(slot)
    mbarrier.expect(bar, 2 * (p_desc.block_type.nbytes + q_desc.block_type.nbytes), pred=there)
    for half in gl.static_range(2):
        k = (begin + i) * STEP + half * BLOCK_K
        tma.async_copy_global_to_shared(p_desc, [p, k], bar, p_smem.index(2 * slot + half), pred=there)
        tma.async_copy_global_to_shared(q_desc, [q, k], bar, q_smem.index(2 * slot + half), pred=there)


_PREFETCH = gl.constexpr("{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }")


@gluon.jit
def _prefetch(ptr, first, length, COUNT: gl.constexpr):
    """Have the L2 bring ``ptr[first : first + COUNT]``."""
    at = first + gl.arange(0, COUNT, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        _PREFETCH, "=r,l", [ptr + gl.minimum(at, length - 1)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _numbers(scale_a_ptr, scale_b_ptr, SCALES: gl.constexpr):
    """Both scales where each is one number."""
    if SCALES == "tensor":
        return gl.load(scale_a_ptr), gl.load(scale_b_ptr)
    else:
        return 1.0, 1.0


@gluon.jit
def _factors(numbers, scale_a_ptr, scale_b_ptr, bias_ptr, row, column, M, N, SCALES: gl.constexpr):
    """What C is multiplied by at these rows and columns, one after the other, and what is added then."""
    by_a, by_b, more = numbers[0], numbers[1], 0.0
    if SCALES == "row":
        by_a = gl.load(scale_a_ptr + row, mask=row < M, other=0.0)
        by_b = gl.load(scale_b_ptr + column, mask=column < N, other=0.0)
    if bias_ptr is not None:
        more = gl.load(bias_ptr + column, mask=column < N, other=0.0).to(gl.float32)
    return by_a, by_b, more


@gluon.jit
def _write(c_ptr, total, row, column, inside, factors, N, SCALES: gl.constexpr):
    if SCALES != "none":
        total = total.to(gl.float32) * factors[0] * factors[1] + factors[2]
    where = row.to(gl.int64) * N + column.to(gl.int64)
    gl.store(c_ptr + where, total.to(c_ptr.dtype.element_ty), mask=inside)


@gluon.jit
def _of_c(p, q, SWAPPED: gl.constexpr):
    """(row, column) of C."""
    if SWAPPED:
        return q, p
    else:
        return p, q


@gluon.jit
def _sums(p_desc, q_desc, p_smem, q_smem, full, p, q, begin, end, PROMOTE: gl.constexpr):
    """Sums of a tile over steps from ``begin`` to ``end``; the first of them are on their way."""
    STAGES: gl.constexpr = full.shape[0]
    BLOCK_Q: gl.constexpr = q_desc.block_shape[0]
    ACC: gl.constexpr = gl.int32 if p_desc.dtype == gl.int8 else gl.float32
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_Q, 32])
    acc = gl.zeros([BLOCK_P, BLOCK_Q], ACC, layout)
    for i in range(0, end - begin):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        of_p, of_q = p_smem.index(2 * slot), q_smem.index(2 * slot).permute((1, 0))
        next_p, next_q = p_smem.index(2 * slot + 1), q_smem.index(2 * slot + 1).permute((1, 0))
        if PROMOTE:
            none = gl.zeros([BLOCK_P, BLOCK_Q], ACC, layout)
            part = warpgroup_mma(of_p, of_q, none, use_acc=False, is_async=True)
            other = warpgroup_mma(next_p, next_q, none, use_acc=False, is_async=True)
            _load(p_desc, q_desc, p_smem, q_smem, full, i + STAGES - 1, p, q, begin, end)
            part = warpgroup_mma_wait(1, deps=[part])
            acc += part
            other = warpgroup_mma_wait(0, deps=[other])
            acc += other
        else:
            acc = warpgroup_mma(of_p, of_q, acc, is_async=True)
            acc = warpgroup_mma(next_p, next_q, acc, is_async=True)
            acc = warpgroup_mma_wait(2, deps=[acc])  # for the step before this one, whose place is filled again
            _load(p_desc, q_desc, p_smem, q_smem, full, i + STAGES - 1, p, q, begin, end)
    if not PROMOTE:
        acc = warpgroup_mma_wait(0, deps=[acc])
    return acc


@gluon.jit(do_not_specialize=["M", "N", "K"])
def clustered_8bit_kernel(
    p_desc, q_desc, c_ptr, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    STAGES: gl.constexpr, SWAPPED: gl.constexpr, PROMOTE: gl.constexpr, SCALES: gl.constexpr, CLUSTER: gl.constexpr,
    STATIC: gl.constexpr,
):  # fmt: skip
    """c [M, N], by rows, = (a b) * scale_a * scale_b + bias; p of ``p_desc`` are B's columns if SWAPPED, else A's rows.

    A cluster has a block of C, a program of it at least one of the steps through K.
    """
    BLOCK_Q: gl.constexpr = q_desc.block_shape[0]
    p_smem = gl.allocate_shared_memory(p_desc.dtype, [STAGES * 2, BLOCK_P, BLOCK_K], p_desc.layout)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES * 2, BLOCK_Q, BLOCK_K], q_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    rank, tile = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    if CLUSTER > 1:
        room = clusters.room_of(rank, 1, BLOCK_P, BLOCK_Q, 4, CLUSTER, STATIC)
    fence_async_shared()
    tiles_q = gl.cdiv(M if SWAPPED else N, BLOCK_Q)
    p, q = tile // tiles_q * BLOCK_P, tile % tiles_q * BLOCK_Q
    steps = gl.cdiv(K, STEP)
    begin, end = rank * steps // CLUSTER, (rank + 1) * steps // CLUSTER
    for i in gl.static_range(STAGES - 1):
        _load(p_desc, q_desc, p_smem, q_smem, full, i, p, q, begin, end)
    numbers = _numbers(scale_a_ptr, scale_b_ptr, SCALES)
    if SCALES == "row":
        m, n = _of_c(p, q, SWAPPED)
        _prefetch(scale_a_ptr, m, M, BLOCK_Q if SWAPPED else BLOCK_P)
        _prefetch(scale_b_ptr, n, N, BLOCK_P if SWAPPED else BLOCK_Q)
    if CLUSTER > 1:
        clusters.arrive()
    acc = _sums(p_desc, q_desc, p_smem, q_smem, full, p, q, begin, end, PROMOTE)
    if CLUSTER > 1:
        clusters.await_all()
        clusters.send(acc.to(gl.float32, bitcast=True), room, rank, 0, 4, CLUSTER)
        factors = ()
        for number in gl.static_range(clusters.own_blocks(BLOCK_P, BLOCK_Q, 4, CLUSTER)):
            of_p, of_q, inside = clusters.place_of(rank, number, BLOCK_P, BLOCK_Q, 4, CLUSTER)
            row, column = _of_c(p + of_p, q + of_q, SWAPPED)
            of = _factors(numbers, scale_a_ptr, scale_b_ptr, bias_ptr, row, column, M, N, SCALES)
            factors = factors + (of,)  # noqa: RUF005 - Gluon knows no star
        clusters.await_sums(room, 0)
        for number in gl.static_range(clusters.own_blocks(BLOCK_P, BLOCK_Q, 4, CLUSTER)):
            total, of_p, of_q, inside = clusters.added(
                room, rank, number, 0, BLOCK_P, BLOCK_Q, 4, CLUSTER, acc.dtype
            )  # fmt: skip
            row, column = _of_c(p + of_p, q + of_q, SWAPPED)
            _write(c_ptr, total, row, column, inside & (row < M) & (column < N), factors[number], N, SCALES)
    else:
        of_p = gl.arange(0, BLOCK_P, gl.SliceLayout(1, acc.type.layout))[:, None]
        of_q = gl.arange(0, BLOCK_Q, gl.SliceLayout(0, acc.type.layout))[None, :]
        row, column = _of_c(p + of_p, q + of_q, SWAPPED)
        factors = _factors(numbers, scale_a_ptr, scale_b_ptr, bias_ptr, row, column, M, N, SCALES)
        _write(c_ptr, acc, row, column, (row < M) & (column < N), factors, N, SCALES)


def multiply_in_clusters(a, b, c, scale_a, scale_b, bias, *, scales, promote, config):
    """Write c = (a b) * scale_a * scale_b + bias of matrices that TMA can read.

    k has as many steps as a cluster has programs, or more.
    """
    (m, k), n = a.shape, b.shape[1]
    rows, columns, size = config["BLOCK_M"], config["BLOCK_N"], config["CLUSTER"]
    swapped = rows != BLOCK_P.value
    block_q = rows if swapped else columns
    static = clusters.static_bytes(clusters.buffer_bytes(BLOCK_P.value, block_q, 4, size)) if size > 1 else 0
    stages = min(6, (_SHARED_BYTES - static) // ((BLOCK_P.value + block_q) * STEP.value))
    of_p, of_q = (b.t(), a) if swapped else (a, b.t())
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    launch(
        Clustered(clustered_8bit_kernel, size) if size > 1 else clustered_8bit_kernel, (tiles,),
        described(of_p, BLOCK_P.value, BLOCK_K.value), described(of_q, block_q, BLOCK_K.value), c,
        scale_a, scale_b, bias, m, n, k, STAGES=stages, SWAPPED=swapped, PROMOTE=promote, SCALES=scales, CLUSTER=size,
        STATIC=static, num_warps=4,
    )  # fmt: skip
