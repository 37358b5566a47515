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
those are all tiles and as many clusters run at once (:func:`.direct_space.clusters`), the programs of a tile are a
cluster and add their parts in shared memory (:mod:`kernels.common.clusters`); else a second kernel adds them.
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
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

from kernels.common import clusters
from kernels.common.early import launch_early
from kernels.common.hopper import described, tile_of

from .direct_space import in_clusters, tiles_to_cut
from .direct_weights import packed_of_stage, parts_of_one, pin, ptx_of, weights_of_half
from .hopper_converted import barriers

ROWS = gl.constexpr(64)
"""Rows of W of a group: those of one wgmma."""

BLOCK_K = gl.constexpr(64)
"""Columns of a stage: a swizzled line of shared memory."""

WRITTEN = 128
"""The most rows of y that are written at once: of 256 in two parts, which leaves a stage more to the ring."""


@gluon.jit
def rounds_of(tiles, splits, CUT: gl.constexpr):
    """(tiles that are not cut, positions)."""
    whole = tiles
    if CUT:
        whole = tiles // gl.num_programs(0) * gl.num_programs(0)
    return whole, whole + (tiles - whole) * splits


@gluon.jit
def part_at(position, whole, K, splits, K_GROUPS: gl.constexpr, CUT: gl.constexpr):
    """(tile, part, its first step, its last) at ``position``: each group has an even number of steps of a part."""
    TURN: gl.constexpr = 2 * K_GROUPS
    turns = gl.cdiv(K, TURN * BLOCK_K)
    tile, part, begin, end = position, position * 0, position * 0, turns
    if CUT:  # noqa: SIM102 - a constant, the other is none
        if position >= whole:
            tile = whole + (position - whole) // splits
            part = (position - whole) % splits
            begin, end = part * turns // splits, (part + 1) * turns // splits
    return tile, part, begin * TURN, end * TURN


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
def stand_by():
    """Warps that fill up the last group of four: the cluster's barrier counts them."""
    clusters.arrive()
    clusters.await_all()


@gluon.jit
def multiply_sixteen(acc, pairs, x, FIRST: gl.constexpr, layout: gl.constexpr):
    """Begin the product of 16 columns of weights, in pairs [warp, g, t, (eight of them, h)], and of x."""
    low = (pairs & 0xFFFF).to(gl.int16).to(x.dtype, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(x.dtype, bitcast=True)
    every = gl.join(low, high).reshape([4, 8, 4, 2, 2, 2])  # warp, g, t, eight, h, p
    weights = gl.convert_layout(every.permute(0, 4, 1, 3, 2, 5).reshape([ROWS, 16]), layout, assert_trivial=True)
    return warpgroup_mma(weights, x.slice(FIRST, 16, dim=1).permute((1, 0)), acc, is_async=True)


@gluon.jit
def _go_on(
    acc, weights, x, smems, bars, following, lane, rows, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr,
    STAGES: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr,
    four: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(acc with all but the first product of a stage begun, the weights of the ``following`` one, made in between)."""
    _, b, c, d = weights
    ahead = following % STAGES
    mbarrier.wait(bars[0].index(ahead), following // STAGES & 1)
    words, more, scales, scales_high, zeros, zeros_high = packed_of_stage(
        smems, ahead, lane, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS, PTX, four
    )
    pin(words, rows)
    acc = multiply_sixteen(acc, b, x, 16, layout)
    e, f = weights_of_half(words, scales, zeros, BITS, GROUP, PTX, 0)
    pin(e, rows)
    pin(f, rows)
    acc = multiply_sixteen(acc, c, x, 32, layout)
    g, h = weights_of_half(more, scales_high, zeros_high, BITS, GROUP, PTX, 1)
    pin(g, rows)
    acc = multiply_sixteen(acc, d, x, 48, layout)
    pin(h, rows)
    return acc, (e, f, g, h)


@gluon.jit
def _two_steps(
    acc, weights, smems, bars, step, following, lane, rows, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr,
    K_GROUPS: gl.constexpr, STAGES: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr,
    PTX: gl.constexpr, four: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(acc plus the products of two stages, the weights of the ``following`` one).

    The second stage's first product begins before the first stage's last one has ended, so tensor cores do not run
    empty in between.  Across the loop's end ptxas would wait for each product.
    """
    empty = bars[1]
    x = smems[0].index(step % STAGES)
    acc = multiply_sixteen(acc, weights[0], x, 0, layout)
    acc, others = _go_on(
        acc, weights, x, smems, bars, step + K_GROUPS, lane, rows, W_GROUP, W_GROUPS, STAGES, BITS, GROUP, HAS_ZEROS,
        PTX, four, layout,
    )  # fmt: skip
    x = smems[0].index((step + K_GROUPS) % STAGES)
    acc = multiply_sixteen(acc, others[0], x, 0, layout)
    acc, _, _, _, _ = warpgroup_mma_wait(1, deps=[acc, weights[0], weights[1], weights[2], weights[3]])
    mbarrier.arrive(empty.index(step % STAGES), count=1)
    acc, made = _go_on(
        acc, others, x, smems, bars, following, lane, rows, W_GROUP, W_GROUPS, STAGES, BITS, GROUP, HAS_ZEROS,
        PTX, four, layout,
    )  # fmt: skip
    acc, e, f, g, h = warpgroup_mma_wait(0, deps=[acc, made[0], made[1], made[2], made[3]])
    mbarrier.arrive(empty.index((step + K_GROUPS) % STAGES), count=1)
    return acc, (e, f, g, h)


@gluon.jit
def _load_row_scales(scales_ptr, n, N, layout: gl.constexpr):
    """The scales of ROWS rows of W from n on, of row tiles [row tiles, g, g or g + 8]; 0 past N."""
    row = n + gl.arange(0, ROWS, layout)
    return gl.load(scales_ptr + (row // 16 * 16 + row % 8 * 2 + row // 8 % 2), mask=row < N, other=0)


@gluon.jit
def write_block(out, buffer, y_desc, m, n):
    """Write numbers [ROWS, rows of y] to y from (m, n) on, once the buffer's last ones have been read."""
    tma.store_wait(0)
    buffer.permute((1, 0)).store(out)
    fence_async_shared()
    tma.async_copy_shared_to_global(y_desc, [m, n], buffer)


@gluon.jit
def store_part(ptr, acc):
    """Write sums [ROWS, rows of x] as lanes have them: 16 bytes of each, side by side.

    By rows of W and of x a lane would write 8 bytes, and a warp to eight rows at a time.
    """
    eights: gl.constexpr = acc.shape[1] // 8
    split = acc.reshape([4, 2, 8, eights, 4, 2])  # warp, h, g, eight rows of x, t, p
    lanes = split.permute(0, 3, 2, 4, 1, 5).reshape([ROWS * acc.shape[1]])
    gl.store(ptr + gl.arange(0, ROWS * acc.shape[1], lanes.type.layout), lanes)


@gluon.jit
def _add_and_write(
    y_ptr, acc, room, rank, m, n, M, N, W_GROUP: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr
):
    """Add a group's sums [ROWS, rows of x] to those of the cluster's other programs; each writes its share."""
    BLOCK_M: gl.constexpr = acc.shape[1]
    clusters.meet(STATIC)
    clusters.send(acc, room, rank, W_GROUP, 4, CLUSTER)
    clusters.await_sums(room, W_GROUP)
    for number in gl.static_range(clusters.own_blocks(ROWS, BLOCK_M, 4, CLUSTER)):
        total, p, q, inside = clusters.added(room, rank, number, W_GROUP, ROWS, BLOCK_M, 4, CLUSTER)
        where = (m + q).to(gl.int64) * N + n + p
        gl.store(y_ptr + where, total.to(y_ptr.dtype.element_ty), mask=inside & (m + q < M) & (n + p < N))


@gluon.jit
def _consume(
    y_desc, ptrs, room, smems, bars, sizes, W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr,
    GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Group ``PART`` of four warps."""
    M, N, K, splits = sizes
    parts_ptr, scales_ptr = ptrs
    if CLUSTER > 1:
        clusters.arrive_first(STATIC)
    x_smem, y_smem, sums_smem = smems[0], smems[4], smems[5]
    W_GROUP: gl.constexpr = PART % W_GROUPS
    K_GROUP: gl.constexpr = PART // W_GROUPS
    BLOCK_M: gl.constexpr = x_smem.shape[1]
    BLOCK_N: gl.constexpr = W_GROUPS * ROWS
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
        words, more, scales, scales_high, zeros, zeros_high = packed_of_stage(
            smems, step % STAGES, lane, W_GROUP, W_GROUPS, BITS, GROUP, HAS_ZEROS, PTX, four
        )
        a, b = weights_of_half(words, scales, zeros, BITS, GROUP, PTX, 0)
        c, d = weights_of_half(more, scales_high, zeros_high, BITS, GROUP, PTX, 1)
        weights = a, b, c, d
        if (GROUP == 0) & (K_GROUP == 0):  # loaded here, so that nothing waits for them in the end
            row_scales = _load_row_scales(scales_ptr, n + W_GROUP * ROWS, N, gl.SliceLayout(1, acc_layout))
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, acc_layout)
        for i in range(begin, end, 2 * K_GROUPS):
            following = step + K_GROUPS + (i + 2 * K_GROUPS < end).to(gl.int32) * K_GROUPS  # the last one's are again
            acc, weights = _two_steps(
                acc, weights, smems, bars, step, following, lane, M, W_GROUP, W_GROUPS, K_GROUPS, STAGES, BITS,
                GROUP, HAS_ZEROS, PTX, four, layout,
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
            if GROUP == 0:
                acc *= (row_scales.to(gl.float32) * parts_of_one(BITS, row_scales.dtype))[:, None]
            if CLUSTER > 1:
                _add_and_write(parts_ptr, acc, room, part, m, n + W_GROUP * ROWS, M, N, W_GROUP, CLUSTER, STATIC)
            else:
                if CUT:  # noqa: SIM102 - a constant, the other is none
                    if tile >= whole:
                        where = (part * (tiles - whole) + tile - whole).to(gl.int64) * W_GROUPS + W_GROUP
                        store_part(parts_ptr + where * (ROWS * BLOCK_M), acc)
                if (not CUT) | (tile < whole):
                    out = acc.to(y_desc.dtype)
                    if y_desc.block_shape[0] < BLOCK_M:
                        low, high = out.reshape([ROWS, 2, BLOCK_M // 2]).permute((0, 2, 1)).split()
                        write_block(low, y_smem.index(W_GROUP), y_desc, m, n + W_GROUP * ROWS)
                        write_block(high, y_smem.index(W_GROUP), y_desc, m + BLOCK_M // 2, n + W_GROUP * ROWS)
                    else:
                        write_block(out, y_smem.index(W_GROUP), y_desc, m, n + W_GROUP * ROWS)
        turn += 1  # noqa: SIM113 - of Gluon
    if CLUSTER > 1:
        if K_GROUP > 0:
            clusters.meet(STATIC)
    elif K_GROUP == 0:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "splits"])
def direct_kernel(
    x_desc, words_desc, scales_desc, scales_ptr, zeros_desc, y_desc, parts_ptr, M, N, K, splits,
    W_GROUPS: gl.constexpr, K_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PTX: gl.constexpr,
    GROUP_M: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr, CLUSTER: gl.constexpr, STATIC: gl.constexpr,
):  # fmt: skip
    """Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word), [row tiles, g].

    Where a row of W has one scale there is no descriptor of them but their pointer.

    With CUT tiles of the last round are cut into ``splits`` parts, written to [splits, tiles, groups of rows of W] in
    the order of ``store_part``.  In clusters of CLUSTER programs, one for each part of a tile, ``parts_ptr`` is y's,
    which has no descriptor; STATIC is :func:`.clusters.static_bytes`.
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


@triton.jit(do_not_specialize=["whole", "rest"])
def _sum_tiles_kernel(
    parts_ptr, y_ptr, M, N, whole, rest, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y of the tiles from ``whole`` on, the sum of their parts: program (tile, 64 rows of W, COLUMNS rows of x)."""
    if EARLY:
        gdc_wait()
    per: tl.constexpr = (BLOCK_N // 64) * (BLOCK_M // COLUMNS)
    tile = tl.program_id(0) // per
    within = tl.program_id(0) % per
    first_n = within // (BLOCK_M // COLUMNS) * 64
    first_m = within % (BLOCK_M // COLUMNS) * COLUMNS
    warp, lane = tl.arange(0, 4), tl.arange(0, 16 * COLUMNS)
    ptrs = parts_ptr + tile.to(tl.int64) * (BLOCK_M * BLOCK_N) + first_n * BLOCK_M + first_m * 16
    ptrs += warp[:, None] * (16 * BLOCK_M) + lane[None, :]
    acc = tl.zeros((4, 16 * COLUMNS), tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(ptrs)
        ptrs += rest.to(tl.int64) * (BLOCK_M * BLOCK_N)
    split = acc.reshape(4, COLUMNS // 8, 8, 4, 2, 2)  # warp, eight rows of x, g, t, h, p: see ``store_part``
    out = split.permute(1, 3, 5, 0, 4, 2).reshape(COLUMNS, 64).to(y_ptr.dtype.element_ty)
    position = whole + tile
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = GROUP_M * tiles_n
    first = (position // band) * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    inside = position % band
    m = (first + inside % rows) * BLOCK_M + first_m + tl.arange(0, COLUMNS)
    n = inside // rows * BLOCK_N + first_n + tl.arange(0, 64)
    tl.store(y_ptr + m.to(tl.int64)[:, None] * N + n[None, :], out, mask=(m[:, None] < M) & (n[None, :] < N))


def _stages(bits, shape, narrow, others):
    """Stages that shared memory holds beside ``others``, bytes, and sums on their way; ``narrow``: groups of 32."""
    rows, w_groups, k_groups = shape
    stage = rows * 128 + w_groups * 512 * bits + (w_groups + 1) // 2 * (256 * (1 + narrow) + 256)
    rest = w_groups * ROWS.value * 4 * rows * (k_groups - 1) + others + 2048
    return max(2, min(12, (224 * 1024 - rest) // stage))


def multiply_direct(bits, x, words, scales, zeros, y, group, *, config, programs):
    """Write y [m, n] = x W^T; n is a multiple of 8, as TMA wants it.  ``programs`` is the number of SMs."""
    (m, k), n = x.shape, y.shape[1]
    shape = rows, w_groups, k_groups = config["BLOCK_M"], config["W_GROUPS"], config["K_GROUPS"]
    splits = min(config["SPLITS"], triton.cdiv(k, 2 * k_groups * BLOCK_K.value))
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, w_groups * ROWS.value)
    band = 8 if triton.cdiv(m, rows) <= 8 else 16  # rows of tiles before the next column, as in `specialized`
    cut = tiles_to_cut(tiles, splits, programs)
    if in_clusters(tiles, splits, programs):
        kernel, grid, cluster, of_y, parts = Clustered(direct_kernel, splits), tiles, splits, None, y
        static = others = clusters.static_bytes(w_groups * clusters.buffer_bytes(ROWS.value, rows, 4, splits))
    else:
        kernel, grid, cluster, static = direct_kernel, min(programs, tiles * splits), 1, 0
        of_y, others = described(y, min(rows, WRITTEN), ROWS.value), w_groups * ROWS.value * 2 * min(rows, WRITTEN)
        sizes = splits, cut, w_groups * ROWS.value, rows
        parts = torch.empty(sizes, dtype=torch.float32, device=x.device) if cut else y
    groups = k // group if group else 1
    lines, numbers, zero_points = [4, 2 * bits, 16], [8, 16 if group == 32 else 8], [8, 16]
    of_lines = words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16)
    of_scales, of_zeros = None, None
    if group:
        of_scales = described_block(scales.view(torch.int32).view(-1, groups * 8), numbers, gl.int32)
    if zeros is not None:
        of_zeros = described_block(zeros.view(torch.int16).view(-1, groups * 8), zero_points, gl.int16)
    launch(
        kernel, (grid,),
        described(x, rows, BLOCK_K.value), described_block(of_lines, lines, gl.int32), of_scales, scales, of_zeros,
        of_y, parts, m, n, k, splits,
        W_GROUPS=w_groups, K_GROUPS=k_groups, BITS=bits, GROUP=group,
        PTX=ptx_of(bits, group, x.dtype == torch.bfloat16), GROUP_M=band,
        STAGES=_stages(bits, shape, group == 32, others), CUT=cut > 0, CLUSTER=cluster, STATIC=static, num_warps=4,
    )  # fmt: skip
    if cut and cluster == 1:
        launch_early(
            _sum_tiles_kernel, (cut * w_groups * (rows // 32),), y.device, parts, y, m, n, tiles - cut, cut,
            PARTS=splits, BLOCK_M=rows, BLOCK_N=w_groups * ROWS.value, GROUP_M=band, COLUMNS=32, num_warps=4,
        )  # fmt: skip


def described_block(matrix, block, dtype):
    return TensorDescriptor.from_tensor(matrix, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
