"""A linear layer and its epilogue for Hopper (sm_90): y = act(scale * (x @ W^T) + bias) + residual.

A program has a multiprocessor for itself and takes one tile of y after the other.  One of its warps loads (the
producer): blocks of x and W go by TMA into a ring of shared memory, on into the next tile while this one is finished.
Two groups of four warps multiply (wgmma).  Barriers in shared memory hand blocks over: a "full" one, on which TMA
counts the bytes, and an "empty" one, on which the groups that read the block arrive.

The tensor cores stand still while both groups are at their epilogues, so the groups keep apart, in one of two ways:

- *Sharing* a tile: each multiplies half of its rows.  The blocks of W serve both, which saves traffic, but the second
  group can only stay as far behind the first as the ring is long, less what has to be under way.
- *Alternating*: each has a tile of its own, and all of the tensor cores for it while the other finishes the one
  before.  An epilogue is hidden that takes no longer than a product; tiles are smaller, and read more from L2.

A last round of tiles for no more than half of the programs is cut: CUT programs take a part of the columns each.

What is read again of the output's shape (the residual) and what is written lies in the same buffers of a group: the
residual is fetched into them while the tile is multiplied, and y takes its place.
"""

import triton.language as tl
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

from kernels.activation.tiles import share_of
from kernels.common.hopper import described, part_of_tile, tile_of, whole_tiles

BLOCK_M = gl.constexpr(128)
"""Rows of a tile."""

WIDTH = gl.constexpr(64)
"""Columns of the parts in which a tile is written: of 16 bits each they fill the widest swizzle, 128 bytes."""


@gluon.jit
def _load_tile(x_desc, w_desc, x_smem, w_smem, full, empty, step, m, n, K):
    """Fetch the blocks of a tile as wide as W's descriptor; returns how many blocks there have been.

    A slot's n-th filling waits for its n-1-th emptying; the first waits for none.
    """
    STAGES: gl.constexpr = w_smem.shape[0]
    for k in range(0, K, w_smem.shape[2]):
        slot = step % STAGES
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        mbarrier.expect(bar, x_desc.block_type.nbytes + w_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(x_desc, [m, k], bar, x_smem.index(slot))
        tma.async_copy_global_to_shared(w_desc, [n, k], bar, w_smem.index(slot).slice(0, w_desc.block_shape[0]))
        step += 1
    return step


@gluon.jit
def _produce(
    x_desc, w_desc, cut_desc, x_smem, w_smem, full, empty, M, N, K, GROUP_M: gl.constexpr, CUT: gl.constexpr
):  # fmt: skip
    """The producer."""
    BLOCK_N: gl.constexpr = w_smem.shape[1]
    step = 0
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(gl.program_id(0), whole, gl.num_programs(0)):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        step = _load_tile(x_desc, w_desc, x_smem, w_smem, full, empty, step, m, n, K)
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if there:
            _load_tile(x_desc, cut_desc, x_smem, w_smem, full, empty, step, m, n, K)


@gluon.jit
def _tanh(x):
    """tanh(x) by the hardware's approximation: one instruction, a relative error of 2^-11."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=r,r", [x], gl.float32, True, 1)


@gluon.jit
def _activated(z, ACTIVATION: gl.constexpr, FINE: gl.constexpr):
    """act(z) in fp32, to as many digits as bf16 holds, or with FINE as fp16 does.

    For bf16 all but relu are z / 2 + z / 2 tanh(u): silu has u = z / 2, and gelu by erf a u that differs from gelu's by
    tanh a little.  Its polynomial (minimax fit; gelu is off by 3e-5 at most) turns around past z^2 = 50, where tanh has
    long been 1.
    """
    if ACTIVATION == "relu":
        z = gl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)  # NaN stays NaN, as in torch
    elif ACTIVATION != "none":
        if FINE:
            z = z * share_of(z, ACTIVATION, False)
        else:
            half = 0.5 * z
            if ACTIVATION == "silu":
                u = half
            elif ACTIVATION == "gelu_tanh":
                u = z * (0.7978845608028654 + z * z * 0.035677408136300125)
            else:
                square = gl.minimum(z * z, 40.0)
                u = z * (0.797507578 + square * (0.0370060022 + square * -0.000351593802))
            z = half + half * _tanh(u)
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
    ACTIVATION: gl.constexpr, FIRST: gl.constexpr, PART: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """The epilogue of a block whose first element is (m, n), in parts of WIDTH columns, of which it is the PART-th.

    A part goes by way of the group's buffers, of which FIRST is the first, in turns: while one leaves the next is
    computed.  A residual has a buffer for each part, and lies in it.
    """
    COLUMNS: gl.constexpr = acc.shape[1]
    if COLUMNS > WIDTH:
        half: gl.constexpr = COLUMNS // 2
        left, right = acc.reshape([acc.shape[0], 2, half]).permute(0, 2, 1).split()
        _finish(
            left, bias_ptr, residual_desc, y_desc, z_desc, buffers, scale, m, n, N,
            ACTIVATION, FIRST, PART, BUFFERS,
        )  # fmt: skip
        _finish(
            right, bias_ptr, residual_desc, y_desc, z_desc, buffers, scale, m, n + half, N,
            ACTIVATION, FIRST, PART + half // WIDTH, BUFFERS,
        )  # fmt: skip
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
        buffer = buffers.index(FIRST + PART % BUFFERS)
        z = gl.convert_layout(acc, layout) * scale
        if bias_ptr is not None:
            offs_n = n + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
            z += gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(gl.float32)[None, :]
        if residual_desc is not None:
            residual = buffer.load(layout)
        if z_desc is not None:
            _put(z, z_desc, buffer, m, n, BUFFERS - 1)
        y = _activated(z, ACTIVATION, y_desc.dtype != gl.bfloat16)
        if residual_desc is not None:
            y += residual.to(gl.float32)
        _put(y, y_desc, buffer, m, n, BUFFERS - 1 if z_desc is None else 0)


@gluon.jit
def _multiply(
    x_smem, w_smem, full, empty, turn, step, K,
    COLUMNS: gl.constexpr, ALTERNATE: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """(sums of the group's rows of a tile with COLUMNS, blocks there have been) from the blocks as they come."""
    STAGES: gl.constexpr = w_smem.shape[0]
    BLOCK_K: gl.constexpr = w_smem.shape[2]
    ROWS: gl.constexpr = BLOCK_M if ALTERNATE else BLOCK_M // 2
    FIRST_ROW: gl.constexpr = 0 if ALTERNATE else GROUP * ROWS
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    for k in range(0, K, BLOCK_K):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        x = x_smem.index(slot).slice(FIRST_ROW, ROWS)
        w = w_smem.index(slot).slice(0, COLUMNS).permute((1, 0))
        acc = warpgroup_mma(x, w, acc, use_acc=k > 0, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # the product before this one has read its blocks
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
        step += 1
        if not ALTERNATE and GROUP == 0:
            mbarrier.arrive(turn.index(1), count=1, pred=step == gl.minimum(gl.cdiv(K, BLOCK_K), STAGES - 1))
    if ALTERNATE:
        mbarrier.arrive(turn.index(1 - GROUP), count=1)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    return acc, step


@gluon.jit
def _take_tile(
    bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, turn, scale, step, odd,
    m, n, N, K, COLUMNS: gl.constexpr, ACTIVATION: gl.constexpr, BUFFERS: gl.constexpr, ALTERNATE: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """The group's rows of the tile at (m, n); ``odd`` is 1 for the second, fourth, ... that it takes."""
    if not ALTERNATE:
        m += GROUP * (BLOCK_M // 2)
    if residual_desc is not None:
        tma.store_wait(0)
        mbarrier.expect(fetched.index(GROUP), residual_desc.block_type.nbytes * (COLUMNS // WIDTH))
        for part in gl.static_range(COLUMNS // WIDTH):
            tma.async_copy_global_to_shared(
                residual_desc, [m, n + part * WIDTH], fetched.index(GROUP), buffers.index(GROUP * BUFFERS + part)
            )
    if ALTERNATE:  # a "full" barrier that is still two fillings behind looks like one that is up to date
        mbarrier.wait(turn.index(GROUP), odd ^ (1 - GROUP))
    acc, step = _multiply(x_smem, w_smem, full, empty, turn, step, K, COLUMNS, ALTERNATE, GROUP)
    if residual_desc is not None:
        mbarrier.wait(fetched.index(GROUP), odd)
    _finish(
        acc, bias_ptr, residual_desc, y_desc, z_desc, buffers, scale, m, n, N,
        ACTIVATION, GROUP * BUFFERS, 0, BUFFERS,
    )  # fmt: skip
    return step


@gluon.jit
def _consume(
    bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, turn, scale, M, N, K,
    ACTIVATION: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr, CUT: gl.constexpr,
    ALTERNATE: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its half of each tile's rows, or with ALTERNATE every other tile."""
    BLOCK_N: gl.constexpr = w_smem.shape[1]
    blocks = gl.cdiv(K, w_smem.shape[2])
    first, stride, step = gl.program_id(0), gl.num_programs(0), 0
    if ALTERNATE:
        first, stride, step = first + GROUP * stride, 2 * stride, GROUP * blocks
    if not ALTERNATE and GROUP == 1:  # starts when the first has gone through most of the ring, and stays behind it
        mbarrier.wait(turn.index(1), 0)
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(first, whole, stride):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        step = _take_tile(
            bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, turn,
            scale, step, position // stride & 1, m, n, N, K, BLOCK_N, ACTIVATION, BUFFERS, ALTERNATE, GROUP,
        )  # fmt: skip
        if ALTERNATE:
            step += blocks  # the other group's
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if ALTERNATE:
            there = there & (whole // gl.num_programs(0) % 2 == GROUP)
        if there:
            _take_tile(
                bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, turn,
                scale, step, whole // stride & 1, m, n, N, K, BLOCK_N // CUT, ACTIVATION, BUFFERS, ALTERNATE, GROUP,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def matmul_epilogue_kernel(
    x_desc, w_desc, cut_desc, bias_ptr, residual_desc, y_desc, z_desc, scale, M, N, K,
    ACTIVATION: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, CUT: gl.constexpr,
    ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: x's of BLOCK_M rows, W's of a tile's columns, the others' of what a group writes at once.

    ``cut_desc`` is W's for a part of a tile, None where CUT is 1; bias, residual and z may be None.
    """
    BLOCK_N: gl.constexpr = w_desc.block_shape[0]
    BLOCK_K: gl.constexpr = w_desc.block_shape[1]
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    buffers = gl.allocate_shared_memory(y_desc.dtype, [2 * BUFFERS, y_desc.block_shape[0], WIDTH], y_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    fetched = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1 if ALTERNATE else 2)
    for group in gl.static_range(2):
        mbarrier.init(fetched.index(group), count=1)
        mbarrier.init(turn.index(group), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, turn,
                scale, M, N, K, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 0,
            )),
            (_consume, (
                bias_ptr, residual_desc, y_desc, z_desc, x_smem, w_smem, buffers, full, empty, fetched, turn,
                scale, M, N, K, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 1,
            )),
            (_produce, (x_desc, w_desc, cut_desc, x_smem, w_smem, full, empty, M, N, K, GROUP_M, CUT)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def parts_of_last(tiles, programs, most):
    """Into how many parts, a power of 2, tiles of the last round are cut: no more than give each program one."""
    rest = tiles % programs
    cut = 1
    while tiles > programs and rest and 2 * cut <= most and 2 * cut * rest <= programs:
        cut *= 2
    return cut


def specialized(x, weight, bias, residual, y, z, activation, scale, *, config, programs, alternate):
    """Write y (and z, where there is one) of matrices that TMA can read; ``programs`` is the number of SMs."""
    (m, k), n = x.shape, weight.shape[0]
    rows, columns, block_k = BLOCK_M.value, config["BLOCK_N"], config["BLOCK_K"]
    tiles = -(-m // rows) * -(-n // columns)
    of_group = rows if alternate else rows // 2
    cut = parts_of_last(tiles, programs, columns // WIDTH.value)
    launch(
        matmul_epilogue_kernel, (min(tiles, programs),),
        described(x, rows, block_k), described(weight, columns, block_k),
        described(weight if cut > 1 else None, columns // cut, block_k), bias,
        described(residual, of_group, WIDTH.value), described(y, of_group, WIDTH.value),
        described(z, of_group, WIDTH.value), scale, m, n, k,
        ACTIVATION=activation, GROUP_M=config["GROUP_M"], STAGES=config["STAGES"], BUFFERS=config["BUFFERS"],
        CUT=cut, ALTERNATE=alternate, num_warps=4,
    )  # fmt: skip
