"""Linear layer with 4-bit weights: y[m, n] = sum over k of x[m, k] (q[n, k] - z[n, k // g]) s[n, k // g].

x and y are bf16 or fp16; q is a 4-bit number, and each group of g = 32, 64 or 128 neighbours along k has a scale s, of
x's dtype, and a zero point z (symmetric weights: always 8).  Reads x (M K elements), the weights (N K / 2 bytes), their
scales and zero points (3 bytes a group, symmetric: 2), writes y (M N); 2 M N K operations.  With few rows (a token at a
time) all of the work is to read the weights, a quarter of the bytes that bf16 weights have.

*What is exact.*  The kernels multiply by the weights that the packed format stands for; the error of quantising, which
`pack_w4` makes once, is not theirs.  q - z is exact in 16 bits.  `fragments` multiplies it by x in tensor cores and
scales the fp32 sum of each group; `tiles` and `separate` round (q - z) s to x's dtype first, as weights that are kept
in that dtype are.

*The packed format* is the order in which tensor cores take their operands, so that no thread ever hands a weight to
another.  Weights are cut into tiles of 16 rows (n) by 64 columns (k), stored one after the other along k.  A tile is
512 bytes: 16 for each of 32 lanes, of which lane 4 g + t has the rows g and g + 8 and, of each half tile of 32 columns,
the 8 neighbours from 8 t on.  Each of its four words has four of these columns, those of one `mma` instruction; nibble
h + 2 q + 4 p of a word is row g + 8 h, column 2 q + p.  So one 16-byte load is all of a lane's share of a tile, and the
columns of x that it meets are 16 bytes as well.  (word >> 4 i) & 0x000f000f, under the exponent of 128 (bf16; of 1024
for fp16) where a nibble's lowest bit counts 1, is a register of two operands: three instructions for two weights, with
the one that takes 128 + z off again.
"""

import functools

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Capability,
    Case,
    Config,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    element_size,
    gpu_of,
    torch_dtype,
)
from atlas.operators import Differentiable, Operator, launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels._packed import (
    DTYPES,
    ROWS,
    Packed,
    by_row_tiles,
    check_weight,
    of_row_tiles,
    quantise_w4,
    shuffle_w4,
    sixteen,
    unpack_4,
    unpack_8,
    unshuffle_w4,
)

__all__ = ["dequantise_w4", "linear_w4a16", "pack_w4"]

TILE_WORDS = 128
"""32-bit words of a packed tile: four for each lane of a warp."""


# --- Decode: tensor cores fed from a ring of asynchronous copies -----------------------------------------------------


_LOADED = ("w0", "w1", "w2", "w3")


def _loaded(address, unpack):
    """PTX: what unpacks four words, put after their load from an address."""
    return f"{{ .reg .b32 w<4>; ld.shared.v4.b32 {{{', '.join(_LOADED)}}}, [{address}];\n{unpack}}}"


def _unpack_4_asm(bf16):
    """PTX: four words at an address (16), less the zero points of two rows (20, 22), as the operands of four mma."""
    return _loaded("$16", unpack_4(bf16, _LOADED, ("$20", "$22")))


def _unpack_8_asm(bf16):
    """PTX: four words of signs and magnitudes at an address (8) to operands of two mma (0..7)."""
    return _loaded("$8", unpack_8(bf16, _LOADED))


def _scales_asm(bf16):
    """PTX: the scales of rows g and g + 8 at an address (4), in fp32, each twice (0..3); an infinite one is NaN.

    That is what an infinite weight would give: some of a group's numbers are 0.
    """
    lines = ["{ .reg .b32 t, u; .reg .f32 f, h; .reg .b16 a, b;", "ld.shared.b32 t, [$4];"]
    if bf16:
        lines.append("shl.b32 u, t, 16; mov.b32 f, u; and.b32 u, t, 0xffff0000; mov.b32 h, u;")
    else:
        lines.append("mov.b32 {a, b}, t; cvt.f32.f16 f, a; cvt.f32.f16 h, b;")
    lines.append("fma.rn.f32 $0, f, 0f00000000, f; mov.f32 $1, $0; fma.rn.f32 $2, h, 0f00000000, h; mov.f32 $3, $2; }")
    return "\n".join(lines)


def _zeros_asm(bf16):
    """PTX: -(128 + z), for fp16 -(1024 + z), twice in 32 bits, of rows g and g + 8 at an address (4), each twice."""
    minus = sixteen(bf16)[1] | 0x80008000
    return (
        "{ .reg .b32 t; ld.shared.u16 t, [$4];\n"
        f"prmt.b32 $0, t, {minus}, 0x5050; mov.b32 $1, $0; prmt.b32 $2, t, {minus}, 0x5151; mov.b32 $3, $2; }}"
    )


def _mma(bf16, half):
    """PTX: 16 x 16 weights (4..7) times 16 of k of eight rows of x (words 2 half, 2 half + 1 of 8..11), plus 12..15."""
    kind, _, _ = sixteen(bf16)
    return (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
        f"{{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{${8 + 2 * half}, ${9 + 2 * half}}}, {{$12, $13, $14, $15}};"
    )


def _copy_asm(size):
    """PTX: begin to copy so many bytes of weights from 2 to 1, 0 where 3 is 0.  Nothing is to leave L2 for them."""
    return (
        "{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
        f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global.L2::cache_hint [$1], [$2], {size}, $3, once;\n"
        "mov.b32 $0, 0; }"
    )


def _ring_asm(size, scales):
    """PTX: this thread's first word in a ring of so many bytes (0), and from a word of its to its scale (1).

    A ring of 0 bytes is where Triton's own shared memory begins.  Addresses are kept for each thread, none as a sum
    with a part that is the same for all threads: of such sums and a policy ptxas 12.8 makes instructions that are
    illegal.
    """
    declared, ring = (f".shared .align 16 .b8 ring[{size}];", "ring") if size else ("", "global_smem")
    return (
        f"{{ .reg .b32 t, r; {declared} mov.u32 r, {ring}; mov.u32 t, %tid.x;\n"
        f"mad.lo.u32 $0, t, 16, r; mad.lo.s32 $1, t, -12, {scales}; }}"
    )


def _operands(kind, outputs, inputs):
    """Constraints of inline assembly, outputs in registers of their own."""
    return gl.constexpr(",".join([f"=&{kind}"] * outputs + ["r"] * inputs))


_MMA_OPERANDS = gl.constexpr(",".join(["=f"] * 4 + ["r"] * 8 + ["f"] * 4))
_UNPACK_4_OPERANDS = _operands("r", 16, 8)
_UNPACK_8_OPERANDS = _operands("r", 8, 4)
_SCALES_OPERANDS = _operands("f", 4, 4)
_ZEROS_OPERANDS = _operands("r", 4, 4)
_READ_X_OPERANDS = _operands("r", 4, 4)
_COPY_4, _COPY_16 = gl.constexpr(_copy_asm(4)), gl.constexpr(_copy_asm(16))
_COPY_X = gl.constexpr("cp.async.cg.shared.global [$1], [$2], 16, $3; mov.b32 $0, 0;")
_READ_X = gl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")
_COMMIT = gl.constexpr("cp.async.commit_group; mov.b32 $0, $1;")
_WAIT_FOR_ALL = gl.constexpr("cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
_ORDER = gl.constexpr([5, 4, 3, 2, 1, 0])


@gluon.jit
def _copy(addresses, ptrs, inside, BYTES: gl.constexpr, ASM: gl.constexpr):
    """Begin to copy BYTES from each pointer to each address; zeros where not inside."""
    sizes = gl.where(inside, BYTES, 0)
    gl.inline_asm_elementwise(ASM, "=r,r,l,r", [addresses, ptrs, sizes], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _after(address, ASM: gl.constexpr):
    """The address, known only after an instruction: what is read there is read after it."""
    return gl.inline_asm_elementwise(ASM, "=r,r", [address], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _multiply(operand, x, acc, ASM: gl.constexpr):
    """acc + weights @ x^T of one mma instruction in each warp; the registers of a lane are the last dimension."""
    return gl.inline_asm_elementwise(ASM, _MMA_OPERANDS, [operand, x, acc],
                                     dtype=gl.float32, is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def _unpack_4(addresses, minus, ASM: gl.constexpr):
    """Four packed words of a lane as the weights' operands of four mma instructions, zero points off."""
    return gl.inline_asm_elementwise(ASM, _UNPACK_4_OPERANDS, [addresses, minus],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def _scales_at(addresses, ASM: gl.constexpr):
    """Scales in fp32, for each accumulator of a lane."""
    return gl.inline_asm_elementwise(ASM, _SCALES_OPERANDS, [addresses], dtype=gl.float32, is_pure=True, pack=4)


@gluon.jit
def _minus_zeros_at(addresses, HAS_ZEROS: gl.constexpr, BF16: gl.constexpr, ASM: gl.constexpr, layout: gl.constexpr):
    """-(128 + z), for fp16 -(1024 + z), twice in 32 bits, for each accumulator's row."""
    if HAS_ZEROS:
        minus = gl.inline_asm_elementwise(ASM, _ZEROS_OPERANDS, [addresses], dtype=gl.int32, is_pure=True, pack=4)
    else:
        MINUS_8: gl.constexpr = 0xC308C308 - 2**32 if BF16 else 0xE408E408 - 2**32
        minus = gl.full([1, 1, 1, 1, 1, 4], MINUS_8, gl.int32, layout)
    return minus


@gluon.jit
def _places(ROW_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr):
    """(packed tile along n, along k of a warp's, warp, lane): indices along the dimensions 1 to 4."""
    row_tile = gl.set_auto_layout(gl.arange(0, ROW_TILES)[None, :, None, None, None, None], layout)
    depth = gl.set_auto_layout(gl.arange(0, DEPTH)[None, None, :, None, None, None], layout)
    warp = gl.set_auto_layout(gl.arange(0, WARPS)[None, None, None, :, None, None], layout)
    lane = gl.set_auto_layout(gl.arange(0, 32)[None, None, None, None, :, None], layout)
    return row_tile, depth, warp, lane


@gluon.jit
def _x_places(
    x_ptr, M, K, BITS: gl.constexpr, AT: gl.constexpr, WORDS: gl.constexpr, M_TILES: gl.constexpr,
    DEPTH: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """(pointers to x's first WORDS words of each lane, in a step of the ring from AT on, packed tile along k).

    Rows past M are those of the last one again: they cost nothing, and their products are not stored.
    """
    m_tile = gl.set_auto_layout(gl.arange(0, M_TILES)[:, None, None, None, None, None], layout)
    word = gl.set_auto_layout(gl.arange(0, WORDS)[None, None, None, None, None, :], layout)
    _, depth, warp, lane = _places(1, DEPTH, WARPS, layout)
    tile = warp * DEPTH + depth
    row = gl.minimum(m_tile * 8 + lane // 4, M - 1)
    # Offsets of 64 bits, so that the compiler may leave what it knows of them to the instructions.
    ptrs = x_ptr + (row * (K // 2) + lane % 4 * 4).to(gl.int64) + tile.to(gl.int64) * (128 // BITS) + word
    return ptrs, AT + (m_tile * DEPTH + depth) * (WARPS * 512), tile


@gluon.jit
def _word_places(
    words_ptr, first, within, tiles_k, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """(pointers to the lanes' words, in a step of the ring, packed tile along k, whether there are such rows)."""
    row_tile, depth, warp, lane = _places(ROW_TILES, DEPTH, WARPS, layout)
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
    row_tile, depth, warp, lane = _places(ROW_TILES, SCALE_DEPTH, WARPS, layout)
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
    ptrs, _, tile = x
    first = step * (STEP * (256 // BITS))
    k = first + tile * (256 // BITS)
    ptrs += first // 2
    low = gl.load(ptrs, mask=k < K, other=0) if MASKED else gl.load(ptrs)
    high = low
    if BITS == 4:
        high = gl.load(ptrs + 16, mask=k + 32 < K, other=0) if MASKED else gl.load(ptrs + 16)
    return low, high


@gluon.jit
def _copy_x(at, x, step, K, BITS: gl.constexpr, STEP: gl.constexpr, HALF: gl.constexpr):
    """Begin to copy what ``_load_x`` loads to this thread's part of a step of the ring."""
    ptrs, x_at, tile = x
    first = step * (STEP * (256 // BITS))
    k = first + tile * (256 // BITS)
    ptrs += first // 2
    at = gl.convert_layout(at, x_at.type.layout) + x_at
    _copy(at, ptrs, k < K, 16, _COPY_X)
    if BITS == 4:
        _copy(at + HALF, ptrs + 16, k + 32 < K, 16, _COPY_X)


@gluon.jit
def _read_x(addresses, BITS: gl.constexpr, HALF: gl.constexpr):
    """What ``_copy_x`` copied, the halves as ``_load_x`` gives them."""
    low = gl.inline_asm_elementwise(_READ_X, _READ_X_OPERANDS, [addresses], dtype=gl.int32, is_pure=True, pack=4)
    high = low
    if BITS == 4:
        high = gl.inline_asm_elementwise(_READ_X, _READ_X_OPERANDS, [addresses + HALF],
                                         dtype=gl.int32, is_pure=True, pack=4)  # fmt: skip
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
    _copy(at_words, word_ptrs + step.to(gl.int64) * (STEP * 128), inside, 16, _COPY_16)
    if GROUP > 0:
        scale_ptrs, scales_at, scale_tile, scale_inside, zero_ptrs = scales
        k = first + scale_tile * TILE_K
        offs = k // GROUP * 16
        at_scales = gl.convert_layout(at, scales_at.type.layout) + scales_at
        scale_inside = scale_inside & (k < K)
        _copy(at_scales, scale_ptrs + offs, scale_inside, 4, _COPY_4)
        if HAS_ZEROS:
            _copy(at_scales + NEXT, zero_ptrs + offs, scale_inside, 4, _COPY_4)
        if BITS == 4 and GROUP == 32:
            scale_inside = scale_inside & (k + 32 < K)
            _copy(at_scales + 2 * NEXT, scale_ptrs + (offs + 16), scale_inside, 4, _COPY_4)
            if HAS_ZEROS:
                _copy(at_scales + 3 * NEXT, zero_ptrs + (offs + 16), scale_inside, 4, _COPY_4)


@gluon.jit
def _multiply_step(
    words_at, scales_at, zeros_at, x, x_high, acc, zero, HAS_ZEROS: gl.constexpr, GROUP: gl.constexpr,
    BITS: gl.constexpr, BF16: gl.constexpr, UNPACK: gl.constexpr, SCALES: gl.constexpr, ZEROS: gl.constexpr,
    LOW: gl.constexpr, HIGH: gl.constexpr, NEXT: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """acc plus the products of x and what ``_copy_step`` copied for the same step."""
    if BITS == 4:
        a, b, c, d = _unpack_4(words_at, _minus_zeros_at(zeros_at, HAS_ZEROS, BF16, ZEROS, layout), UNPACK)
        total = _multiply(b, x, _multiply(a, x, zero, LOW), HIGH)
        if GROUP == 32:
            acc = gl.fma(_scales_at(scales_at, SCALES), total, acc)
            total, scales_at = zero, scales_at + 2 * NEXT
            if HAS_ZEROS:
                minus = _minus_zeros_at(zeros_at + 2 * NEXT, HAS_ZEROS, BF16, ZEROS, layout)
                _, _, c, d = _unpack_4(words_at, minus, UNPACK)
        total = _multiply(d, x_high, _multiply(c, x_high, total, LOW), HIGH)
        acc = gl.fma(_scales_at(scales_at, SCALES), total, acc)
    else:
        a, b = gl.inline_asm_elementwise(UNPACK, _UNPACK_8_OPERANDS, [words_at],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
        if GROUP > 0:
            total = _multiply(b, x, _multiply(a, x, zero, LOW), HIGH)
            acc = gl.fma(_scales_at(scales_at, SCALES), total, acc)
        else:
            acc = _multiply(b, x, _multiply(a, x, acc, LOW), HIGH)
    return acc


@gluon.jit
def _fragments_kernel(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K, groups,
    GROUP: gl.constexpr, BITS: gl.constexpr, BF16: gl.constexpr, MASKED: gl.constexpr, RING: gl.constexpr,
    WAIT: gl.constexpr, UNPACK: gl.constexpr, SCALES: gl.constexpr, ZEROS: gl.constexpr, LOW: gl.constexpr,
    HIGH: gl.constexpr, M_TILES: gl.constexpr, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr,
    SCALE_DEPTH: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr, STAGE: gl.constexpr, X_AT: gl.constexpr,
    OWN_RING: gl.constexpr,
):  # fmt: skip
    """One program owns 16 ROW_TILES columns of y; its warps take DEPTH packed tiles along k in turns.

    Every tensor has a dimension of its own for: eight rows of x (M_TILES), packed tiles along n (ROW_TILES) and along k
    (DEPTH, for scales SCALE_DEPTH), warps, lanes, and four registers of a lane.  Words, scales and zero points, and x
    where X_AT is not 0, come by asynchronous copies into a ring of STAGES steps, of which each thread has a part for
    itself: what it reads there it has copied, so no thread waits for another.  Nothing but the last sum passes between
    threads.  STAGES is 2 or more: a step is awaited before the copies of a later one begin, so one stage alone would be
    read before its own.  x_ptr counts in words, two elements of x.

    Unless OWN_RING the ring is memory of Triton's, which has the last sum there as well: it begins when all is read.
    """
    TILE_K: gl.constexpr = 256 // BITS
    STEP: gl.constexpr = DEPTH * WARPS
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    NEXT: gl.constexpr = ROW_TILES * SCALE_DEPTH * WARPS * 128  # from scales to zero points, and to the next of either
    HALF: gl.constexpr = M_TILES * STEP * 512  # from x's first half of tiles to the second
    lanes: gl.constexpr = [1, 1, 1, 1, 32, 1]
    warps: gl.constexpr = [1, 1, 1, WARPS, 1, 1]
    layout: gl.constexpr = gl.BlockedLayout([M_TILES, ROW_TILES, DEPTH, 1, 1, 4], lanes, warps, _ORDER)
    x_layout: gl.constexpr = gl.BlockedLayout([M_TILES, 1, DEPTH, 1, 1, 1], lanes, warps, _ORDER)
    words_layout: gl.constexpr = gl.BlockedLayout([1, ROW_TILES, DEPTH, 1, 1, 1], lanes, warps, _ORDER)
    scales_layout: gl.constexpr = gl.BlockedLayout([1, ROW_TILES, SCALE_DEPTH, 1, 1, 1], lanes, warps, _ORDER)
    own_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 1, 1], lanes, warps, _ORDER)
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
    if X_AT > 0:
        x = _x_places(x_ptr, M, K, BITS, X_AT, 1, M_TILES, DEPTH, WARPS, x_layout)
    else:
        x = _x_places(x_ptr, M, K, BITS, 0, 4, M_TILES, DEPTH, WARPS, layout)
    words = _word_places(words_ptr, first, within, tiles_k, ROW_TILES, DEPTH, WARPS, words_layout)
    scales = _scale_places(scales_ptr, zeros_ptr, first, within, groups, to_scales, ROW_TILES, DEPTH, SCALE_DEPTH,
                           WARPS, scales_layout)  # fmt: skip
    _, _, _, lane = _places(ROW_TILES, DEPTH, WARPS, layout)
    spread = gl.zeros([1, 1, 1, 1, 1, 4], gl.int32, layout)  # what a lane's four registers have the same
    words_at = gl.convert_layout(words[1], layout) + spread
    scales_at = gl.convert_layout(scales[1], layout) + spread
    zeros_at = scales_at + NEXT + lane // 4 % 2 * 2

    acc = gl.zeros([M_TILES, ROW_TILES, DEPTH, WARPS, 32, 4], gl.float32, layout)
    zero = gl.zeros([M_TILES, ROW_TILES, DEPTH, WARPS, 32, 4], gl.float32, layout)
    for stage in gl.static_range(STAGES - 1):
        step = gl.to_tensor(stage)
        _copy_step(first_at + stage * STAGE, words, scales, step, K, GROUP, BITS, HAS_ZEROS, STEP, NEXT)
        if X_AT > 0:
            _copy_x(first_at + stage * STAGE, x, step, K, BITS, STEP, HALF)
        _after(first_at, _COMMIT)
    at, fill = first_at, last_at
    for step in range(steps):
        later = step + (STAGES - 1)
        if X_AT == 0:
            low, high = _load_x(x, step, K, BITS, MASKED, STEP)
        now = gl.convert_layout(_after(at, WAIT), layout)
        _copy_step(fill, words, scales, later, K, GROUP, BITS, HAS_ZEROS, STEP, NEXT)
        if X_AT > 0:
            _copy_x(fill, x, later, K, BITS, STEP, HALF)
            low, high = _read_x(now + gl.convert_layout(x[1], layout) + spread, BITS, HALF)
        _after(fill, _COMMIT)
        acc = _multiply_step(now + words_at, now + scales_at, now + zeros_at, low, high, acc, zero, HAS_ZEROS, GROUP,
                             BITS, BF16, UNPACK, SCALES, ZEROS, LOW, HIGH, NEXT, layout)  # fmt: skip
        fill = at
        at = gl.where(at == last_at, first_at, at + STAGE)
    if not OWN_RING:
        _after(at, _WAIT_FOR_ALL)
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


def _m_tiles(m):
    return triton.next_power_of_2(triton.cdiv(m, 8))


def stage_bytes(bits, m, group, config):
    """(bytes of words, scales and zero points, bytes of x) of a step of the ring."""
    depth, warps = config["DEPTH"], config["num_warps"]
    scales = 0 if not group else _scale_depth(bits, group, depth) * (2 if bits == 4 and group == 32 else 1)
    x = _m_tiles(m) * depth * warps * (4096 // bits) if config["X_RING"] else 0
    return config["ROW_TILES"] * warps * (depth * 512 + scales * 256), x


OWN = 48 * 1024
"""Bytes of ring and last sum up to which inline assembly declares the ring: ptxas then knows how many programs run
beside each other, and leaves loads where they are.  A larger ring is Triton's, which asks the driver for so much."""


def ring_stages(bits, m, group, config):
    """(steps of the ring, whether it is declared by inline assembly, all bytes of shared memory).

    Two steps where RING holds fewer.
    """
    stage = sum(stage_bytes(bits, m, group, config))
    stages = max(2, config["RING"] * 1024 // stage)
    last_sum = _m_tiles(m) * config["ROW_TILES"] * config["num_warps"] * 512
    own = stages * stage + last_sum <= OWN
    return stages, own, stages * stage + last_sum if own else max(stages * stage, last_sum)


def launch_fragments(bits, x, words, scales, zeros, n, group, *, config):
    """Launch ``_fragments_kernel`` for weights of so many bits; ``group`` 0: a scale for each row.

    Triton raises OutOfResources where shared memory does not hold the ring.
    """
    (m, k), warps, bf16 = x.shape, config["num_warps"], x.dtype == torch.bfloat16
    rows, depth = config["ROW_TILES"], config["DEPTH"]
    packed_bytes, x_bytes = stage_bytes(bits, m, group, config)
    stages, own, _ = ring_stages(bits, m, group, config)
    stage = packed_bytes + x_bytes
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    launch(
        _fragments_kernel, (triton.cdiv(n, ROWS * rows),),
        x.view(torch.int32), words, scales, zeros, y, m, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, BF16=bf16, MASKED=k * bits % (256 * depth * warps) != 0,
        RING=_ring_asm(stage * stages if own else 0, rows * depth * warps * 512),
        WAIT=f"cp.async.wait_group {stages - 2}; mov.b32 $0, $1;",
        UNPACK=(_unpack_4_asm if bits == 4 else _unpack_8_asm)(bf16), SCALES=_scales_asm(bf16), ZEROS=_zeros_asm(bf16),
        LOW=_mma(bf16, 0), HIGH=_mma(bf16, 1), M_TILES=_m_tiles(m), ROW_TILES=rows,
        DEPTH=depth, SCALE_DEPTH=_scale_depth(bits, group, depth), WARPS=warps, STAGES=stages, STAGE=stage,
        X_AT=packed_bytes if x_bytes else 0, OWN_RING=own, num_warps=warps,
    )  # fmt: skip
    return y


# --- Plain Triton: tiles of weights in x's dtype --------------------------------------------------------------------


@triton.jit
def _scale_and_zero(scales_ptr, zeros_ptr, offs, mask):
    scales = tl.load(scales_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if zeros_ptr is not None:
        zeros = tl.load(zeros_ptr + offs, mask=mask, other=0).to(tl.float32)
    else:
        zeros = tl.full(scales.shape, 8, tl.float32)
    return scales, zeros


@triton.jit
def _weight(words, scales, zeros, ROW: tl.constexpr, COLUMN: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """The weights of row g + 8 ROW in packed words, rounded to DTYPE; COLUMN is 2 q + p (8 bits: p)."""
    if BITS == 4:
        number = ((words >> (4 * (ROW + 2 * (COLUMN // 2) + 4 * (COLUMN % 2)))) & 15).to(tl.float32) - zeros
    else:
        SIGN: tl.constexpr = 8 * ((2 * COLUMN + ROW + 1) % 4) + 7  # in the next byte
        magnitude = ((words >> (8 * (2 * COLUMN + ROW))) & 127).to(tl.float32)
        number = tl.where(((words >> SIGN) & 1) != 0, -magnitude, magnitude)
    return (number * scales).to(DTYPE)


@triton.jit
def _both_rows(words, scales_0, zeros_0, scales_1, zeros_1, COLUMN: tl.constexpr, BITS: tl.constexpr,
               DTYPE: tl.constexpr):  # fmt: skip
    first = _weight(words, scales_0, zeros_0, 0, COLUMN, BITS, DTYPE)
    return tl.join(first, _weight(words, scales_1, zeros_1, 1, COLUMN, BITS, DTYPE))


@triton.jit
def _weights(
    words_ptr, scales_ptr, zeros_ptr, first_n, first_k, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Weights BLOCK_N x BLOCK_K from (first_n, first_k) on, multiples of packed tiles, in DTYPE; 0 outside."""
    TILE_K: tl.constexpr = 256 // BITS
    TILES_N: tl.constexpr = BLOCK_N // 16
    TILES_K: tl.constexpr = BLOCK_K // TILE_K
    tile_n = first_n // 16 + tl.arange(0, TILES_N)[None, :, None, None, None]
    tile_k = first_k // TILE_K + tl.arange(0, TILES_K)[:, None, None, None, None]
    g = tl.arange(0, 8)[None, None, :, None, None]
    t = tl.arange(0, 4)[None, None, None, :, None]
    word = tl.arange(0, 4)[None, None, None, None, :]
    inside = (tile_n < tl.cdiv(N, 16)) & (tile_k < tl.cdiv(K, TILE_K))
    tile = tile_n.to(tl.int64) * tl.cdiv(K, TILE_K) + tile_k
    words = tl.load(words_ptr + tile * 128 + (g * 16 + t * 4 + word), mask=inside, other=0)
    group = tile_k * 0
    if GROUP > 0:
        k = tile_k * TILE_K
        if BITS == 4:
            k += word // 2 * 32
        inside = inside & (k < K)
        group = k // GROUP
    offs = (tile_n.to(tl.int64) * groups + group) * 16 + 2 * g
    scales_0, zeros_0 = _scale_and_zero(scales_ptr, zeros_ptr, offs, inside)
    scales_1, zeros_1 = _scale_and_zero(scales_ptr, zeros_ptr, offs + 1, inside)
    both = (scales_0, zeros_0, scales_1, zeros_1)
    even = _both_rows(words, *both, 0, BITS, DTYPE)
    odd = _both_rows(words, *both, 1, BITS, DTYPE)
    if BITS == 4:  # tile of k, tile of n, g, t, half tile, half word, h, q, p
        even = tl.join(even, _both_rows(words, *both, 2, BITS, DTYPE))
        odd = tl.join(odd, _both_rows(words, *both, 3, BITS, DTYPE))
        split = tl.join(even, odd).reshape(TILES_K, TILES_N, 8, 4, 2, 2, 2, 2, 2)
        ordered = split.permute(1, 6, 2, 0, 4, 3, 5, 7, 8)
    else:  # tile of k, tile of n, g, t, half word, q, h, p
        split = tl.join(even, odd).reshape(TILES_K, TILES_N, 8, 4, 2, 2, 2, 2)
        ordered = split.permute(1, 6, 2, 0, 3, 4, 5, 7)
    return ordered.reshape(BLOCK_N, BLOCK_K)


@triton.jit
def _tiles_kernel(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, OPERAND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of y, BLOCK_M x BLOCK_N; it goes down GROUP_M rows of tiles before the next column.

    Weights are rounded to x's dtype, and multiplied in OPERAND.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = tl.program_id(0) // tiles_of_group * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    within = tl.program_id(0) % tiles_of_group
    tile_m, tile_n = first_m + within % height, within // height
    # Rows past M wrap around to valid ones: the loop needs no mask for them, and they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs) if EVEN_K else tl.load(x_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
        w = _weights(words_ptr, scales_ptr, zeros_ptr, tile_n * BLOCK_N, k, N, K, groups,
                     GROUP, BITS, BLOCK_N, BLOCK_K, x_ptr.dtype.element_ty)  # fmt: skip
        acc = tl.dot(x.to(OPERAND), w.to(OPERAND).T, acc, input_precision="ieee")
        x_ptrs += BLOCK_K
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    y_ptrs = y_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@triton.jit
def _dequantise_kernel(
    words_ptr, scales_ptr, zeros_ptr, w_ptr, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N x BLOCK_K weights [n, k], written in the dtype of w."""
    first_n, first_k = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_K
    w = _weights(words_ptr, scales_ptr, zeros_ptr, first_n, first_k, N, K, groups,
                 GROUP, BITS, BLOCK_N, BLOCK_K, w_ptr.dtype.element_ty)  # fmt: skip
    offs_n, offs_k = first_n + tl.arange(0, BLOCK_N), first_k + tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    tl.store(w_ptrs, w, mask=(offs_n[:, None] < N) & (offs_k[None, :] < K))


def launch_tiles(bits, x, words, scales, zeros, n, group, *, config):
    """Launch ``_tiles_kernel`` for weights of so many bits; ``group`` 0: a scale for each row."""
    m, k = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    # The interpreter's tl.dot multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    as_fp32 = x.device.type == "cpu" and x.dtype == torch.bfloat16
    sixteen = tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16
    launch(
        _tiles_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, words, scales, zeros, y, m, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, OPERAND=tl.float32 if as_fp32 else sixteen, EVEN_K=k % config["BLOCK_K"] == 0, **config,
    )  # fmt: skip
    return y


def launch_dequantise(bits, words, scales, zeros, n, k, group, *, config):
    """The weights [n, k] that packed ones stand for, in the dtype of their scales."""
    w = torch.empty((n, k), dtype=scales.dtype, device=scales.device)
    grid = (triton.cdiv(n, config["BLOCK_N"]), triton.cdiv(k, config["BLOCK_K"]))
    launch(
        _dequantise_kernel, grid, words, scales, zeros, w, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, **config,
    )  # fmt: skip
    return w


def launch_separate(bits, x, words, scales, zeros, n, group, *, config):
    """Write the weights in x's dtype, then leave the product to torch, which is cuBLAS."""
    w = launch_dequantise(bits, words, scales, zeros, n, x.shape[1], group, config=config)
    return torch.nn.functional.linear(x, w)


def launch_specialized(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel of Hopper's own file."""
    import kernels.hopper.matmul_w4a16 as hopper

    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    programs = gpu_of(x.device).sms
    hopper.specialized(bits, x, words, scales, zeros, y, group, config=config, programs=programs)
    return y


def launch_shared(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel of the file of its own."""
    import kernels._shared_fragments as shared

    return shared.launch_shared(bits, x, words, scales, zeros, n, group, config=config)


# --- The operator and the public functions ---------------------------------------------------------------------------


def linear_operator(name, bits, declaration):
    """(linear, dequantise): the differentiable operator of x [m, k] with weights of so many bits, and their operator.

    ``declaration()`` is asked for variant and config.  x alone has a gradient, dy times the weights: they are written
    out in their dtype and the product is torch's.
    """

    def run_dequantise(words, scales, zeros, n, k, group):
        return launch_dequantise(bits, _aligned(words), scales, zeros, n, k, group, config=_DEQUANTISE)

    def run(x, words, scales, zeros, n, group):
        if not x.shape[0]:
            return x.new_empty((0, n))
        problem = case_of(x, zeros, n, group)
        variant, config = choose(declaration(), "forward", problem, x.device)
        scales, zeros = _aligned(scales), None if zeros is None else _aligned(zeros)
        return variant.launch(_aligned(x), _aligned(words), scales, zeros, n, group, config=config)

    def keep(ctx, inputs, output):
        x, words, scales, zeros, ctx.n, ctx.group = inputs
        ctx.save_for_backward(words, scales, zeros)
        ctx.k = x.shape[1]

    def pull_back(ctx, dy):
        return dy @ dequantise(*ctx.saved_tensors, ctx.n, ctx.k, ctx.group), None, None, None, None, None

    dequantise = Operator(
        f"{name}_dequantise", "(Tensor words, Tensor scales, Tensor? zeros, int n, int k, int group) -> Tensor",
        run=run_dequantise, fake=lambda words, scales, zeros, n, k, group: scales.new_empty((n, k)),
    )  # fmt: skip
    linear = Operator(
        name, "(Tensor x, Tensor words, Tensor scales, Tensor? zeros, int n, int group) -> Tensor",
        run=run, fake=lambda x, words, scales, zeros, n, group: x.new_empty((x.shape[0], n)),
    )  # fmt: skip
    return Differentiable(linear, setup_context=keep, backward=pull_back), dequantise


def _aligned(tensor):
    """The tensor, copied where it does not begin on 16 bytes."""
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def case_of(x, zeros, n, group):
    """The case of a call: ``group`` 0 for one scale a row."""
    return case(DTYPES[x.dtype], m=x.shape[0], n=n, k=x.shape[1], group=group, zeros=zeros is not None)


def call_linear(name, linear, input, packed):
    """``input`` [..., k] through a differentiable operator of ``linear_operator``, checked."""
    words, scales, zeros, n, k, group = packed
    if input.dtype != scales.dtype:
        raise TypeError(f"{name} takes an input of the dtype that was packed: {input.dtype}, {scales.dtype}")
    if not input.dim() or input.shape[-1] != k:
        raise ValueError(f"{name} takes an input of {k} features: {tuple(input.shape)}")
    if input.device != words.device:
        raise ValueError(f"{name} takes input and weights on one device: {input.device}, {words.device}")
    zeros = None if zeros is None else zeros.contiguous()
    rows = input.reshape(-1, k).contiguous()
    y = linear(rows, words.contiguous(), scales.contiguous(), zeros, n, group)
    return y.view(*input.shape[:-1], n)


def pack_w4(weight: torch.Tensor, group_size: int = 128, symmetric: bool = False) -> Packed:
    """Quantise the weights [n, k] of a linear layer, fp16 or bf16, to 4 bits and bring them into the kernels' order.

    Each row's groups of ``group_size`` (32, 64, 128) neighbours get a scale and, unless ``symmetric``, a zero point:
    16 levels from the least to the largest weight, zero among them.  Done once for a model; takes 3 bytes of scratch
    memory for a weight, and more for a short while.  Weights must be finite.

    Raises TypeError for other dtypes, ValueError for other shapes and group sizes and for k not a multiple of the
    group size.
    """
    check_weight("pack_w4", weight, group_size)
    q, scales, zeros = quantise_w4(weight.detach(), group_size, symmetric)
    zeros = None if zeros is None else by_row_tiles(zeros)
    return Packed(shuffle_w4(q), by_row_tiles(scales), zeros, *weight.shape, group_size)


_linear, _dequantise = linear_operator("matmul_w4a16", 4, lambda: DECLARATION)


def linear_w4a16(input: torch.Tensor, packed: Packed) -> torch.Tensor:
    """``torch.nn.functional.linear(input, weight)`` for weights that ``pack_w4`` has packed: [..., k] to [..., n].

    The input is of the dtype that the weights had, fp16 or bf16, in any strides; accumulates in fp32.  The input alone
    has a gradient: packed weights are frozen.

    Raises TypeError for an input of another dtype, ValueError for other sizes and devices.
    """
    return call_linear("linear_w4a16", _linear, input, packed)


def dequantise_w4(packed: Packed) -> torch.Tensor:
    """The weights [n, k] that packed ones stand for, (q - z) s, rounded to the dtype of their scales."""
    words, scales, zeros, n, k, group = packed
    return _dequantise(words, scales, zeros, n, k, group)


# --- Reference, inputs, peers ----------------------------------------------------------------------------------------


def dequantised(words, scales, zeros, rows, columns, group):
    """Plain torch, in the scales' dtype: exact in float64."""
    q = unshuffle_w4(words, rows, columns).to(scales.dtype).view(rows, columns // group, group)
    z = 8 if zeros is None else of_row_tiles(zeros, rows).to(scales.dtype)[..., None]
    return ((q - z) * of_row_tiles(scales, rows)[..., None]).view(rows, columns)


def _in_natural_order(words, scales, zeros, rows, columns):
    """(q [n, k], scales [n, groups], zeros [n, groups] in the scales' dtype)."""
    q, scales = unshuffle_w4(words, rows, columns), of_row_tiles(scales, rows).contiguous()
    zeros = torch.full_like(scales, 8) if zeros is None else of_row_tiles(zeros, rows).to(scales.dtype).contiguous()
    return q, scales, zeros


def _compiled(x, words, scales, zeros, n, group):
    """torch.compile of dequantisation and product, from numbers in their natural order, two in a byte."""

    def product(x, pairs, scales, zeros):
        q = torch.stack((pairs & 15, pairs >> 4), -1).view(n, scales.shape[1], -1)
        w = (q.to(x.dtype) - zeros[..., None]) * scales[..., None]
        return torch.nn.functional.linear(x, w.view(n, -1))

    q, scales, zeros = _in_natural_order(words, scales, zeros, n, x.shape[1])
    pairs = (q[:, ::2] | q[:, 1::2] << 4).contiguous()
    torch._dynamo.reset()
    fast = torch.compile(product, dynamic=False)
    fast(x, pairs, scales, zeros)
    return lambda: fast(x, pairs, scales, zeros)


def _torch_int4(x, words, scales, zeros, n, group):
    """torch's own kernel, (q - 8) s + c with c = (8 - z) s: bf16 alone, and not on every GPU."""
    if x.dtype != torch.bfloat16 or x.shape[1] % 128 or n % 64:
        raise NotImplementedError("torch's _weight_int4pack_mm is for bf16, k a multiple of 128 and n of 64")
    if x.shape[0] > 64:
        raise NotImplementedError("torch's _weight_int4pack_mm is written for few rows")
    q, scales, zeros = _in_natural_order(words, scales, zeros, n, x.shape[1])
    tiles = torch.ops.aten._convert_weight_to_int4pack((q[:, ::2] << 4 | q[:, 1::2]).contiguous(), 8)
    both = torch.stack((scales, (8 - zeros) * scales), -1).transpose(0, 1).contiguous()
    return lambda: torch.ops.aten._weight_int4pack_mm(x, tiles, group, both)


# --- Cases, spaces, declaration --------------------------------------------------------------------------------------


def sizes(problem: Case, bits: int) -> dict[str, float]:
    """Bytes of x, weights, scales, zero points and y."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    size, groups = element_size(problem.dtype), k // problem["group"] if problem["group"] else 1
    found = {"x": m * k * size, "words": n * k * bits / 8, "scales": n * groups * size, "y": m * n * size}
    return found | ({"zeros": n * groups} if problem["zeros"] else {})


def common_cases(**given):
    """What weights of either width are timed at, with a group size and zero points as given."""
    return [
        *(case("bf16", m=m, n=8192, k=8192, **given) for m in (1, 4, 16, 64, 512, 4096)),
        *(
            case("bf16", reason, m=m, n=n, k=k, **given)
            for m in (1, 16)
            for n, k, reason in (
                (14336, 4096, "feed-forward, up, of a model 4096 wide"),
                (4096, 14336, "feed-forward, down: few rows of weights, a long sum"),
                (28672, 8192, "feed-forward, up, of a model 8192 wide"),
            )
        ),
    ]


_CASES = (
    *common_cases(group=128, zeros=True),
    case("fp16", "symmetric, in fp16", m=1, n=8192, k=8192, group=128, zeros=False),
    case("bf16", "small groups: more scales to read", m=1, n=8192, k=8192, group=32, zeros=True),
)

_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, k=k, group=group, zeros=zeros)
    for dtype in DTYPES.values()
    for (m, n, k, group, zeros), reason in (
        ((3, 48, 128, 64, True), "whole tiles of weights, two groups"),
        ((1, 16, 32, 32, True), "half a tile of weights, one row"),
        ((5, 40, 96, 32, True), "tails in m, n and k; two groups in a tile"),
        ((12, 40, 384, 128, True), "9 to 16 rows, tails in m and n; three groups of two tiles"),
        ((16, 40, 1152, 128, True), "k in parts of unequal length; nine groups of two tiles"),
        ((17, 33, 256, 128, False), "symmetric; 17 rows, a tail of one row of weights"),
        ((70, 70, 192, 64, True), "more rows than the kernel for few takes; three groups"),
        ((8, 1, 128, 128, True), "one row of weights"),
        ((40, 136, 64, 64, True), "more than 32 rows; rows of y of whole 16 bytes, as TMA writes them; a tail in n"),
        ((136, 24, 96, 32, False), "a third tile of 64 rows, tails in m, n and k for tiles of 128; three groups"),
        ((264, 8, 64, 64, True), "a second tile of 256 rows; fewer weights than a packed tile has"),
    )
)

FEW_ROWS = 32
"""The most rows of x that `fragments` takes: each lane holds an accumulator for every 8 of them, and x beside them.

On an H200 it takes 100 to 140 us for 64 rows of 8192 x 8192 weights, as long as ``separate``."""


def decodes(problem: Case, gpu: GPU) -> str:
    """Why ``fragments`` does not take a case."""
    if gpu.backend != "cuda":
        return "written in instructions of NVIDIA's tensor cores, which Triton's interpreter and other GPUs lack"
    return f"more than {FEW_ROWS} rows: x is read again for every few columns" if problem["m"] > FEW_ROWS else ""


FRAGMENTS_SPACE = {
    "ROW_TILES": (1, 2, 4),
    "DEPTH": (1, 2, 4),
    "num_warps": (4, 8),
    "RING": (24, 40, 72, 104, 160),
    "X_RING": (0, 1),
}
"""RING: KiB of the ring, of which whole steps are used.  X_RING: whether x comes through it, as weights do."""

# By bits and whether x has at most 8 rows: what was fastest at one of the benchmark's sizes on an H200, or beside it.
_FRAGMENTS = {
    (4, True): ((1, 2, 4, 24, 0), (1, 2, 8, 40, 0), (1, 4, 4, 40, 0), (2, 2, 4, 24, 0), (2, 2, 4, 40, 0),
                (2, 2, 8, 72, 0)),
    (4, False): ((2, 2, 4, 24, 0), (2, 2, 4, 40, 0), (2, 2, 4, 72, 1), (2, 2, 8, 160, 1), (4, 1, 4, 72, 1),
                 (4, 1, 8, 160, 1)),
    (8, True): ((1, 4, 4, 24, 0), (1, 4, 4, 40, 0), (1, 2, 8, 24, 0), (1, 4, 8, 72, 0), (2, 2, 8, 72, 0)),
    (8, False): ((2, 2, 4, 24, 0), (4, 2, 4, 72, 0), (2, 2, 8, 104, 1), (4, 1, 8, 72, 1), (4, 1, 8, 104, 1)),
}  # fmt: skip


def fits_fragments(bits, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``fragments`` cannot launch or be the best."""
    if tuple(config[name] for name in FRAGMENTS_SPACE) not in _FRAGMENTS[bits, problem["m"] <= 8]:
        return "too few bytes under way, too many registers, or x read too often"
    if 2 * sum(stage_bytes(bits, problem["m"], problem["group"], config)) > config["RING"] * 1024:
        return "the ring holds no two steps"
    _, _, shared = ring_stages(bits, problem["m"], problem["group"], config)
    return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most" if shared > gpu.shared_bytes else ""


def fragments_default(bits, problem: Case, gpu: GPU) -> dict[str, int]:
    """What was fastest of a few configs on an H200: more warps where there are few programs, x beside their weights."""
    few = triton.cdiv(problem["n"], 2 * ROWS) <= (1 if bits == 4 else 2) * gpu.sms
    if 8 < problem["m"] <= 16 and few and gpu.shared_bytes >= 160 * 1024:
        shape = (2, 2, 8, 160 if bits == 4 else 104, 1)
    elif problem["m"] > 8:
        shape = (2, 2, 4, 40 if bits == 4 and problem["group"] == 32 else 24, 0)
    elif bits == 8:
        shape = (1, 4, 4, 24, 0)
    else:
        shape = (1, 2, 8, 40, 0) if triton.cdiv(problem["n"], ROWS) < 3 * gpu.sms else (1, 2, 4, 24, 0)
    return dict(zip(FRAGMENTS_SPACE, shape, strict=True))


SHARED_SPACE = {
    "ROW_TILES": (1, 2),
    "DEPTH": (2, 4),
    "num_warps": (4, 8),
    "STAGES": (4, 5),
    "SPLITS": (1, 2, 4, 8, 16),
}

# By bits: steps of 128 columns, for 8 bits of 64 too, with two to four programs an SM.
_SHARED = {
    4: ((1, 2, 4, 4), (1, 2, 4, 5), (1, 2, 8, 4), (2, 2, 4, 4), (2, 2, 8, 4)),
    8: ((1, 4, 4, 4), (2, 2, 4, 5), (2, 4, 4, 4), (2, 4, 8, 4)),
}
_WARPS_OF_SM = (6, 16)
"""Warps for each SM that programs have in all: fewer wait for memory, more do not fit at once."""


def shares(bits, problem: Case, gpu: GPU) -> str:
    """Why ``shared`` does not take a case."""
    if bits == 4 and problem["group"] == 32:
        return "a packed tile is multiplied before it is scaled, and has two groups"
    return decodes(problem, gpu)


def _steps_and_warps(bits, config: Config, problem: Case):
    """(steps of k, warps of all programs that share it)."""
    rows = ROWS * config["ROW_TILES"] * config["num_warps"]
    steps = triton.cdiv(problem["k"] * bits, 256 * config["DEPTH"])
    return steps, triton.cdiv(problem["n"], rows) * config["num_warps"]


def fits_shared(bits, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``shared`` cannot launch or be the best."""
    import kernels._shared_fragments as shared

    *shape, splits = (config[name] for name in SHARED_SPACE)
    if tuple(shape) not in _SHARED[bits]:
        return "too few bytes under way, or programs too large to run beside each other"
    if problem["group"] and config["DEPTH"] * 256 // bits % problem["group"]:
        return "a group is longer than a step"
    steps, warps = _steps_and_warps(bits, config, problem)
    fewest, most = (gpu.sms * number for number in _WARPS_OF_SM)
    if splits > 1 and splits * warps > most:
        return "more parts than run at once"
    if 2 * splits in SHARED_SPACE["SPLITS"] and 8 * splits <= steps and splits * warps < fewest:
        return "SMs without work"
    _, bytes_ = shared.shared_bytes(bits, problem["m"], problem["group"], problem["zeros"], config)
    return f"{bytes_} bytes of shared memory, {gpu.shared_bytes} at most" if bytes_ > gpu.shared_bytes else ""


def shared_default(bits, problem: Case, gpu: GPU) -> dict[str, int]:
    """As many parts of k as give each SM its warps, unless they get short."""
    config = dict(zip(SHARED_SPACE, (2 if bits == 4 else 1, 2 if bits == 4 else 4, 4, 4, 1), strict=True))
    steps, warps = _steps_and_warps(bits, config, problem)
    fewest = _WARPS_OF_SM[0] * gpu.sms
    while config["SPLITS"] < 16 and 8 * config["SPLITS"] <= steps and config["SPLITS"] * warps < fewest:
        config["SPLITS"] *= 2
    return config


TILES_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (64,),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3),
}


def fits_tiles(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``tiles`` cannot launch or be the best."""
    if config == tiles_default(problem, gpu):
        return ""
    rows, columns, warps = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps"))
    if not _tensor_cores(gpu):
        return "without tensor cores operands lie in registers, as fp32: a larger tile spills"
    if problem["m"] <= FEW_ROWS:
        return "few rows are better left to `fragments`: one config shows by how much"
    if rows < 64 or config["num_stages"] < 3:
        return "many rows want each weight, once it is brought to 16 bits, to be used often"
    if not 16 <= columns * 64 // (32 * warps) <= 32 or rows * columns // (32 * warps) > 64:
        return "weights or accumulators that spill, or too few for so many warps"
    if rows >= 2 * problem["m"] or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as y"
    return ""


SPECIALIZED_SPACE = {"BLOCK_M": (64, 128, 256), "GROUP_M": (1, 4, 16), "AHEAD": (0, 16), "WARP_GROUPS": (1, 2)}
"""AHEAD: how many packed tiles ahead the copy engine brings weights to L2; 0: it does not.  WARP_GROUPS: of four warps,
each with 64 rows of weights."""


def specialises(problem: Case, gpu: GPU) -> str:
    """Why ``specialized`` does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem["m"] <= FEW_ROWS:
        return f"no more than {FEW_ROWS} rows"
    return "" if problem["n"] % 8 == 0 else "TMA writes rows of whole 16 bytes"


def fits_specialized(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``specialized`` cannot be the best."""
    if config["BLOCK_M"] != specialized_default(problem, gpu)["BLOCK_M"]:
        return "each weight is brought to 16 bits for every BLOCK_M rows"
    if config["WARP_GROUPS"] == 1 and config["BLOCK_M"] > 64:
        return "x is read for every 64 rows of weights"
    tiles = triton.cdiv(problem["m"], config["BLOCK_M"])
    return "more than there are tiles of x" if config["GROUP_M"] >= 2 * tiles else ""


def specialized_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The tallest tile that y fills."""
    rows = next((rows for rows in (64, 128) if rows >= problem["m"]), 256)
    band = max(g for g in (1, 4) if g < 2 * triton.cdiv(problem["m"], rows))
    return {"BLOCK_M": rows, "GROUP_M": band, "AHEAD": 16, "WARP_GROUPS": 1 if rows == 64 else 2}


def _tensor_cores(gpu: GPU) -> bool:
    return Capability.TENSOR_CORES in gpu.capabilities


def tiles_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The tallest tile that y fills; small ones where there are no tensor cores."""
    shape = (16, 32, 64, 4, 2)
    if _tensor_cores(gpu):
        tall = {16: (16, 64, 64, 4, 3), 32: (32, 64, 64, 4, 3), 64: (64, 64, 64, 4, 3)}
        height = next((rows for rows in tall if rows >= problem["m"]), 128)
        # 128 rows spill 8 bytes a thread on sm_80 (Triton 3.7.1)
        tallest = (128, 64, 64, 8, 3) if Capability.WGMMA in gpu.capabilities else tall[64]
        shape = tall.get(height, tallest)
        if problem["n"] <= 32:
            shape = (shape[0], 32, 64, 4, 3)
    rows, columns, k, warps, stages = shape
    return {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": k, "GROUP_M": 8, "num_warps": warps, "num_stages": stages}


SEPARATE_SPACE = {"BLOCK_N": (32,), "BLOCK_K": (64, 128), "num_warps": (4, 8)}
_DEQUANTISE = {"BLOCK_N": 32, "BLOCK_K": 64, "num_warps": 4}


def fits_separate(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``separate`` is not the best."""
    weights = config["BLOCK_N"] * config["BLOCK_K"] // (32 * config["num_warps"])
    return "" if 16 <= weights <= 32 else f"{weights} weights a thread"


def variants_of(bits):
    """The variants for weights of so many bits, the preferred one first."""
    return (
        Variant(
            name="fragments",
            summary="for few rows: packed words become operands of tensor cores where they were loaded; warps share k",
            launch=functools.partial(launch_fragments, bits),
            space=FRAGMENTS_SPACE,
            default=functools.partial(fragments_default, bits),
            fits=functools.partial(fits_fragments, bits),
            handles=decodes,
            needs=frozenset({Capability.TENSOR_CORES}),
        ),
        Variant(
            name="shared",
            summary="for few rows: the warps of a program share x and have columns of their own; programs share k",
            launch=functools.partial(launch_shared, bits),
            space=SHARED_SPACE,
            default=functools.partial(shared_default, bits),
            fits=functools.partial(fits_shared, bits),
            handles=functools.partial(shares, bits),
            needs=frozenset({Capability.TENSOR_CORES}),
        ),
        Variant(
            name="specialized",
            summary="for many rows: a warp loads x, two groups of four bring weights to 16 bits in wgmma's registers",
            launch=functools.partial(launch_specialized, bits),
            space=SPECIALIZED_SPACE,
            default=specialized_default,
            fits=fits_specialized,
            handles=specialises,
            needs=frozenset({Capability.WGMMA}),
        ),
        Variant(
            name="separate",
            summary="for many rows: the weights are written out in 16 bits, the product is cuBLAS's",
            launch=functools.partial(launch_separate, bits),
            space=SEPARATE_SPACE,
            default=lambda problem, gpu: dict(_DEQUANTISE),
            fits=fits_separate,
            handles=lambda problem, gpu: "" if problem["m"] > FEW_ROWS else f"no more than {FEW_ROWS} rows",
        ),
        Variant(
            name="tiles",
            summary="plain Triton: tiles of weights are brought to 16 bits between load and tl.dot",
            launch=functools.partial(launch_tiles, bits),
            space=TILES_SPACE,
            default=tiles_default,
            fits=fits_tiles,
        ),
    )


def declared(name, bits, summary, function, pack, dequantised, cases, edge_cases, peers):
    """The declaration of products with weights of so many bits.

    ``pack(weight, case)`` gives a case's weights, ``dequantised(words, scales, zeros, n, k, group)`` what they stand
    for in plain torch; ``peers`` are those beside torch's product with weights of 16 bits.
    """

    def inputs(problem: Case, device, generator):
        def draw(*shape):
            return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

        packed = pack(draw(problem["n"], problem["k"]), problem)
        x = draw(problem["m"], problem["k"])
        return {"x": x, "words": packed.words, "scales": packed.scales, "zeros": packed.zeros, "n": problem["n"],
                "group": problem["group"]}  # fmt: skip

    def reference(x, words, scales, zeros, n, group):
        return torch.nn.functional.linear(x, dequantised(words, scales, zeros, n, x.shape[1], group))

    def in_16_bits(x, words, scales, zeros, n, group):
        """What a user has without packed weights: torch's product with weights in x's dtype, dequantised before."""
        w = dequantised(words, scales.float(), zeros, n, x.shape[1], group).to(x.dtype)
        return lambda: torch.nn.functional.linear(x, w)

    def call(function, given):
        packed = (given[name] for name in ("words", "scales", "zeros", "n"))
        return function(given["x"], Packed(*packed, given["x"].shape[1], given["group"]))

    huge = dict(cases[0].sizes) | {"m": 2**18 + 1, "n": 64, "k": 8192}
    return Declaration(
        name=name,
        family="matmul",
        summary=summary,
        function=function,
        call=call,
        dtypes=tuple(DTYPES.values()),
        cases=lambda gpu: [c for c in cases if 4 * c["n"] * c["k"] <= gpu.memory_bytes // 8],
        edge_cases=edge_cases,
        huge_cases=(case("bf16", "offsets into x beyond 2^31", **huge),),
        differentiable=("x",),
        forward=Pass(
            inputs=inputs,
            reference=reference,
            outputs=("y",),
            variants=variants_of(bits),
            peers={"torch": Peer(in_16_bits)} | peers,
            bytes=lambda c: sizes(c, bits),
            flops=lambda c: {"x @ W^T": 2 * c["m"] * c["n"] * c["k"]},
            reduction=lambda c: c["k"],
        ),
    )


DECLARATION = declared(
    "matmul_w4a16",
    4,
    "y = x W^T, W of 4 bits with a scale and a zero point for each group",
    linear_w4a16,
    lambda weight, problem: pack_w4(weight, problem["group"], not problem["zeros"]),
    dequantised,
    _CASES,
    _EDGE_CASES,
    {"torch.compile": Peer(_compiled, compiles=True), "torch int4": Peer(_torch_int4)},
)
