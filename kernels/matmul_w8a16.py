"""Linear layer with 8-bit weights: y[m, n] = sum over k of x[m, k] q[n, k] s[n], or s[n, k // g] with groups.

x and y are bf16 or fp16; q is an integer from -127 to 127, and each row of weights, or each group of g = 32, 64 or 128
neighbours along k, has a scale s of x's dtype.  Reads x (M K elements), the weights (N K bytes) and scales, writes y
(M N); 2 M N K operations.  With few rows all of the work is to read the weights, half the bytes that bf16 weights have.

The kernels are those of `matmul_w4a16`, where the order of packed tiles is told; here a tile has 16 rows by 32 columns,
and a word four weights of 8 bits.

*The packed format*: sign and magnitude, not two's complement.  Seven bits of magnitude are bf16's mantissa: under the
exponent of 128 they are 128 + |q|, and with the sign bit on top +-(128 + |q|), from which +-128 is taken off again:
three instructions for two weights, where integers would pass through fp32.  The magnitude of row g + 8 h, column
2 q + p of a lane is byte h + 2 p of word q, and its sign the top bit of the byte after it (of the last: the first), so
that a rotation by a byte brings row g + 8, sign and magnitude, to where row g was.
"""

import torch
from atlas.declaration import Peer, case, max_autotune, searching

from kernels.common.packed import Packed, by_row_tiles, check_weight, of_row_tiles, padded
from kernels.matmul_w4a16.cases import common_cases, tuned_by_torch
from kernels.matmul_w4a16.declaration import declared
from kernels.matmul_w4a16.linear import call_linear, linear_operator

__all__ = ["dequantise_w8", "linear_w8a16", "pack_w8"]


def quantise_w8(weight, group_size=None):
    """(q [n, k] int8, -127 to 127, scales [n, groups]) of weights [n, k]; None: each row is a group."""
    n, k = weight.shape
    groups = weight.float().view(n, -1, group_size or k)
    scales = (groups.abs().amax(-1) / 127).to(weight.dtype)
    scales = torch.where(scales == 0, 1, scales)  # a group of zeros
    q = (groups / scales.float()[..., None]).round().clamp(-127, 127)
    return q.to(torch.int8).view(n, k), scales


def shuffle_w8(q):
    """The packed tiles, int32, of numbers [n, k], int8 from -127 to 127; see the top of this file."""
    q = padded(q, 16, 32)
    n, k = q.shape
    # n = (tile, h, g), k = (tile, t, half word, q, p)
    split = q.view(n // 16, 2, 8, k // 32, 4, 2, 2, 2).permute(0, 3, 2, 4, 5, 6, 7, 1).reshape(-1, 4)
    magnitude, sign = split.abs().view(torch.uint8), (split < 0).to(torch.uint8)
    return (magnitude | sign.roll(1, -1) << 7).view(-1).view(torch.int32)


def unshuffle_w8(words, rows, columns):
    """The numbers [rows, columns], int8, of packed tiles; padding is cut off.  Undoes ``shuffle_w8``."""
    n, k = -(-rows // 16) * 16, -(-columns // 32) * 32
    bytes_ = words.reshape(-1).view(torch.uint8).view(-1, 4)
    magnitude, sign = (bytes_ & 127).to(torch.int8), (bytes_ >> 7).roll(-1, -1)
    q = torch.where(sign != 0, -magnitude, magnitude).view(n // 16, k // 32, 8, 4, 2, 2, 2, 2)
    return q.permute(0, 7, 2, 1, 3, 4, 5, 6).reshape(n, k)[:rows, :columns]


def pack_w8(weight: torch.Tensor, group_size: int | None = None) -> Packed:
    """Quantise the weights [n, k] of a linear layer, fp16 or bf16, to 8 bits and bring them into the kernels' order.

    Symmetric: the weight of largest magnitude in a row, or with a ``group_size`` (32, 64, 128) in a group of so many
    neighbours, becomes +-127.  Done once for a model.  Weights must be finite.

    Raises TypeError for other dtypes, ValueError for other shapes and group sizes and for k not a multiple of the
    group size, without groups of 32.
    """
    check_weight("pack_w8", weight, 32 if group_size is None else group_size)
    q, scales = quantise_w8(weight.detach(), group_size)
    return Packed(shuffle_w8(q), by_row_tiles(scales), None, *weight.shape, int(group_size or 0))


def dequantised(words, scales, zeros, rows, columns, group):
    """Plain torch, in the scales' dtype: exact in float64."""
    q, scales = unshuffle_w8(words, rows, columns).to(scales.dtype), of_row_tiles(scales, rows)
    return (q.view(rows, scales.shape[1], -1) * scales[..., None]).view(rows, columns)


def _compiled(x, words, scales, zeros, n, group):
    """torch.compile of dequantisation and product, from int8 weights in their natural order."""
    q, scales = _in_natural_order(words, scales, n, x.shape[1])
    torch._dynamo.reset()
    fast = torch.compile(_product, dynamic=False)
    fast(x, q, scales)
    return lambda: fast(x, q, scales)


def _searched(x, words, scales, zeros, n, group):
    """The same by the fastest of Triton's and cuBLAS's products that torch.compile tries."""
    q, scales = _in_natural_order(words, scales, n, x.shape[1])
    return max_autotune(_product, x=x, q=q, scales=scales)


def _in_natural_order(words, scales, n, k):
    return unshuffle_w8(words, n, k).contiguous(), of_row_tiles(scales, n).contiguous()


def _product(x, q, scales):
    w = q.to(x.dtype).view(q.shape[0], scales.shape[1], -1) * scales[..., None]
    return torch.nn.functional.linear(x, w.view(q.shape))


def _torch_int8(x, words, scales, zeros, n, group):
    """torch's own kernel, for bf16 and a scale for each row; not on every device."""
    if group or x.dtype != torch.bfloat16:
        raise NotImplementedError("torch's _weight_int8pack_mm is for bf16 and one scale for each row")
    if x.shape[0] > 16:  # 2.1 ms for one row of 28672 x 8192 on an H200 (torch 2.11)
        raise NotImplementedError("torch's _weight_int8pack_mm is not written for so many rows")
    q, scales = unshuffle_w8(words, n, x.shape[1]).contiguous(), of_row_tiles(scales, n)[:, 0].contiguous()
    return lambda: torch.ops.aten._weight_int8pack_mm(x, q, scales)


_CASES = (
    *common_cases(group=0, zeros=False),
    case("fp16", "fp16", m=1, n=8192, k=8192, group=0, zeros=False),
    case("bf16", "groups: a scale for 128 weights", m=1, n=8192, k=8192, group=128, zeros=False),
)

_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, k=k, group=group, zeros=False)
    for dtype in ("bf16", "fp16")
    for (m, n, k, group), reason in (
        ((3, 48, 128, 0), "whole tiles of weights"),
        ((1, 16, 32, 0), "one tile, one row"),
        ((5, 40, 96, 32), "tails in m and n; three groups, of a tile each"),
        ((12, 40, 160, 0), "9 to 16 rows, tails in m and n; five tiles along k"),
        ((16, 40, 1120, 0), "k in parts of unequal length, the last of which ends within a step"),
        ((17, 33, 288, 0), "17 rows, a tail of one row of weights, nine tiles along k"),
        ((24, 72, 352, 0), "17 to 32 rows, tails in m and n; eleven tiles in parts of unequal length"),
        ((24, 200, 2112, 0), "17 to 32 rows by TMA: tails in m and n; the last of many parts ends past k"),
        ((32, 264, 1696, 32), "32 rows: a whole tile; stages in turns, half a stage at the end of k"),
        ((33, 72, 160, 0), "33 to 64 rows, of which the last 31 are one again; five tiles"),
        (
            (64, 264, 288, 32),
            "64 rows; a tail in n for every block, half a step at the end; weights scaled in 16 bits",
        ),
        ((64, 512, 512, 128), "64 rows; whole blocks and steps, so that nothing is masked"),
        ((70, 70, 256, 128), "more rows than the kernel for few takes; two groups of four tiles"),
        ((8, 1, 128, 64), "one row of weights"),
        ((40, 136, 64, 64), "more than 32 rows; rows of y of whole 16 bytes, as TMA writes them; a tail in n"),
        ((72, 136, 2112, 0), "a second tile of 64 rows; unequal parts of k, the last of which ends past k"),
        ((136, 24, 96, 32), "a third tile of 64 rows, tails in m, n and k for tiles of 128; three groups"),
        ((264, 72, 1088, 0), "a second tile of 256 rows; k in parts"),
        ((40, 70, 384, 128), "more than 32 rows, and rows of y that TMA does not write"),
        ((136, 200, 1696, 0), "tiles of 64 to 192 rows of W; stages in turns, half a stage at the end of k"),
        ((264, 8, 64, 0), "a second tile of 256 rows; fewer weights than a packed tile has"),
        ((136, 1032, 96, 0), "more rows, and the gradient's sum in parts"),
        ((20, 72, 17408, 0), "a gradient of few rows with more columns than programs of a cluster have"),
    )
)

DECLARATION = declared(
    "matmul_w8a16",
    8,
    "y = x W^T, W of 8 bits with a scale for each row or group",
    lambda weight, problem: pack_w8(weight, problem["group"] or None),
    dequantised,
    _CASES,
    _EDGE_CASES,
    {
        "torch.compile": Peer(_compiled, compiles=True),
        "torch.compile max-autotune": searching(_searched, tuned_by_torch),
        "torch int8": Peer(_torch_int8),
    },
)

_linear, _dequantise = linear_operator(DECLARATION, 8)


@DECLARATION.public
def linear_w8a16(input: torch.Tensor, packed: Packed) -> torch.Tensor:
    """``torch.nn.functional.linear(input, weight)`` for weights that ``pack_w8`` has packed: [..., k] to [..., n].

    The input is of the dtype that the weights had, fp16 or bf16, in any strides; accumulates in fp32.  The input alone
    has a gradient: packed weights are frozen.

    Raises TypeError for an input of another dtype, ValueError for other sizes and devices.
    """
    return call_linear("linear_w8a16", _linear, input, packed)


def dequantise_w8(packed: Packed) -> torch.Tensor:
    """The weights [n, k] that packed ones stand for, q s, rounded to the dtype of their scales."""
    words, scales, zeros, n, k, group = packed
    return _dequantise(words, scales, zeros, n, k, group)
