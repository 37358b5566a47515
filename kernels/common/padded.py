"""Copies of matrices that the copy engine (TMA) can read: their rows begin at whole 16 bytes."""

import torch
import triton
import triton.language as tl
from atlas.declaration.products import describable
from atlas.operators import launch

from kernels.common.products import by_columns


@triton.jit
def _pad_block(
    x_ptr, out_ptr, M, N, ROWS, stride_xb, stride_xm, stride_xn, stride_ob, stride_om, position,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Block ``position``, of BLOCK_M x BLOCK_N of one matrix, of out[b, m, n] = x[b, m, n].

    0 is written in rows from M to ROWS and in what pads a row.  WIDTH, the elements of 16 bytes, divides a row of out.
    Rows are written to their end: up to N alone, which is no multiple of it, the compiler would store single elements.
    """
    stride_ob, stride_om = stride_ob // WIDTH * WIDTH, stride_om // WIDTH * WIDTH
    blocks_n = tl.cdiv(N, BLOCK_N)
    blocks = tl.cdiv(ROWS, BLOCK_M) * blocks_n
    batch, block = (position // blocks).to(tl.int64), position % blocks
    offs_m = block // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    x_ptrs = x_ptr + batch * stride_xb
    x_ptrs += offs_m.to(tl.int64)[:, None] * stride_xm + offs_n.to(tl.int64)[None, :] * stride_xn
    out_ptrs = out_ptr + batch * stride_ob + offs_m.to(tl.int64)[:, None] * stride_om + offs_n[None, :]
    x = tl.load(x_ptrs, mask=x_mask, other=0.0)
    tl.store(out_ptrs, x, mask=(offs_m[:, None] < ROWS) & (offs_n[None, :] < stride_om))


@triton.jit
def _pad_kernel(
    x_ptr, out_ptr, M, N, ROWS, stride_xb, stride_xm, stride_xn, stride_ob, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program owns a block of one matrix."""
    _pad_block(
        x_ptr, out_ptr, M, N, ROWS, stride_xb, stride_xm, stride_xn, stride_ob, stride_om, tl.program_id(0),
        BLOCK_M, BLOCK_N, WIDTH,
    )  # fmt: skip


@triton.jit
def _pad_two_kernel(
    x_ptr, x_out_ptr, x_M, x_N, x_ROWS, x_stride_b, x_stride_m, x_stride_n, x_stride_ob, x_stride_om,
    y_ptr, y_out_ptr, y_M, y_N, y_ROWS, y_stride_b, y_stride_m, y_stride_n, y_stride_ob, y_stride_om, x_blocks,
    X_BLOCK_M: tl.constexpr, X_BLOCK_N: tl.constexpr, Y_BLOCK_M: tl.constexpr, Y_BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The same for two: the first ``x_blocks`` programs copy x, the others y."""
    if tl.program_id(0) < x_blocks:
        _pad_block(
            x_ptr, x_out_ptr, x_M, x_N, x_ROWS, x_stride_b, x_stride_m, x_stride_n, x_stride_ob, x_stride_om,
            tl.program_id(0), X_BLOCK_M, X_BLOCK_N, WIDTH,
        )  # fmt: skip
    else:
        _pad_block(
            y_ptr, y_out_ptr, y_M, y_N, y_ROWS, y_stride_b, y_stride_m, y_stride_n, y_stride_ob, y_stride_om,
            tl.program_id(0) - x_blocks, Y_BLOCK_M, Y_BLOCK_N, WIDTH,
        )  # fmt: skip


def padded(x):
    """``x`` [m, n] where the copy engine can read it, as it lies or transposed; else a copy in the same order.

    A matrix by columns stays one; the copy is as that of :func:`padded_rows`.
    """
    if by_columns(x) and x.stride(0) == 1:
        return padded(x.t()).t()
    return x if describable(x) else padded_rows(x[None])[0]


def padded_rows(x, multiple=1):
    """A copy of ``x`` [b, m, n] by rows, each as long as the next whole 16 bytes, or lines of L2; what pads it is 0.

    Long rows begin with a line of 128 bytes: a block that the copy engine reads is as wide, and from the middle of one
    it takes two.  Of 1024 x 3584 x 14341 in bf16 that left 157 us of 255 by tiles of 128 x 128, 151 of 193 by 128 x 256
    (H200), copies apart.  They lie in a tensor whose m is the next multiple of ``multiple``: rows past theirs are 0.
    """
    out, args, (block_m, block_n), blocks = _copy_of(x, multiple)
    launch(_pad_kernel, (blocks,), *args, BLOCK_M=block_m, BLOCK_N=block_n, WIDTH=16 // x.element_size(), num_warps=4)
    return out


def two_padded_rows(x, y):
    """Copies of both, of one dtype, as :func:`padded_rows` makes them, by one launch."""
    x_out, x_args, (x_block_m, x_block_n), x_blocks = _copy_of(x)
    y_out, y_args, (y_block_m, y_block_n), y_blocks = _copy_of(y)
    launch(
        _pad_two_kernel, (x_blocks + y_blocks,), *x_args, *y_args, x_blocks, X_BLOCK_M=x_block_m, X_BLOCK_N=x_block_n,
        Y_BLOCK_M=y_block_m, Y_BLOCK_N=y_block_n, WIDTH=16 // x.element_size(), num_warps=4,
    )  # fmt: skip
    return x_out, y_out


def _copy_of(x, multiple=1):
    """The copy of ``x`` before it is written, the arguments for that, the rows and columns of a block, the blocks."""
    batch, m, n = x.shape
    rows = triton.cdiv(m, multiple) * multiple
    out = torch.empty((batch, rows, padded_length(n, x.element_size())), dtype=x.dtype, device=x.device)
    block_n = min(1024, max(64, triton.next_power_of_2(n)))
    block = 4096 // block_n, block_n
    blocks = batch * triton.cdiv(rows, block[0]) * triton.cdiv(n, block_n)
    return out[:, :m, :n], (x, out, m, n, rows, *x.stride(), *out.stride()[:2]), block, blocks


def padded_length(n, size):
    """Elements of ``size`` bytes that a row of n has in a copy of :func:`padded_rows`."""
    line = 128 // size if n >= _LONG // size else 16 // size
    return triton.cdiv(n, line) * line


_LONG = 512
"""Bytes of a row from which on whole lines add less than they spare."""
