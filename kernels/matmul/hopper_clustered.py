"""Products of few tiles in 16 bits, layers and batches, for Hopper (sm_90): programs of a cluster share k.

c = act(scale * (p q^T) + bias) + residual.  The long side of C is wgmma's first one: tiles of 64 of it.  A program
brings a part of k by TMA and adds its sums to those of its cluster in shared memory (:mod:`kernels.common.clusters`);
a cluster of one has all of k, and writes what it summed.
"""

import triton
import triton.language as tl
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

from kernels.activation.tiles import share_of
from kernels.common import batches, clusters
from kernels.common.hopper import described, described_batch
from kernels.common.products import by_columns

from .clustered import BLOCK_P as ROWS_OF_P
from .clustered import STAGE_BYTES

BLOCK_P = gl.constexpr(ROWS_OF_P)
WARPS = gl.constexpr(4)


@gluon.jit
def _bring(desc, smem, bar, of, row, k, there, BY_COLUMNS: gl.constexpr):
    """Bring the block from (row, k) on, of matrix ``of`` where the descriptor has several."""
    at = [row, k]
    if BY_COLUMNS:
        at = [k, row]
    if len(desc.block_shape) == 3:
        at = [of, at[0], at[1]]
    tma.async_copy_global_to_shared(desc, at, bar, smem, pred=there)


@gluon.jit
def _load(
    p_desc, q_desc, smems, full, i, batches, p, q, begin, end, P_BY_COLUMNS: gl.constexpr,
    Q_BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    """Bring blocks of step begin + i, if it is before ``end``, to the ring."""
    p_smem, q_smem = smems
    STAGES: gl.constexpr = p_smem.shape[0]
    BLOCK_K: gl.constexpr = p_desc.block_shape[-2 if P_BY_COLUMNS else -1]
    slot, k, there = i % STAGES, (begin + i) * BLOCK_K, begin + i < end
    bar = full.index(slot)
    mbarrier.expect(bar, p_desc.block_type.nbytes + q_desc.block_type.nbytes, pred=there)
    _bring(p_desc, p_smem.index(slot), bar, batches[0], p, k, there, P_BY_COLUMNS)
    _bring(q_desc, q_smem.index(slot), bar, batches[1], q, k, there, Q_BY_COLUMNS)


@gluon.jit
def _block(smem, slot):
    """The block in a slot of the ring, without the axis of matrices that it may have."""
    block = smem.index(slot)
    if len(block.shape) == 3:
        block = block.reshape([block.shape[1], block.shape[2]])
    return block


@gluon.jit
def _finish(
    z, c_ptr, bias_ptr, residual_ptr, z_ptr, scale, row, column, in_rows, in_columns, strides,
    ACTIVATION: gl.constexpr, BIAS_OF_P: gl.constexpr,
):  # fmt: skip
    """Write sums z of elements (row, column) of C, where there are such, after the epilogue."""
    where, inside = row * strides[0] + column * strides[1], in_rows & in_columns
    if scale is not None:
        z *= scale
    if bias_ptr is not None:
        if BIAS_OF_P:
            bias = gl.load(bias_ptr + row, mask=in_rows, other=0.0)
        else:
            bias = gl.load(bias_ptr + column, mask=in_columns, other=0.0)
        z += bias.to(gl.float32)
    if z_ptr is not None:
        gl.store(z_ptr + where, z.to(z_ptr.dtype.element_ty), mask=inside)
    if ACTIVATION == "relu":
        z = gl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)  # NaN stays NaN, as in torch
    elif ACTIVATION != "none":
        z *= share_of(z, ACTIVATION, c_ptr.dtype.element_ty == gl.float32)
    if residual_ptr is not None:
        z += gl.load(residual_ptr + where, mask=inside, other=0.0).to(gl.float32)
    gl.store(c_ptr + where, z.to(c_ptr.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["P", "Q", "K", "stride_b", "stride_p", "stride_q"])
def clustered_kernel(
    p_desc, q_desc, c_ptr, bias_ptr, residual_ptr, z_ptr, scale, P, Q, K, stride_b, stride_p, stride_q,
    BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    P_BY_COLUMNS: gl.constexpr, Q_BY_COLUMNS: gl.constexpr, P_SHARED: gl.constexpr, Q_SHARED: gl.constexpr,
    CLUSTER: gl.constexpr, STATIC: gl.constexpr, ACTIVATION: gl.constexpr, BIAS_OF_P: gl.constexpr,
):  # fmt: skip
    """c [P, Q], of any strides, less than 2^31 elements, from p [P, K] q [Q, K]^T, which lie by rows or by columns.

    A cluster has BLOCK_P of P and BLOCK_Q of Q, a program of it at least one of the steps through K.  bias [P] or [Q],
    residual and z (what act is applied to), both with c's strides, may be None, and so may scale.  Several products
    have descriptors of three dimensions, C's ``stride_b`` from one to the next, and one P or Q for all where SHARED.
    """
    p_smem = gl.allocate_shared_memory(p_desc.dtype, [STAGES] + p_desc.block_shape, p_desc.layout)  # noqa: RUF005
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_shape, q_desc.layout)  # noqa: RUF005
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    rank, tile = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    if CLUSTER > 1:
        room = clusters.room_of(rank, 1, BLOCK_P, BLOCK_Q, WARPS, CLUSTER, STATIC)
    fence_async_shared()
    tiles_q = gl.cdiv(Q, BLOCK_Q)
    batches = None, None
    if stride_b is not None:
        tiles = gl.cdiv(P, BLOCK_P) * tiles_q
        batch = tile // tiles
        tile = tile % tiles
        batches = 0 if P_SHARED else batch, 0 if Q_SHARED else batch
    p, q = tile // tiles_q * BLOCK_P, tile % tiles_q * BLOCK_Q
    steps = gl.cdiv(K, BLOCK_K)
    begin, end = rank * steps // CLUSTER, (rank + 1) * steps // CLUSTER
    smems = p_smem, q_smem
    for i in gl.static_range(STAGES - 1):
        _load(p_desc, q_desc, smems, full, i, batches, p, q, begin, end, P_BY_COLUMNS, Q_BY_COLUMNS)
    if CLUSTER > 1:
        clusters.arrive_first(STATIC)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_Q, 16])
    acc = gl.zeros([BLOCK_P, BLOCK_Q], gl.float32, layout)
    for i in range(0, end - begin):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        first, second = _block(p_smem, slot), _block(q_smem, slot)
        if P_BY_COLUMNS:
            first = first.permute((1, 0))
        if not Q_BY_COLUMNS:
            second = second.permute((1, 0))
        acc = warpgroup_mma(first, second, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # for the step before this one, whose place is filled again
        ahead = i + STAGES - 1
        _load(p_desc, q_desc, smems, full, ahead, batches, p, q, begin, end, P_BY_COLUMNS, Q_BY_COLUMNS)
    acc = warpgroup_mma_wait(0, deps=[acc])
    if stride_b is not None:
        c_ptr += batch.to(gl.int64) * stride_b
    strides = stride_p, stride_q
    if CLUSTER == 1:
        row = p + gl.arange(0, BLOCK_P, gl.SliceLayout(1, layout))[:, None]
        column = q + gl.arange(0, BLOCK_Q, gl.SliceLayout(0, layout))[None, :]
        _finish(
            acc, c_ptr, bias_ptr, residual_ptr, z_ptr, scale, row, column, row < P, column < Q, strides,
            ACTIVATION, BIAS_OF_P,
        )  # fmt: skip
    else:
        clusters.meet(STATIC)
        clusters.send(acc, room, rank, 0, WARPS, CLUSTER)
        clusters.await_sums(room, 0)
        for number in gl.static_range(clusters.own_blocks(BLOCK_P, BLOCK_Q, WARPS, CLUSTER)):
            total, of_p, of_q, inside = clusters.added(room, rank, number, 0, BLOCK_P, BLOCK_Q, WARPS, CLUSTER)
            row, column = p + of_p, q + of_q
            _finish(
                total, c_ptr, bias_ptr, residual_ptr, z_ptr, scale, row, column, inside & (row < P),
                inside & (column < Q), strides, ACTIVATION, BIAS_OF_P,
            )  # fmt: skip


def multiply_in_clusters(a, b, c, *, bias=None, residual=None, z=None, activation="none", scale=1.0, config):
    """Write c [m, n] (and z) from a [m, k] and b [k, n], 16 bits, of which TMA can read rows or columns.

    bias [n], residual and z, which lie as c does, may be None.  k has a block for each of a cluster's programs.
    """
    turned = c.shape[0] <= c.shape[1]
    p, q, of_c = (b.t(), a, c.t()) if turned else (a, b.t(), c)
    _multiply(
        p, q, of_c, bias, residual, z, scale, config, _described, stride_b=None, P_BY_COLUMNS=by_columns(p),
        Q_BY_COLUMNS=by_columns(q), P_SHARED=False, Q_SHARED=False, ACTIVATION=activation,
        BIAS_OF_P=bias is not None and turned,
    )  # fmt: skip


def multiply_batches_in_clusters(a, b, c, *, config):
    """Write c [batch, m, n] from a [batch, m, k] and b [batch, k, n], of which each, or both, may be one for all.

    The columns of C are always wgmma's first side: threads that write at once have neighbours of a row.
    """
    p, q, of_c = b.transpose(1, 2), a, c.transpose(1, 2)
    _multiply(
        p, q, of_c, None, None, None, None, config, _described_batch, stride_b=c.stride(0),
        P_BY_COLUMNS=batches.by_columns(p), Q_BY_COLUMNS=batches.by_columns(q), P_SHARED=batches.is_shared(p),
        Q_SHARED=batches.is_shared(q), ACTIVATION="none", BIAS_OF_P=False,
    )  # fmt: skip


def _multiply(p, q, c, bias, residual, z, scale, config, describe, *, stride_b, **meta):
    """Launch the kernel for c [P, Q], or a batch of such, of blocks that ``describe`` describes."""
    (long, short), k = c.shape[-2:], p.shape[-1]
    block_q, block_k, size = (config[name] for name in ("BLOCK_Q", "BLOCK_K", "CLUSTER"))
    stages, static = ring_and_room(k, block_q, block_k, size)
    tiles = triton.cdiv(long, ROWS_OF_P) * triton.cdiv(short, block_q)
    launch(
        Clustered(clustered_kernel, size) if size > 1 else clustered_kernel,
        (tiles if stride_b is None else c.shape[0] * tiles,),
        describe(p, ROWS_OF_P, block_k), describe(q, block_q, block_k), c, bias, residual, z, scale, long, short, k,
        stride_b, *c.stride()[-2:], BLOCK_Q=block_q, BLOCK_K=block_k, STAGES=stages, CLUSTER=size, STATIC=static,
        num_warps=WARPS.value, **meta,
    )  # fmt: skip


def ring_and_room(k, block_q, block_k, size):
    """(stages of a program's ring, its static shared memory): all of its steps on their way at once, if there is room.

    The loop fills a stage again behind the step that it read, so the ring has a stage more than are on their way.
    """
    stage = (ROWS_OF_P + block_q) * block_k * 2
    stages = min(STAGE_BYTES // stage, triton.cdiv(triton.cdiv(k, block_k), size) + 1)
    if size == 1:
        return stages, 0
    received = clusters.buffer_bytes(ROWS_OF_P, block_q, WARPS.value, size)
    static = clusters.static_bytes(received)
    own = max(stages * stage, received)  # which may come to the ring
    return triton.cdiv(clusters.launchable(static, own), stage), static


def _described(matrix, rows, columns):
    """The descriptor of blocks of a matrix, transposed where it lies by columns."""
    return described(matrix.t(), columns, rows) if by_columns(matrix) else described(matrix, rows, columns)


def _described_batch(matrices, rows, columns):
    """The same of blocks of one of a batch, or of the one that all products share."""
    block = (columns, rows) if batches.by_columns(matrices) else (rows, columns)
    return described_batch(batches.rows_of(matrices), *block)
