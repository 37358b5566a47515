"""Weights of `direct`, from a stage in shared memory to wgmma's first operand: words, scales and zero points.

A packed tile has the lanes' weights in the order of fragments, eight neighbours along k a lane; wgmma wants two here
and two there: what the four lanes of a row have is a 4 x 4 matrix to be turned over.  So lanes load from shared memory
not what is their own, but a word of each of the four.

Words become 16 bits in two halves of a stage's columns: a half is made while products of the stage before run, and
:func:`pin` keeps it there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import sixteen, unpack_8

from .hopper import scale_asm

_PIN = gl.constexpr(
    "{ .reg .pred p; setp.lt.s32 p, $8, 0; @p st.shared.v4.b32 [$8], {$4, $5, $6, $7};\n"
    "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }"
)
"""PTX: a store that never happens: ptxas moves no product and no wait over it, and so not over what it would store."""

_EXCHANGE_OPERANDS = gl.constexpr(",".join(["=&r"] * 4 + ["r"] * 8))
_HALF_4_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 8))
_HALF_8_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 4))


def ptx_of(bits, group, bf16):
    """PTX that makes either half's weights of words, and scales these; of 8 bits and a scale a row ``_parts_asm``."""
    if bits == 4:
        return _half_4_asm(bf16, 0), _half_4_asm(bf16, 1), scale_asm(bf16)
    words = ("$8", "$9", "$10", "$11")
    return *[unpack_8(bf16, words) if group else _parts_asm(bf16, words)] * 2, scale_asm(bf16)


def _half_4_asm(bf16, half):
    """PTX: of four words (8..11) of an operand's columns, minus zero points (12), a half's two operands."""
    kind, magic, one = sixteen(bf16)
    minus = magic | 0x80008000
    lines = [f"{{ .reg .b32 t, one, z0, z1; mov.b32 one, {one};"]
    lines += [f"prmt.b32 z0, $12, {minus}, 0x5050; prmt.b32 z1, $12, {minus}, 0x5151;"]
    for s in range(4):
        for h in range(2):
            shift = 8 * half + 4 * h
            lines.append(f"shr.u32 t, ${8 + s}, {shift};" if shift else f"mov.b32 t, ${8 + s};")
            lines.append(f"lop3.b32 t, t, 0x000f000f, {magic}, 0xea;")
            lines.append(f"fma.rn.{kind}x2 ${2 * s + h}, t, one, z{h};")
    return "\n".join([*lines, "}"])


def _parts_asm(bf16, words):
    """PTX: four words of signs and magnitudes as operands, of 64ths (fp16: of 512ths): numbers below the normal ones.

    A magnitude alone is 2^-133 (fp16: 2^-24) of itself, which a factor of 2^127 (2^15) makes a normal number, exactly.
    """
    kind, factor = ("bf16", 0x7F007F00) if bf16 else ("f16", 0x78007800)
    lines = [f"{{ .reg .b32 t, large; mov.b32 large, {factor};"]
    for at, word in enumerate(words):
        for half in range(2):
            lines.append(f"prmt.b32 t, {word}, 0, 0x0321;" if half else f"mov.b32 t, {word};")
            lines.append(f"and.b32 t, t, 0x807f807f; mul.rn.{kind}x2 ${2 * at + half}, t, large;")
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def parts_of_one(bits, dtype):
    """What the sums of weights with a scale a row are to be multiplied by, beside it: see ``_parts_asm``."""
    return 1.0 if bits == 4 else 64.0 if dtype == gl.bfloat16 else 512.0


@gluon.constexpr_function
def _numbers_layout(halves):
    """Which lane has which numbers of a stage [8 row tiles, g, or of two halves]: those of its row tile and g."""
    registers = [[4, 0]] + ([[0, 8]] if halves == 2 else [])
    return gl.DistributedLinearLayout(
        registers, [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]], [[1, 0], [2, 0]], [], [8, 8 * halves]
    )


@gluon.constexpr_function
def _words_layout(bits):
    """Which lane has which words of packed tiles, in lines [4 row tiles, 8 lines, 16]: those of an operand's columns.

    Of 8 bits lane t has word t of each of a row's four lanes, of 4 bits bytes of words t / 2 and t / 2 + 2.
    The descriptor's swizzle lets no two lanes meet a bank.
    """
    lanes = [[0, 0, 1], [0, 0, 2]] if bits == 8 else [[0, 0, 0], [0, 0, 1]]
    registers = [[0, 0, 4], [0, 0, 8], [0, 8, 0]] if bits == 8 else [[0, 0, 4], [0, 0, 8], [0, 0, 2]]
    lines = [[0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes + lines, [[1, 0, 0], [2, 0, 0]], [], [4, 2 * bits, 16])


@gluon.jit
def _words(smem, lane, BITS: gl.constexpr, four: gl.constexpr):
    """(words of the lower half of a stage's columns, of the upper), word s of lane t with what lane s has packed.

    Of 4 bits they are the same: number h + 2 half + 4 p is row g + 8 h, column 32 half + 8 s + 2 t + p.
    """
    words = smem.load(_words_layout(BITS))
    if BITS == 8:
        low, high = words.reshape([4, 2, 8, 4, 4]).permute(0, 2, 4, 3, 1).split()
        low = gl.convert_layout(low, four, assert_trivial=True)
        high = gl.convert_layout(high, four, assert_trivial=True)
    else:
        five: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 4], [1, 8, 2, 2, 1], [4, 1, 1, 1, 1], [4, 3, 2, 1, 0])
        first, second = words.reshape([4, 8, 4, 2, 2]).permute(0, 1, 4, 2, 3).split()
        first = _for_two(first, five, four)
        second = _for_two(second, five, four)
        even_or_odd = (lane % 2) * 0x1111 + 0x6240 + gl.zeros_like(first)
        low = gl.inline_asm_elementwise("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [first, second, even_or_odd],
                                        dtype=gl.int32, is_pure=True, pack=1)  # fmt: skip
        high = low
    return low, high


@gluon.jit
def _for_two(words, five: gl.constexpr, four: gl.constexpr):
    """Words [4, 8, 2, 4] of two lanes each for every lane."""
    words = gl.convert_layout(words, gl.SliceLayout(3, five), assert_trivial=True)[:, :, :, None, :]
    words = words + gl.zeros([4, 8, 2, 2, 4], gl.int32, five)
    return gl.convert_layout(words.reshape([4, 8, 4, 4]), four, assert_trivial=True)


@gluon.jit
def _numbers(smem, W_GROUP: gl.constexpr, HALVES: gl.constexpr, GROUP: gl.constexpr, four: gl.constexpr):
    """(numbers [4, 8, 1, 1] of the lower half of the columns, of the upper) of a group."""
    every = smem.load(_numbers_layout(HALVES)).to(gl.int32)
    low, high = every.reshape([2, 4, 8 * HALVES]).permute(1, 2, 0).split()
    own = low if W_GROUP % 2 == 0 else high
    flat: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, four))
    if HALVES == 2:
        first, second = own.reshape([4, 2, 8]).permute(0, 2, 1).split()
        first = gl.convert_layout(first, flat)[:, :, None, None]
        second = gl.convert_layout(second, flat)[:, :, None, None] if GROUP == 32 else first
    else:
        first = gl.convert_layout(own, flat)[:, :, None, None]
        second = first
    return first, second


@gluon.jit
def _fours(asm: gl.constexpr, value, other):
    """PTX of four registers of a value and one of another, to four registers."""
    return gl.inline_asm_elementwise(asm, _EXCHANGE_OPERANDS, [value, other + gl.zeros_like(value)], dtype=gl.int32,
                                     is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def pin(value, rows):
    """Keep what follows behind the making of ``value``; there are no fewer than 0 ``rows``, which ptxas cannot know."""
    gl.inline_asm_elementwise(_PIN, _EXCHANGE_OPERANDS, [value, rows + gl.zeros_like(value)], dtype=gl.int32,
                              is_pure=False, pack=4)  # fmt: skip


@gluon.jit
def packed_of_stage(
    smems, slot, lane, W_GROUP: gl.constexpr, W_GROUPS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    HAS_ZEROS: gl.constexpr, four: gl.constexpr,
):  # fmt: skip
    """What the group's weights of a stage are made of: (words, more words, each half's scales and zero points)."""
    words_smem, scales_smem, zeros_smem = smems[1], smems[2], smems[3]
    PAIRS: gl.constexpr = (W_GROUPS + 1) // 2
    words, more = _words(words_smem.index(slot * W_GROUPS + W_GROUP), lane, BITS, four)
    at = slot * PAIRS + W_GROUP // 2
    scales, scales_high = lane, lane  # of none, as a tuple holds no None
    if GROUP > 0:
        scales, scales_high = _numbers(scales_smem.index(at), W_GROUP, 2 if GROUP == 32 else 1, GROUP, four)
    zeros, zeros_high = scales, scales
    if HAS_ZEROS:
        zeros, zeros_high = _numbers(zeros_smem.index(at), W_GROUP, 2, GROUP, four)
    elif BITS == 4:
        zeros = gl.full([4, 8, 1, 1], 0x0808, gl.int32, four)
        zeros_high = zeros
    return words, more, (scales, zeros), (scales_high, zeros_high)


@gluon.jit
def weights_of_half(words, numbers, BITS: gl.constexpr, GROUP: gl.constexpr, PTX: gl.constexpr, HALF: gl.constexpr):
    """The weights of two products, a half of a stage's columns; where a row has one scale, without it."""
    scales, zeros = numbers
    UNPACK: gl.constexpr = PTX[HALF]
    SCALE: gl.constexpr = PTX[2]
    if BITS == 4:
        a, b = gl.inline_asm_elementwise(UNPACK, _HALF_4_OPERANDS, [words, zeros + gl.zeros_like(words)],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
    else:
        a, b = gl.inline_asm_elementwise(UNPACK, _HALF_8_OPERANDS, [words], dtype=(gl.int32, gl.int32), is_pure=True,
                                         pack=4)  # fmt: skip
    if GROUP > 0:
        a, b = _fours(SCALE, a, scales), _fours(SCALE, b, scales)
    return a, b
