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
import triton.language as tl
from atlas.operators import Clustered, launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from kernels.common import clusters
from kernels.common.early import launch_early
from kernels.common.hopper import described, tile_of

from .direct_pull_weights import packed_of_stage, ptx_of, weights_of_half
from .direct_space import in_clusters, tiles_to_cut
from .direct_weights import pin
from .hopper_converted import barriers
from .hopper_direct import (
    BLOCK_K,
    ROWS,
    WRITTEN,
    described_block,
    multiply_sixteen,
    part_at,
    rounds_of,
    stand_by,
    store_part,
    write_block,
)


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
def _go_on(
    acc, weights, dy, smems, bars, following, rows, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr,
    STAGES: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr,
    four: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(acc with all but the first product of a stage begun, the weights of the ``following`` one, made in between)."""
    _, b, c, d = weights
    ahead = following % STAGES
    mbarrier.wait(bars[0].index(ahead), following // STAGES & 1)
    words, more, scales, zeros = packed_of_stage(smems, ahead, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS, four)
    pin(words, rows)
    acc = multiply_sixteen(acc, b, dy, 16, layout)
    e, f = weights_of_half(words, scales, zeros, BITS, PTX, 0)
    pin(e, rows)
    pin(f, rows)
    acc = multiply_sixteen(acc, c, dy, 32, layout)
    g, h = weights_of_half(more, scales, zeros, BITS, PTX, 1)
    pin(g, rows)
    acc = multiply_sixteen(acc, d, dy, 48, layout)
    pin(h, rows)
    return acc, (e, f, g, h)


@gluon.jit
def _two_steps(
    acc, weights, smems, bars, step, following, rows, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr,
    K_GROUPS: gl.constexpr, STAGES: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr,
    PTX: gl.constexpr, four: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(acc plus the products of two stages, the weights of the ``following`` one), as in `direct`."""
    empty = bars[1]
    dy = smems[0].index(step % STAGES)
    acc = multiply_sixteen(acc, weights[0], dy, 0, layout)
    acc, others = _go_on(
        acc, weights, dy, smems, bars, step + K_GROUPS, rows, W_GROUP, W_GROUPS, STAGES, BITS, GROUP, HAS_ZEROS,
        PTX, four, layout,
    )  # fmt: skip
    dy = smems[0].index((step + K_GROUPS) % STAGES)
    acc = multiply_sixteen(acc, others[0], dy, 0, layout)
    acc, _, _, _, _ = warpgroup_mma_wait(1, deps=[acc, weights[0], weights[1], weights[2], weights[3]])
    mbarrier.arrive(empty.index(step % STAGES), count=1)
    acc, made = _go_on(
        acc, others, dy, smems, bars, following, rows, W_GROUP, W_GROUPS, STAGES, BITS, GROUP, HAS_ZEROS, PTX, four,
        layout,
    )  # fmt: skip
    acc, e, f, g, h = warpgroup_mma_wait(0, deps=[acc, made[0], made[1], made[2], made[3]])
    mbarrier.arrive(empty.index((step + K_GROUPS) % STAGES), count=1)
    return acc, (e, f, g, h)


@gluon.jit
def _in_order(sums):
    """Sums [64 columns of W as warps have them (half, word, q, t, p), rows of dy], with columns in their order."""
    return sums.reshape([2, 2, 2, 4, 2, sums.shape[1]]).permute(0, 3, 1, 2, 4, 5).reshape([ROWS, sums.shape[1]])


@gluon.jit
def _add_and_write(
    dx_ptr, acc, room, rank, m, k, M, K, W_GROUP: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr
):
    """Add a group's sums to those of the cluster's other programs; each writes its share, columns in their order."""
    BLOCK_M: gl.constexpr = acc.shape[1]
    clusters.meet(STATIC)
    clusters.send(acc, room, rank, W_GROUP, 4, CLUSTER)
    clusters.await_sums(room, W_GROUP)
    for number in gl.static_range(clusters.own_blocks(ROWS, BLOCK_M, 4, CLUSTER)):
        total, p, q, inside = clusters.added(room, rank, number, W_GROUP, ROWS, BLOCK_M, 4, CLUSTER)
        column = k + p // 32 * 32 + p // 2 % 4 * 8 + p // 16 % 2 * 4 + p // 8 % 2 * 2 + p % 2
        where = (m + q).to(gl.int64) * K + column
        gl.store(dx_ptr + where, total.to(dx_ptr.dtype.element_ty), mask=inside & (m + q < M) & (column < K))


@gluon.jit
def _consume(
    dx_desc, parts_ptr, room, smems, bars, sizes, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr,
    GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Group ``PART`` of four warps."""
    M, N, K, splits = sizes
    if CLUSTER > 1:
        clusters.arrive_first(STATIC)
    dy_smem, dx_smem, sums_smem = smems[0], smems[4], smems[5]
    W_GROUP: gl.constexpr = PART % W_GROUPS
    K_GROUP: gl.constexpr = PART // W_GROUPS
    BLOCK_M: gl.constexpr = dy_smem.shape[1]
    COLUMNS: gl.constexpr = W_GROUPS * ROWS
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    four: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    step, turn = K_GROUP, 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(K, COLUMNS)
    whole, positions = rounds_of(tiles, splits, CUT)
    for position in range(gl.program_id(0), positions, gl.num_programs(0)):
        tile, part, begin, end = part_at(position, whole, N, splits, K_GROUPS, CUT)
        m, k = tile_of(tile, M, K, BLOCK_M, COLUMNS, GROUP_M)
        mbarrier.wait(bars[0].index(step % STAGES), step // STAGES & 1)
        words, more, scales, zeros = packed_of_stage(
            smems, step % STAGES, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS, four
        )  # fmt: skip
        a, b = weights_of_half(words, scales, zeros, BITS, PTX, 0)
        c, d = weights_of_half(more, scales, zeros, BITS, PTX, 1)
        weights = a, b, c, d
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, acc_layout)
        for i in range(begin, end, 2 * K_GROUPS):
            following = step + K_GROUPS + (i + 2 * K_GROUPS < end).to(gl.int32) * K_GROUPS  # the last one's are again
            acc, weights = _two_steps(
                acc, weights, smems, bars, step, following, M, W_GROUP, W_GROUPS, K_GROUPS, STAGES, BITS, GROUP,
                HAS_ZEROS, PTX, four, layout,
            )  # fmt: skip
            step += 2 * K_GROUPS
        if K_GROUP > 0:
            mbarrier.wait(bars[3].index(0), (turn & 1) ^ 1)
            sums_smem.index(0).store(acc)
            mbarrier.arrive(bars[2].index(0), count=1)
        else:
            if K_GROUPS > 1:
                mbarrier.wait(bars[2].index(0), turn & 1)
                acc += sums_smem.index(0).load(acc_layout)
                mbarrier.arrive(bars[3].index(0), count=1)
            if CLUSTER > 1:
                _add_and_write(parts_ptr, acc, room, part, m, k + W_GROUP * ROWS, M, K, W_GROUP, CLUSTER, STATIC)
            else:
                if CUT:  # noqa: SIM102 - a constant, the other is none
                    if tile >= whole:
                        where = (part * (tiles - whole) + tile - whole).to(gl.int64) * W_GROUPS + W_GROUP
                        store_part(parts_ptr + where * (ROWS * BLOCK_M), acc)
                if (not CUT) | (tile < whole):
                    out = _in_order(acc.to(dx_desc.dtype))
                    if dx_desc.block_shape[0] < BLOCK_M:
                        low, high = out.reshape([ROWS, 2, BLOCK_M // 2]).permute((0, 2, 1)).split()
                        write_block(low, dx_smem.index(W_GROUP), dx_desc, m, k + W_GROUP * ROWS)
                        write_block(high, dx_smem.index(W_GROUP), dx_desc, m + BLOCK_M // 2, k + W_GROUP * ROWS)
                    else:
                        write_block(out, dx_smem.index(W_GROUP), dx_desc, m, k + W_GROUP * ROWS)
        turn += 1  # noqa: SIM113 - of Gluon
    if CLUSTER > 1:
        if K_GROUP > 0:
            clusters.meet(STATIC)
    elif K_GROUP == 0:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "splits"])
def direct_pull_kernel(
    dy_desc, words_desc, scales_desc, zeros_desc, dx_desc, parts_ptr, M, N, K, splits, W_GROUPS: gl.constexpr,
    K_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr,
):  # fmt: skip
    """Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word), [row tiles, g].

    With CUT tiles of the last round are cut into ``splits`` parts, written to [splits, tiles, groups of columns] in the
    order of ``store_part``.  In clusters of CLUSTER programs, one for each part of a tile, ``parts_ptr`` is dx's, which
    has no descriptor; STATIC is :func:`.clusters.static_bytes`.
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


@triton.jit(do_not_specialize=["whole", "rest"])
def _sum_tiles_kernel(
    parts_ptr, dx_ptr, M, K, whole, rest, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, ROWS_AT_ONCE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """dx of the tiles from ``whole`` on, the sum of their parts: program (tile, 64 columns, ROWS_AT_ONCE rows)."""
    if EARLY:
        gdc_wait()
    per: tl.constexpr = (BLOCK_K // 64) * (BLOCK_M // ROWS_AT_ONCE)
    tile = tl.program_id(0) // per
    within = tl.program_id(0) % per
    first_k = within // (BLOCK_M // ROWS_AT_ONCE) * 64
    first_m = within % (BLOCK_M // ROWS_AT_ONCE) * ROWS_AT_ONCE
    warp, lane = tl.arange(0, 4), tl.arange(0, 16 * ROWS_AT_ONCE)
    ptrs = parts_ptr + tile.to(tl.int64) * (BLOCK_M * BLOCK_K) + first_k * BLOCK_M + first_m * 16
    ptrs += warp[:, None] * (16 * BLOCK_M) + lane[None, :]
    acc = tl.zeros((4, 16 * ROWS_AT_ONCE), tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(ptrs)
        ptrs += rest.to(tl.int64) * (BLOCK_M * BLOCK_K)
    split = acc.reshape(2, 2, ROWS_AT_ONCE // 8, 4, 2, 4, 2, 2)  # half, word, eight rows, t, p, t of rows, q, p of rows
    out = split.permute(2, 5, 7, 0, 3, 1, 6, 4).reshape(ROWS_AT_ONCE, 64).to(dx_ptr.dtype.element_ty)
    position = whole + tile
    tiles_m, tiles_k = tl.cdiv(M, BLOCK_M), tl.cdiv(K, BLOCK_K)
    band = GROUP_M * tiles_k
    first = (position // band) * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    inside = position % band
    m = (first + inside % rows) * BLOCK_M + first_m + tl.arange(0, ROWS_AT_ONCE)
    k = inside // rows * BLOCK_K + first_k + tl.arange(0, 64)
    tl.store(dx_ptr + m.to(tl.int64)[:, None] * K + k[None, :], out, mask=(m[:, None] < M) & (k[None, :] < K))


def _stages(bits, shape, narrow, others):
    """Stages that shared memory holds beside ``others``, bytes, and sums on their way; ``narrow``: groups of 32."""
    rows, w_groups, k_groups = shape
    stage = rows * 128 + w_groups * (512 * bits + 128 * (1 + narrow) + 128)
    rest = w_groups * ROWS.value * 4 * rows * (k_groups - 1) + others + 2048
    return max(2, min(12, (224 * 1024 - rest) // stage))


def pull_direct(bits, dy, words, scales, zeros, dx, group, *, config, programs):
    """Write dx [m, k] = dy W; n is a multiple of 8, as TMA wants it, k one of 32.  ``programs``: the number of SMs."""
    (m, n), k = dy.shape, dx.shape[1]
    shape = rows, w_groups, k_groups = config["BLOCK_M"], config["W_GROUPS"], config["K_GROUPS"]
    splits = min(config["SPLITS"], triton.cdiv(n, 2 * k_groups * BLOCK_K.value))
    columns = w_groups * ROWS.value
    tiles = triton.cdiv(m, rows) * triton.cdiv(k, columns)
    band = 8 if triton.cdiv(m, rows) <= 8 else 16  # rows of tiles before the next column, as in `direct`
    cut = tiles_to_cut(tiles, splits, programs)
    if in_clusters(tiles, splits, programs):
        kernel, grid, cluster, of_dx, parts = Clustered(direct_pull_kernel, splits), tiles, splits, None, dx
        static = others = clusters.static_bytes(w_groups * clusters.buffer_bytes(ROWS.value, rows, 4, splits))
    else:
        kernel, grid, cluster, static = direct_pull_kernel, min(programs, tiles * splits), 1, 0
        of_dx, others = described(dx, min(rows, WRITTEN), ROWS.value), columns * 2 * min(rows, WRITTEN)
        parts = torch.empty((splits, cut, columns, rows), dtype=torch.float32, device=dy.device) if cut else dx
    groups = k // group if group else 1
    of_lines = words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16)
    of_scales, of_zeros = scales.view(torch.int32).view(-1, groups * 8), None
    if zeros is not None:
        of_zeros = described_block(zeros.view(torch.int16).view(-1, groups * 8), [4, 16], gl.int16)
    launch(
        kernel, (grid,),
        described(dy, rows, BLOCK_K.value), described_block(of_lines, [4, 2 * bits, 16], gl.int32),
        described_block(of_scales, [4, 16 if group == 32 else 8], gl.int32), of_zeros, of_dx, parts, m, n, k, splits,
        W_GROUPS=w_groups, K_GROUPS=k_groups, BITS=bits, GROUP=group, PTX=ptx_of(bits, dy.dtype == torch.bfloat16),
        GROUP_M=band, STAGES=_stages(bits, shape, group == 32, others), CUT=cut > 0, CLUSTER=cluster, STATIC=static,
        num_warps=4,
    )  # fmt: skip
    if cut and cluster == 1:
        launch_early(
            _sum_tiles_kernel, (cut * w_groups * (rows // 32),), dx.device, parts, dx, m, k, tiles - cut, cut,
            PARTS=splits, BLOCK_M=rows, BLOCK_K=columns, GROUP_M=band, ROWS_AT_ONCE=32, num_warps=4,
        )  # fmt: skip
