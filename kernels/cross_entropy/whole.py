"""Variant `whole`: rows of few classes, all of them in one program, which sums their losses by itself."""

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .row import factors_of, gradient_of, loss_of
from .total import empty_like, loss_dtype, stride


@triton.jit
def _whole_kernel(
    x_ptr, target_ptr, loss_ptr, lse_ptr, scale_ptr, dx_ptr, m, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, GRADIENT: tl.constexpr, MEAN: tl.constexpr, PER_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns all rows: the loss, the scale, and lse_i or with GRADIENT dx.

    Logits are read beside the targets, not after them: a row that does not count, too, and a target's logit is taken
    out of its row in registers.  dx may lie where x does: each thread writes what it has read.
    """
    if WIDTH > 1:  # multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
        n = n // WIDTH * WIDTH
        stride_xm = stride_xm // WIDTH * WIDTH
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)[None, :]
    mask_m = offs_m < m
    inside = mask_m[:, None] & (offs_n < n)
    offs = (offs_m.to(tl.int64) * stride_xm)[:, None] + offs_n
    target = tl.load(target_ptr + offs_m, mask=mask_m, other=ignore_index)
    # -inf is the identity of max and becomes 0, the identity of the sum.
    x = tl.load(x_ptr + offs, mask=inside, other=-float("inf")).to(tl.float32)
    counted = target != ignore_index
    valid = counted & (target >= 0) & (target < n)
    at_target = offs_n == tl.where(valid, target, -1).to(tl.int32)[:, None]
    logit = tl.where(valid, tl.sum(tl.where(at_target, x, 0.0), axis=1), float("nan"))
    row_max = tl.maximum(tl.max(x, axis=1), LOWEST)
    row_sum = tl.sum(tl.exp(x - row_max[:, None]), axis=1)
    total = tl.sum(tl.where(inside, x, 0.0), axis=1) if SMOOTHING else row_sum
    loss, lse = loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    scale = 1.0
    if MEAN:
        scale = 1.0 / tl.sum(counted.to(tl.int32), axis=0).to(tl.float32)
    tl.store(scale_ptr, scale)
    if PER_ROW:
        tl.store(loss_ptr + offs_m, loss, mask=mask_m)
    else:
        tl.store(loss_ptr, tl.sum(loss, axis=0) * scale)
    if GRADIENT:
        weight, floor, peak = factors_of(lse, n, label_smoothing, z_loss)
        weight = (weight / row_sum)[:, None]
        dx = gradient_of(x, row_max[:, None], weight, floor, peak, scale, at_target, counted[:, None])
        tl.store(dx_ptr + offs, dx, mask=inside)
    else:
        tl.store(lse_ptr + offs_m, lse, mask=mask_m)


def launch_whole(
    x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, dx=None, wide_loss=False
):
    m, n = x.shape
    loss = torch.empty((m,) if reduction == "none" else (), dtype=loss_dtype(x, wide_loss), device=x.device)
    scale = torch.empty(1, dtype=torch.float32, device=x.device)
    lse = None if gradient else torch.empty(m, dtype=torch.float32, device=x.device)
    dx = empty_like(x) if gradient and dx is None else dx
    vector = VECTOR_BYTES // x.element_size()
    launch(
        _whole_kernel, (1,),
        x, target, loss, lse, scale, dx, m, n, stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, GRADIENT=gradient, MEAN=reduction == "mean", PER_ROW=reduction == "none",
        BLOCK_M=triton.next_power_of_2(m), BLOCK_N=triton.next_power_of_2(n),
        WIDTH=1 if n % vector or stride(x) % vector else vector, num_warps=config["num_warps"],
    )  # fmt: skip
    return loss, dx if gradient else lse, scale
