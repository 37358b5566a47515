"""Variant `one_pass`: whole rows in registers."""

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .row import factors_of, gradient_of, loss_of, target_of
from .total import empty_like, launch_total, loss_dtype, rows_and_scale, stride, total_of


@triton.jit
def _one_pass_kernel(
    x_ptr, target_ptr, rows_ptr, lse_ptr, scale_ptr, dx_ptr, m, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, GRADIENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers: loss_i and lse_i, with GRADIENT dx."""
    if WIDTH > 1:  # multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
        n = n // WIDTH * WIDTH
        stride_xm = stride_xm // WIDTH * WIDTH
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_m = offs_m < m
    row = x_ptr + offs_m * stride_xm
    target = tl.load(target_ptr + offs_m, mask=mask_m, other=ignore_index)
    counted, valid, logit = target_of(row, target, n, ignore_index)
    mask = counted[:, None] & (offs_n < n)  # rows past the last one do not count
    # -inf is the identity of max and becomes 0, the identity of the sum.
    x = tl.load(row[:, None] + offs_n, mask=mask, other=-float("inf")).to(tl.float32)
    row_max = tl.maximum(tl.max(x, axis=1), LOWEST)
    row_sum = tl.sum(tl.exp(x - row_max[:, None]), axis=1)
    total = tl.sum(tl.where(mask, x, 0.0), axis=1) if SMOOTHING else row_sum
    loss, lse = loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + offs_m, loss, mask=mask_m)
    if GRADIENT:
        weight, floor, peak = factors_of(lse, n, label_smoothing, z_loss)
        weight, g = weight / row_sum, tl.load(scale_ptr)
        at_target = offs_n == target[:, None]
        tl.debug_barrier()  # dx may lie where x does: every thread has read its target's logit
        dx = gradient_of(x, row_max[:, None], weight[:, None], floor, peak, g, at_target, counted[:, None])
        tl.store(dx_ptr + (offs_m * stride_xm)[:, None] + offs_n, dx, mask=mask_m[:, None] & (offs_n < n))
    else:
        tl.store(lse_ptr + offs_m, lse, mask=mask_m)


def launch_one_pass(
    x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, dx=None, wide_loss=False
):
    m, n = x.shape
    rows, scale = rows_and_scale(x, reduction, wide_loss)
    if gradient:
        saved = empty_like(x) if dx is None else dx
        launch_total(rows, target, rows, scale, ignore_index, reduction, total=False)
    else:
        saved = torch.empty(m, dtype=torch.float32, device=x.device)
    vector = VECTOR_BYTES // x.element_size()
    launch(
        _one_pass_kernel, (triton.cdiv(m, config["BLOCK_M"]),),
        x, target, rows, saved, scale, saved, m, n, stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, GRADIENT=gradient, BLOCK_M=config["BLOCK_M"],
        BLOCK_N=triton.next_power_of_2(n), WIDTH=1 if n % vector or stride(x) % vector else vector,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of(rows, target, scale, ignore_index, reduction, loss_dtype(x, wide_loss)), saved, scale
