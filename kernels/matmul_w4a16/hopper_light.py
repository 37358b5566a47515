"""`light`: small products with packed weights for Hopper (sm_90), in one role and half of `direct`'s code.

y^T = W x^T.  Four warps of a program have 64 rows of W and a tile's rows of x.  All operands come by TMA, which one
thread asks for some steps ahead.  A step's words become 16 bits, which go back to shared memory
(:mod:`.light_weights`), and wgmma reads both operands from there: it multiplies while the next step's weights are made.

Where a tile's steps are shared among a cluster's programs, these add their sums (:mod:`kernels.common.clusters`).
"""

import torch
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

from .direct_launch import described_block
from .direct_parts import ROWS, add_and_write
from .direct_products import load_row_scales
from .direct_weights import parts_of_one
from .light_space import block_k_of
from .light_weights import asm_of, weights_of

_SHARED_BYTES = 224 * 1024
"""Shared memory of a program, but for its barriers."""

_RING = 6
"""The most stages whose places are filled again; of others a program has all of its steps at once."""

_PREFETCH = gl.constexpr(
    "{ .reg .pred any; setp.gt.s32 any, $2, 0;\n@any cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)
"""PTX: have as many bytes (2) from 1 on brought to L2."""


@gluon.jit
def _load(descs, smems, full, i, n, m, begin, end, BITS: gl.constexpr, GROUP: gl.constexpr):
    """Ask for the operands of step begin + i, if it is before ``end``."""
    x_desc, words_desc, scales_desc, zeros_desc = descs[0], descs[1], descs[2], descs[3]
    STAGES: gl.constexpr = smems[0].shape[0]
    BLOCK_K: gl.constexpr = x_desc.block_shape[1]
    SCALES: gl.constexpr = scales_desc.block_type.nbytes if GROUP > 0 else 0
    ZEROS: gl.constexpr = 0 if zeros_desc is None else zeros_desc.block_type.nbytes
    slot, k, there = i % STAGES, (begin + i) * BLOCK_K, begin + i < end
    bar = full.index(slot)
    mbarrier.expect(bar, x_desc.block_type.nbytes + words_desc.block_type.nbytes + SCALES + ZEROS, pred=there)
    at = [n // 16, k // 64 * (2 * BITS), 0]
    tma.async_copy_global_to_shared(words_desc, at, bar, smems[1].index(slot), pred=there)
    if GROUP > 0:
        of_group = [n // 16, k // GROUP * 8]
        tma.async_copy_global_to_shared(scales_desc, of_group, bar, smems[2].index(slot), pred=there)
        if zeros_desc is not None:
            tma.async_copy_global_to_shared(zeros_desc, of_group, bar, smems[3].index(slot), pred=there)
    tma.async_copy_global_to_shared(x_desc, [m, k], bar, smems[0].index(slot), pred=there)


@gluon.jit
def _fetch_words(words_ptr, n, N, K, begin, end, BLOCK_K: gl.constexpr, BITS: gl.constexpr):
    """Have a program's words brought to L2: those of a row tile lie side by side along k, a thread asks for one."""
    thread = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    lines = gl.cdiv(K, 256 // BITS) * 8
    first, last = begin * (BLOCK_K // 32 * BITS), gl.minimum(end * (BLOCK_K // 32 * BITS), lines)
    tile = n // 16 + thread
    at = words_ptr + (tile.to(gl.int64) * lines + first) * 16
    count = gl.where((thread < ROWS // 16) & (tile * 16 < N), (last - first) * 64, 0)
    gl.inline_asm_elementwise(_PREFETCH, "=r,l,r", [at, count], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _allocate(x_desc, words_desc, scales_desc, zeros_desc, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """Shared memory for stages of x, words, scales and zero points; x first: see :mod:`kernels.common.clusters`."""
    words: gl.constexpr = words_desc.block_shape
    x_smem = gl.allocate_shared_memory(
        x_desc.dtype, [STAGES, x_desc.block_shape[0], x_desc.block_shape[1]], x_desc.layout
    )
    words_smem = gl.allocate_shared_memory(gl.int32, [STAGES, words[0], words[1], words[2]], words_desc.layout)
    scales_smem = words_smem
    if GROUP > 0:
        scales_smem = gl.allocate_shared_memory(gl.int32, [STAGES, 8, scales_desc.block_shape[1]], scales_desc.layout)
    zeros_smem = scales_smem
    if zeros_desc is not None:
        zeros_smem = gl.allocate_shared_memory(gl.int16, [STAGES, 8, zeros_desc.block_shape[1]], zeros_desc.layout)
    return x_smem, words_smem, scales_smem, zeros_smem


@gluon.jit(do_not_specialize=["M", "N", "K"])
def light_kernel(
    x_desc, words_desc, words_ptr, scales_desc, scales_ptr, zeros_desc, y_desc, y_ptr, M, N, K, STAGES: gl.constexpr,
    REFILL: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, ASM: gl.constexpr, CLUSTER: gl.constexpr,
    STATIC: gl.constexpr,
):  # fmt: skip
    """A cluster has a tile of y, a program of it at least one of the steps through K."""
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    BLOCK_K: gl.constexpr = x_desc.block_shape[1]
    smems = _allocate(x_desc, words_desc, scales_desc, zeros_desc, STAGES, GROUP)
    w_smem = gl.allocate_shared_memory(
        x_desc.dtype, [2, ROWS, BLOCK_K], gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    fence_async_shared()
    rank, tile = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    tiles_m = gl.cdiv(M, BLOCK_M)
    n, m = tile // tiles_m * ROWS, tile % tiles_m * BLOCK_M
    steps = gl.cdiv(K, BLOCK_K)
    begin, end = rank * steps // CLUSTER, (rank + 1) * steps // CLUSTER
    descs = x_desc, words_desc, scales_desc, zeros_desc
    for i in range(gl.minimum(STAGES - 1, end - begin) if REFILL else end - begin):
        _load(descs, smems, full, i, n, m, begin, end, BITS, GROUP)
    if REFILL:
        _fetch_words(words_ptr, n, N, K, begin, end, BLOCK_K, BITS)
    room = ()
    if CLUSTER > 1:
        room = clusters.room_of(rank, 1, ROWS, BLOCK_M, 4, CLUSTER, STATIC)
        clusters.arrive_first(STATIC)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    if GROUP == 0:
        row_scales = load_row_scales(scales_ptr, n, N, gl.SliceLayout(1, layout))
    acc = gl.zeros([ROWS, BLOCK_M], gl.float32, layout)
    gl.assume(end - begin > 0)  # else sums are not wgmma's on a path without steps, and ptxas waits for each product
    for i in range(0, end - begin):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        block = w_smem.index(i % 2)
        block.store(weights_of(
            smems[1].index(slot), smems[2].index(slot), smems[3].index(slot), BLOCK_K // 64, BITS, GROUP,
            zeros_desc is not None, ASM, x_desc.dtype,
        ))  # fmt: skip
        fence_async_shared()
        acc = warpgroup_mma(block, smems[0].index(slot).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # for the step before this one, whose places are filled again
        if REFILL:
            _load(descs, smems, full, i + STAGES - 1, n, m, begin, end, BITS, GROUP)
    acc = warpgroup_mma_wait(0, deps=[acc])
    if GROUP == 0:
        acc *= (row_scales.to(gl.float32) * parts_of_one(BITS, row_scales.dtype))[:, None]
    if CLUSTER > 1:
        add_and_write(y_ptr, acc, room, rank, m, n, M, N, False, 0, CLUSTER, STATIC)
    else:
        y_smem = gl.allocate_shared_memory(y_desc.dtype, [BLOCK_M, ROWS], y_desc.layout)
        y_smem.permute((1, 0)).store(acc.to(y_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(y_desc, [m, n], y_smem)
        tma.store_wait(0)


def _ring(rows, block_k, stage, k, cluster):
    """(stages of so many bytes, whether their places are filled again, static shared memory)."""
    received = clusters.buffer_bytes(ROWS.value, rows, 4, cluster) if cluster > 1 else 0
    static = clusters.static_bytes(received) if cluster > 1 else 0
    weights, steps = 2 * ROWS.value * block_k * 2, triton.cdiv(triton.cdiv(k, block_k), cluster)
    there = (_SHARED_BYTES - weights - (static or rows * ROWS.value * 2)) // stage
    if steps > there:
        return min(_RING, there), True, static
    of_sums = triton.cdiv(received, rows * block_k * 2) if static == clusters.BARRIERS.value else 0
    if cluster > 1:
        steps = max(steps, triton.cdiv(clusters.launchable(static, steps * stage + weights) - weights, stage))
    return max(steps, of_sums), False, static


def multiply_light(bits, x, words, scales, zeros, y, group, *, config):
    """Write y [m, n] = x W^T; n is a multiple of 8, as TMA wants it."""
    (m, k), n = x.shape, y.shape[1]
    rows, block_k = config["BLOCK_M"], block_k_of(config["BLOCK_M"])
    cluster = min(config["CLUSTER"], triton.cdiv(k, block_k))
    groups, of_step = k // group if group else 1, max(1, block_k // group) if group else 1
    of_lines = words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16)
    stage, of_scales, of_zeros = rows * block_k * 2 + ROWS.value * block_k * bits // 8, None, None
    if group:
        of_scales = described_block(scales.view(torch.int32).view(-1, groups * 8), [8, 8 * of_step], gl.int32)
        stage += 256 * of_step
    if zeros is not None:
        width = max(16, 8 * of_step)
        of_zeros = described_block(zeros.view(torch.int16).view(-1, groups * 8), [8, width], gl.int16)
        stage += 16 * width
    stages, refill, static = _ring(rows, block_k, stage, k, cluster)
    launch(
        Clustered(light_kernel, cluster) if cluster > 1 else light_kernel,
        (triton.cdiv(m, rows) * triton.cdiv(n, ROWS.value),),
        described(x, rows, block_k), described_block(of_lines, [4, 2 * bits * (block_k // 64), 16], gl.int32), words,
        of_scales, scales, of_zeros, None if cluster > 1 else described(y, rows, ROWS.value), y, m, n, k,
        STAGES=stages, REFILL=refill, BITS=bits, GROUP=group, ASM=asm_of(bits, group, x.dtype == torch.bfloat16),
        CLUSTER=cluster, STATIC=static, num_warps=4,
    )  # fmt: skip
