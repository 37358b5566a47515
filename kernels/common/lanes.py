"""A row that begins anywhere, as whole 16-byte lanes that one thread accesses at once, and the edges beside them."""

import triton
import triton.language as tl


@triton.jit
def lanes_of(row, n, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """(base, begin, body, end) of a row whose first element is number `row` of the tensor.

    `base` is the first of its elements that starts a lane, WIDTH neighbours on 16 bytes; relative to it the row reaches
    from `begin` <= 0 to `end`, and its whole lanes from 0 to `body`.  What lies outside those are its edges, fewer than
    WIDTH elements at either end.
    """
    if ALIGNED:
        base = row // WIDTH * WIDTH
        begin, body, end = 0, n // WIDTH * WIDTH, n
    else:
        base = (row + WIDTH - 1) // WIDTH * WIDTH
        begin = (row - base).to(tl.int32)
        end = begin + n
        body = tl.maximum(end, 0) // WIDTH * WIDTH
    return base, begin, body, end


@triton.jit
def edges(body, WIDTH: tl.constexpr):
    """Where a row's edges may lie: WIDTH elements before its whole lanes, and WIDTH behind them."""
    offs = tl.arange(0, 2 * WIDTH)
    return tl.where(offs < WIDTH, offs - WIDTH, body + offs - WIDTH)
