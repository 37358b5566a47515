"""Many rows times packed weights for Hopper (sm_90): y^T = W x^T, with x in its order and all operands by TMA.

A program has a multiprocessor for itself and takes one tile of y after the other.  One warp loads (the producer): a
stage of the ring is BLOCK_M rows of x, the packed words of the tile's rows of W, their scales and zero points, all of
64 columns.  Groups of four warps multiply (wgmma), 64 rows of W each; W_GROUPS of them share the rows of a tile, and
K_GROUPS take its stages in turns and add their sums in the end.  W is wgmma's first operand and comes from registers,
where packed words of four lanes become 16 bits (:mod:`.direct_weights`).

A product with an operand in registers keeps its warp from going on until the next but one may begin.  So the weights
of the next stage are made in between the four products of this one, a quarter of the work behind each.

Where a row of W has one scale its sums are multiplied by that, in fp32, instead of all of its weights.

Of the tiles beyond full rounds of programs k is cut into SPLITS parts: each program sums one of a tile, in fp32.  Where
those are all tiles and as many clusters run at once (:func:`.direct_space.in_clusters`), the programs of a tile are a
cluster and add their parts in shared memory (:mod:`kernels.common.clusters`); else a second kernel adds them.
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
from .direct_space import in_clusters
from .direct_weights import packed_of_stage, ptx_of, weights_of_half
from .hopper_converted import barriers


@gluon.jit
def _produce(
    x_desc, words_desc, scales_desc, zeros_desc, smems, bars, sizes, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr,
    BITS: gl.constexpr, GROUP: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr,
    CLUSTER: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    M, N, K, splits = sizes
    if CLUSTER > 1:
        clusters.arrive()
    x_smem, words_smem, scales_smem, zeros_smem = smems[0], smems[1], smems[2], smems[3]
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    BLOCK_N: gl.constexpr = W_GROUPS * ROWS
    PAIRS: gl.constexpr = (W_GROUPS + 1) // 2
    LINES: gl.constexpr = 2 * BITS
    ZEROS: gl.constexpr = 0 if zeros_desc is None else zeros_desc.block_type.nbytes
    NUMBERS: gl.constexpr = PAIRS * (scales_desc.block_type.nbytes + ZEROS) if GROUP > 0 else 0
    BYTES: gl.constexpr = x_desc.block_type.nbytes + W_GROUPS * words_desc.block_type.nbytes + NUMBERS
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    whole, positions = rounds_of(tiles, splits, CUT)
    for position in range(gl.program_id(0), positions, gl.num_programs(0)):
        tile, _, begin, end = part_at(position, whole, K, splits, K_GROUPS, CUT)
        m, n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        for i in range(begin, end):
            slot, k = step % STAGES, i * BLOCK_K
            bar = bars[0].index(slot)
            mbarrier.wait(bars[1].index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, BYTES)
            for group in gl.static_range(W_GROUPS):
                words = words_smem.index(slot * W_GROUPS + group)
                tma.async_copy_global_to_shared(words_desc, [n // 16 + 4 * group, i * LINES, 0], bar, words)
            for pair in gl.static_range(PAIRS if GROUP > 0 else 0):
                at, first = slot * PAIRS + pair, k // GROUP * 8
                tma.async_copy_global_to_shared(scales_desc, [n // 16 + 8 * pair, first], bar, scales_smem.index(at))
                if zeros_desc is not None:
                    tma.async_copy_global_to_shared(zeros_desc, [n // 16 + 8 * pair, first], bar, zeros_smem.index(at))
            tma.async_copy_global_to_shared(x_desc, [m, k], bar, x_smem.index(slot))
            step += 1
    if CLUSTER > 1:
        clusters.await_all()


@gluon.jit
def _consume(
    y_desc, ptrs, room, smems, bars, sizes, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr,
    GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    consume(
        y_desc, ptrs, room, smems, bars, sizes, packed_of_stage, weights_of_half, False, W_GROUPS, K_GROUPS, BITS,
        GROUP, HAS_ZEROS, PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, PART,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["M", "N", "K", "splits"])
def direct_kernel(
    x_desc, words_desc, scales_desc, scales_ptr, zeros_desc, y_desc, parts_ptr, M, N, K, splits,
    W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PTX: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr,
):  # fmt: skip
    """Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word), [row tiles, g].

    Where a row of W has one scale there is no descriptor of them but their pointer.

    With CUT tiles of the last round are cut into ``splits`` parts, written to [splits, tiles, groups of rows of W] in
    the order of :func:`.direct_parts.store_part`.  In clusters of CLUSTER programs, one for each part of a tile,
    ``parts_ptr`` is y's, which has no descriptor; STATIC is :func:`.clusters.static_bytes`.
    """
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    PAIRS: gl.constexpr = (W_GROUPS + 1) // 2
    HAS_ZEROS: gl.constexpr = zeros_desc is not None
    OTHERS: gl.constexpr = W_GROUPS * (K_GROUPS - 1)
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    words_smem = gl.allocate_shared_memory(gl.int32, [STAGES * W_GROUPS, 4, 2 * BITS, 16], words_desc.layout)
    scales_smem = words_smem
    if GROUP > 0:
        scales_smem = gl.allocate_shared_memory(
            gl.int32, [STAGES * PAIRS, 8, scales_desc.block_shape[1]], scales_desc.layout
        )
    zeros_smem = scales_smem
    if HAS_ZEROS:
        zeros_smem = gl.allocate_shared_memory(gl.int16, [STAGES * PAIRS, 8, 16], zeros_desc.layout)
    y_smem = x_smem
    if CLUSTER == 1:
        y_smem = gl.allocate_shared_memory(y_desc.dtype, [W_GROUPS, y_desc.block_shape[0], ROWS], y_desc.layout)
    sums_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    sums_smem = x_smem
    if OTHERS > 0:
        sums_smem = gl.allocate_shared_memory(gl.float32, [OTHERS, ROWS, BLOCK_M], sums_layout)
    bars = (
        barriers(STAGES, 1), barriers(STAGES, W_GROUPS), barriers(OTHERS if OTHERS > 0 else 1, 1),
        barriers(OTHERS if OTHERS > 0 else 1, 1),
    )  # fmt: skip
    room = ()
    if CLUSTER > 1:
        BUFFERS: gl.constexpr = W_GROUPS * clusters.buffer_bytes(ROWS, BLOCK_M, 4, CLUSTER)
        gl.static_assert((STATIC > clusters.BARRIERS) | (BUFFERS <= STAGES * BLOCK_M * BLOCK_K * 2), "a ring too small")
        room = clusters.room_of(gl.program_id(0) % CLUSTER, W_GROUPS, ROWS, BLOCK_M, 4, CLUSTER, STATIC)
    fence_async_shared()
    sizes, ptrs = (M, N, K, splits), (parts_ptr, scales_ptr)
    smems = (x_smem, words_smem, scales_smem, zeros_smem, y_smem, sums_smem)
    if W_GROUPS * K_GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 0)),
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 1)),
                (_produce, (x_desc, words_desc, scales_desc, zeros_desc, smems, bars, sizes, W_GROUPS, K_GROUPS,
                            BITS, GROUP, GROUP_M, STAGES, CUT, CLUSTER)),
            ] + ([(stand_by, ()), (stand_by, ())] if CLUSTER > 1 else []),
            [4, 1] + ([1, 2] if CLUSTER > 1 else []),
            [240, 24] + ([24, 24] if CLUSTER > 1 else []),
        )  # fmt: skip
    elif W_GROUPS * K_GROUPS == 3:
        gl.warp_specialize(
            [
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 0)),
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 1)),
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 2)),
                (_produce, (x_desc, words_desc, scales_desc, zeros_desc, smems, bars, sizes, W_GROUPS, K_GROUPS,
                            BITS, GROUP, GROUP_M, STAGES, CUT, CLUSTER)),
            ] + ([(stand_by, ()), (stand_by, ())] if CLUSTER > 1 else []),
            [4, 4, 1] + ([1, 2] if CLUSTER > 1 else []),
            [160, 160, 24] + ([24, 24] if CLUSTER > 1 else []),
        )  # fmt: skip
    else:
        gl.static_assert(W_GROUPS * K_GROUPS == 4)
        gl.warp_specialize(
            [
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 0)),
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 1)),
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 2)),
                (_consume, (y_desc, ptrs, room, smems, bars, sizes, W_GROUPS, K_GROUPS, BITS, GROUP, HAS_ZEROS,
                            PTX, GROUP_M, STAGES, CUT, CLUSTER, STATIC, 3)),
                (_produce, (x_desc, words_desc, scales_desc, zeros_desc, smems, bars, sizes, W_GROUPS, K_GROUPS,
                            BITS, GROUP, GROUP_M, STAGES, CUT, CLUSTER)),
            ] + ([(stand_by, ()), (stand_by, ())] if CLUSTER > 1 else []),
            [4, 4, 4, 1] + ([1, 2] if CLUSTER > 1 else []),
            [112, 112, 112, 24] + ([24, 24] if CLUSTER > 1 else []),
        )  # fmt: skip


def _stages(bits, shape, narrow, others):
    """Stages that shared memory holds beside ``others``, bytes, and sums on their way; ``narrow``: groups of 32."""
    rows, w_groups, k_groups = shape
    stage = rows * 128 + w_groups * 512 * bits + (w_groups + 1) // 2 * (256 * (1 + narrow) + 256)
    return stages_of(stage, w_groups * ROWS.value * 4 * rows * (k_groups - 1) + others)


def multiply_direct(bits, x, words, scales, zeros, y, group, *, config, programs):
    """Write y [m, n] = x W^T; n is a multiple of 8, as TMA wants it.  ``programs`` is the number of SMs."""
    (m, k), n = x.shape, y.shape[1]
    shape = rows, w_groups, k_groups = config["BLOCK_M"], config["W_GROUPS"], config["K_GROUPS"]
    splits = min(config["SPLITS"], triton.cdiv(k, 2 * k_groups * BLOCK_K.value))
    clustered = in_clusters(tiles_of(y, shape), splits, programs)
    plan = planned(direct_kernel, y, shape, splits, programs, clustered)
    band = 8 if triton.cdiv(m, rows) <= 8 else 16  # rows of tiles before the next column, as in `specialized`
    groups = k // group if group else 1
    lines, numbers, zero_points = [4, 2 * bits, 16], [8, 16 if group == 32 else 8], [8, 16]
    of_lines = words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16)
    of_scales, of_zeros = None, None
    if group:
        of_scales = described_block(scales.view(torch.int32).view(-1, groups * 8), numbers, gl.int32)
    if zeros is not None:
        of_zeros = described_block(zeros.view(torch.int16).view(-1, groups * 8), zero_points, gl.int16)
    launch(
        plan.kernel, (plan.grid,),
        described(x, rows, BLOCK_K.value), described_block(of_lines, lines, gl.int32), of_scales, scales, of_zeros,
        plan.desc, plan.parts, m, n, k, splits,
        W_GROUPS=w_groups, K_GROUPS=k_groups, BITS=bits, GROUP=group,
        PTX=ptx_of(bits, group, x.dtype == torch.bfloat16), GROUP_M=band,
        STAGES=_stages(bits, shape, group == 32, plan.others), CUT=plan.cut > 0, CLUSTER=plan.cluster,
        STATIC=plan.static, num_warps=4,
    )  # fmt: skip
    add_parts(plan, y, shape, splits, band, turned=False)
