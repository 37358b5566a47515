"""The variant `flat`: rows with gaps between them, by blocks of the result's consecutive elements wherever rows end."""

import torch
import triton
import triton.language as tl
from atlas.declaration import cases, elementwise
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .tiles import LINE


@triton.jit
def _lanes(n, LANES: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """(rows as int64, columns, places in [m, n]) of a program's LANES x WIDTH neighbours, each [LANES, WIDTH].

    One division for the WIDTH <= n elements of a lane, of which WHOLE says that they lie in one row.
    """
    lane = tl.program_id(0) * (LANES * WIDTH) + tl.arange(0, LANES)[:, None] * WIDTH
    within = tl.arange(0, WIDTH)[None, :]
    row = lane // n
    column = lane - row * n + within
    if not WHOLE:
        beyond = column >= n
        row += beyond.to(tl.int32)
        column = tl.where(beyond, column - n, column)
    return row.to(tl.int64), column, lane + within


@triton.jit
def _read(ptrs, mask):
    """In fp32, and evicted first, since nothing is read twice."""
    return tl.load(ptrs, mask=mask, eviction_policy="evict_first").to(tl.float32)


@triton.jit
def _flat(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, mask, value):
    """The lanes of a program, from load to store."""
    x, a, b = _read(input_ptrs, mask), _read(tensor1_ptrs, mask), _read(tensor2_ptrs, mask)
    tl.store(out_ptrs, x + value * a * b, mask=mask)


@triton.jit
def _flat_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, mask, value):
    """The lanes of a program in both gradients."""
    dout, a, b = value * _read(dout_ptrs, mask), _read(tensor1_ptrs, mask), _read(tensor2_ptrs, mask)
    tl.store(dtensor1_ptrs, dout * b, mask=mask)
    tl.store(dtensor2_ptrs, dout * a, mask=mask)


@triton.jit
def _flat_kernel(
    input_ptr, tensor1_ptr, tensor2_ptr, out_ptr, value, n_elements, n, stride_xm, stride_am, stride_bm,
    LANES: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """One program owns LANES x WIDTH neighbours in out, wherever rows end; PLAIN: input has no gaps.

    WHOLE: n and the strides are multiples of WIDTH.
    """
    if WHOLE:  # so said, the compiler accesses WIDTH elements at once
        n, stride_xm = n // WIDTH * WIDTH, stride_xm // WIDTH * WIDTH
        stride_am, stride_bm = stride_am // WIDTH * WIDTH, stride_bm // WIDTH * WIDTH
    offs_m, offs_n, offs = _lanes(n, LANES, WIDTH, WHOLE)
    input_ptrs = input_ptr + (offs if PLAIN else offs_m * stride_xm + offs_n)
    tensor1_ptrs, tensor2_ptrs = tensor1_ptr + offs_m * stride_am + offs_n, tensor2_ptr + offs_m * stride_bm + offs_n
    if (tl.program_id(0) + 1) * (LANES * WIDTH) <= n_elements:
        _flat(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptr + offs, None, value)
    else:
        _flat(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptr + offs, offs < n_elements, value)


@triton.jit
def _flat_backward_kernel(
    dout_ptr, tensor1_ptr, tensor2_ptr, dtensor1_ptr, dtensor2_ptr, value, n_elements, n, stride_am, stride_bm,
    LANES: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One program owns LANES x WIDTH neighbours in the gradients, as in _flat_kernel."""
    if WHOLE:
        n, stride_am, stride_bm = n // WIDTH * WIDTH, stride_am // WIDTH * WIDTH, stride_bm // WIDTH * WIDTH
    offs_m, offs_n, offs = _lanes(n, LANES, WIDTH, WHOLE)
    tensor1_ptrs, tensor2_ptrs = tensor1_ptr + offs_m * stride_am + offs_n, tensor2_ptr + offs_m * stride_bm + offs_n
    dout_ptrs, dtensor1_ptrs, dtensor2_ptrs = dout_ptr + offs, dtensor1_ptr + offs, dtensor2_ptr + offs
    if (tl.program_id(0) + 1) * (LANES * WIDTH) <= n_elements:
        _flat_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, None, value)
    else:
        mask = offs < n_elements
        _flat_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, mask, value)


def _lanes_of(x, strides, config):
    """Grid and meta-parameters of lanes over [m, n] like ``x``, of which other tensors have these row strides."""
    width = VECTOR_BYTES // x.element_size()
    lanes = {
        "LANES": config["BLOCK"] // width,
        "WIDTH": width,
        "WHOLE": not any(length % width for length in (x.shape[1], *strides)),
    }
    return (triton.cdiv(x.numel(), config["BLOCK"]),), lanes


def launch_flat(input, tensor1, tensor2, value, *, config):
    out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    x, a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (input, tensor1, tensor2))
    n, strides = x.shape[1], (x.stride(0), a.stride(0), b.stride(0))
    grid, lanes = _lanes_of(x, strides, config)
    launch(
        _flat_kernel, grid, x, a, b, out, value, x.numel(), n, *strides, **lanes, PLAIN=x.stride(0) == n,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def launch_flat_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (tensor1, tensor2))
    strides = a.stride(0), b.stride(0)
    grid, lanes = _lanes_of(a, strides, config)
    launch(
        _flat_backward_kernel, grid, dout, a, b, dtensor1, dtensor2, value, a.numel(), a.shape[1], *strides, **lanes,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2


def handles_flat(problem, gpu):
    if not problem["gaps"]:
        return "without gaps `blocks` does the same with less"
    if problem["n"] % LINE == 0:
        return "tiles of rows end where these do"
    if problem["n"] < VECTOR_BYTES // cases.element_size(problem.dtype):
        return "rows shorter than a vector"
    most = 2**31 - elementwise.SPACE["BLOCK"][-1]
    return "" if problem["m"] * problem["n"] <= most else "more elements than 32 bits count"
