"""Linear layer with 4-bit weights: y[m, n] = sum over k of x[m, k] (q[n, k] - z[n, k // g]) s[n, k // g].

x and y are bf16 or fp16; q is a 4-bit number, and each group of g = 32, 64 or 128 neighbours along k has a scale s, of
x's dtype, and a zero point z (symmetric weights: always 8).  Reads x (M K elements), the weights (N K / 2 bytes), their
scales and zero points (3 bytes a group, symmetric: 2), writes y (M N); 2 M N K operations.  With few rows (a token at a
time) all of the work is to read the weights, a quarter of the bytes that bf16 weights have.

*What is exact.*  The kernels multiply by the weights that the packed format stands for; the error of quantising, which
`pack_w4` makes once, is not theirs.  q - z is exact in 16 bits.  `fragments`, and `shared` up to 32 rows, multiply it
by x in tensor cores and scale the fp32 sum of each group; all others round (q - z) s to x's dtype first, as weights
that are kept in that dtype are.

*The packed format* is the order in which tensor cores take their operands, so that no thread ever hands a weight to
another.  Weights are cut into tiles of 16 rows (n) by 64 columns (k), stored one after the other along k.  A tile is
512 bytes: 16 for each of 32 lanes, of which lane 4 g + t has the rows g and g + 8 and, of each half tile of 32 columns,
the 8 neighbours from 8 t on.  Each of its four words has four of these columns, those of one `mma` instruction; nibble
h + 2 q + 4 p of a word is row g + 8 h, column 2 q + p.  So one 16-byte load is all of a lane's share of a tile, and the
columns of x that it meets are 16 bytes as well.  (word >> 4 i) & 0x000f000f, under the exponent of 128 (bf16; of 1024
for fp16) where a nibble's lowest bit counts 1, is a register of two operands: three instructions for two weights, with
the one that takes 128 + z off again.
"""

import torch

from kernels.common.packed import Packed

from .declaration import DECLARATION
from .linear import call_linear, linear_operator
from .packing import pack_w4

__all__ = ["dequantise_w4", "linear_w4a16", "pack_w4"]
_linear, _dequantise = linear_operator(DECLARATION, 4)


@DECLARATION.public
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
