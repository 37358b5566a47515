"""Gradients of amax and max along and across rows that are no whole 16-byte vectors: dx as one line of vectors."""

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
        over = column >= columns
    else:
        below = at // columns
        column = at - below * columns + lane
        over = column >= columns
        column = tl.where(over, column - columns, column)
    return row, below, over, column


@triton.jit
def _of_rows(ptr, row, over, rows, other, SHORT: tl.constexpr):
    """What ``ptr`` holds for the rows of all elements, which are ``row`` or, where ``over``, the next one."""
    found = tl.load(ptr + row, mask=row < rows, other=other)
    if not SHORT:
        found = tl.where(over, tl.load(ptr + row + 1, mask=row + 1 < rows, other=other), found)
    return found


@triton.jit
def _flat_backward_kernel(x_ptr, out_ptr, beside_ptr, dout_ptr, dx_ptr, total, outer, n, inner, MAX: tl.constexpr,
                          BY_ROW: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,
                          WIDTH: tl.constexpr):  # fmt: skip
    """One program owns BLOCK vectors of WIDTH elements; rows are of n elements where BY_ROW, else of ``inner``.

    dx has room for the last vector, whole.
    """
    start = tl.program_id(0).to(tl.int64) * (BLOCK * WIDTH)
    offs = tl.arange(0, BLOCK)[:, None] * WIDTH
    there = offs < total - start
    row, below, over, column = _places(start, n if BY_ROW else inner, offs, WIDTH, SHORT)
    offs = offs + tl.arange(0, WIDTH)[None, :]
    inside = offs < total - start
    if BY_ROW:
        along = column
        dout = _of_rows(dout_ptr, row + below, over, outer, 0.0, SHORT).to(tl.float32)
        beside = _of_rows(beside_ptr, row + below, over, outer, 1, SHORT)
    else:
        matrix = row // n
        along = (row - matrix * n).to(tl.int32) + below + over.to(tl.int32)
        beyond = along // n
        along -= beyond * n
        place = (matrix + beyond) * inner + column
        dout = tl.load(dout_ptr + place, mask=inside, other=0.0).to(tl.float32)
        beside = tl.load(beside_ptr + place, mask=inside, other=1)
    if MAX:
        dx = tl.where(beside == along, dout, 0.0)
    else:
        if BY_ROW:
            out = _of_rows(out_ptr, row + below, over, outer, 0.0, SHORT)
        else:
            out = tl.load(out_ptr + place, mask=inside, other=0.0)
        whole = total // WIDTH * WIDTH
        x = tl.load(x_ptr + start + offs, mask=offs < whole - start, other=0.0)
        if start + BLOCK * WIDTH > whole:
            x = tl.where(offs < whole - start, x, tl.load(x_ptr + start + offs, mask=inside, other=0.0))
        # No choice, as for tiles.
        dx = tl.where(x.to(tl.float32) == out.to(tl.float32), 1.0, 0.0) * (dout / beside)
    tl.store(dx_ptr + start + offs, dx, mask=there)


def launch_flat(op, dout, x=None, out=None, ties=None, indices=None, n=None, *, config):
    """As ``launch_backward``; x is [outer, n, inner], or None where ``op`` is max and ``n`` is given."""
    n = x.shape[1] if n is None else n
    outer, inner = dout.shape
    total, width = outer * n * inner, vector_of(dout)
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
        inner,
        MAX=op == "max",
        BY_ROW=inner == 1,
        SHORT=(n if inner == 1 else inner) < width,
        BLOCK=block,
        WIDTH=width,
        num_warps=config["num_warps"],
    )
    return dx[:total].view(outer, n, inner)
