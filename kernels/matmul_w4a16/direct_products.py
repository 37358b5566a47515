"""What groups of warps do in `direct` and in its gradient: the products of a stage, and of tile after tile.

How weights are made of a stage is what the two differ in: ``packed_of_stage`` and ``weights_of_half`` of
:mod:`.direct_weights` or :mod:`.direct_pull_weights`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.common import clusters
from kernels.common.hopper import tile_of

from .direct_parts import ROWS, add_and_write, part_at, rounds_of, store_part, write_tile
from .direct_weights import parts_of_one, pin


@gluon.jit
def multiply_sixteen(acc, pairs, x, FIRST: gl.constexpr, layout: gl.constexpr):
    """Begin the product of 16 columns of weights, in pairs [warp, g, t, (eight of them, h)], and of x."""
    low = (pairs & 0xFFFF).to(gl.int16).to(x.dtype, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(x.dtype, bitcast=True)
    every = gl.join(low, high).reshape([4, 8, 4, 2, 2, 2])  # warp, g, t, eight, h, p
    weights = gl.convert_layout(every.permute(0, 4, 1, 3, 2, 5).reshape([ROWS, 16]), layout, assert_trivial=True)
    return warpgroup_mma(weights, x.slice(FIRST, 16, dim=1).permute((1, 0)), acc, is_async=True)


@gluon.jit
def weights_of_stage(
    smems, slot, lane, packed_of_stage: gl.constexpr, weights_of_half: gl.constexpr, W_GROUP: gl.constexpr,
    W_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr,
    four: gl.constexpr,
):  # fmt: skip
    """The operands of a stage's four products."""
    words, more, numbers, numbers_high = packed_of_stage(
        smems, slot, lane, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS, four
    )
    a, b = weights_of_half(words, numbers, BITS, GROUP, PTX, 0)
    c, d = weights_of_half(more, numbers_high, BITS, GROUP, PTX, 1)
    return a, b, c, d


@gluon.jit
def _go_on(
    acc, weights, x, smems, bars, following, lane, rows, packed_of_stage: gl.constexpr, weights_of_half: gl.constexpr,
    W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr, STAGES: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, four: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(acc with all but the first product of a stage begun, the weights of the ``following`` one, made in between)."""
    _, b, c, d = weights
    ahead = following % STAGES
    mbarrier.wait(bars[0].index(ahead), following // STAGES & 1)
    words, more, numbers, numbers_high = packed_of_stage(
        smems, ahead, lane, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS, four
    )
    pin(words, rows)
    acc = multiply_sixteen(acc, b, x, 16, layout)
    e, f = weights_of_half(words, numbers, BITS, GROUP, PTX, 0)
    pin(e, rows)
    pin(f, rows)
    acc = multiply_sixteen(acc, c, x, 32, layout)
    g, h = weights_of_half(more, numbers_high, BITS, GROUP, PTX, 1)
    pin(g, rows)
    acc = multiply_sixteen(acc, d, x, 48, layout)
    pin(h, rows)
    return acc, (e, f, g, h)


@gluon.jit
def two_steps(
    acc, weights, smems, bars, step, following, lane, rows, packed_of_stage: gl.constexpr,
    weights_of_half: gl.constexpr, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr,
    STAGES: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr,
    four: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(acc plus the products of two stages, the weights of the ``following`` one).

    The second stage's first product begins before the first stage's last one has ended, so tensor cores do not run
    empty in between.  Across the loop's end ptxas would wait for each product.
    """
    empty = bars[1]
    x = smems[0].index(step % STAGES)
    acc = multiply_sixteen(acc, weights[0], x, 0, layout)
    acc, others = _go_on(
        acc, weights, x, smems, bars, step + K_GROUPS, lane, rows, packed_of_stage, weights_of_half, W_GROUP, W_GROUPS,
        STAGES, BITS, GROUP, HAS_ZEROS, PTX, four, layout,
    )  # fmt: skip
    x = smems[0].index((step + K_GROUPS) % STAGES)
    acc = multiply_sixteen(acc, others[0], x, 0, layout)
    acc, _, _, _, _ = warpgroup_mma_wait(1, deps=[acc, weights[0], weights[1], weights[2], weights[3]])
    mbarrier.arrive(empty.index(step % STAGES), count=1)
    acc, made = _go_on(
        acc, others, x, smems, bars, following, lane, rows, packed_of_stage, weights_of_half, W_GROUP, W_GROUPS,
        STAGES, BITS, GROUP, HAS_ZEROS, PTX, four, layout,
    )  # fmt: skip
    acc, e, f, g, h = warpgroup_mma_wait(0, deps=[acc, made[0], made[1], made[2], made[3]])
    mbarrier.arrive(empty.index((step + K_GROUPS) % STAGES), count=1)
    return acc, (e, f, g, h)


@gluon.jit
def load_row_scales(scales_ptr, n, N, layout: gl.constexpr):
    """The scales of ROWS rows of W from n on, of row tiles [row tiles, g, g or g + 8]; 0 past N."""
    row = n + gl.arange(0, ROWS, layout)
    return gl.load(scales_ptr + (row // 16 * 16 + row % 8 * 2 + row // 8 % 2), mask=row < N, other=0)


@gluon.jit
def consume(
    y_desc, ptrs, room, smems, bars, sizes, packed_of_stage: gl.constexpr, weights_of_half: gl.constexpr,
    TURNED: gl.constexpr, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr,
    CLUSTER: gl.constexpr, STATIC: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Group ``PART`` of four warps: tiles of y [M, N], sums of K.  Of a gradient (TURNED) y is dx: N and K are W's."""
    M, N, K, splits = sizes
    parts_ptr, scales_ptr = ptrs
    if CLUSTER > 1:
        clusters.arrive_first(STATIC)
    x_smem, y_smem, sums_smem = smems[0], smems[4], smems[5]
    W_GROUP: gl.constexpr = PART % W_GROUPS
    K_GROUP: gl.constexpr = PART // W_GROUPS
    BLOCK_M: gl.constexpr = x_smem.shape[1]
    BLOCK_N: gl.constexpr = W_GROUPS * ROWS
    ROW_SCALES: gl.constexpr = (GROUP == 0) & (not TURNED) & (K_GROUP == 0)
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    four: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    lane = gl.set_auto_layout(gl.arange(0, 4)[None, None, :, None], four)
    step, turn = K_GROUP, 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    whole, positions = rounds_of(tiles, splits, CUT)
    for position in range(gl.program_id(0), positions, gl.num_programs(0)):
        tile, part, begin, end = part_at(position, whole, K, splits, K_GROUPS, CUT)
        m, n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        mbarrier.wait(bars[0].index(step % STAGES), step // STAGES & 1)
        weights = weights_of_stage(
            smems, step % STAGES, lane, packed_of_stage, weights_of_half, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS,
            PTX, four,
        )  # fmt: skip
        if ROW_SCALES:  # loaded here, so that nothing waits for them in the end
            row_scales = load_row_scales(scales_ptr, n + W_GROUP * ROWS, N, gl.SliceLayout(1, acc_layout))
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, acc_layout)
        for i in range(begin, end, 2 * K_GROUPS):
            following = step + K_GROUPS + (i + 2 * K_GROUPS < end).to(gl.int32) * K_GROUPS  # the last one's are again
            acc, weights = two_steps(
                acc, weights, smems, bars, step, following, lane, M, packed_of_stage, weights_of_half, W_GROUP,
                W_GROUPS, K_GROUPS, STAGES, BITS, GROUP, HAS_ZEROS, PTX, four, layout,
            )  # fmt: skip
            step += 2 * K_GROUPS
        if K_GROUP > 0:
            at: gl.constexpr = W_GROUP * (K_GROUPS - 1) + K_GROUP - 1
            mbarrier.wait(bars[3].index(at), (turn & 1) ^ 1)
            sums_smem.index(at).store(acc)
            mbarrier.arrive(bars[2].index(at), count=1)
        else:
            for other in gl.static_range(K_GROUPS - 1):
                found = W_GROUP * (K_GROUPS - 1) + other
                mbarrier.wait(bars[2].index(found), turn & 1)
                acc += sums_smem.index(found).load(acc_layout)
                mbarrier.arrive(bars[3].index(found), count=1)
            if ROW_SCALES:
                acc *= (row_scales.to(gl.float32) * parts_of_one(BITS, row_scales.dtype))[:, None]
            if CLUSTER > 1:
                add_and_write(parts_ptr, acc, room, part, m, n + W_GROUP * ROWS, M, N, TURNED, W_GROUP, CLUSTER, STATIC)
            else:
                if CUT:  # noqa: SIM102 - a constant, the other is none
                    if tile >= whole:
                        where = (part * (tiles - whole) + tile - whole).to(gl.int64) * W_GROUPS + W_GROUP
                        store_part(parts_ptr + where * (ROWS * BLOCK_M), acc)
                if (not CUT) | (tile < whole):
                    write_tile(acc.to(y_desc.dtype), y_smem.index(W_GROUP), y_desc, m, n + W_GROUP * ROWS, TURNED)
        turn += 1  # noqa: SIM113 - of Gluon
    if CLUSTER > 1:
        if K_GROUP > 0:
            clusters.meet(STATIC)
    elif K_GROUP == 0:
        tma.store_wait(0)


@gluon.jit
def stand_by():
    """Warps that fill up the last group of four: the cluster's barrier counts them."""
    clusters.arrive()
    clusters.await_all()
