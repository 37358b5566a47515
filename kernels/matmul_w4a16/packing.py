"""Quantising weights to 4 bits, and the order in which numbers of 4 bits are packed."""

import torch

from kernels.common.packed import ROWS, Packed, by_row_tiles, check_weight, padded


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
    return Packed(shuffle_w4(q), by_row_tiles(scales), zeros, *weight.shape, int(group_size))


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


def shuffle_w4(q):
    """The packed tiles, int32, of 4-bit numbers [n, k], uint8; see the top of this file."""
    q = padded(q, ROWS, 64)
    n, k = q.shape
    # n = (tile, h, g), k = (tile, half tile, t, half word, q, p); a byte is two nibbles, the one of h = 1 on top
    split = q.view(n // 16, 2, 8, k // 64, 2, 4, 2, 2, 2)
    low, high = split[:, 0], split[:, 1]  # tile, g, tile of k, half tile, t, half word, q, p
    order = (0, 2, 1, 4, 3, 5, 7, 6)
    return (low | high << 4).permute(order).contiguous().view(-1).view(torch.int32)


def unshuffle_w4(words, rows, columns):
    """The 4-bit numbers [rows, columns], uint8, of packed tiles; padding is cut off.  Undoes ``shuffle_w4``."""
    n, k = -(-rows // 16) * 16, -(-columns // 64) * 64
    split = words.reshape(-1).view(torch.uint8).view(n // 16, k // 64, 8, 4, 2, 2, 2, 2)
    pairs = split.permute(0, 2, 1, 4, 3, 5, 7, 6)  # undoes the order of shuffle_w4, which is its own inverse
    return torch.stack((pairs & 15, pairs >> 4), 1).reshape(n, k)[:rows, :columns]
