"""Variant `strips` of both passes: many rows of up to a thousand classes, of which a few lanes of a warp hold each.

Logits are read beside the targets, not after them: rows that do not count, too.  Each program of the forward pass
leaves one sum of losses.
"""

import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.rows import LOWEST
from kernels.common.strips import begin_of, columns_of, cut, strip_of, widest

from .row import factors_of, gradient_of, loss_of, target_of
from .total import empty_like, left_by, loss_dtype, stride, total_of_left, write_rows


@triton.jit
def _strips_kernel(
    x_ptr, target_ptr, rows_ptr, lse_ptr, scale_ptr, m, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, PER_ROW: tl.constexpr, CLASSES: tl.constexpr, BLOCK_M: tl.constexpr,
    STRIPS: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of CLASSES: lse_i, and loss_i where they are wanted PER_ROW, else the sum of these
    and how many rows count."""
    if not ANYWHERE:
        stride_xm = stride_xm // VECTOR * VECTOR
    pid = tl.program_id(0)
    offs_m = pid.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    target = tl.load(target_ptr + offs_m, mask=mask_m, other=ignore_index)
    first = offs_m * stride_xm
    base, shift = begin_of(first, VECTOR, ANYWHERE)
    end = tl.cast(m - 1, tl.int64) * stride_xm + CLASSES
    held = ()
    for i in tl.static_range(STRIPS):
        held += (strip_of(x_ptr, base, shift, mask_m, end, 1, i, CLASSES, WIDTH, VECTOR, ANYWHERE),)
    counted, valid, logit = target_of(x_ptr + first, target, CLASSES, ignore_index)
    largest = held[0]
    for i in tl.static_range(1, STRIPS):
        largest = tl.maximum(largest, held[i])
    row_max = tl.maximum(tl.max(largest, axis=1), LOWEST)
    sums, totals = tl.zeros([BLOCK_M, WIDTH], tl.float32), tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for i in tl.static_range(STRIPS):
        sums += tl.exp(held[i] - row_max[:, None])
        if SMOOTHING:
            column = columns_of(shift, i, WIDTH)
            totals += tl.where((column >= 0) & (column < CLASSES), held[i], 0.0)
    row_sum, total = tl.sum(sums, axis=1), tl.sum(totals, axis=1)
    loss, lse = loss_of(row_max, row_sum, total, logit, CLASSES, label_smoothing, z_loss, counted, valid, SMOOTHING)
    write_rows(rows_ptr, lse_ptr, scale_ptr, offs_m, mask_m, counted, loss, lse, PER_ROW)


def launch_strips(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, wide_loss=False):
    m, n = x.shape
    size, per_row, dtype = x.element_size(), reduction == "none", loss_dtype(x, wide_loss)
    shape = cut(n, size, widest(size, n, stride(x)), True, config)
    programs = triton.cdiv(m, shape["BLOCK_M"])
    left, lse, scale = left_by(programs, x, reduction, dtype)
    launch(
        _strips_kernel, (programs,), x, target, left, lse, scale, m, stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, PER_ROW=per_row, CLASSES=n, **shape, num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of_left(left, lse, scale, reduction, dtype)


@triton.jit
def _strips_backward_kernel(
    x_ptr, target_ptr, lse_ptr, scale_ptr, dloss_ptr, dx_ptr, m, stride_xm, ignore_index, label_smoothing, z_loss,
    PER_ROW: tl.constexpr, CLASSES: tl.constexpr, BLOCK_M: tl.constexpr,
    STRIPS: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of dx, whose CLASSES are whole vectors."""
    stride_xm = stride_xm // VECTOR * VECTOR
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    target = tl.load(target_ptr + offs_m, mask=mask_m, other=ignore_index)
    lse = tl.load(lse_ptr + offs_m, mask=mask_m, other=0.0)
    first = offs_m * stride_xm
    base, shift = begin_of(first, VECTOR, ANYWHERE)
    held = ()
    for i in tl.static_range(STRIPS):
        held += (strip_of(x_ptr, base, shift, mask_m, 0, 1, i, CLASSES, WIDTH, VECTOR, ANYWHERE),)
    if PER_ROW:
        g = tl.load(dloss_ptr + offs_m, mask=mask_m, other=0.0).to(tl.float32)
    else:
        g = tl.load(dloss_ptr).to(tl.float32) + tl.zeros([BLOCK_M], tl.float32)
    g *= tl.load(scale_ptr)
    weight, floor, peak = factors_of(lse, CLASSES, label_smoothing, z_loss)
    counted = (target != ignore_index)[:, None]
    at = target.to(tl.int32)[:, None]
    for i in tl.static_range(STRIPS):
        offs = i * WIDTH + tl.arange(0, WIDTH)[None, :]
        dx = gradient_of(held[i], lse[:, None], weight[:, None], floor, peak, g[:, None], offs == at, counted)
        tl.store(dx_ptr + (first[:, None] + offs), dx, mask=mask_m[:, None] & (offs < CLASSES))


def launch_strips_backward(x, target, lse, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, *, config):
    m, n = x.shape
    dx, size = empty_like(x), x.element_size()
    shape = cut(n, size, widest(size, n, stride(x)), False, config)
    launch(
        _strips_backward_kernel, (triton.cdiv(m, shape["BLOCK_M"]),),
        x, target, lse, scale, dloss, dx, m, stride(x), ignore_index, label_smoothing, z_loss,
        PER_ROW=dloss.dim(), CLASSES=n, **shape, num_warps=config["num_warps"],
    )  # fmt: skip
    return dx
