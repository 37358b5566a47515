"""`fragments`: few rows of x times packed weights; the warps of a program share k, and each has x of its own."""

import torch
import triton
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import ROWS

from .ring import (
    COMMIT,
    COPY_4,
    COPY_16,
    ORDER,
    OWN,
    UNPACK_8_OPERANDS,
    WAIT_FOR_ALL,
    after,
    copy,
    load_minus_zeros,
    load_scales,
    m_tiles_of,
    mma_asm,
    multiply,
    places,
    ring_asm,
    scales_asm,
    unpack_4_asm,
    unpack_8_asm,
    unpacked_4,
    zeros_asm,
)


@gluon.jit
def _x_places(
    x_ptr, M, K, BITS: gl.constexpr, M_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """(pointers to x's first four words of each lane, packed tile along k).

    Rows past M are those of the last one again: they cost nothing, and their products are not stored.
    """
    m_tile = gl.set_auto_layout(gl.arange(0, M_TILES)[:, None, None, None, None, None], layout)
    word = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, None, None, :], layout)
    _, depth, warp, lane = places(1, DEPTH, WARPS, layout)
    tile = warp * DEPTH + depth
    row = gl.minimum(m_tile * 8 + lane // 4, M - 1)
    # Offsets of 64 bits, so that the compiler may leave what it knows of them to the instructions.
    ptrs = x_ptr + (row * (K // 2) + lane % 4 * 4).to(gl.int64) + tile.to(gl.int64) * (128 // BITS) + word
    return ptrs, tile


@gluon.jit
def _word_places(
    words_ptr, first, within, tiles_k, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """(pointers to the lanes' words, in a step of the ring, packed tile along k, whether there are such rows)."""
    row_tile, depth, warp, lane = places(ROW_TILES, DEPTH, WARPS, layout)
    tile = warp * DEPTH + depth
    ptrs = words_ptr + (first + row_tile) * tiles_k * 128 + tile.to(gl.int64) * 128 + lane * 4
    return ptrs, (row_tile * DEPTH + depth) * (WARPS * 512), tile, row_tile < within


@gluon.jit
def _scale_places(
    scales_ptr, zeros_ptr, first, within, groups, to_scales, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr,
    SCALE_DEPTH: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(pointers to scales, in a step of the ring, packed tile, whether there are such rows, pointers to zero points).

    Tiles of one group have one scale, which is copied once.
    """
    row_tile, depth, warp, lane = places(ROW_TILES, SCALE_DEPTH, WARPS, layout)
    offs = (first + row_tile) * groups * 16
    ptrs = scales_ptr + offs + lane // 4 * 2
    zero_ptrs = ptrs
    if zeros_ptr is not None:
        zero_ptrs = zeros_ptr + offs + lane // 8 * 4  # those of four rows, of which two are the lane's
    at = gl.convert_layout(to_scales, layout) + (row_tile * SCALE_DEPTH + depth) * (WARPS * 128)
    return ptrs, at, warp * DEPTH + depth, row_tile < within, zero_ptrs


@gluon.jit
def _load_x(x, step, K, BITS: gl.constexpr, MASKED: gl.constexpr, STEP: gl.constexpr):
    """x of STEP tiles along k: of 4 bits in two halves, of 8 bits the same twice."""
    ptrs, tile = x
    first = step * (STEP * (256 // BITS))
    k = first + tile * (256 // BITS)
    ptrs += first // 2
    low = gl.load(ptrs, mask=k < K, other=0) if MASKED else gl.load(ptrs)
    high = low
    if BITS == 4:
        high = gl.load(ptrs + 16, mask=k + 32 < K, other=0) if MASKED else gl.load(ptrs + 16)
    return low, high


@gluon.jit
def _copy_step(
    at, words, scales, step, K, GROUP: gl.constexpr, BITS: gl.constexpr, HAS_ZEROS: gl.constexpr, STEP: gl.constexpr,
    NEXT: gl.constexpr,
):  # fmt: skip
    """Begin to copy STEP tiles along k to this thread's part of a step of the ring, ``at``; past K there is nothing.

    A 4-bit tile has two scales in groups of 32.
    """
    TILE_K: gl.constexpr = 256 // BITS
    word_ptrs, words_at, tile, inside = words
    first = step * (STEP * TILE_K)
    inside = inside & (first + tile * TILE_K < K)
    at_words = gl.convert_layout(at, words_at.type.layout) + words_at
    copy(at_words, word_ptrs + step.to(gl.int64) * (STEP * 128), inside, 16, COPY_16)
    if GROUP > 0:
        scale_ptrs, scales_at, scale_tile, scale_inside, zero_ptrs = scales
        k = first + scale_tile * TILE_K
        offs = k // GROUP * 16
        at_scales = gl.convert_layout(at, scales_at.type.layout) + scales_at
        scale_inside = scale_inside & (k < K)
        copy(at_scales, scale_ptrs + offs, scale_inside, 4, COPY_4)
        if HAS_ZEROS:
            copy(at_scales + NEXT, zero_ptrs + offs, scale_inside, 4, COPY_4)
        if BITS == 4 and GROUP == 32:
            scale_inside = scale_inside & (k + 32 < K)
            copy(at_scales + 2 * NEXT, scale_ptrs + (offs + 16), scale_inside, 4, COPY_4)
            if HAS_ZEROS:
                copy(at_scales + 3 * NEXT, zero_ptrs + (offs + 16), scale_inside, 4, COPY_4)


@gluon.jit
def _multiply_step(
    words_at, scales_at, zeros_at, x, x_high, acc, zero, HAS_ZEROS: gl.constexpr, GROUP: gl.constexpr,
    BITS: gl.constexpr, BF16: gl.constexpr, UNPACK: gl.constexpr, SCALES: gl.constexpr, ZEROS: gl.constexpr,
    LOW: gl.constexpr, HIGH: gl.constexpr, NEXT: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """acc plus the products of x and what ``_copy_step`` copied for the same step."""
    if BITS == 4:
        a, b, c, d = unpacked_4(words_at, load_minus_zeros(zeros_at, HAS_ZEROS, BF16, ZEROS, layout), UNPACK)
        total = multiply(b, x, multiply(a, x, zero, LOW), HIGH)
        if GROUP == 32:
            acc = gl.fma(load_scales(scales_at, SCALES), total, acc)
            total, scales_at = zero, scales_at + 2 * NEXT
            if HAS_ZEROS:
                minus = load_minus_zeros(zeros_at + 2 * NEXT, HAS_ZEROS, BF16, ZEROS, layout)
                _, _, c, d = unpacked_4(words_at, minus, UNPACK)
        total = multiply(d, x_high, multiply(c, x_high, total, LOW), HIGH)
        acc = gl.fma(load_scales(scales_at, SCALES), total, acc)
    else:
        a, b = gl.inline_asm_elementwise(UNPACK, UNPACK_8_OPERANDS, [words_at],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
        if GROUP > 0:
            total = multiply(b, x, multiply(a, x, zero, LOW), HIGH)
            acc = gl.fma(load_scales(scales_at, SCALES), total, acc)
        else:
            acc = multiply(b, x, multiply(a, x, acc, LOW), HIGH)
    return acc


@gluon.jit
def _fragments_kernel(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K, groups,
    GROUP: gl.constexpr, BITS: gl.constexpr, BF16: gl.constexpr, MASKED: gl.constexpr, RING: gl.constexpr,
    WAIT: gl.constexpr, UNPACK: gl.constexpr, SCALES: gl.constexpr, ZEROS: gl.constexpr, LOW: gl.constexpr,
    HIGH: gl.constexpr, M_TILES: gl.constexpr, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr,
    SCALE_DEPTH: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr, STAGE: gl.constexpr, OWN_RING: gl.constexpr,
):  # fmt: skip
    """One program owns 16 ROW_TILES columns of y; its warps take DEPTH packed tiles along k in turns.

    Every tensor has a dimension of its own for: eight rows of x (M_TILES), packed tiles along n (ROW_TILES) and along k
    (DEPTH, for scales SCALE_DEPTH), warps, lanes, and four registers of a lane.  Words, scales and zero points come by
    asynchronous copies into a ring of STAGES steps, of which each thread has a part for itself: what it reads there it
    has copied, so no thread waits for another.  Nothing but the last sum passes between threads.  STAGES is 2 or more:
    a step is awaited before the copies of a later one begin, so one stage alone would be read before its own.  x_ptr
    counts in words, two elements of x.

    Unless OWN_RING the ring is memory of Triton's, which has the last sum there as well: it begins when all is read.
    """
    TILE_K: gl.constexpr = 256 // BITS
    STEP: gl.constexpr = DEPTH * WARPS
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    NEXT: gl.constexpr = ROW_TILES * SCALE_DEPTH * WARPS * 128  # from scales to zero points, and to the next of either
    lanes: gl.constexpr = [1, 1, 1, 1, 32, 1]
    warps: gl.constexpr = [1, 1, 1, WARPS, 1, 1]
    layout: gl.constexpr = gl.BlockedLayout([M_TILES, ROW_TILES, DEPTH, 1, 1, 4], lanes, warps, ORDER)
    words_layout: gl.constexpr = gl.BlockedLayout([1, ROW_TILES, DEPTH, 1, 1, 1], lanes, warps, ORDER)
    scales_layout: gl.constexpr = gl.BlockedLayout([1, ROW_TILES, SCALE_DEPTH, 1, 1, 1], lanes, warps, ORDER)
    own_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 1, 1], lanes, warps, ORDER)
    if not OWN_RING:
        ring = gl.allocate_shared_memory(
            gl.int32, [STAGE * STAGES // 1024, 1, 256], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )

    tiles_k = gl.cdiv(K, TILE_K)
    steps = gl.cdiv(tiles_k, STEP)
    first = gl.program_id(0).to(gl.int64) * ROW_TILES
    within = gl.cdiv(N, 16) - gl.program_id(0) * ROW_TILES  # packed tiles along n from here to the end
    first_at, to_scales = gl.inline_asm_elementwise(
        RING, "=&r,=&r,r", [gl.full([1, 1, 1, 1, 1, 1], 0, gl.int32, own_layout)],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    last_at = first_at + (STAGES - 1) * STAGE
    x = _x_places(x_ptr, M, K, BITS, M_TILES, DEPTH, WARPS, layout)
    words = _word_places(words_ptr, first, within, tiles_k, ROW_TILES, DEPTH, WARPS, words_layout)
    scales = _scale_places(scales_ptr, zeros_ptr, first, within, groups, to_scales, ROW_TILES, DEPTH, SCALE_DEPTH,
                           WARPS, scales_layout)  # fmt: skip
    _, _, _, lane = places(ROW_TILES, DEPTH, WARPS, layout)
    spread = gl.zeros([1, 1, 1, 1, 1, 4], gl.int32, layout)  # what a lane's four registers have the same
    words_at = gl.convert_layout(words[1], layout) + spread
    scales_at = gl.convert_layout(scales[1], layout) + spread
    zeros_at = scales_at + NEXT + lane // 4 % 2 * 2

    acc = gl.zeros([M_TILES, ROW_TILES, DEPTH, WARPS, 32, 4], gl.float32, layout)
    zero = gl.zeros([M_TILES, ROW_TILES, DEPTH, WARPS, 32, 4], gl.float32, layout)
    for stage in gl.static_range(STAGES - 1):
        step = gl.to_tensor(stage)
        _copy_step(first_at + stage * STAGE, words, scales, step, K, GROUP, BITS, HAS_ZEROS, STEP, NEXT)
        after(first_at, COMMIT)
    at, fill = first_at, last_at
    for step in range(steps):
        later = step + (STAGES - 1)
        low, high = _load_x(x, step, K, BITS, MASKED, STEP)
        now = gl.convert_layout(after(at, WAIT), layout)
        _copy_step(fill, words, scales, later, K, GROUP, BITS, HAS_ZEROS, STEP, NEXT)
        after(fill, COMMIT)
        acc = _multiply_step(now + words_at, now + scales_at, now + zeros_at, low, high, acc, zero, HAS_ZEROS, GROUP,
                             BITS, BF16, UNPACK, SCALES, ZEROS, LOW, HIGH, NEXT, layout)  # fmt: skip
        fill = at
        at = gl.where(at == last_at, first_at, at + STAGE)
    if not OWN_RING:
        after(at, WAIT_FOR_ALL)
        ring._keep_alive()
    total = gl.sum(gl.sum(acc, 2), 2)
    _store_fragments(total, scales_ptr + first * 16, y_ptr, M, N, within, GROUP, M_TILES, ROW_TILES)


@gluon.jit
def _store_fragments(
    total, scales_ptr, y_ptr, M, N, within, GROUP: gl.constexpr, M_TILES: gl.constexpr, ROW_TILES: gl.constexpr
):
    """Write a program's sums [M_TILES, ROW_TILES, 32, 4]; without groups each row has a scale, multiplied last."""
    layout: gl.constexpr = total.type.layout
    m_tile = gl.set_auto_layout(gl.arange(0, M_TILES)[:, None, None, None], layout)
    row_tile = gl.set_auto_layout(gl.arange(0, ROW_TILES)[None, :, None, None], layout)
    lane = gl.set_auto_layout(gl.arange(0, 32)[None, None, :, None], layout)
    register = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, :], layout)
    if GROUP == 0:
        place = row_tile * 16 + lane // 4 * 2 + register // 2
        scales = gl.load(scales_ptr + place, mask=row_tile < within, other=0.0).to(gl.float32)
        total = total * gl.fma(scales, gl.zeros_like(scales), scales)
    n = (gl.program_id(0) * ROW_TILES + row_tile) * 16 + lane // 4 + register // 2 * 8
    m = m_tile * 8 + lane % 4 * 2 + register % 2
    gl.store(y_ptr + m * N + n, total.to(y_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def _scale_depth(bits, group, depth):
    """How many scales a warp needs of ``depth`` tiles along k, each taken once."""
    return depth if 0 < group < depth * 256 // bits else 1


def stage_bytes(bits, group, config):
    """Bytes of words, scales and zero points of a step of the ring."""
    depth = config["DEPTH"]
    scales = 0 if not group else _scale_depth(bits, group, depth) * (2 if bits == 4 and group == 32 else 1)
    return config["ROW_TILES"] * config["num_warps"] * (depth * 512 + scales * 256)


def ring_stages(bits, m, group, config):
    """(steps of the ring, whether it is declared by inline assembly, all bytes of shared memory).

    Two steps where RING holds fewer.
    """
    stage = stage_bytes(bits, group, config)
    stages = max(2, config["RING"] * 1024 // stage)
    last_sum = m_tiles_of(m) * config["ROW_TILES"] * config["num_warps"] * 512
    own = stages * stage + last_sum <= OWN
    return stages, own, stages * stage + last_sum if own else max(stages * stage, last_sum)


def launch_fragments(bits, x, words, scales, zeros, n, group, *, config):
    """Launch ``_fragments_kernel`` for weights of so many bits; ``group`` 0: a scale for each row.

    Triton raises OutOfResources where shared memory does not hold the ring.
    """
    (m, k), warps, bf16 = x.shape, config["num_warps"], x.dtype == torch.bfloat16
    rows, depth = config["ROW_TILES"], config["DEPTH"]
    stage = stage_bytes(bits, group, config)
    stages, own, _ = ring_stages(bits, m, group, config)
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    launch(
        _fragments_kernel, (triton.cdiv(n, ROWS * rows),),
        x.view(torch.int32), words, scales, zeros, y, m, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, BF16=bf16, MASKED=k * bits % (256 * depth * warps) != 0,
        RING=ring_asm(stage * stages if own else 0, rows * depth * warps * 512),
        WAIT=f"cp.async.wait_group {stages - 2}; mov.b32 $0, $1;",
        UNPACK=(unpack_4_asm if bits == 4 else unpack_8_asm)(bf16), SCALES=scales_asm(bf16), ZEROS=zeros_asm(bf16),
        LOW=mma_asm(bf16, 0), HIGH=mma_asm(bf16, 1), M_TILES=m_tiles_of(m), ROW_TILES=rows,
        DEPTH=depth, SCALE_DEPTH=_scale_depth(bits, group, depth), WARPS=warps, STAGES=stages, STAGE=stage,
        OWN_RING=own, num_warps=warps,
    )  # fmt: skip
    return y
