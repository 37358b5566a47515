"""What `light` and its gradient share: a ring of operands that TMA brings, products of a program's steps, and its sums.

A step has 64 rows of W by some columns, with as many columns of x as the sum takes of them: those of W, or TURNED, in
the gradient, its rows.  Sums are y^T's, so W is the first operand.
"""

import torch
import triton
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

from .direct_launch import described_block
from .direct_parts import ROWS, add_and_write
from .hopper_converted import barriers
from .light_weights import weights_of

_SHARED_BYTES = 224 * 1024
"""Shared memory of a program, but for its barriers."""

_AT_ONCE = 24
"""The most steps that a program has at once, a barrier each."""


@gluon.jit
def allocate(x_desc, words_desc, scales_desc, zeros_desc, STAGES: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for stages of x, words, scales and zero points, for two steps' weights, and a stage's barriers.

    x comes first: see :mod:`kernels.common.clusters`.
    """
    words: gl.constexpr = words_desc.block_shape
    x: gl.constexpr = x_desc.block_shape
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES, x[0], x[1]], x_desc.layout)
    words_smem = gl.allocate_shared_memory(gl.int32, [STAGES, words[0], words[1], words[2]], words_desc.layout)
    scales_smem = words_smem
    if scales_desc is not None:
        scales_smem = gl.allocate_shared_memory(gl.int32, [STAGES, 8, scales_desc.block_shape[1]], scales_desc.layout)
    zeros_smem = scales_smem
    if zeros_desc is not None:
        zeros_smem = gl.allocate_shared_memory(gl.int16, [STAGES, 8, zeros_desc.block_shape[1]], zeros_desc.layout)
    w_smem = gl.allocate_shared_memory(
        x_desc.dtype, [2, ROWS, COLUMNS], gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    )
    full = barriers(STAGES, 1)
    fence_async_shared()
    return x_smem, words_smem, scales_smem, zeros_smem, w_smem, full


@gluon.jit
def _load(descs, smems, i, m, first, begin, end, BITS: gl.constexpr, GROUP: gl.constexpr, TURNED: gl.constexpr):
    """Ask for the operands of step begin + i, if it is before ``end``."""
    x_desc, words_desc, scales_desc, zeros_desc = descs[0], descs[1], descs[2], descs[3]
    STAGES: gl.constexpr = smems[0].shape[0]
    SCALES: gl.constexpr = 0 if scales_desc is None else scales_desc.block_type.nbytes
    ZEROS: gl.constexpr = 0 if zeros_desc is None else zeros_desc.block_type.nbytes
    slot, at, there = i % STAGES, (begin + i) * x_desc.block_shape[1], begin + i < end
    n, k = first, at
    if TURNED:
        n, k = at, first
    bar = smems[5].index(slot)
    mbarrier.expect(bar, x_desc.block_type.nbytes + words_desc.block_type.nbytes + SCALES + ZEROS, pred=there)
    of_words = [n // 16, k // 64 * (2 * BITS), 0]
    tma.async_copy_global_to_shared(words_desc, of_words, bar, smems[1].index(slot), pred=there)
    if scales_desc is not None:
        of_group = [n // 16, k // GROUP * 8 if GROUP > 0 else k * 0]
        tma.async_copy_global_to_shared(scales_desc, of_group, bar, smems[2].index(slot), pred=there)
        if zeros_desc is not None:
            tma.async_copy_global_to_shared(zeros_desc, of_group, bar, smems[3].index(slot), pred=there)
    tma.async_copy_global_to_shared(x_desc, [m, at], bar, smems[0].index(slot), pred=there)


@gluon.jit
def load_first(
    descs, smems, m, first, begin, end, REFILL: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    TURNED: gl.constexpr,
):  # fmt: skip
    """Ask for all steps from ``begin`` to ``end``, with REFILL for as many as there are places but one."""
    STAGES: gl.constexpr = smems[0].shape[0]
    for i in range(gl.minimum(STAGES - 1, end - begin) if REFILL else end - begin):
        _load(descs, smems, i, m, first, begin, end, BITS, GROUP, TURNED)


@gluon.jit
def multiply(
    descs, smems, m, first, begin, end, REFILL: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    ASM: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    """Sums [rows or TURNED columns of W, rows of x] of the steps, of which there is one or more.

    ``first``: the row or the column of W; GROUP 0: a scale a row, which weights have if it came with them.
    """
    x_desc, scales_desc, zeros_desc = descs[0], descs[2], descs[3]
    STAGES: gl.constexpr = smems[0].shape[0]
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    COLUMNS: gl.constexpr = smems[4].shape[2]
    HEIGHT: gl.constexpr = COLUMNS if TURNED else ROWS
    OF_WEIGHTS: gl.constexpr = 0 if scales_desc is None else 128 if GROUP == 0 else GROUP
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    acc = gl.zeros([HEIGHT, BLOCK_M], gl.float32, layout)
    gl.assume(end - begin > 0)  # else sums are not wgmma's on a path without steps, and ptxas waits for each product
    for i in range(0, end - begin):
        slot = i % STAGES
        mbarrier.wait(smems[5].index(slot), i // STAGES & 1)
        block = smems[4].index(i % 2)
        block.store(weights_of(
            smems[1].index(slot), smems[2].index(slot), smems[3].index(slot), COLUMNS // 64, BITS, OF_WEIGHTS,
            zeros_desc is not None, ASM, x_desc.dtype,
        ))  # fmt: skip
        fence_async_shared()
        x = smems[0].index(slot).permute((1, 0))
        acc = warpgroup_mma(block.permute((1, 0)) if TURNED else block, x, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # for the step before this one, whose places are filled again
        if REFILL:
            _load(descs, smems, i + STAGES - 1, m, first, begin, end, BITS, GROUP, TURNED)
    return warpgroup_mma_wait(0, deps=[acc])


@gluon.jit
def write(y_desc, y_ptr, acc, room, rank, m, n, M, N, CLUSTER: gl.constexpr, STATIC: gl.constexpr):
    """Write sums to y from (m, n) on, those of a cluster's programs added."""
    if CLUSTER > 1:
        add_and_write(y_ptr, acc, room, rank, m, n, M, N, False, 0, CLUSTER, STATIC)
    else:
        y_smem = gl.allocate_shared_memory(y_desc.dtype, y_desc.block_shape, y_desc.layout)
        y_smem.permute((1, 0)).store(acc.to(y_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(y_desc, [m, n], y_smem)
        tma.store_wait(0)


def operands(bits, words, scales, zeros, k, group, columns):
    """(descriptors of a step's words, scales, zero points, bytes of all three); scales may be None."""
    groups, of_step = k // group if group else 1, max(1, columns // group) if group else 1
    of_words = words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16)
    of_words = described_block(of_words, [4, 2 * bits * (columns // 64), 16], gl.int32)
    of_scales = of_zeros = None
    stage = ROWS.value * columns * bits // 8
    if scales is not None:
        of_scales = described_block(scales.view(torch.int32).view(-1, groups * 8), [8, 8 * of_step], gl.int32)
        stage += 256 * of_step
    if zeros is not None:
        width = max(16, 8 * of_step)
        of_zeros = described_block(zeros.view(torch.int16).view(-1, groups * 8), [8, width], gl.int16)
        stage += 16 * width
    return (of_words, of_scales, of_zeros), stage


def ring_of(rows, height, step, stage, weights, steps, cluster, most):
    """(stages of so many bytes, whether their places are filled again, static shared memory).

    ``height``: of sums; ``step``: columns of x; ``weights``: bytes of two steps; ``most``: stages filled again.
    """
    received = clusters.buffer_bytes(height, rows, 4, cluster) if cluster > 1 else 0
    static = clusters.static_bytes(received) if cluster > 1 else 0
    steps = triton.cdiv(steps, cluster)
    there = (_SHARED_BYTES - weights - (static or rows * height * 2)) // stage
    of_sums = triton.cdiv(received, rows * step * 2) if static == clusters.BARRIERS.value else 0
    if steps > min(there, _AT_ONCE):
        return max(min(most, there), of_sums), True, static
    if cluster > 1:
        steps = max(steps, triton.cdiv(clusters.launchable(static, steps * stage + weights) - weights, stage))
    return max(steps, of_sums), False, static
