"""Ragged sums: c [groups, m, n] of a [m, k] and b [k, n], where groups are of k; and the backward pass."""

import torch
import triton
import triton.language as tl
from atlas.declaration import Capability, gpu_of
from atlas.declaration.products import as_interpreted, describable, fp32_precision
from atlas.operators import launch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.products import LARGEST

from .rows import PLAIN, launch_rows


@triton.jit
def _sums_tile(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(group, first row, first column) of this program's tile of c[groups, m, n], in the order of ``_place``."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles = tiles_m * tl.cdiv(N, BLOCK_N)
    within = tl.program_id(0) % tiles
    tiles_of_band = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (within // tiles_of_band) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = within % tiles_of_band
    return tl.program_id(0) // tiles, (first_m + within % rows) * BLOCK_M, within // rows * BLOCK_N


@triton.jit
def _store_sums(c_ptr, acc, group, m, n, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes the part of the tile at (m, n) that is inside c[group]; c is contiguous."""
    offs_m = m + tl.arange(0, BLOCK_M)
    offs_n = n + tl.arange(0, BLOCK_N)
    rows = group.to(tl.int64) * M + offs_m
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + offs_n[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sums_kernel(
    a_ptr, b_ptr, offs_ptr, c_ptr, M, N, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Ragged sums: one program owns one tile of c[group] = a[:, rows of group] @ b[rows of group]."""
    group, m, n = _sums_tile(M, N, BLOCK_M, BLOCK_N, GROUP_M)
    start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(offs_ptr + group)
    offs_m = ((m + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((n + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + (start + offs_k).to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + (start + offs_k).to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
    block_k = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(start, end, BLOCK_K):  # 0 past the end: adds nothing to the sum
        a = tl.load(a_ptrs, mask=offs_k[None, :] < end - k, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < end - k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    _store_sums(c_ptr, acc, group, m, n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _sums_descriptor_kernel(
    a_desc, b_desc, offs_ptr, c_desc, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same by the copy engine; ``a_desc`` is that of a^T, whose rows the groups are of.

    Whole blocks need no mask.  The last, if it is not whole, holds rows of the next group, which become 0 in both
    factors: the other's might be infinite.
    """
    group, m, n = _sums_tile(M, N, BLOCK_M, BLOCK_N, GROUP_M)
    start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(offs_ptr + group)
    whole = start + tl.maximum(end - start, 0) // BLOCK_K * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(start, whole, BLOCK_K):
        acc = tl.dot(a_desc.load([k, m]).T, b_desc.load([k, n]), acc, input_precision=PRECISION)
    if whole < end:
        inside = (tl.arange(0, BLOCK_K) < end - whole)[:, None]
        a, b = a_desc.load([whole, m]), b_desc.load([whole, n])
        a, b = tl.where(inside, a, 0.0).to(a.dtype), tl.where(inside, b, 0.0).to(b.dtype)
        acc = tl.dot(a.T, b, acc, input_precision=PRECISION)
    c_desc.store([group, m, n], acc.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N))


def launch_sums(a, b, offs, out_dtype=None, *, config, by_descriptor=False, in_gluon=False):
    """c [groups, m, n] for a [m, k], b [k, n], whose k is what the groups share.

    ``in_gluon``: by Hopper's own kernels, where the copy engine reads a and b and writes c, of their dtype.
    """
    (m, length), n, groups = a.shape, b.shape[1], offs.shape[0]
    c = torch.empty((groups, m, n), dtype=out_dtype or a.dtype, device=a.device)
    described = c.dtype == a.dtype and all(map(describable, (a.t(), b, c)))
    rows = length // max(groups, 1)
    if described and a.element_size() == 2 and (in_gluon or (by_descriptor and _alternates(rows, gpu_of(a.device)))):
        from .hopper_sums import alternating_sums, sums_by_tma

        if rows <= _SHORT:
            alternating_sums(a, b, offs, c, config=_ALTERNATING)
        else:
            sums_by_tma(a, b, offs, c, config=config | _SUMS_IN_GLUON)
        return c
    if in_gluon:
        config, by_descriptor = PLAIN, True
    by_descriptor = by_descriptor and described
    if by_descriptor:
        config = _with_tile_of_sums(config, rows)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    grid = (groups * triton.cdiv(m, rows) * triton.cdiv(n, columns),)
    a, b = as_interpreted(a), as_interpreted(b)
    if by_descriptor:
        launch(
            _sums_descriptor_kernel, grid,
            TensorDescriptor.from_tensor(a.t(), [block_k, rows]), TensorDescriptor.from_tensor(b, [block_k, columns]),
            offs, TensorDescriptor.from_tensor(c, [1, rows, columns]), m, n, PRECISION=fp32_precision(), **config,
        )  # fmt: skip
    else:
        launch(
            _sums_kernel, grid, a, b, offs, c, m, n, *a.stride(), *b.stride(), PRECISION=fp32_precision(), **config
        )  # fmt: skip
    return c


_FEW = 96
"""Rows of a group on average up to which small tiles make sums."""

_SHORT = 2048
"""The same for groups of warps that alternate: 735 us for 16 groups of 272 rows, 8192 x 5120, where two that share a
tile take 872, 1295 for 1388 of 8 groups of 1024, 14336 x 4096, 713 for 730 of 2048 rows, 4096 x 4096 (H200); 554 for
529 of 32 groups of 640 rows, 2880 x 2880."""


def _alternates(rows, gpu):
    """Whether `descriptor`, too, leaves sums of so many rows to two groups of warps that alternate.

    16 groups of 100 rows, 8192 x 5120, take 437 us so, 710 in its own tiles (H200), 8 groups of 8, 14336 x 4096, 270
    and 286.  Where one group has half of all rows, 64 groups of 49 take 147 and 131, of 384 312 and 277.
    """
    return rows <= 256 and Capability.WGMMA in gpu.capabilities


# (most rows of a group on average, BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages)
_TILES = ((32, 64, 128, 16, 4, 3), (_FEW, 64, 128, 64, 4, 2), (LARGEST, 128, 128, 64, 4, 3))


def _with_tile_of_sums(config, rows):
    """The config with the tile for sums of so many rows, moved by the copy engine.

    With few rows to write the sums is the cost: small tiles leave room for several programs on an SM, of which one
    writes while another reads, and short blocks read no more than there is.  On an H200 8 groups of 8 rows take 287 us
    so, 403 in blocks of 64 rows; of 1800 rows 128 x 128 takes 2572 us, 128 x 256 2592.
    """
    _, *tile = next(tile for tile in _TILES if rows <= tile[0])
    return {**config, **dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"), tile, strict=True))}


_ALTERNATING = {"ROWS": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 6, "BUFFERS": 1}
"""The tile of each of two groups of warps that alternate; with five stages and two buffers 0.95 to 1.03 of it."""

_SUMS_IN_GLUON = {"BLOCK_N": 256, "GROUP_M": 16, "STAGES": 4}
"""The tile of sums in Gluon: on an H200 it takes 1367 us for 8 groups of 1024 rows, 14336 x 4096; 128 wide 1500."""


def launch_backward(a, b, offs, dc, *, config, **how):
    """(da, db): a product with ragged rows and one with ragged sums; ``how`` is what both launchers take."""
    da = launch_rows(dc, b.transpose(1, 2), offs, a.dtype, config=config, **how)
    return da, launch_sums(a.t(), dc, offs, b.dtype, config=config, **how)
