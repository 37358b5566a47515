"""Weights of `light`: a stage's packed words become 64 rows of 16 bits as wgmma reads them from shared memory.

A lane loads its own words of packed tiles, whose numbers are eight neighbours along k and two rows: what it writes are
pairs, two neighbours.  Warps have a row tile each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .direct_weights import ptx_of
from .hopper import scale_asm, unpack_4_asm

_OF_UNPACK_4 = gl.constexpr(",".join(["=&r"] * 16 + ["r"] * 8))
_OF_UNPACK_8 = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 4))
_OF_SCALE = gl.constexpr(",".join(["=&r"] * 4 + ["r"] * 8))


def asm_of(bits, group, bf16):
    """PTX that makes weights of words, and that scales them; of 8 bits and a scale a row parts of them, as `direct`."""
    return unpack_4_asm(bf16) if bits == 4 else ptx_of(8, group, bf16)[0], scale_asm(bf16)


@gluon.constexpr_function
def _bits(n):
    """[1, 2, 4, ...] below n."""
    return [1 << bit for bit in range(n.bit_length() - 1)]


@gluon.constexpr_function
def _words_layout(bits, turns):
    """Which lane has which words of row tiles [4, lines of 64 columns times ``turns``, 16]: its own, by 16 bytes."""
    lines = 2 * bits
    registers = [[0, 0, 1], [0, 0, 2]] + ([[0, 8, 0]] if bits == 8 else []) + [[0, lines * b, 0] for b in _bits(turns)]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 4, 0], [0, 1, 0], [0, 2, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[1, 0, 0], [2, 0, 0]], [], [4, lines * turns, 16])


@gluon.constexpr_function
def _own_layout(turns):
    """The same words [row tile, turn, g, t, word], of 8 bits one of a turn's two tiles: those of a lane."""
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]] + [[0, b, 0, 0, 0] for b in _bits(turns)]
    lanes = [[0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 0, 4, 0, 0], [0, 0, 1, 0, 0], [0, 0, 2, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[1, 0, 0, 0, 0], [2, 0, 0, 0, 0]], [], [4, turns, 8, 4, 4])


@gluon.constexpr_function
def _numbers_layout(group, turns, width):
    """Which lane has which numbers [8 row tiles, (groups, g)] of ``turns`` times 64 columns: those of its rows.

    The last four row tiles are not wanted: of fewer than eight the block would lie otherwise than its swizzle says.
    """
    step = {32: 16, 64: 8, 128: 0}[group]
    wanted = ([8] if group == 32 else []) + [step * b for b in _bits(turns) if step]
    unwanted = [8 * b for b in _bits(width // 8) if 8 * b not in wanted]
    registers = [[0, column] for column in wanted + unwanted] + [[4, 0]]
    lanes = [[0, 0], [0, 0], [0, 4], [0, 1], [0, 2]]
    return gl.DistributedLinearLayout(registers, lanes, [[1, 0], [2, 0]], [], [8, width])


@gluon.jit
def _numbers(smem, TURNS: gl.constexpr, GROUP: gl.constexpr, five: gl.constexpr):
    """(numbers of the lower half of each 64 columns, of the upper) [4, TURNS or 1, 8, 1, 1]."""
    WIDTH: gl.constexpr = smem.shape[1]
    every = smem.load(_numbers_layout(GROUP, TURNS, WIDTH)).to(gl.int32)
    every, _ = every.reshape([2, 4, WIDTH]).permute(1, 2, 0).split()
    flat: gl.constexpr = gl.SliceLayout(3, gl.SliceLayout(4, five))
    if GROUP == 32:
        low, high = every.reshape([4, TURNS, 2, 8]).permute(0, 1, 3, 2).split()
        low = gl.convert_layout(low, flat)[:, :, :, None, None]
        high = gl.convert_layout(high, flat)[:, :, :, None, None]
    else:
        GROUPS: gl.constexpr = TURNS if GROUP == 64 else 1
        if WIDTH > 8 * GROUPS:
            every, _ = every.reshape([4, 2, 8]).permute(0, 2, 1).split()
        low = gl.convert_layout(every.reshape([4, GROUPS, 8]), flat)[:, :, :, None, None]
        high = low
    return low, high


@gluon.jit
def _unpacked_4(words, zeros, ASM: gl.constexpr):
    """Of four words each one's pairs, in the place of words (q, h)."""
    return gl.inline_asm_elementwise(ASM, _OF_UNPACK_4, [words, zeros + gl.zeros_like(words)],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def _unpacked_8(words, ASM: gl.constexpr):
    """Of two words each the same of four: of the first two, of the last."""
    return gl.inline_asm_elementwise(ASM, _OF_UNPACK_8, [words], dtype=(gl.int32, gl.int32), is_pure=True, pack=4)


@gluon.jit
def _scaled(pairs, scales, ASM: gl.constexpr):
    return gl.inline_asm_elementwise(ASM, _OF_SCALE, [pairs, scales + gl.zeros_like(pairs)], dtype=gl.int32,
                                     is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def weights_of(
    words_smem, scales_smem, zeros_smem, TURNS: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    HAS_ZEROS: gl.constexpr, ASM: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """The weights [64, 64 TURNS] of a stage; where a row has one scale, without it."""
    UNPACK: gl.constexpr = ASM[0]
    SCALE: gl.constexpr = ASM[1]
    five: gl.constexpr = _own_layout(TURNS)
    words = words_smem.load(_words_layout(BITS, TURNS))
    if BITS == 4:
        words = gl.convert_layout(words.reshape([4, TURNS, 8, 4, 4]), five, assert_trivial=True)
        zeros = gl.full([4, TURNS, 8, 4, 4], 0x0808, gl.int32, five)
        if HAS_ZEROS:
            zeros, zeros_high = _numbers(zeros_smem, TURNS, GROUP, five)
        a, b, c, d = _unpacked_4(words, zeros, UNPACK)
        if HAS_ZEROS and GROUP == 32:
            _, _, c, d = _unpacked_4(words, zeros_high, UNPACK)
    else:
        low, high = words.reshape([4, TURNS, 2, 8, 4, 4]).permute(0, 1, 3, 4, 5, 2).split()
        a, b = _unpacked_8(gl.convert_layout(low, five, assert_trivial=True), UNPACK)
        c, d = _unpacked_8(gl.convert_layout(high, five, assert_trivial=True), UNPACK)
    if GROUP > 0:
        low, high = _numbers(scales_smem, TURNS, GROUP, five)
        a, b = _scaled(a, low, SCALE), _scaled(b, low, SCALE)
        c, d = _scaled(c, high, SCALE), _scaled(d, high, SCALE)
    pairs = gl.join(gl.join(a, c), gl.join(b, d))
    first = (pairs & 0xFFFF).to(gl.int16).to(DTYPE, bitcast=True)
    second = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    # row tile, turn, g, t, q, h, half of the columns, word of a half, p
    every = gl.join(first, second).reshape([4, TURNS, 8, 4, 2, 2, 2, 2, 2])
    return every.permute(0, 5, 2, 1, 6, 3, 7, 4, 8).reshape([64, 64 * TURNS])
