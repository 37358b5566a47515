"""Weights of `direct` turned over: from a stage's packed words to wgmma's first operand [64 columns, 16 rows].

Warp w takes word w of every lane's four of a packed tile (of 8 bits: of a lane's words in two tiles), which is 16 of 64
columns: 32 (w / 2) + 8 t + 4 (w % 2) + 2 q + p, for the operand's rows 8 q + 2 t + p.  A stage has four tiles of 16
rows, a product each; two of them are made at a time, scaled in 16 bits and turned over by blocks of 8 x 8.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import sixteen

_HALF_4_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 12))
_HALF_8_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 8))


def ptx_of(bits, bf16):
    """PTX that makes the weights of the first two row tiles of words, and of the other two."""
    return tuple((_half_4_asm if bits == 4 else _half_8_asm)(bf16, half) for half in (0, 1))


def _turned(kind, first):
    """PTX: registers t0 to t3 times the scales of rows g (s0) and g + 8, and turned over, from operand ``first`` on.

    Of the four blocks of 8 x 8 those off the diagonal change places.
    """
    lines = [f"mul.rn.{kind}x2 t{i}, t{i}, s{i % 2};" for i in range(4)]
    return lines + [f"movmatrix.sync.aligned.m8n8.trans.b16 ${first + i}, t{j};" for i, j in enumerate((0, 2, 1, 3))]


def _half_4_asm(bf16, half):
    """PTX: words (8..11), zero points (12..15), scales (16..19) of four row tiles; of two the operands (0..7)."""
    kind, magic, one = sixteen(bf16)
    minus = magic | 0x80008000
    lines = [f"{{ .reg .b32 u, one, z0, z1, s0, s1, t<4>; mov.b32 one, {one};"]
    for j in range(2):
        at = 2 * half + j
        lines.append(f"prmt.b32 z0, ${12 + at}, {minus}, 0x5050; prmt.b32 z1, ${12 + at}, {minus}, 0x5151;")
        lines.append(f"prmt.b32 s0, ${16 + at}, ${16 + at}, 0x1010; prmt.b32 s1, ${16 + at}, ${16 + at}, 0x3232;")
        for i in range(4):
            lines.append(f"shr.u32 u, ${8 + at}, {4 * i};" if i else f"mov.b32 u, ${8 + at};")
            lines.append(f"lop3.b32 u, u, 0x000f000f, {magic}, 0xea;")
            lines.append(f"fma.rn.{kind}x2 t{i}, u, one, z{i % 2};")
        lines += _turned(kind, 4 * j)
    return "\n".join([*lines, "}"])


def _half_8_asm(bf16, half):
    """PTX: two words each (8..11) of two row tiles, scales (12..15) of four; the operands of two (0..7)."""
    kind, magic, one = sixteen(bf16)
    lines = [f"{{ .reg .b32 t, u, v, one, s0, s1, t<4>; mov.b32 one, {one};"]
    for j in range(2):
        at = 12 + 2 * half + j
        lines.append(f"prmt.b32 s0, ${at}, ${at}, 0x1010; prmt.b32 s1, ${at}, ${at}, 0x3232;")
        for word in range(2):
            for part in range(2):
                w = f"${8 + 2 * j + word}"
                lines.append(f"prmt.b32 t, {w}, 0, 0x0321;" if part else f"mov.b32 t, {w};")
                lines.append(f"lop3.b32 u, t, 0x807f807f, {magic}, 0x6a;")
                lines.append(f"lop3.b32 v, t, 0x80008000, {magic ^ 0x80008000}, 0x6a;")
                lines.append(f"fma.rn.{kind}x2 t{2 * word + part}, u, one, v;")
        lines += _turned(kind, 4 * j)
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _words_layout(bits):
    """Which lane has which words of packed tiles [4 row tiles, 8 lines, 16]: those of 16 columns a warp."""
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    tiles = [[1, 0, 0], [2, 0, 0]]
    if bits == 8:
        return gl.DistributedLinearLayout([[0, 0, 1], *tiles], lanes, [[0, 0, 2], [0, 8, 0]], [], [4, 16, 16])
    return gl.DistributedLinearLayout(tiles, lanes, [[0, 0, 1], [0, 0, 2]], [], [4, 8, 16])


@gluon.constexpr_function
def _numbers_layout(halves):
    """Which lane has which numbers of a stage [4 row tiles, g, or of two halves]: all row tiles' of its g."""
    lanes, tiles = [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]], [[1, 0], [2, 0]]
    registers = tiles + ([[0, 8]] if halves == 2 else [])
    return gl.DistributedLinearLayout(registers, lanes, [[0, 0], [0, 0]], [], [4, 8 * halves])


@gluon.constexpr_function
def _own_numbers_layout():
    """The same, of two halves that of the warp's columns alone."""
    lanes = [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]]
    return gl.DistributedLinearLayout([[1, 0], [2, 0]], lanes, [[0, 0], [0, 8]], [], [4, 16])


@gluon.jit
def _words(smem, BITS: gl.constexpr, four: gl.constexpr):
    """(words of the first two row tiles, of the other two); of 4 bits both are of all four."""
    words = smem.load(_words_layout(BITS))
    if BITS == 8:
        split = words.reshape([2, 2, 2, 8, 4, 2, 2]).permute(2, 5, 3, 4, 1, 6, 0)  # tile, pair, g, t, jl, r, jh
        low, high = split.split()
        low = gl.convert_layout(low.reshape([4, 8, 4, 4]), four, assert_trivial=True)
        high = gl.convert_layout(high.reshape([4, 8, 4, 4]), four, assert_trivial=True)
    else:
        low = gl.convert_layout(words.reshape([4, 8, 4, 4]).permute(3, 1, 2, 0), four, assert_trivial=True)
        high = low
    return low, high


@gluon.jit
def _numbers(smem, HALVES: gl.constexpr, GROUP: gl.constexpr, four: gl.constexpr):
    """Numbers of each g and row tile [4 warps, 8, 4 or 1, 4]."""
    if GROUP == 32:
        five: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 4], [1, 1, 8, 4, 1], [2, 2, 1, 1, 1], [4, 3, 2, 1, 0])
        own = smem.load(_own_numbers_layout()).to(gl.int32).reshape([4, 2, 8]).permute(1, 2, 0)  # half, g, row tile
        own = gl.convert_layout(own, gl.SliceLayout(1, gl.SliceLayout(3, five)))[:, None, :, None, :]
        own = own + gl.zeros([2, 2, 8, 4, 4], gl.int32, five)
        return gl.convert_layout(own.reshape([4, 8, 4, 4]), four, assert_trivial=True)
    else:
        every = smem.load(_numbers_layout(HALVES)).to(gl.int32)
        if HALVES == 2:
            every, _ = every.reshape([4, 2, 8]).permute(0, 2, 1).split()
        flat: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, four))
        return gl.convert_layout(every.permute(1, 0), flat)[None, :, None, :]


@gluon.jit
def packed_of_stage(
    smems, slot, _, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    HAS_ZEROS: gl.constexpr, four: gl.constexpr,
):  # fmt: skip
    """As that of :mod:`.direct_weights`: (words, more words, scales and zero points, the same of the other half)."""
    at = slot * W_GROUPS + W_GROUP
    words, more = _words(smems[1].index(at), BITS, four)
    scales = _numbers(smems[2].index(at), 2 if GROUP == 32 else 1, GROUP, four)
    zeros = scales
    if HAS_ZEROS:
        zeros = _numbers(smems[3].index(at), 2, GROUP, four)
    elif BITS == 4:
        zeros = gl.full([4, 8, 4, 4], 0x0808, gl.int32, four)
    return words, more, (scales, zeros), (scales, zeros)


@gluon.jit
def weights_of_half(words, numbers, BITS: gl.constexpr, _: gl.constexpr, PTX: gl.constexpr, HALF: gl.constexpr):
    """The operands of the products of two row tiles."""
    scales, zeros = numbers
    nought = gl.zeros_like(words)
    if BITS == 4:
        a, b = gl.inline_asm_elementwise(
            PTX[HALF], _HALF_4_OPERANDS, [words, zeros + nought, scales + nought], dtype=(gl.int32, gl.int32),
            is_pure=True, pack=4,
        )  # fmt: skip
    else:
        a, b = gl.inline_asm_elementwise(
            PTX[HALF], _HALF_8_OPERANDS, [words, scales + nought], dtype=(gl.int32, gl.int32), is_pure=True, pack=4,
        )  # fmt: skip
    return a, b
