"""All of the weights in 16 bits, on NVIDIA's GPUs from sm_80 on: packed words become weights where they were loaded.

A lane has eight neighbours along k of four parts of rows, of each 16 x 64 weights: four times 16 bytes, which it writes
as they are.  5120 x 5120 weights of 4 bits take 22.4 us on an H200; in plain Triton (`tiles`), where weights change
hands on the way, 25.8.
"""

import torch
import triton
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import ROWS, sixteen

from .hopper import unpack_4_asm, unpack_8_asm, weights_of

COLUMNS = gl.constexpr(64)
"""Columns that a lane's eight words are of, in 8 bits two packed tiles'."""


def _scale_asm(bf16):
    """PTX: an operand (4..7) times the scales (8) of rows g and g + 8, with -0 added: sm_80 has no product of bf16."""
    kind, _, _ = sixteen(bf16)
    lines = ["{ .reg .b32 s0, s1, minus; mov.b32 minus, 0x80008000;"]
    lines += ["prmt.b32 s0, $8, $8, 0x1010; prmt.b32 s1, $8, $8, 0x3232;"]
    lines += [f"fma.rn.{kind}x2 ${i}, ${4 + i}, s{i % 2}, minus;" for i in range(4)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _written_layout(row_tiles, units, along_n, along_k):
    """Which lane has which pairs of weights [16 row_tiles, 32 units], a lane's neighbours in neighbouring registers."""
    rows = [[16 << bit, 0] for bit in range(row_tiles.bit_length() - 1)]
    columns = [[0, 32 << bit] for bit in range(units.bit_length() - 1)]
    warps_n, warps_k = along_n.bit_length() - 1, along_k.bit_length() - 1
    registers = [[0, 1], [0, 2], [0, 16], [8, 0], *columns[warps_k:], *rows[warps_n:]]
    lanes = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]
    warps = columns[:warps_k] + rows[:warps_n]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [16 * row_tiles, 32 * units])


@gluon.jit
def _scales_of(scales_ptr, zeros_ptr, tile_n, k, g, N, K, groups, GROUP: gl.constexpr, one: gl.constexpr):
    """(scales, zero points) of the group that column k is in; scales again where there are no zero points.

    Loaded in a layout of ``one`` register a lane, or all of a lane's four words would load them.
    """
    layout: gl.constexpr = g.type.layout
    group = k // GROUP if GROUP > 0 else k * 0
    there = gl.convert_layout((tile_n < gl.cdiv(N, 16)) & (k < K) & (g >= 0), one)
    offs = gl.convert_layout((tile_n.to(gl.int64) * groups + group) * 8 + g, one)
    scales = gl.load(scales_ptr + offs, mask=there, other=0)
    zeros = scales
    if zeros_ptr is not None:
        zeros = gl.load(zeros_ptr + offs, mask=there, other=0).to(gl.int32)
    return gl.convert_layout(scales, layout), gl.convert_layout(zeros, layout)


@gluon.jit
def dequantise_kernel(
    words_ptr, scales_ptr, zeros_ptr, w_ptr, N, K, row_words, groups, GROUP: gl.constexpr, BITS: gl.constexpr,
    UNPACK: gl.constexpr, SCALE: gl.constexpr, ROW_TILES: gl.constexpr, UNITS: gl.constexpr,
):  # fmt: skip
    """One program writes 16 ROW_TILES rows by 64 UNITS columns, blocks along k first.

    w_ptr counts in words, two weights.  Scales and zero points are those of rows g and g + 8 in one word (zero points:
    half a word).
    """
    TILES: gl.constexpr = BITS // 4  # packed tiles of a unit
    WARPS: gl.constexpr = gl.num_warps()
    ALONG_N: gl.constexpr = ROW_TILES if ROW_TILES < WARPS else WARPS
    ALONG_K: gl.constexpr = WARPS // ALONG_N
    warps: gl.constexpr = [ALONG_N, ALONG_K, 1, 1, 1]
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 4], [1, 1, 8, 4, 1], warps, [4, 3, 2, 1, 0])
    blocks = gl.cdiv(K, UNITS * COLUMNS)
    first_tile = gl.program_id(0) // blocks * ROW_TILES
    first_unit = gl.program_id(0) % blocks * UNITS
    tile_n = first_tile + gl.set_auto_layout(gl.arange(0, ROW_TILES)[:, None, None, None, None], layout)
    unit = first_unit + gl.set_auto_layout(gl.arange(0, UNITS)[None, :, None, None, None], layout)
    g = gl.set_auto_layout(gl.arange(0, 8)[None, None, :, None, None], layout)
    t = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, :, None], layout)
    word = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, None, :], layout)
    tiles_k = gl.cdiv(K, 256 // BITS)
    there = tile_n < gl.cdiv(N, 16)
    ptrs = words_ptr + (tile_n.to(gl.int64) * tiles_k + unit * TILES) * 128 + ((g * 4 + t) * 4 + word)
    words = gl.load(ptrs, mask=there & (unit * TILES < tiles_k), other=0)
    more = words
    if BITS == 8:
        more = gl.load(ptrs + 128, mask=there & (unit * TILES + 1 < tiles_k), other=0)
    one: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 1], [1, 1, 8, 4, 1], warps, [4, 3, 2, 1, 0])
    scales, zeros = _scales_of(scales_ptr, zeros_ptr, tile_n, unit * COLUMNS, g + t * 0, N, K, groups, GROUP, one)
    scales_high, zeros_high = scales, zeros
    if GROUP == 32:
        scales_high, zeros_high = _scales_of(
            scales_ptr, zeros_ptr, tile_n, unit * COLUMNS + 32, g + t * 0, N, K, groups, GROUP, one
        )  # fmt: skip
    eights = gl.full([ROW_TILES, UNITS, 8, 4, 1], 0x0808, gl.int32, layout)
    loaded = words, more, scales, scales_high, zeros, zeros_high
    a, b, c, d = weights_of(loaded, eights, BITS, GROUP, zeros_ptr is not None, UNPACK, SCALE)
    pairs = gl.join(gl.join(a, c), gl.join(b, d))  # row tile, unit, g, t, (q, h), half of the columns, word of a half
    every = pairs.reshape([ROW_TILES, UNITS, 8, 4, 2, 2, 2, 2]).permute(0, 5, 2, 1, 6, 3, 7, 4)
    out: gl.constexpr = _written_layout(ROW_TILES, UNITS, ALONG_N, ALONG_K)
    w = gl.convert_layout(every.reshape([ROW_TILES * 16, UNITS * 32]), out, assert_trivial=True)
    row = gl.expand_dims(first_tile * 16 + gl.arange(0, ROW_TILES * 16, gl.SliceLayout(1, out)), 1)
    column = gl.expand_dims(first_unit * 32 + gl.arange(0, UNITS * 32, gl.SliceLayout(0, out)), 0)
    gl.store(w_ptr + row.to(gl.int64) * row_words + column, w, mask=(row < N) & (column < row_words))


def write_weights(bits, words, scales, zeros, w, group, *, config):
    """Write the weights w [n, k] that packed ones stand for, in the dtype of their scales."""
    (n, k), bf16 = w.shape, w.dtype == torch.bfloat16
    rows, columns = config["BLOCK_N"], config["BLOCK_K"]
    launch(
        dequantise_kernel, (triton.cdiv(n, rows) * triton.cdiv(k, columns),),
        words, scales.view(torch.int32), None if zeros is None else zeros.view(torch.int16), w.view(torch.int32), n, k,
        k // 2, k // group if group else 1, GROUP=group, BITS=bits,
        UNPACK=(unpack_4_asm if bits == 4 else unpack_8_asm)(bf16), SCALE=_scale_asm(bf16), ROW_TILES=rows // ROWS,
        UNITS=columns // COLUMNS.value, num_warps=config["num_warps"],
    )  # fmt: skip
