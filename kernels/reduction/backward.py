"""Gradients of amax and max; those of sum and mean are views."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from .results import multiple_of, vector_of


@triton.jit
def _tile(rows, columns, BY_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):
    """Rows and columns that a program of the backward kernels owns; offsets and mask of its results and elements."""
    columns = columns // WIDTH * WIDTH  # as for rows
    across, down = tl.cdiv(columns, BLOCK_N), tl.cdiv(rows, BLOCK_M)
    pid = tl.program_id(0).to(tl.int64)
    matrix = pid // (across * down)
    offs_m = pid // across % down * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = pid % across * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    offs_o = offs_m if BY_ROW else matrix * columns + offs_n
    offs = (matrix * rows + offs_m) * columns + offs_n
    return offs_m, offs_n, offs_o, offs, (offs_m < rows) & (offs_n < columns)


@triton.jit
def _amax_backward_kernel(x_ptr, out_ptr, ties_ptr, dout_ptr, dx_ptr, rows, columns, BY_ROW: tl.constexpr,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program owns a tile of one matrix [rows, columns]; results are of its rows (BY_ROW), else of its columns."""
    offs_m, offs_n, offs_o, offs, mask = _tile(rows, columns, BY_ROW, BLOCK_M, BLOCK_N, WIDTH)
    mask_o = offs_m < rows if BY_ROW else offs_n < columns
    out = tl.load(out_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32)
    ties = tl.load(ties_ptr + offs_o, mask=mask_o, other=1.0)
    share = tl.load(dout_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32) / ties
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    # A product and no choice: 0 ties (the maximum is NaN) or an infinite dout give NaN beside it, as in torch.
    tl.store(dx_ptr + offs, tl.where(x == out, 1.0, 0.0) * share, mask=mask)


@triton.jit
def _max_backward_kernel(indices_ptr, dout_ptr, dx_ptr, rows, columns, BY_ROW: tl.constexpr, BLOCK_M: tl.constexpr,
                         BLOCK_N: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program owns a tile of one matrix [rows, columns]; results are of its rows (BY_ROW), else of its columns."""
    offs_m, offs_n, offs_o, offs, mask = _tile(rows, columns, BY_ROW, BLOCK_M, BLOCK_N, WIDTH)
    mask_o = offs_m < rows if BY_ROW else offs_n < columns
    indices = tl.load(indices_ptr + offs_o, mask=mask_o, other=-1)
    dout = tl.load(dout_ptr + offs_o, mask=mask_o, other=0.0).to(tl.float32)
    tl.store(dx_ptr + offs, tl.where(indices == (offs_n if BY_ROW else offs_m), dout, 0.0), mask=mask)


def _launch_tiles(x, out, beside, dout, op, n, *, config):
    """Gradient of amax from x [outer, n, inner], of max from its indices alone (x is then not read, and may be None).

    ``out`` and ``dout`` are [outer, inner]; ``beside`` holds the ties or the indices.
    """
    outer, inner = dout.shape
    dx = torch.empty((outer, n, inner), dtype=dout.dtype, device=dout.device)
    by_row = inner == 1
    rows, columns = (outer, n) if by_row else (n, inner)
    block_n = min(config["BLOCK_N"], triton.next_power_of_2(columns))
    block_m = max(1, 32 * config["num_warps"] * config["VECTORS"] * vector_of(dx) // block_n)
    block_m = min(block_m, triton.next_power_of_2(rows))
    matrices = 1 if by_row else outer
    inputs = (beside, dout) if op == "max" else (x, out, beside, dout)
    launch(
        _max_backward_kernel if op == "max" else _amax_backward_kernel,
        (matrices * triton.cdiv(rows, block_m) * triton.cdiv(columns, block_n),),
        *inputs,
        dx,
        rows,
        columns,
        BY_ROW=by_row,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        WIDTH=multiple_of(columns, dx),
        num_warps=config["num_warps"],
    )
    return dx


def launch_backward(op, dout, x=None, out=None, ties=None, indices=None, n=None, *, config):
    beside = indices if op == "max" else ties
    return _launch_tiles(x, out, beside, dout, op, x.shape[1] if n is None else n, config=config)
