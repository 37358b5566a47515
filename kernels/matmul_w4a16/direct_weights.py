"""Weights of `direct`, from a stage in shared memory to wgmma's first operand: words, scales and zero points.

A packed tile has the lanes' weights in the order of fragments, eight neighbours along k a lane; wgmma wants two here
and two there.  So the four lanes of a row exchange words, four shuffles for 32 weights, before they become 16 bits, in
two halves of a stage's columns: a half is made while products of the stage before run, and :func:`pin` keeps it there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import unpack_8

from .exchange import exchange_4_asm, exchange_8_asm, half_4_asm
from .hopper import scale_asm

_PIN = gl.constexpr(
    "{ .reg .pred p; setp.lt.s32 p, $8, 0; @p st.shared.v4.b32 [$8], {$4, $5, $6, $7};\n"
    "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }"
)
"""PTX: a store that never happens: ptxas moves no product and no wait over it, and so not over what it would store."""

_EXCHANGE_OPERANDS = gl.constexpr(",".join(["=&r"] * 4 + ["r"] * 8))
_HALF_4_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 8))
_HALF_8_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 4))


def ptx_of(bits, bf16):
    """PTX that has lanes exchange words, makes either half's weights of them, and scales these."""
    if bits == 4:
        return exchange_4_asm(), half_4_asm(bf16, 0), half_4_asm(bf16, 1), scale_asm(bf16)
    return exchange_8_asm(), *[unpack_8(bf16, ("$8", "$9", "$10", "$11"))] * 2, scale_asm(bf16)


@gluon.constexpr_function
def _numbers_layout(halves):
    """Which lane has which numbers of a stage [8 row tiles, g, or of two halves]: those of its row tile and g."""
    registers = [[4, 0]] + ([[0, 8]] if halves == 2 else [])
    return gl.DistributedLinearLayout(
        registers, [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]], [[1, 0], [2, 0]], [], [8, 8 * halves]
    )


@gluon.constexpr_function
def _words_layout(tiles):
    """Which lane has which words of packed tiles, in lines [4 row tiles, 8 lines, 16]: its own 16 bytes of each."""
    registers = [[0, 0, 1], [0, 0, 2]] + ([[0, 8, 0]] if tiles == 2 else [])
    lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[1, 0, 0], [2, 0, 0]], [], [4, 8 * tiles, 16])


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
    HAS_ZEROS: gl.constexpr, PTX: gl.constexpr, four: gl.constexpr,
):  # fmt: skip
    """What the group's weights of a stage are made of: (exchanged words, more words, scales and zero points)."""
    words_smem, scales_smem, zeros_smem = smems[1], smems[2], smems[3]
    PAIRS: gl.constexpr = (W_GROUPS + 1) // 2
    TILES: gl.constexpr = BITS // 4
    EXCHANGE: gl.constexpr = PTX[0]
    words = words_smem.index(slot * W_GROUPS + W_GROUP).load(_words_layout(TILES)).reshape([4, TILES, 8, 4, 4])
    if BITS == 4:
        words = _fours(EXCHANGE, gl.convert_layout(words.reshape([4, 8, 4, 4]), four), lane)
        more = words
    else:
        words, more = words.permute(0, 2, 3, 4, 1).split()
        words = _fours(EXCHANGE, gl.convert_layout(words, four), lane)
        more = gl.convert_layout(more, four)
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
    return words, more, scales, scales_high, zeros, zeros_high


@gluon.jit
def upper_words(more, lane, BITS: gl.constexpr, PTX: gl.constexpr):
    """The words of the upper half of a stage's columns: of 4 bits they are exchanged with the lower half's."""
    EXCHANGE: gl.constexpr = PTX[0]
    return _fours(EXCHANGE, more, lane) if BITS == 8 else more


@gluon.jit
def weights_of_half(
    words, scales, zeros, BITS: gl.constexpr, GROUP: gl.constexpr, PTX: gl.constexpr, HALF: gl.constexpr
):  # fmt: skip
    """The weights of two products, a half of a stage's columns; where a row has one scale, without it."""
    UNPACK: gl.constexpr = PTX[1 + HALF]
    SCALE: gl.constexpr = PTX[3]
    if BITS == 4:
        a, b = gl.inline_asm_elementwise(UNPACK, _HALF_4_OPERANDS, [words, zeros + gl.zeros_like(words)],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
    else:
        a, b = gl.inline_asm_elementwise(UNPACK, _HALF_8_OPERANDS, [words], dtype=(gl.int32, gl.int32), is_pure=True,
                                         pack=4)  # fmt: skip
    if GROUP > 0:
        a, b = _fours(SCALE, a, scales), _fours(SCALE, b, scales)
    return a, b
