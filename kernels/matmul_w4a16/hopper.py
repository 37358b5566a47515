"""Many rows times packed weights for Hopper (sm_90): y^T = W x^T, W of 4 or 8 bits.

A program has a multiprocessor for itself and takes one tile of y after the other.  One of its warps loads x (the
producer): blocks go by TMA into a ring of shared memory, on into the next tile while this one is finished.  Two
groups of four warps multiply (wgmma), each 64 rows of W.  These are wgmma's first operand and come from registers:
packed tiles are loaded UNROLL steps ahead and brought to 16 bits while the step before is multiplied.  The loop is
unrolled, so that what was loaded is never moved: a move waits for the load.
Barriers in shared memory hand blocks of x over: a "full" one, on which TMA counts the bytes, and an "empty" one, on
which every group arrives.

A packed tile has the lanes' weights in the order of fragments, which is not the natural one along k.  So x is brought
into that order before, by a kernel of its own, and only the producer waits for that kernel's end.

Where y has few tiles k is cut into SPLITS parts: each program sums one of a tile, in fp32, and a second kernel adds the
parts.
"""

import torch
import triton
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
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.common.hopper import described, tile_of
from kernels.common.packed import sixteen, unpack_4, unpack_8
from kernels.common.parts import sum_parts

from .many_rows import STEPS_AHEAD

ROWS = gl.constexpr(64)
"""Rows of W of a group: those of one wgmma."""

WARP_GROUPS = gl.constexpr(2)
"""Groups of four warps, each with ROWS rows of W: x is read for both at once."""

BLOCK_K = gl.constexpr(64)
"""Columns of a step: a swizzled line of shared memory."""


def unpack_4_asm(bf16):
    """PTX: four words (16..19), minus the zero points (20) of rows g and g + 8, to the operands of four products."""
    minus = sixteen(bf16)[1] | 0x80008000
    spread = f"prmt.b32 z0, $20, {minus}, 0x5050; prmt.b32 z1, $20, {minus}, 0x5151;"
    return f"{{ .reg .b32 z0, z1; {spread}\n{unpack_4(bf16, ('$16', '$17', '$18', '$19'), ('z0', 'z1'))}}}"


def unpack_8_asm(bf16):
    """PTX: four words (8..11) of signs and magnitudes to the operands of two products."""
    return unpack_8(bf16, ("$8", "$9", "$10", "$11"))


def scale_asm(bf16):
    """PTX: a product's operand (4..7) times the scales (8) of rows g and g + 8."""
    kind, _, _ = sixteen(bf16)
    lines = ["{ .reg .b32 s0, s1; prmt.b32 s0, $8, $8, 0x1010; prmt.b32 s1, $8, $8, 0x3232;"]
    lines += [f"mul.rn.{kind}x2 ${i}, ${4 + i}, s{i % 2};" for i in range(4)]
    return "\n".join([*lines, "}"])


_PREFETCH = gl.constexpr(
    "{ .reg .pred first; setp.eq.s32 first, $2, 0;\n@first cp.async.bulk.prefetch.L2.global [$1], $3; mov.b32 $0, 0; }"
)
"""PTX: have as many bytes (3) from 1 on brought to L2; lane 0 of a warp (2) asks for all."""

_WAIT_FOR_X = gl.constexpr("griddepcontrol.wait; mov.b32 $0, 0;")


_UNPACK_4_OPERANDS = gl.constexpr(",".join(["=&r"] * 16 + ["r"] * 8))
_UNPACK_8_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 4))
_SCALE_OPERANDS = gl.constexpr(",".join(["=&r"] * 4 + ["r"] * 8))


@triton.jit
def _reorder_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """x with each 32 neighbours along k, (t, w, q, p), in the order (w, q, t, p) of the weights' fragments.

    The kernel that reads it may begin at once.
    """
    gdc_launch_dependents()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < size)
    x = x.reshape(BLOCK // 32, 4, 4, 2).permute(0, 2, 1, 3).reshape(BLOCK)
    tl.store(out_ptr + offs, x, mask=offs < size)


@gluon.jit
def _part(
    position, M, N, K, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, SPLITS: gl.constexpr,
    UNROLL: gl.constexpr,
):  # fmt: skip
    """(first row of x, first row of W, part of k, its begin, its end) at ``position``.

    The parts of a tile are next to each other.  Each has a multiple of UNROLL steps; the last ends past K, in zeros.
    """
    SPAN: gl.constexpr = UNROLL * BLOCK_K
    m, n = tile_of(position // SPLITS, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    part, spans = position % SPLITS, gl.cdiv(K, SPAN)
    return m, n, part, part * spans // SPLITS * SPAN, (part + 1) * spans // SPLITS * SPAN


@gluon.jit
def _produce(
    x_desc, x_smem, full, empty, M, N, K, GROUP_M: gl.constexpr, STAGES: gl.constexpr, SPLITS: gl.constexpr,
    UNROLL: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    gl.inline_asm_elementwise(_WAIT_FOR_X, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WARP_GROUPS * ROWS)
    for position in range(gl.program_id(0), tiles * SPLITS, gl.num_programs(0)):
        m, _, _, begin, end = _part(position, M, N, K, BLOCK_M, WARP_GROUPS * ROWS, GROUP_M, SPLITS, UNROLL)
        for k in range(begin, end, BLOCK_K):
            slot = step % STAGES
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, x_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(x_desc, [m, k], bar, x_smem.index(slot))
            step += 1


@gluon.jit
def _load_step(word_ptrs, scale_ptrs, zero_ptrs, k, last_tile, last_group, GROUP: gl.constexpr, BITS: gl.constexpr):
    """(words, more words, scales, scales of the upper half, zeros, zeros of the upper half) of BLOCK_K columns.

    Past the end they are those of the last tile again, which meet zeros of x.  What there is none of is another one
    again: a tuple holds no None.
    """
    TILE_K: gl.constexpr = 256 // BITS
    tile = k // TILE_K
    words = gl.load(word_ptrs + gl.minimum(tile, last_tile).to(gl.int64) * 128)
    more = words
    if BITS == 8:
        more = gl.load(word_ptrs + gl.minimum(tile + 1, last_tile).to(gl.int64) * 128)
    group = gl.minimum(k // GROUP if GROUP > 0 else 0, last_group) * 8
    scales = gl.load(scale_ptrs + group)
    scales_high, zeros, zeros_high = scales, scales, scales
    if zero_ptrs is not None:
        zeros = gl.load(zero_ptrs + group).to(gl.int32)
        zeros_high = zeros
    if GROUP == 32:
        group = gl.minimum(k // GROUP + 1, last_group) * 8
        scales_high = gl.load(scale_ptrs + group)
        if zero_ptrs is not None:
            zeros_high = gl.load(zero_ptrs + group).to(gl.int32)
    return words, more, scales, scales_high, zeros, zeros_high


@gluon.jit
def numbers_of(loaded, eights, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, UNPACK: gl.constexpr):
    """q - z of ROWS x BLOCK_K weights in 16 bits: the operands of four products, in four registers of each lane."""
    words, more, _, _, zeros, zeros_high = loaded
    spread = gl.zeros_like(words)
    if not HAS_ZEROS:
        zeros, zeros_high = eights, eights
    if BITS == 4:
        a, b, c, d = gl.inline_asm_elementwise(UNPACK, _UNPACK_4_OPERANDS, [words, zeros + spread],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
        if GROUP == 32:
            _, _, c, d = gl.inline_asm_elementwise(UNPACK, _UNPACK_4_OPERANDS, [words, zeros_high + spread],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
    else:
        a, b = gl.inline_asm_elementwise(UNPACK, _UNPACK_8_OPERANDS, [words],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
        c, d = gl.inline_asm_elementwise(UNPACK, _UNPACK_8_OPERANDS, [more],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
    return a, b, c, d


@gluon.jit
def weights_of(
    loaded, eights, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, UNPACK: gl.constexpr,
    SCALE: gl.constexpr,
):  # fmt: skip
    """``numbers_of`` times their scales, rounded to 16 bits."""
    _, _, scales, scales_high, _, _ = loaded
    a, b, c, d = numbers_of(loaded, eights, BITS, GROUP, HAS_ZEROS, UNPACK)
    a, b = _times(a, scales, SCALE), _times(b, scales, SCALE)
    return a, b, _times(c, scales_high, SCALE), _times(d, scales_high, SCALE)


@gluon.jit
def _times(numbers, scales, SCALE: gl.constexpr):
    scales = scales + gl.zeros_like(numbers)
    return gl.inline_asm_elementwise(SCALE, _SCALE_OPERANDS, [numbers, scales], dtype=gl.int32, is_pure=True, pack=4)


@gluon.jit
def _operand(a, b, c, d, DTYPE: gl.constexpr, layout: gl.constexpr):
    """``weights_of`` as wgmma's first operand [ROWS, BLOCK_K]: in place."""
    pairs = gl.join(gl.join(a, c), gl.join(b, d))  # warp, g, t, (q, h), half of the columns, word of a half
    low = (pairs & 0xFFFF).to(gl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    every = gl.join(low, high).reshape([4, 8, 4, 2, 2, 4, 2])  # warp, g, t, q, h, (half, word), p
    ordered = every.permute(0, 4, 1, 5, 3, 2, 6).reshape([ROWS, BLOCK_K])
    return gl.convert_layout(ordered, layout, assert_trivial=True)


@gluon.jit
def _prefetch(ptrs, lane, bytes_):
    """Have bytes from a warp's pointer on brought to L2."""
    gl.inline_asm_elementwise(_PREFETCH, "=r,l,r,r", [ptrs, lane, bytes_ + lane * 0], dtype=gl.int32, is_pure=False,
                              pack=1)  # fmt: skip


@gluon.jit
def _store_part(part_ptr, acc, m, n, M, N):
    """Write sums [rows of W, rows of x] from (n, m) on to a part [M, N]."""
    layout: gl.constexpr = acc.type.layout
    offs_n = gl.expand_dims(n + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout)), 1)
    offs_m = gl.expand_dims(m + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout)), 0)
    gl.store(part_ptr + offs_m.to(gl.int64) * N + offs_n, acc, mask=(offs_n < N) & (offs_m < M))


@gluon.jit
def _multiply(
    acc, weights, following, k, step, x_smem, note, full, empty, word_ptrs, scale_ptrs, zero_ptrs, eights, last_tile,
    last_group, BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, SCALE: gl.constexpr,
    STAGES: gl.constexpr, UNROLL: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """One step: (acc plus the product of the weights and x, the weights of the next step, what was loaded for k).

    ``following`` is what was loaded for the next step.  ptxas would move the wait up, over its conversion, for nothing
    in the registers ties the two; but it moves no wait over a store to shared memory, and ``note`` needs all weights.
    """
    slot = step % STAGES
    mbarrier.wait(full.index(slot), step // STAGES & 1)
    acc = warpgroup_mma(weights, x_smem.index(slot).permute((1, 0)), acc, is_async=True)
    loaded = _load_step(word_ptrs, scale_ptrs, zero_ptrs, k, last_tile, last_group, GROUP, BITS)
    a, b, c, d = weights_of(following, eights, BITS, GROUP, zero_ptrs is not None, UNPACK, SCALE)
    note.store(gl.sum(a ^ b ^ c ^ d, 3))
    acc, a, b, c, d = warpgroup_mma_wait(0, deps=[acc, a, b, c, d])
    weights = _operand(a, b, c, d, x_smem.dtype, layout)
    mbarrier.arrive(empty.index(slot), count=1)
    return acc, weights, loaded


@gluon.jit
def _consume(
    y_desc, parts_ptr, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, notes, full, empty, M, N, K, groups,
    BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, SCALE: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr, SPLITS: gl.constexpr, UNROLL: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Group ``PART`` of four warps: its ROWS rows of W of each tile.

    Rows past N are those of the last packed tile again, and are not stored.
    """
    TILE_K: gl.constexpr = 256 // BITS
    BLOCK_M: gl.constexpr = x_smem.shape[1]
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    words_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    warp = gl.set_auto_layout(gl.arange(0, 4)[:, None, None, None], words_layout)
    g = gl.set_auto_layout(gl.arange(0, 8)[None, :, None, None], words_layout)
    t = gl.set_auto_layout(gl.arange(0, 4)[None, None, :, None], words_layout)
    word = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, :], words_layout)
    lane_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    lane = gl.convert_layout(g * 4 + t, lane_layout)
    eights = gl.full([4, 8, 4, 1], 0x0808, gl.int32, words_layout)
    tiles_k, tiles_n = gl.cdiv(K, TILE_K), gl.cdiv(N, 16)
    last_tile, last_group = tiles_k - 1, groups - 1
    step = 0
    note = notes.index(PART)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WARP_GROUPS * ROWS)
    for position in range(gl.program_id(0), tiles * SPLITS, gl.num_programs(0)):
        m, n, part, begin, end = _part(position, M, N, K, BLOCK_M, WARP_GROUPS * ROWS, GROUP_M, SPLITS, UNROLL)
        n += PART * ROWS
        row_tile = gl.minimum(n // 16 + warp, tiles_n - 1).to(gl.int64)
        word_ptrs = words_ptr + row_tile * tiles_k * 128 + (g * 4 + t) * 4 + word
        tile_ptrs = words_ptr + gl.convert_layout(row_tile, lane_layout) * tiles_k * 128 + lane * 0
        scale_ptrs = scales_ptr + row_tile * groups * 8 + g + t * 0
        zero_ptrs = None
        if HAS_ZEROS:
            zero_ptrs = zeros_ptr + row_tile * groups * 8 + g + t * 0
        if AHEAD > 0:
            first = begin // TILE_K
            _prefetch(tile_ptrs + first.to(gl.int64) * 128, lane, gl.minimum(tiles_k - first, AHEAD) * 512)
        zeroth = _load_step(word_ptrs, scale_ptrs, zero_ptrs, begin, last_tile, last_group, GROUP, BITS)
        one = _load_step(word_ptrs, scale_ptrs, zero_ptrs, begin + 64, last_tile, last_group, GROUP, BITS)
        if UNROLL == 4:
            two = _load_step(word_ptrs, scale_ptrs, zero_ptrs, begin + 128, last_tile, last_group, GROUP, BITS)
            three = _load_step(word_ptrs, scale_ptrs, zero_ptrs, begin + 192, last_tile, last_group, GROUP, BITS)
        a, b, c, d = weights_of(zeroth, eights, BITS, GROUP, HAS_ZEROS, UNPACK, SCALE)
        weights = _operand(a, b, c, d, x_smem.dtype, layout)
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, acc_layout)
        for k in range(begin, end, UNROLL * BLOCK_K):
            if AHEAD > 0:
                further = gl.minimum(k // TILE_K + AHEAD, tiles_k - UNROLL * 64 // TILE_K).to(gl.int64)
                _prefetch(tile_ptrs + further * 128, lane, gl.to_tensor(UNROLL * BITS * 128))
            acc, weights, zeroth = _multiply(
                acc, weights, one, k + UNROLL * 64, step, x_smem, note, full, empty, word_ptrs, scale_ptrs, zero_ptrs,
                eights, last_tile, last_group, BITS, GROUP, UNPACK, SCALE, STAGES, UNROLL, layout,
            )  # fmt: skip
            if UNROLL == 2:
                acc, weights, one = _multiply(
                    acc, weights, zeroth, k + 192, step + 1, x_smem, note, full, empty, word_ptrs, scale_ptrs,
                    zero_ptrs, eights, last_tile, last_group, BITS, GROUP, UNPACK, SCALE, STAGES, UNROLL, layout,
                )  # fmt: skip
            else:
                acc, weights, one = _multiply(
                    acc, weights, two, k + 320, step + 1, x_smem, note, full, empty, word_ptrs, scale_ptrs,
                    zero_ptrs, eights, last_tile, last_group, BITS, GROUP, UNPACK, SCALE, STAGES, UNROLL, layout,
                )  # fmt: skip
                acc, weights, two = _multiply(
                    acc, weights, three, k + 384, step + 2, x_smem, note, full, empty, word_ptrs, scale_ptrs,
                    zero_ptrs, eights, last_tile, last_group, BITS, GROUP, UNPACK, SCALE, STAGES, UNROLL, layout,
                )  # fmt: skip
                acc, weights, three = _multiply(
                    acc, weights, zeroth, k + 448, step + 3, x_smem, note, full, empty, word_ptrs, scale_ptrs,
                    zero_ptrs, eights, last_tile, last_group, BITS, GROUP, UNPACK, SCALE, STAGES, UNROLL, layout,
                )  # fmt: skip
            step += UNROLL
        if SPLITS > 1:
            _store_part(parts_ptr + part.to(gl.int64) * M * N, acc, m, n, M, N)
        else:
            buffer = y_smem.index(PART)
            tma.store_wait(0)
            buffer.permute((1, 0)).store(acc.to(y_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(y_desc, [m, n], buffer)
    if SPLITS == 1:
        tma.store_wait(0)


@gluon.jit
def matmul_w4a16_kernel(
    x_desc, y_desc, parts_ptr, words_ptr, scales_ptr, zeros_ptr, M, N, K, groups,
    BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, SCALE: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr, SPLITS: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: x's of BLOCK_M rows and BLOCK_K columns, y's of BLOCK_M rows and ROWS columns.

    Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word).  Parts [SPLITS, M, N]
    are written instead of y if there are several.
    """
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    y_smem = gl.allocate_shared_memory(
        y_desc.dtype, [WARP_GROUPS if SPLITS == 1 else 1, BLOCK_M if SPLITS == 1 else 8, ROWS], y_desc.layout
    )
    notes = gl.allocate_shared_memory(gl.int32, [WARP_GROUPS, 4, 8, 4], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=WARP_GROUPS)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                y_desc, parts_ptr, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, notes, full, empty, M, N, K,
                groups, BITS, GROUP, UNPACK, SCALE, GROUP_M, STAGES, AHEAD, SPLITS, UNROLL, 0,
            )),
            (_consume, (
                y_desc, parts_ptr, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, notes, full, empty, M, N, K,
                groups, BITS, GROUP, UNPACK, SCALE, GROUP_M, STAGES, AHEAD, SPLITS, UNROLL, 1,
            )),
            (_produce, (x_desc, x_smem, full, empty, M, N, K, GROUP_M, STAGES, SPLITS, UNROLL)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def specialized(bits, x, words, scales, zeros, y, group, *, config, programs):
    """Write y [m, n] = x W^T; n is a multiple of 8, as TMA wants it.  ``programs`` is the number of SMs.

    With SPLITS of several, k goes to so many programs for each tile.
    """
    (m, k), n = x.shape, y.shape[1]
    ordered, rows, bf16 = torch.empty_like(x), config["BLOCK_M"], x.dtype == torch.bfloat16
    unroll = STEPS_AHEAD[rows]
    splits = min(config["SPLITS"], triton.cdiv(k, unroll * BLOCK_K.value))
    parts = y if splits == 1 else torch.empty((splits, m, n), dtype=torch.float32, device=x.device)
    launch(_reorder_kernel, (triton.cdiv(x.numel(), 2048),), x, ordered, x.numel(), BLOCK=2048)
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, WARP_GROUPS.value * ROWS.value)
    launch(
        matmul_w4a16_kernel, (min(tiles * splits, programs),),
        described(ordered, rows, BLOCK_K.value), described(y, rows, ROWS.value), parts, words,
        scales.view(torch.int32), None if zeros is None else zeros.view(torch.int16), m, n, k,
        k // group if group else 1,
        BITS=bits, GROUP=group, UNPACK=(unpack_4_asm if bits == 4 else unpack_8_asm)(bf16), SCALE=scale_asm(bf16),
        GROUP_M=config["GROUP_M"], STAGES=_STAGES[rows],
        AHEAD=0 if k % BLOCK_K.value or k < unroll * BLOCK_K.value else config["AHEAD"], SPLITS=splits, UNROLL=unroll,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
    if splits > 1:
        sum_parts(parts, y)


_STAGES = {64: 8, 128: 6, 256: 4}
"""Slots of the ring, by BLOCK_M: what shared memory holds beside y on its way out."""
