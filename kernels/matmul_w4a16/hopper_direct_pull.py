"""The gradient dx = dy W of packed weights for Hopper (sm_90), from some tens of rows on: `direct` turned over.

dx^T = W^T dy^T, with dy in its order and all operands by TMA; see :mod:`.hopper_direct` for the ring, for groups of
warps, for tiles cut into parts and who adds these, and for how weights are made between products.  Here a stage is 64
rows of W, by 64 columns for each of W_GROUPS groups of four warps; K_GROUPS take stages in turns.

wgmma wants a column of W where a lane has a row: `movmatrix` turns blocks of 8 x 8 weights over, once they are scaled
(:mod:`.direct_pull_weights`).  So that a warp has 16 columns of a stage, and a group one sum, it takes one word of each
lane of packed tiles: its columns are not neighbours, and come into their order where sums are written.
"""

import torch
import triton
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.common import clusters
from kernels.common.hopper import described, tile_of

from .direct_launch import add_parts, described_block, planned, stages_of, tiles_of
from .direct_parts import BLOCK_K, ROWS, part_at, rounds_of
from .direct_products import consume, stand_by
from .direct_pull_weights import packed_of_stage, ptx_of, weights_of_half
from .hopper_converted import barriers
from .pull_space import pulls_in_clusters


@gluon.jit
def _produce(
    dy_desc, words_desc, scales_desc, zeros_desc, smems, bars, sizes, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr,
    BITS: gl.constexpr, GROUP: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr,
    CLUSTER: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    M, N, K, splits = sizes
    if CLUSTER > 1:
        clusters.arrive()
    dy_smem, words_smem, scales_smem, zeros_smem = smems[0], smems[1], smems[2], smems[3]
    BLOCK_M: gl.constexpr = dy_desc.block_shape[0]
    COLUMNS: gl.constexpr = W_GROUPS * ROWS
    LINES: gl.constexpr = 2 * BITS
    ZEROS: gl.constexpr = 0 if zeros_desc is None else zeros_desc.block_type.nbytes
    OF_GROUP: gl.constexpr = words_desc.block_type.nbytes + scales_desc.block_type.nbytes + ZEROS
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(K, COLUMNS)
    whole, positions = rounds_of(tiles, splits, CUT)
    for position in range(gl.program_id(0), positions, gl.num_programs(0)):
        tile, _, begin, end = part_at(position, whole, N, splits, K_GROUPS, CUT)
        m, k = tile_of(tile, M, K, BLOCK_M, COLUMNS, GROUP_M)
        for i in range(begin, end):
            slot = step % STAGES
            bar = bars[0].index(slot)
            mbarrier.wait(bars[1].index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, dy_desc.block_type.nbytes + W_GROUPS * OF_GROUP)
            for group in gl.static_range(W_GROUPS):
                at, first = slot * W_GROUPS + group, ((k + 64 * group) // GROUP * 8 if GROUP > 0 else k * 0)
                lines = (k // 64 + group) * LINES
                tma.async_copy_global_to_shared(words_desc, [4 * i, lines, 0], bar, words_smem.index(at))
                tma.async_copy_global_to_shared(scales_desc, [4 * i, first], bar, scales_smem.index(at))
                if zeros_desc is not None:
                    tma.async_copy_global_to_shared(zeros_desc, [4 * i, first], bar, zeros_smem.index(at))
            tma.async_copy_global_to_shared(dy_desc, [m, i * BLOCK_K], bar, dy_smem.index(slot))
            step += 1
    if CLUSTER > 1:
        clusters.await_all()


@gluon.jit
def _consume(
    dx_desc, parts_ptr, room, smems, bars, sizes, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr,
    GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    M, N, K, splits = sizes
    consume(
        dx_desc, (parts_ptr, parts_ptr), room, smems, bars, (M, K, N, splits), packed_of_stage, weights_of_half, True,
        W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS, PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, PART,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["M", "N", "K", "splits"])
def direct_pull_kernel(
    dy_desc, words_desc, scales_desc, zeros_desc, dx_desc, parts_ptr, M, N, K, splits, W_GROUPS: gl.constexpr,
    K_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr,
):  # fmt: skip
    """Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word), [row tiles, g].

    With CUT tiles of the last round are cut into ``splits`` parts, written to [splits, tiles, groups of columns] in
    the order of :func:`.direct_parts.store_part`.  In clusters of CLUSTER programs, one for each part of a tile,
    ``parts_ptr`` is dx's, which has no descriptor; STATIC is :func:`.clusters.static_bytes`.
    """
    gl.static_assert(W_GROUPS * K_GROUPS == 2)
    BLOCK_M: gl.constexpr = dy_desc.block_shape[0]
    HAS_ZEROS: gl.constexpr = zeros_desc is not None
    SLOTS: gl.constexpr = STAGES * W_GROUPS
    dy_smem = gl.allocate_shared_memory(dy_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], dy_desc.layout)
    words_smem = gl.allocate_shared_memory(gl.int32, [SLOTS, 4, 2 * BITS, 16], words_desc.layout)
    scales_smem = gl.allocate_shared_memory(gl.int32, [SLOTS, 4, scales_desc.block_shape[1]], scales_desc.layout)
    zeros_smem = scales_smem
    if HAS_ZEROS:
        zeros_smem = gl.allocate_shared_memory(gl.int16, [SLOTS, 4, 16], zeros_desc.layout)
    dx_smem = dy_smem
    if CLUSTER == 1:
        dx_smem = gl.allocate_shared_memory(dx_desc.dtype, [W_GROUPS, dx_desc.block_shape[0], ROWS], dx_desc.layout)
    sums_smem = dy_smem
    if K_GROUPS > 1:
        sums_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
        sums_smem = gl.allocate_shared_memory(gl.float32, [1, ROWS, BLOCK_M], sums_layout)
    bars = barriers(STAGES, 1), barriers(STAGES, W_GROUPS), barriers(1, 1), barriers(1, 1)
    room = ()
    if CLUSTER > 1:
        BUFFERS: gl.constexpr = W_GROUPS * clusters.buffer_bytes(ROWS, BLOCK_M, 4, CLUSTER)
        gl.static_assert((STATIC > clusters.BARRIERS) | (BUFFERS <= STAGES * BLOCK_M * BLOCK_K * 2), "a ring too small")
        room = clusters.room_of(gl.program_id(0) % CLUSTER, W_GROUPS, ROWS, BLOCK_M, 4, CLUSTER, STATIC)
    fence_async_shared()
    sizes = (M, N, K, splits)
    smems = (dy_smem, words_smem, scales_smem, zeros_smem, dx_smem, sums_smem)
    gl.warp_specialize(
        [
            (_consume, (dx_desc, parts_ptr, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                        PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 0)),
            (_consume, (dx_desc, parts_ptr, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                        PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 1)),
            (_produce, (dy_desc, words_desc, scales_desc, zeros_desc, smems, bars, sizes, W_GROUPS, K_GROUPS,
                        BITS, GROUP, GROUP_M, STAGES, CUT, CLUSTER)),
        ] + ([(stand_by, ()), (stand_by, ())] if CLUSTER > 1 else []),
        [4, 1] + ([1, 2] if CLUSTER > 1 else []),
        [240, 24] + ([24, 24] if CLUSTER > 1 else []),
    )  # fmt: skip


def _stages(bits, shape, narrow, others):
    """Stages that shared memory holds beside ``others``, bytes, and sums on their way; ``narrow``: groups of 32."""
    rows, w_groups, k_groups = shape
    stage = rows * 128 + w_groups * (512 * bits + 128 * (1 + narrow) + 128)
    return stages_of(stage, w_groups * ROWS.value * 4 * rows * (k_groups - 1) + others)


def pull_direct(bits, dy, words, scales, zeros, dx, group, *, config, programs):
    """Write dx [m, k] = dy W; n is a multiple of 8, as TMA wants it, k one of 32.  ``programs``: the number of SMs."""
    (m, n), k = dy.shape, dx.shape[1]
    shape = rows, w_groups, k_groups = config["BLOCK_M"], config["W_GROUPS"], config["K_GROUPS"]
    splits = min(config["SPLITS"], triton.cdiv(n, 2 * k_groups * BLOCK_K.value))
    clustered = pulls_in_clusters(shape, tiles_of(dx, shape), splits, programs)
    plan = planned(direct_pull_kernel, dx, shape, splits, programs, clustered)
    band = 8 if triton.cdiv(m, rows) <= 8 else 16  # rows of tiles before the next column, as in `direct`
    groups = k // group if group else 1
    of_lines = words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16)
    of_scales, of_zeros = scales.view(torch.int32).view(-1, groups * 8), None
    if zeros is not None:
        of_zeros = described_block(zeros.view(torch.int16).view(-1, groups * 8), [4, 16], gl.int16)
    launch(
        plan.kernel, (plan.grid,),
        described(dy, rows, BLOCK_K.value), described_block(of_lines, [4, 2 * bits, 16], gl.int32),
        described_block(of_scales, [4, 16 if group == 32 else 8], gl.int32), of_zeros, plan.desc, plan.parts, m, n, k,
        splits, W_GROUPS=w_groups, K_GROUPS=k_groups, BITS=bits, GROUP=group,
        PTX=ptx_of(bits, dy.dtype == torch.bfloat16), GROUP_M=band,
        STAGES=_stages(bits, shape, group == 32, plan.others), CUT=plan.cut > 0, CLUSTER=plan.cluster,
        STATIC=plan.static, num_warps=4,
    )  # fmt: skip
    add_parts(plan, dx, shape, splits, band, turned=True)
