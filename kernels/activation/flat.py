"""Variant `flat`: whole tensors as vectors, in blocks of consecutive elements."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from .tiles import backward_tile, forward_tile


@triton.jit
def _flat_kernel(x_ptr, up_ptr, out_ptr, n_elements, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr):
    """One program owns BLOCK consecutive elements; all but the last one need no mask, so any length is read in vectors.

    ``up_ptr`` is read only if GATED.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    x_ptrs, out_ptrs = x_ptr + start + offs, out_ptr + start + offs
    up_ptrs = up_ptr + start + offs if GATED else None
    if start + BLOCK <= n_elements:
        forward_tile(x_ptrs, up_ptrs, out_ptrs, None, KIND, False)
    else:
        forward_tile(x_ptrs, up_ptrs, out_ptrs, offs < n_elements - start, KIND, True)


@triton.jit
def _flat_backward_kernel(
    x_ptr, up_ptr, dy_ptr, dx_ptr, dup_ptr, n_elements,
    KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK consecutive elements, as in _flat_kernel; ``up_ptr``, ``dup_ptr`` only if GATED."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offs = tl.arange(0, BLOCK)
    x_ptrs, dy_ptrs, dx_ptrs = x_ptr + start + offs, dy_ptr + start + offs, dx_ptr + start + offs
    up_ptrs = up_ptr + start + offs if GATED else None
    dup_ptrs = dup_ptr + start + offs if GATED else None
    if start + BLOCK <= n_elements:
        backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, None, KIND, False)
    else:
        backward_tile(x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, offs < n_elements - start, KIND, True)


def empty(x):
    """An output of the shape of ``x``, contiguous whatever ``x`` is."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def launch_flat(x, up, kind, *, config):
    out, n = empty(x), x.numel()
    if n:
        launch(
            _flat_kernel, (triton.cdiv(n, config["BLOCK"]),), x, up, out, n,
            KIND=kind, GATED=up is not None, BLOCK=config["BLOCK"], num_warps=config["num_warps"],
        )  # fmt: skip
    return out


def launch_flat_backward(x, up, dy, kind, *, config):
    dx, dup, n = empty(x), None if up is None else empty(up), x.numel()
    if n:
        launch(
            _flat_backward_kernel, (triton.cdiv(n, config["BLOCK"]),), x, up, dy, dx, dup, n,
            KIND=kind, GATED=up is not None, BLOCK=config["BLOCK"], num_warps=config["num_warps"],
        )  # fmt: skip
    return dx if up is None else (dx, dup)
