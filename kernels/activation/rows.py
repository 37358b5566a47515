"""Variant `rows`: tiles of rows that lie apart, above all gate and up as the two halves of one tensor."""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import elementwise
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .flat import empty
from .tiles import backward_tile, forward_tile


@triton.jit
def _tile_of(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows [BLOCK_M, 1] of 64 bits, columns [1, BLOCK_N], mask, whether it is not needed) of this program's tile.

    Tiles are counted along the rows first, so those in flight at one time lie side by side in memory.
    """
    across = tl.cdiv(n, BLOCK_N)
    first_m, first_n = tl.program_id(0) // across * BLOCK_M, tl.program_id(0) % across * BLOCK_N
    offs_m = first_m + tl.arange(0, BLOCK_M)[:, None]
    offs_n = first_n + tl.arange(0, BLOCK_N)[None, :]
    full = (first_m + BLOCK_M <= m) & (first_n + BLOCK_N <= n)
    return offs_m.to(tl.int64), offs_n, (offs_m < m) & (offs_n < n), full


@triton.jit
def _rows_kernel(
    x_ptr, up_ptr, out_ptr, m, n, stride_xm, stride_um,
    KIND: tl.constexpr, GATED: tl.constexpr, HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M x BLOCK_N; rows of out lie one after the other.

    HALVES: up is the second half of each row of x, which says how it is aligned.
    """
    n = n // WIDTH * WIDTH  # all are multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
    stride_xm, stride_um = stride_xm // WIDTH * WIDTH, stride_um // WIDTH * WIDTH
    offs_m, offs_n, mask, full = _tile_of(m, n, BLOCK_M, BLOCK_N)
    if HALVES:
        up_ptr = x_ptr + n
    x_ptrs, out_ptrs = x_ptr + offs_m * stride_xm + offs_n, out_ptr + offs_m * n + offs_n
    up_ptrs = up_ptr + offs_m * stride_um + offs_n if GATED else None
    if full:
        forward_tile(x_ptrs, up_ptrs, out_ptrs, None, KIND, False)
    else:
        forward_tile(x_ptrs, up_ptrs, out_ptrs, mask, KIND, True)


@triton.jit
def _rows_backward_kernel(
    x_ptr, up_ptr, dy_ptr, dx_ptr, dup_ptr, m, n, stride_xm, stride_um, stride_dm,
    KIND: tl.constexpr, GATED: tl.constexpr, HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M x BLOCK_N; rows of dy lie one after the other, of both gradients apart."""
    n = n // WIDTH * WIDTH  # as in _rows_kernel
    stride_xm, stride_um, stride_dm = (
        stride_xm // WIDTH * WIDTH, stride_um // WIDTH * WIDTH, stride_dm // WIDTH * WIDTH,
    )  # fmt: skip
    offs_m, offs_n, mask, full = _tile_of(m, n, BLOCK_M, BLOCK_N)
    if HALVES:
        up_ptr, dup_ptr = x_ptr + n, dx_ptr + n
    x_ptrs, dy_ptrs = x_ptr + offs_m * stride_xm + offs_n, dy_ptr + offs_m * n + offs_n
    dx_ptrs = dx_ptr + offs_m * stride_dm + offs_n
    up_ptrs = up_ptr + offs_m * stride_um + offs_n if GATED else None
    dup_ptrs = dup_ptr + offs_m * stride_dm + offs_n if GATED else None
    if full:
        backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, None, KIND, False)
    else:
        backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, mask, KIND, True)


def tiles_of(m, n, config):
    """Grid and tile of a config over [m, n]."""
    return elementwise.tiles(m, n, config["BLOCK"], narrowest=64)


def launch_rows(x, up, kind, *, config):
    out = torch.empty((*x.shape[:-1], columns(x, up, kind)), dtype=x.dtype, device=x.device)
    if out.numel():
        halves = kind == "swiglu" and up is None
        x, up = factors(x, up, kind)
        m, n = x.shape
        grid, tile = tiles_of(m, n, config)
        stride_um = 0 if up is None else up.stride(0)
        width = _width(x, n, x.stride(0), stride_um)
        launch(
            _rows_kernel, grid, x, up, out, m, n, x.stride(0), stride_um,
            KIND=kind, GATED=up is not None, HALVES=halves, **tile, WIDTH=width, num_warps=config["num_warps"],
        )  # fmt: skip
    return out


def launch_rows_backward(x, up, dy, kind, *, config):
    dx, dup = empty(x), None if up is None else empty(up)
    if x.numel():
        dx_rows, dup_rows = factors(dx, dup, kind)
        x_rows, up_rows = factors(x, up, kind)
        m, n = x_rows.shape
        grid, tile = tiles_of(m, n, config)
        stride_um = 0 if up_rows is None else up_rows.stride(0)
        width = _width(x, n, x_rows.stride(0), stride_um, dx_rows.stride(0))
        launch(
            _rows_backward_kernel, grid, x_rows, up_rows, dy, dx_rows, dup_rows,
            m, n, x_rows.stride(0), stride_um, dx_rows.stride(0),
            KIND=kind, GATED=up_rows is not None, HALVES=kind == "swiglu" and up is None, **tile, WIDTH=width,
            num_warps=config["num_warps"],
        )  # fmt: skip
    return dx if up is None else (dx, dup)


def columns(x, up, kind):
    """Columns of the output: half of those of ``x`` where it holds both factors."""
    return x.shape[-1] // 2 if kind == "swiglu" and up is None else x.shape[-1]


def factors(x, up, kind):
    """Views (x [m, n], up [m, n] or None) of the same memory."""
    n = x.shape[-1]
    x = x.view(-1, n)
    if kind == "swiglu" and up is None:
        return x[:, : n // 2], x[:, n // 2 :]
    return x, None if up is None else up.view(-1, n)


def _width(x, *lengths):
    """Elements of the widest vector, of at most 16 bytes, that all lengths are whole ones of."""
    return math.gcd(VECTOR_BYTES // x.element_size(), *lengths)
