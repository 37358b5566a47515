"""A few rows times a matrix that is read once, straight into registers, whatever its rows are aligned to (Gluon).

Nothing goes through shared memory before the last sum across warps, and no barrier stands in the loop.  That takes
layouts of one's own: each thread reads those elements of the rows that its elements of the matrix meet.  Where the
compiler chooses layouts, both come through shared memory, 4 bytes at a time if rows lie so.
"""

import math

import triton
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .thin import part_bounds, width_of


@gluon.jit
def _arange(SIZE: gl.constexpr, AXIS: gl.constexpr, layout: gl.constexpr):
    """0 to SIZE along AXIS of the three of ``layout``."""
    A: gl.constexpr = 0 if AXIS > 0 else 1
    B: gl.constexpr = 1 if AXIS > 1 else 2
    inner: gl.constexpr = gl.SliceLayout(B, layout)
    return gl.expand_dims(gl.expand_dims(gl.arange(0, SIZE, gl.SliceLayout(A, inner)).to(gl.int64), A), B)


@gluon.jit
def _sum_blocks(
    acc, x_ptrs, w_ptrs, x_there, w_there, x_k, w_k, length, x_apart, w_apart, BLOCK_K: gl.constexpr,
    LACKED: gl.constexpr, ALONG: gl.constexpr,
):  # fmt: skip
    """acc + the sum of x[m, k] w[k, n] over ``length`` of K, BLOCK_K at a time; a block's k are ``x_k`` and ``w_k``.

    ``x_apart``, ``w_apart``: elements from a block to the next.  Axes of a block of both: LACKED, that of columns,
    which x does not have, and ALONG, that a thread sums over; w lacks the first.
    """
    blocks = length // BLOCK_K
    for _ in range(blocks):
        w = gl.load(w_ptrs, mask=w_there).to(gl.float32)
        x = gl.load(x_ptrs, mask=x_there).to(gl.float32)
        acc += gl.sum(gl.expand_dims(x, LACKED) * gl.expand_dims(w, 0), axis=ALONG)
        x_ptrs += x_apart
        w_ptrs += w_apart
    left = length - blocks * BLOCK_K
    if left > 0:
        w = gl.load(w_ptrs, mask=w_there & (w_k < left), other=0.0).to(gl.float32)
        x = gl.load(x_ptrs, mask=x_there & (x_k < left), other=0.0).to(gl.float32)
        acc += gl.sum(gl.expand_dims(x, LACKED) * gl.expand_dims(w, 0), axis=ALONG)
    return acc


@gluon.jit
def _by_rows_kernel(
    x_ptr, w_ptr, out_ptr, M, N, K, K_PART, stride_xm, stride_xk, stride_w, stride_om, stride_on,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, STEPS: gl.constexpr, WIDTH: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[part, m, n] = sum over a part of K of x[m, k] w[k, n]: program (tile, part) owns COLUMNS of all rows.

    A warp reads STEPS rows of w at a time, WIDTH neighbours a thread; the warps share a block's K.  WIDTH divides N
    and ``stride_w``, from one row of w to the next.
    """
    BLOCK_K: gl.constexpr = num_warps * STEPS
    layout: gl.constexpr = gl.BlockedLayout(  # [rows, warps, steps of a warp, columns]
        [ROWS, 1, STEPS, WIDTH], [1, 1, 1, 32], [1, num_warps, 1, 1], [3, 2, 1, 0]
    )
    of_x: gl.constexpr = gl.SliceLayout(3, layout)
    of_w: gl.constexpr = gl.SliceLayout(0, layout)
    of_out: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, layout))
    N, stride_w = N // WIDTH * WIDTH, stride_w // WIDTH * WIDTH
    first = gl.program_id(0) * COLUMNS
    start, end = part_bounds(gl.program_id(1), K, K_PART)
    x_k = _arange(num_warps, 1, of_x) * STEPS + _arange(STEPS, 2, of_x)
    w_k = _arange(num_warps, 0, of_w) * STEPS + _arange(STEPS, 1, of_w)
    rows = _arange(ROWS, 0, of_x)
    columns = _arange(COLUMNS, 2, of_w)
    x_there = rows + 0 * x_k < M
    w_there = columns + 0 * w_k < N - first
    x_ptrs = x_ptr + start.to(gl.int64) * stride_xk + rows * stride_xm + x_k * stride_xk
    w_ptrs = w_ptr + start.to(gl.int64) * stride_w + first + w_k * stride_w + columns
    block_k = gl.full((), BLOCK_K, gl.int64)  # times a stride it may pass 2^31
    acc = gl.zeros([ROWS, num_warps, COLUMNS], gl.float32, gl.SliceLayout(2, layout))
    acc = _sum_blocks(
        acc, x_ptrs, w_ptrs, x_there, w_there, x_k, w_k, end - start, block_k * stride_xk, block_k * stride_w,
        BLOCK_K, 3, 2,
    )  # fmt: skip
    out = gl.sum(acc, axis=1)
    _store(out_ptr, out, first, M, N, stride_om, stride_on, ROWS, COLUMNS, of_out)


@gluon.jit
def _store(
    out_ptr, out, first, M, N, stride_om, stride_on, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr
):
    """Write all rows of COLUMNS columns from ``first`` on into this program's part of ``out``."""
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    columns = first + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    out_ptrs = out_ptr + gl.program_id(1).to(gl.int64) * M * N
    out_ptrs += rows.to(gl.int64) * stride_om + columns.to(gl.int64) * stride_on
    gl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


@gluon.jit
def _along_k_kernel(
    x_ptr, w_ptr, out_ptr, M, N, K, K_PART, stride_xm, stride_xk, stride_w, stride_om, stride_on,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, STEPS: gl.constexpr, WIDTH: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The same where w lies along K: lanes and warps share a block's K, and a thread has COLUMNS of w.

    A thread reads STEPS times WIDTH neighbours of each.  WIDTH divides K and ``stride_w``, from one column of w to the
    next.
    """
    LANES: gl.constexpr = num_warps * 32 * STEPS
    BLOCK_K: gl.constexpr = LANES * WIDTH
    layout: gl.constexpr = gl.BlockedLayout(  # [rows, columns, lanes, neighbours along K]
        [ROWS, COLUMNS, 1, WIDTH], [1, 1, 32, 1], [1, 1, num_warps, 1], [3, 2, 1, 0]
    )
    of_x: gl.constexpr = gl.SliceLayout(1, layout)
    of_w: gl.constexpr = gl.SliceLayout(0, layout)
    of_out: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, layout))
    K, stride_w = K // WIDTH * WIDTH, stride_w // WIDTH * WIDTH
    first = gl.program_id(0) * COLUMNS
    start, end = part_bounds(gl.program_id(1), K, K_PART)
    x_k = _arange(LANES, 1, of_x) * WIDTH + _arange(WIDTH, 2, of_x)
    w_k = _arange(LANES, 1, of_w) * WIDTH + _arange(WIDTH, 2, of_w)
    rows = _arange(ROWS, 0, of_x)
    columns = _arange(COLUMNS, 0, of_w)
    x_there = rows + 0 * x_k < M
    w_there = columns + 0 * w_k < N - first
    x_ptrs = x_ptr + start.to(gl.int64) * stride_xk + rows * stride_xm + x_k * stride_xk
    w_ptrs = w_ptr + first.to(gl.int64) * stride_w + start + columns * stride_w + w_k
    block_k = gl.full((), BLOCK_K, gl.int64)  # times a stride it may pass 2^31
    acc = gl.zeros([ROWS, COLUMNS, LANES], gl.float32, gl.SliceLayout(3, layout))
    acc = _sum_blocks(
        acc, x_ptrs, w_ptrs, x_there, w_there, x_k, w_k, end - start, block_k * stride_xk, BLOCK_K,
        BLOCK_K, 1, 3,
    )  # fmt: skip
    out = gl.sum(acc, axis=2)
    _store(out_ptr, out, first, M, N, stride_om, stride_on, ROWS, COLUMNS, of_out)


def multiply(x, w, out, parts, part, *, config):
    """Write x w over parts of K, ``part`` elements each, into ``parts``, whose first is ``out``, maybe transposed.

    w [k, n] lies by rows or by columns, ``out`` is [m, n].
    """
    along_k = w.stride(0) == 1
    (m, n), k, stride_w = out.shape, x.shape[1], w.stride(1 if along_k else 0)
    launch(
        _along_k_kernel if along_k else _by_rows_kernel, (triton.cdiv(n, config["COLUMNS"]), parts.shape[0]),
        x, w, parts, m, n, k, part, *x.stride(), stride_w, *out.stride(),
        ROWS=triton.next_power_of_2(m), WIDTH=width_of(math.gcd(k if along_k else n, stride_w), w),
        COLUMNS=config["COLUMNS"], STEPS=config["STEPS"], num_warps=config["num_warps"],
    )  # fmt: skip
