"""`clustered`: few rows or columns times a matrix in 16 bits, by clusters of programs that share k, for Hopper (sm_90).

The long side of C is wgmma's first one: tiles of 64 of it, and all of the short side.  A program brings a part of k by
TMA and adds its sums to those of its cluster in shared memory (:mod:`kernels.common.clusters`).
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
from kernels.common.products import by_columns

BLOCK_P = gl.constexpr(64)
"""Elements of the long side of C: those of one wgmma."""

_STAGE_BYTES = 184 * 1024
"""Shared memory for blocks of both operands."""


@gluon.jit
def _load(p_desc, q_desc, smems, full, i, p, q, begin, end, P_BY_COLUMNS: gl.constexpr, Q_BY_COLUMNS: gl.constexpr):
    """Bring blocks of step begin + i, if it is before ``end``, to the ring."""
    p_smem, q_smem = smems
    STAGES: gl.constexpr = p_smem.shape[0]
    BLOCK_K: gl.constexpr = p_desc.block_shape[0 if P_BY_COLUMNS else 1]
    slot, k, there = i % STAGES, (begin + i) * BLOCK_K, begin + i < end
    bar = full.index(slot)
    mbarrier.expect(bar, p_desc.block_type.nbytes + q_desc.block_type.nbytes, pred=there)
    at_p, at_q = [p, k], [q, k]
    if P_BY_COLUMNS:
        at_p = [k, p]
    if Q_BY_COLUMNS:
        at_q = [k, q]
    tma.async_copy_global_to_shared(p_desc, at_p, bar, p_smem.index(slot), pred=there)
    tma.async_copy_global_to_shared(q_desc, at_q, bar, q_smem.index(slot), pred=there)


@gluon.jit(do_not_specialize=["P", "Q", "K", "stride_p", "stride_q"])
def clustered_kernel(
    p_desc, q_desc, c_ptr, P, Q, K, stride_p, stride_q, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, P_BY_COLUMNS: gl.constexpr, Q_BY_COLUMNS: gl.constexpr, CLUSTER: gl.constexpr,
    STATIC: gl.constexpr,
):  # fmt: skip
    """c [P, Q], of any strides, = p [P, K] q [Q, K]^T; each lies by rows or by columns.

    A cluster has BLOCK_P of P and BLOCK_Q of Q, a program of it at least one of the steps through K.
    """
    p_smem = gl.allocate_shared_memory(
        p_desc.dtype, [STAGES, p_desc.block_shape[0], p_desc.block_shape[1]], p_desc.layout
    )
    q_smem = gl.allocate_shared_memory(
        q_desc.dtype, [STAGES, q_desc.block_shape[0], q_desc.block_shape[1]], q_desc.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    rank, tile = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    room = clusters.room_of(rank, 1, BLOCK_P, BLOCK_Q, 4, CLUSTER, STATIC)
    fence_async_shared()
    tiles_q = gl.cdiv(Q, BLOCK_Q)
    p, q = tile // tiles_q * BLOCK_P, tile % tiles_q * BLOCK_Q
    steps = gl.cdiv(K, BLOCK_K)
    begin, end = rank * steps // CLUSTER, (rank + 1) * steps // CLUSTER
    smems = p_smem, q_smem
    for i in gl.static_range(STAGES - 1):
        _load(p_desc, q_desc, smems, full, i, p, q, begin, end, P_BY_COLUMNS, Q_BY_COLUMNS)
    clusters.arrive_first(STATIC)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_Q, 16])
    acc = gl.zeros([BLOCK_P, BLOCK_Q], gl.float32, layout)
    for i in range(0, end - begin):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        first, second = p_smem.index(slot), q_smem.index(slot)
        if P_BY_COLUMNS:
            first = first.permute((1, 0))
        if not Q_BY_COLUMNS:
            second = second.permute((1, 0))
        acc = warpgroup_mma(first, second, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # for the step before this one, whose place is filled again
        _load(p_desc, q_desc, smems, full, i + STAGES - 1, p, q, begin, end, P_BY_COLUMNS, Q_BY_COLUMNS)
    acc = warpgroup_mma_wait(0, deps=[acc])
    clusters.meet(STATIC)
    clusters.send(acc, room, rank, 0, 4, CLUSTER)
    clusters.await_sums(room, 0)
    for number in gl.static_range(clusters.own_blocks(BLOCK_P, BLOCK_Q, 4, CLUSTER)):
        total, of_p, of_q, inside = clusters.added(room, rank, number, 0, BLOCK_P, BLOCK_Q, 4, CLUSTER)
        row, column = p + of_p, q + of_q
        where = row.to(gl.int64) * stride_p + column.to(gl.int64) * stride_q
        gl.store(c_ptr + where, total.to(c_ptr.dtype.element_ty), mask=inside & (row < P) & (column < Q))


def multiply_in_clusters(p, q, c, *, config):
    """Write p q^T to c [P, Q]; of p [P, k] and q [Q, k], 16 bits, TMA can read rows or columns.

    k has as many blocks as a cluster has programs, or more.
    """
    (long, short), k = c.shape, p.shape[1]
    block_q, block_k, size = config["BLOCK_Q"], config["BLOCK_K"], config["CLUSTER"]
    tiles = triton.cdiv(long, BLOCK_P.value) * triton.cdiv(short, block_q)
    launch(
        Clustered(clustered_kernel, size), (tiles,),
        _described(p, BLOCK_P.value, block_k), _described(q, block_q, block_k), c, long, short, k, *c.stride(),
        BLOCK_Q=block_q, BLOCK_K=block_k, STAGES=_STAGE_BYTES // ((BLOCK_P.value + block_q) * block_k * 2),
        P_BY_COLUMNS=by_columns(p), Q_BY_COLUMNS=by_columns(q), CLUSTER=size,
        STATIC=clusters.static_bytes(clusters.buffer_bytes(BLOCK_P.value, block_q, 4, size)), num_warps=4,
    )  # fmt: skip


def _described(matrix, rows, columns):
    """The descriptor of blocks of a matrix, transposed where it lies by columns."""
    return described(matrix.t(), columns, rows) if by_columns(matrix) else described(matrix, rows, columns)
