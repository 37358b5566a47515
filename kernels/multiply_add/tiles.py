"""The variants `blocks` and `rows`: a tile a program, of consecutive elements or of rows with gaps between them."""

import torch
import triton
import triton.language as tl
from atlas.declaration import elementwise
from atlas.operators import launch

LINE = 128
"""Columns of the narrowest tiles of rows."""


@triton.jit
def _multiply_add(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, mask, value):
    """One tile, from load to store."""
    x = tl.load(input_ptrs, mask=mask).to(tl.float32)
    a = tl.load(tensor1_ptrs, mask=mask).to(tl.float32)
    b = tl.load(tensor2_ptrs, mask=mask).to(tl.float32)
    tl.store(out_ptrs, x + value * a * b, mask=mask)


@triton.jit
def _multiply_add_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, mask, value):
    """One tile of both gradients."""
    dout = value * tl.load(dout_ptrs, mask=mask).to(tl.float32)
    a = tl.load(tensor1_ptrs, mask=mask).to(tl.float32)
    b = tl.load(tensor2_ptrs, mask=mask).to(tl.float32)
    tl.store(dtensor1_ptrs, dout * b, mask=mask)
    tl.store(dtensor2_ptrs, dout * a, mask=mask)


@triton.jit
def _blocks_kernel(input_ptr, tensor1_ptr, tensor2_ptr, out_ptr, value, n_elements, BLOCK: tl.constexpr):
    """One program owns BLOCK consecutive elements; all programs but the last mask nothing."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if first + BLOCK <= n_elements:
        _multiply_add(input_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, out_ptr + offs, None, value)
    else:
        mask = offs < n_elements
        _multiply_add(input_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, out_ptr + offs, mask, value)


@triton.jit
def _blocks_backward_kernel(
    dout_ptr, tensor1_ptr, tensor2_ptr, dtensor1_ptr, dtensor2_ptr, value, n_elements, BLOCK: tl.constexpr
):
    """One program owns BLOCK consecutive elements; all programs but the last mask nothing."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if first + BLOCK <= n_elements:
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, dtensor1_ptr + offs, dtensor2_ptr + offs, None,
            value,
        )  # fmt: skip
    else:
        mask = offs < n_elements
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, dtensor1_ptr + offs, dtensor2_ptr + offs, mask,
            value,
        )  # fmt: skip


@triton.jit
def _tile(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows [BLOCK_M, 1] as int64, columns [1, BLOCK_N], whether all of the tile lies in the matrix) of a program."""
    across = tl.cdiv(n, BLOCK_N)
    first_m = tl.program_id(0) // across * BLOCK_M
    first_n = tl.program_id(0) % across * BLOCK_N
    offs_m = (first_m + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    offs_n = (first_n + tl.arange(0, BLOCK_N))[None, :]
    return offs_m, offs_n, (first_m + BLOCK_M <= m) & (first_n + BLOCK_N <= n)


@triton.jit
def _rows_kernel(
    input_ptr, tensor1_ptr, tensor2_ptr, out_ptr, value, m, n, stride_xm, stride_am, stride_bm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M rows and BLOCK_N columns; the rows of out, [m, n], have no gaps."""
    offs_m, offs_n, full = _tile(m, n, BLOCK_M, BLOCK_N)
    input_ptrs = input_ptr + offs_m * stride_xm + offs_n
    tensor1_ptrs = tensor1_ptr + offs_m * stride_am + offs_n
    tensor2_ptrs = tensor2_ptr + offs_m * stride_bm + offs_n
    out_ptrs = out_ptr + offs_m * n + offs_n
    if full:
        _multiply_add(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, None, value)
    else:
        mask = (offs_m < m) & (offs_n < n)
        _multiply_add(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, mask, value)


@triton.jit
def _rows_backward_kernel(
    dout_ptr, tensor1_ptr, tensor2_ptr, dtensor1_ptr, dtensor2_ptr, value, m, n, stride_am, stride_bm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M rows and BLOCK_N columns; the rows of the gradients have no gaps."""
    offs_m, offs_n, full = _tile(m, n, BLOCK_M, BLOCK_N)
    offs = offs_m * n + offs_n
    tensor1_ptrs = tensor1_ptr + offs_m * stride_am + offs_n
    tensor2_ptrs = tensor2_ptr + offs_m * stride_bm + offs_n
    if full:
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptr + offs, dtensor2_ptr + offs, None, value
        )
    else:
        mask = (offs_m < m) & (offs_n < n)
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptr + offs, dtensor2_ptr + offs, mask, value
        )


def launch_blocks(input, tensor1, tensor2, value, *, config):
    out = torch.empty_like(input)
    launch(
        _blocks_kernel, (triton.cdiv(input.numel(), config["BLOCK"]),),
        input, tensor1, tensor2, out, value, input.numel(), BLOCK=config["BLOCK"], num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def launch_blocks_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    launch(
        _blocks_backward_kernel, (triton.cdiv(dout.numel(), config["BLOCK"]),),
        dout, tensor1, tensor2, dtensor1, dtensor2, value, dout.numel(),
        BLOCK=config["BLOCK"], num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2


def launch_rows(input, tensor1, tensor2, value, *, config):
    out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    x, a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (input, tensor1, tensor2))
    grid, tile = elementwise.tiles(*x.shape, config["BLOCK"], narrowest=LINE)
    launch(
        _rows_kernel, grid, x, a, b, out, value, *x.shape, x.stride(0), a.stride(0), b.stride(0), **tile,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def launch_rows_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (tensor1, tensor2))
    grid, tile = elementwise.tiles(*a.shape, config["BLOCK"], narrowest=LINE)
    launch(
        _rows_backward_kernel, grid, dout, a, b, dtensor1, dtensor2, value, *a.shape, a.stride(0), b.stride(0), **tile,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2
