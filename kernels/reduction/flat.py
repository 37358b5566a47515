"""Gradients of amax and max along rows that are no whole 16-byte vectors: dx as one line of vectors."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from .results import vector_of


@triton.jit
def _places(start, columns, offs, WIDTH: tl.constexpr, SHORT: tl.constexpr):
    """Where the vectors ``offs`` [V, 1] behind ``start`` lie in rows of ``columns``: the 64-bit row of ``start``, the
    row below it in which each begins, and of each element the column and whether it is a row farther.

    A vector is divided once, since it ends in the next row at the farthest; in SHORT rows each element is.
    """
    row = start // columns
    at = (start - row * columns).to(tl.int32) + offs
    lane = tl.arange(0, WIDTH)[None, :]
    if SHORT:
        at += lane
    below = at // columns
    column = at - below * columns
    if not SHORT:
        column += lane
    over = column >= columns
    return row, below, over, tl.where(over, column - columns, column)


@triton.jit
def _of_rows(ptr, row, over, rows, other, SHORT: tl.constexpr):
    """What ``ptr`` holds for the rows of all elements, which are ``row`` or, where ``over``, the next one."""
    found = tl.load(ptr + row, mask=row < rows, other=other)
    if not SHORT:
        found = tl.where(over, tl.load(ptr + row + 1, mask=row + 1 < rows, other=other), found)
    return found


@triton.jit
def _flat_backward_kernel(x_ptr, out_ptr, beside_ptr, dout_ptr, dx_ptr, total, rows, n, MAX: tl.constexpr,
                          SHORT: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program owns BLOCK vectors of WIDTH elements of ``rows`` rows of n, one after the other.

    dx has room for the last vector, whole.
    """
    start = tl.program_id(0).to(tl.int64) * (BLOCK * WIDTH)
    offs = tl.arange(0, BLOCK)[:, None] * WIDTH
    there = offs < total - start
    row, below, over, column = _places(start, n, offs, WIDTH, SHORT)
    row += below
    dout = _of_rows(dout_ptr, row, over, rows, 0.0, SHORT).to(tl.float32)
    beside = _of_rows(beside_ptr, row, over, rows, 1, SHORT)
    offs = offs + tl.arange(0, WIDTH)[None, :]
    if MAX:
        dx = tl.where(beside == column, dout, 0.0)
    else:
        out = _of_rows(out_ptr, row, over, rows, 0.0, SHORT)
        whole = total // WIDTH * WIDTH
        x = tl.load(x_ptr + start + offs, mask=offs < whole - start, other=0.0)
        if start + BLOCK * WIDTH > whole:
            rest = (offs >= whole - start) & (offs < total - start)
            x = tl.where(rest, tl.load(x_ptr + start + offs, mask=rest, other=0.0), x)
        # No choice, as for tiles.
        dx = tl.where(x.to(tl.float32) == out.to(tl.float32), 1.0, 0.0) * (dout / beside)
    tl.store(dx_ptr + start + offs, dx, mask=there)


def launch_flat(op, dout, x=None, out=None, ties=None, indices=None, n=None, *, config):
    """As ``launch_backward``, for inner = 1."""
    n = x.shape[1] if n is None else n
    outer = dout.shape[0]
    total, width = outer * n, vector_of(dout)
    dx = torch.empty(triton.cdiv(total, width) * width, dtype=dout.dtype, device=dout.device)
    block = 32 * config["num_warps"] * config["VECTORS"]
    launch(
        _flat_backward_kernel,
        (triton.cdiv(total, block * width),),
        dx if x is None else x,
        dout if out is None else out,
        indices if op == "max" else ties,
        dout,
        dx,
        total,
        outer,
        n,
        MAX=op == "max",
        SHORT=n < width,
        BLOCK=block,
        WIDTH=width,
        num_warps=config["num_warps"],
    )
    return dx[:total].view(outer, n, 1)
