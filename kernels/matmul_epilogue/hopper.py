"""A linear layer and its epilogue for Hopper (sm_90): y = act(scale * (x @ W^T) + bias) + residual.

The loop is that of kernels/matmul/hopper.py: one warp loads, groups of four warps multiply, sharing a tile or
alternating.  What is read again of the output's shape (the residual) and what is written lies in the same buffers of a
group: the residual is fetched into them while the tile is multiplied, and y takes its place.
"""

import triton.language as tl
from atlas.declaration.products import describable
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.activation.tiles import share_of
from kernels.common.hopper import described, part_of_tile, tile_of, whole_tiles
from kernels.matmul.hopper import SWIZZLED, WIDTH, begin_ring, multiply, produce, put_elements
from kernels.matmul.hopper_spaces import parts_of_last


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
def _put(value, desc, ptr, buffer, m, n, M, N, PENDING: gl.constexpr):
    """Write a block by way of the buffer, once all but the last PENDING blocks have left theirs."""
    value = value.to(ptr.dtype.element_ty)
    if desc is None:
        put_elements(value, ptr, buffer, m, n, M, N)
    else:
        tma.store_wait(PENDING)
        buffer.store(value)
        fence_async_shared()
        tma.async_copy_shared_to_global(desc, [m, n], buffer)


@gluon.jit
def _finish(
    acc, bias_ptr, residual_desc, out, buffers, scale, m, n, M, N,
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
            left, bias_ptr, residual_desc, out, buffers, scale, m, n, M, N,
            ACTIVATION, FIRST, PART, BUFFERS,
        )  # fmt: skip
        _finish(
            right, bias_ptr, residual_desc, out, buffers, scale, m, n + half, M, N,
            ACTIVATION, FIRST, PART + half // WIDTH, BUFFERS,
        )  # fmt: skip
    else:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
        y_desc, y_ptr, z_desc, z_ptr = out
        buffer = buffers.index(FIRST + PART % BUFFERS)
        z = gl.convert_layout(acc, layout) * scale
        if bias_ptr is not None:
            offs_n = n + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
            z += gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(gl.float32)[None, :]
        if residual_desc is not None:
            residual = buffer.load(layout)
        if z_ptr is not None:
            _put(z, z_desc, z_ptr, buffer, m, n, M, N, BUFFERS - 1)
        y = _activated(z, ACTIVATION, y_ptr.dtype.element_ty != gl.bfloat16)
        if residual_desc is not None:
            y += residual.to(gl.float32)
        _put(y, y_desc, y_ptr, buffer, m, n, M, N, BUFFERS - 1 if z_ptr is None else 0)


@gluon.jit
def _take_tile(
    bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale, step, odd, m, n, sizes,
    COLUMNS: gl.constexpr, ACTIVATION: gl.constexpr, BUFFERS: gl.constexpr, ALTERNATE: gl.constexpr,
    GROUP: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """The group's rows of the tile at (m, n); ``odd`` is 1 for the second, fourth, ... that it takes."""
    full, empty, turn = ring
    M, N, K = sizes
    if not ALTERNATE:
        m += GROUP * x_smem.shape[1]
    if residual_desc is not None:
        tma.store_wait(0)
        mbarrier.expect(fetched.index(GROUP), residual_desc.block_type.nbytes * (COLUMNS // WIDTH))
        for part in gl.static_range(COLUMNS // WIDTH):
            tma.async_copy_global_to_shared(
                residual_desc, [m, n + part * WIDTH], fetched.index(GROUP), y_smem.index(GROUP * BUFFERS + part)
            )
    if ALTERNATE:  # a "full" barrier that is still two fillings behind looks like one that is up to date
        mbarrier.wait(turn.index(GROUP), odd ^ (1 - GROUP))
    acc, step = multiply(x_smem, w_smem, full, empty, turn, step, K, GROUP, GROUPS, ALTERNATE, COLUMNS, False, True)
    if residual_desc is not None:
        mbarrier.wait(fetched.index(GROUP), odd)
    _finish(
        acc, bias_ptr, residual_desc, out, y_smem, scale, m, n, M, N,
        ACTIVATION, GROUP * BUFFERS, 0, BUFFERS,
    )  # fmt: skip
    return step


@gluon.jit
def _consume(
    bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale, sizes,
    ACTIVATION: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr, CUT: gl.constexpr,
    ALTERNATE: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of each tile, or with ALTERNATE every other tile."""
    BLOCK_M: gl.constexpr = x_smem.shape[1] * (1 if ALTERNATE else GROUPS)
    BLOCK_N: gl.constexpr = w_smem.shape[1]
    M, N, K = sizes
    blocks = gl.cdiv(K, w_smem.shape[2])
    first, stride, step = gl.program_id(0), gl.num_programs(0), 0
    if ALTERNATE:
        first, stride, step = first + GROUP * stride, 2 * stride, GROUP * blocks
    elif GROUP > 0:  # starts when the one before has gone through some of the ring, and stays behind it
        mbarrier.wait(ring[2].index(GROUP), 0)
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(first, whole, stride):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        step = _take_tile(
            bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring,
            scale, step, position // stride & 1, m, n, sizes, BLOCK_N, ACTIVATION, BUFFERS, ALTERNATE, GROUP, GROUPS,
        )  # fmt: skip
        if ALTERNATE:
            step += blocks  # the other group's
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if ALTERNATE:
            there = there & (whole // gl.num_programs(0) % 2 == GROUP)
        if there:
            _take_tile(
                bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale, step,
                whole // stride & 1, m, n, sizes, BLOCK_N // CUT, ACTIVATION, BUFFERS, ALTERNATE, GROUP, GROUPS,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def matmul_epilogue_kernel(
    x_desc, w_desc, cut_desc, bias_ptr, residual_desc, y_desc, y_ptr, z_desc, z_ptr, scale, M, N, K,
    ACTIVATION: gl.constexpr, GROUP_M: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    BUFFERS: gl.constexpr, CUT: gl.constexpr, ALTERNATE: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: x's of a group's rows, W's of a tile's columns, others of what a group writes at once.

    ``cut_desc`` is W's for a part of a tile, None where CUT is 1; bias, residual and z may be None.  y and z have no
    descriptor where their rows are off 16 bytes; then there is no residual.
    """
    ROWS: gl.constexpr = x_desc.block_shape[0]
    BLOCK_N: gl.constexpr = w_desc.block_shape[0]
    BLOCK_K: gl.constexpr = w_desc.block_shape[1]
    BLOCKS: gl.constexpr = 1 if ALTERNATE else GROUPS
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES * BLOCKS, ROWS, BLOCK_K], x_desc.layout)
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], w_desc.layout)
    y_smem = gl.allocate_shared_memory(y_ptr.dtype.element_ty, [GROUPS * BUFFERS, ROWS, WIDTH], SWIZZLED)
    ring = begin_ring(STAGES, GROUPS, ALTERNATE)
    fetched = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(GROUPS):
        mbarrier.init(fetched.index(group), count=1)
    fence_async_shared()
    sizes = (M, N, K)
    out = (y_desc, y_ptr, z_desc, z_ptr)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale,
                            sizes, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 0, GROUPS)),
                (_consume, (bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale,
                            sizes, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 1, GROUPS)),
                (produce, (x_desc, w_desc, cut_desc, x_smem, w_smem, ring[0], ring[1], sizes,
                           BLOCKS, ROWS, BLOCK_N, GROUP_M, CUT, False, True)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.static_assert(GROUPS == 3)
        gl.warp_specialize(
            [
                (_consume, (bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale,
                            sizes, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 0, GROUPS)),
                (_consume, (bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale,
                            sizes, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 1, GROUPS)),
                (_consume, (bias_ptr, residual_desc, out, x_smem, w_smem, y_smem, fetched, ring, scale,
                            sizes, ACTIVATION, GROUP_M, BUFFERS, CUT, ALTERNATE, 2, GROUPS)),
                (produce, (x_desc, w_desc, cut_desc, x_smem, w_smem, ring[0], ring[1], sizes,
                           BLOCKS, ROWS, BLOCK_N, GROUP_M, CUT, False, True)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )  # fmt: skip


def specialized(x, weight, bias, residual, y, z, activation, scale, *, config, programs, alternate):
    """Write y (and z, where there is one) of matrices that TMA can read; ``programs`` is the number of SMs.

    y and z may have rows off 16 bytes where there is no residual.
    """
    (m, k), n = x.shape, weight.shape[0]
    groups, columns, block_k = config.get("GROUPS", 2), config["BLOCK_N"], config["BLOCK_K"]
    rows = 128 if alternate else 64  # of a group
    tiles = -(-m // (rows if alternate else groups * rows)) * -(-n // columns)
    cut = parts_of_last(tiles, programs, columns // WIDTH.value)
    launch(
        matmul_epilogue_kernel, (min(tiles, programs),),
        described(x, rows, block_k), described(weight, columns, block_k),
        described(weight if cut > 1 else None, columns // cut, block_k), bias,
        described(residual, rows, WIDTH.value), described(y if describable(y) else None, rows, WIDTH.value), y,
        described(z if z is not None and describable(z) else None, rows, WIDTH.value), z, scale, m, n, k,
        ACTIVATION=activation, GROUP_M=config["GROUP_M"], GROUPS=groups, STAGES=config["STAGES"],
        BUFFERS=config["BUFFERS"], CUT=cut, ALTERNATE=alternate, num_warps=4,
    )  # fmt: skip
