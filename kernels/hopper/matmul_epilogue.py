"""A linear layer and its epilogue for Hopper (sm_90): y = act(scale * (x @ W^T) + bias) + residual.

A program has a multiprocessor for itself and takes one tile of y after the other.  One of its warps loads (the
producer): blocks of x and W go by TMA into a ring of shared memory, on into the next tile while this one is finished.
Two groups of four warps multiply (wgmma), each the half of the tile's rows, and work at their epilogues on their own:
the tensor cores stand still only as long as both are at it.  Barriers in shared memory hand blocks over: a "full" one,
on which TMA counts the bytes, and an "empty" one, on which both groups arrive.

What is read again of the output's shape (the residual) and what is written lies in one buffer for each group: the
residual is fetched into it while the tile is multiplied, and y takes its place.
"""

import torch
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

import kernels.activation

_share = kernels.activation._share

GROUPS = gl.constexpr(2)
"""Groups of four warps that multiply."""

ROWS = gl.constexpr(64)
"""Rows of a group: those of one wgmma."""


@gluon.jit
def _tile_of(position, M, N, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """(first row, first column) of the tile at ``position``; the order goes down GROUP_M rows of tiles first."""
    tiles_m = gl.cdiv(M, GROUPS * ROWS)
    tiles_of_band = GROUP_M * gl.cdiv(N, BLOCK_N)
    first_m = (position // tiles_of_band) * GROUP_M
    rows = gl.minimum(tiles_m - first_m, GROUP_M)
    within = position % tiles_of_band
    return (first_m + within % rows) * (GROUPS * ROWS), within // rows * BLOCK_N


@gluon.jit
def _produce(
    x_desc, w_desc, x_smem, w_smem, full, empty, M, N, K,
    BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    step = 0
    tiles = gl.cdiv(M, GROUPS * ROWS) * gl.cdiv(N, BLOCK_N)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = _tile_of(position, M, N, BLOCK_N, GROUP_M)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, GROUPS * x_desc.block_type.nbytes + w_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(w_desc, [n, k], bar, w_smem.index(slot))
            for g in gl.static_range(GROUPS):
                tma.async_copy_global_to_shared(x_desc, [m + g * ROWS, k], bar, x_smem.index(slot * GROUPS + g))
            step += 1


@gluon.jit
def _activated(z, ACTIVATION: gl.constexpr):
    """act(z) in fp32, to as many digits as 16 bits hold."""
    if ACTIVATION == "relu":
        z = gl.where(z < 0, 0.0, z)  # NaN stays NaN, as in torch
    elif ACTIVATION != "none":
        z = z * _share(z, ACTIVATION, False)
    return z


@gluon.jit
def _put(value, desc, buffer, m, n, PENDING: gl.constexpr):
    """Write a block by way of the buffer, once all but the last PENDING blocks have left theirs."""
    tma.store_wait(PENDING)
    buffer.store(value.to(desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [m, n], buffer)


@gluon.jit
def _finish(
    acc, bias_ptr, residual_desc, y_desc, z_desc, buffers, scale, m, n, N,
    ACTIVATION: gl.constexpr, COLUMNS: gl.constexpr, BUFFER: gl.constexpr, PENDING: gl.constexpr,
):  # fmt: skip
    """The epilogue of ROWS x COLUMNS elements, the first at (m, n); a residual lies in the buffer."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    buffer = buffers.index(BUFFER)
    z = gl.convert_layout(acc, layout) * scale
    if bias_ptr is not None:
        offs_n = n + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
        z += gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(gl.float32)[None, :]
    if residual_desc is not None:
        residual = buffer.load(layout)
    if z_desc is not None:
        _put(z, z_desc, buffer, m, n, 0)
    y = _activated(z, ACTIVATION)
    if residual_desc is not None:
        y += residual.to(gl.float32)
    if z_desc is not None:
        _put(y, y_desc, buffer, m, n, 0)
    else:
        _put(y, y_desc, buffer, m, n, PENDING)


@gluon.jit
def _halves(block, COLUMNS: gl.constexpr):
    """The left and the right half of a block of ROWS x COLUMNS."""
    return block.reshape([ROWS, 2, COLUMNS // 2]).permute(0, 2, 1).split()


@gluon.jit
def _consume(
    bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, ahead, scale, M, N, K,
    ACTIVATION: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    PARTS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its ROWS rows of each tile.  A residual takes PARTS = 1."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    arrived = fetched.index(GROUP)
    step = 0
    lead = gl.minimum(gl.cdiv(K, BLOCK_K), STAGES - 1)
    tiles = gl.cdiv(M, GROUPS * ROWS) * gl.cdiv(N, BLOCK_N)
    if GROUP == 1:  # starts when the first has gone through most of the ring, and stays behind it
        mbarrier.wait(ahead, 0)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = _tile_of(position, M, N, BLOCK_N, GROUP_M)
        m += GROUP * ROWS
        if residual_desc is not None:
            tma.store_wait(0)
            mbarrier.expect(arrived, residual_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(residual_desc, [m, n], arrived, buffers.index(GROUP))
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            x, w = x_smem.index(slot * GROUPS + GROUP), w_smem.index(slot).permute((1, 0))
            acc = warpgroup_mma(x, w, acc, use_acc=k > 0, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])  # the product before this one has read its blocks
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
            step += 1
            if GROUP == 0:
                mbarrier.arrive(ahead, count=1, pred=step == lead)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        if residual_desc is not None:
            mbarrier.wait(arrived, position // gl.num_programs(0) & 1)
        if PARTS == 1:
            _finish(
                acc, bias_ptr, residual_desc, y_desc, z_desc, buffers, scale, m, n, N, ACTIVATION, BLOCK_N, GROUP, 0
            )
        else:  # while one part leaves its buffer the next is computed and put into the other
            half: gl.constexpr = BLOCK_N // 2
            left, right = _halves(acc, BLOCK_N)
            for side in gl.static_range(2):
                first, second = _halves(left if side == 0 else right, half)
                _finish(
                    first, bias_ptr, None, y_desc, z_desc, buffers, scale, m, n + side * half, N,
                    ACTIVATION, half // 2, 2 * GROUP, 1,
                )  # fmt: skip
                _finish(
                    second, bias_ptr, None, y_desc, z_desc, buffers, scale, m, n + side * half + half // 2, N,
                    ACTIVATION, half // 2, 2 * GROUP + 1, 1,
                )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def matmul_epilogue_kernel(
    x_desc, w_desc, bias_ptr, residual_desc, y_desc, z_desc, scale, M, N, K,
    ACTIVATION: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    PARTS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks of ROWS rows (of W: BLOCK_N); bias, residual and z may be None."""
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES * GROUPS, ROWS, BLOCK_K], x_desc.layout)
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    parts_there: gl.constexpr = 1 if PARTS == 1 else 2
    buffers = gl.allocate_shared_memory(y_desc.dtype, [GROUPS * parts_there, ROWS, BLOCK_N // PARTS], y_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    fetched = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    ahead = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ahead, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=GROUPS)
    for g in gl.static_range(GROUPS):
        mbarrier.init(fetched.index(g), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, ahead,
                scale, M, N, K, ACTIVATION, BLOCK_N, BLOCK_K, GROUP_M, PARTS, STAGES, 0,
            )),
            (_consume, (
                bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, ahead,
                scale, M, N, K, ACTIVATION, BLOCK_N, BLOCK_K, GROUP_M, PARTS, STAGES, 1,
            )),
            (_produce, (
                x_desc, w_desc, x_smem, w_smem, full, empty, M, N, K, BLOCK_N, BLOCK_K, GROUP_M, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def _described(matrix, rows, columns):
    """The descriptor of blocks of a matrix, in shared memory as wgmma wants them; None of None."""
    if matrix is None:
        return None
    dtype = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}[matrix.dtype]
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtype)
    return TensorDescriptor.from_tensor(matrix, [rows, columns], layout)


def specialized(x, weight, bias, residual, y, z, activation, scale, *, config, programs):
    """Write y (and z, where there is one) of matrices that TMA can read; ``programs`` is the number of SMs."""
    (m, k), n = x.shape, weight.shape[0]
    columns, block_k, parts = config["BLOCK_N"], config["BLOCK_K"], config["PARTS"]
    tiles = -(-m // (GROUPS.value * ROWS.value)) * -(-n // columns)
    launch(
        matmul_epilogue_kernel, (min(tiles, programs),),
        _described(x, ROWS.value, block_k), _described(weight, columns, block_k), bias,
        _described(residual, ROWS.value, columns // parts), _described(y, ROWS.value, columns // parts),
        _described(z, ROWS.value, columns // parts), scale, m, n, k,
        ACTIVATION=activation, BLOCK_N=columns, BLOCK_K=block_k, GROUP_M=config["GROUP_M"], PARTS=parts,
        STAGES=config["STAGES"], num_warps=4,
    )  # fmt: skip
