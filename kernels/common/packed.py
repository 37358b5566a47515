"""Packed weights of 4 and 8 bits: what a layer keeps of them, and the PTX that unpacks them in registers.

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


def padded(matrix, rows, columns):
    """The matrix with zeros behind its rows and columns, up to multiples of these numbers."""
    return torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % columns, 0, -matrix.shape[0] % rows))


def by_row_tiles(matrix):
    """[n, groups] as [rows / 16, groups, 16], rows padded to whole tiles: what the lanes of a warp read together."""
    matrix = padded(matrix, ROWS, 1)
    return matrix.view(-1, 2, 8, matrix.shape[1]).permute(0, 3, 2, 1).reshape(-1, matrix.shape[1], ROWS)


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
