"""Packed weights of 4 and 8 bits: quantising, the order of numbers in memory, and the PTX that undoes it in registers.

The order is told in `matmul_w4a16`, of 8 bits in `matmul_w8a16`.
"""

from typing import NamedTuple

import torch

ROWS = 16
"""Rows of a packed tile, those of one mma instruction."""

GROUP_SIZES = (32, 64, 128)
"""Neighbours along k that share a scale."""

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""What activations and scales may be, by torch's dtype."""


class Packed(NamedTuple):
    """Quantised weights of a linear layer, as the kernels read them; made by ``pack_w4`` or ``pack_w8``.

    ``words`` are the packed tiles, int32.  ``scales`` [rows / 16, groups, 16] are of the dtype that activations must
    have, ``zeros`` of the same shape are uint8, or None for symmetric weights.  ``group_size`` 0: one scale for a row.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    out_features: int
    in_features: int
    group_size: int


def quantise_w4(weight, group_size, symmetric=False):
    """(q [n, k], scales [n, groups], zeros [n, groups] or None) of weights [n, k]: q and zeros uint8, 0 to 15.

    Scales are rounded to the weights' dtype before numbers are: the choice of a number knows of it.
    """
    n, k = weight.shape
    groups = weight.float().view(n, k // group_size, group_size)
    if symmetric:
        scales = groups.abs().amax(-1) / 7
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = (high - low) / 15
    scales = scales.to(weight.dtype)
    scales = torch.where(scales == 0, 1, scales)  # a group of zeros
    step = scales.float()
    zeros = torch.full_like(step, 8) if symmetric else (-low / step).round().clamp(0, 15)
    q = (groups / step[..., None]).round() + zeros[..., None]
    return q.clamp(0, 15).to(torch.uint8).view(n, k), scales, None if symmetric else zeros.to(torch.uint8)


def padded(matrix, rows, columns):
    """The matrix with zeros behind its rows and columns, up to multiples of these numbers."""
    return torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % columns, 0, -matrix.shape[0] % rows))


def by_row_tiles(matrix):
    """[n, groups] as [rows / 16, groups, 16], rows padded to whole tiles: what the lanes of a warp read together."""
    matrix = padded(matrix, ROWS, 1)
    return matrix.view(-1, 2, 8, matrix.shape[1]).permute(0, 3, 2, 1).reshape(-1, matrix.shape[1], ROWS)


def shuffle_w4(q):
    """The packed tiles, int32, of 4-bit numbers [n, k], uint8; see the top of this file."""
    q = padded(q, ROWS, 64)
    n, k = q.shape
    # n = (tile, h, g), k = (tile, half tile, t, half word, q, p); a byte is two nibbles, the one of h = 1 on top
    split = q.view(n // 16, 2, 8, k // 64, 2, 4, 2, 2, 2)
    low, high = split[:, 0], split[:, 1]  # tile, g, tile of k, half tile, t, half word, q, p
    order = (0, 2, 1, 4, 3, 5, 7, 6)
    return (low | high << 4).permute(order).contiguous().view(-1).view(torch.int32)


def check_weight(name, weight, group_size):
    """Raise what ``pack_w4`` and ``pack_w8`` raise."""
    if weight.dtype not in DTYPES:
        raise TypeError(f"{name} takes weights in {', '.join(DTYPES.values())}: {weight.dtype}")
    if weight.dim() != 2 or not weight.numel():
        raise ValueError(f"{name} takes weights of two dimensions, (out_features, in_features): {tuple(weight.shape)}")
    if group_size not in GROUP_SIZES:
        raise ValueError(f"{name} takes a group_size out of {', '.join(map(str, GROUP_SIZES))}: {group_size}")
    if weight.shape[1] % group_size:
        raise ValueError(f"{name} takes in_features that are a multiple of group_size: {weight.shape[1]}, {group_size}")


def unshuffle_w4(words, rows, columns):
    """The 4-bit numbers [rows, columns], uint8, of packed tiles; padding is cut off.  Undoes ``shuffle_w4``."""
    n, k = -(-rows // 16) * 16, -(-columns // 64) * 64
    split = words.reshape(-1).view(torch.uint8).view(n // 16, k // 64, 8, 4, 2, 2, 2, 2)
    pairs = split.permute(0, 2, 1, 4, 3, 5, 7, 6)  # undoes the order of shuffle_w4, which is its own inverse
    return torch.stack((pairs & 15, pairs >> 4), 1).reshape(n, k)[:rows, :columns]


def of_row_tiles(tiled, rows):
    """[rows, groups] of what ``by_row_tiles`` made."""
    return tiled.view(-1, tiled.shape[1], 8, 2).permute(0, 3, 2, 1).reshape(-1, tiled.shape[1])[:rows]


# --- In registers ----------------------------------------------------------------------------------------------------


def sixteen(bf16):
    """(PTX's name, the two halves' exponent of 128 (fp16: 1024), two ones) of a dtype of 16 bits."""
    return ("bf16", 0x43004300, 0x3F803F80) if bf16 else ("f16", 0x64006400, 0x3C003C00)


def unpack_4(bf16, words, minus):
    """PTX: four words as the operands of four products, 16 registers from $0 on.

    ``minus`` are the registers of -(128 + z), for fp16 -(1024 + z), twice, of rows g and g + 8.
    """
    kind, magic, one = sixteen(bf16)
    lines = [f"{{ .reg .b32 t, one; mov.b32 one, {one};"]
    for at, word in enumerate(words):
        for i in range(4):
            lines.append(f"shr.u32 t, {word}, {4 * i};" if i else f"mov.b32 t, {word};")
            lines.append(f"lop3.b32 t, t, 0x000f000f, {magic}, 0xea;")
            lines.append(f"fma.rn.{kind}x2 ${4 * at + i}, t, one, {minus[i % 2]};")
    return "\n".join([*lines, "}"])


def unpack_8(bf16, words):
    """PTX: four words of signs and magnitudes as the operands of two products, 8 registers from $0 on."""
    kind, magic, one = sixteen(bf16)
    lines = [f"{{ .reg .b32 t, u, v, one; mov.b32 one, {one};"]
    for at, word in enumerate(words):
        for half in range(2):
            lines.append(f"prmt.b32 t, {word}, 0, 0x0321;" if half else f"mov.b32 t, {word};")
            lines.append(f"lop3.b32 u, t, 0x807f807f, {magic}, 0x6a;")
            lines.append(f"lop3.b32 v, t, 0x80008000, {magic ^ 0x80008000}, 0x6a;")
            lines.append(f"fma.rn.{kind}x2 ${2 * at + half}, u, one, v;")
    return "\n".join([*lines, "}"])
