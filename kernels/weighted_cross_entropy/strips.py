"""Variant `strips` of both passes: many rows of up to a thousand classes, of which a few lanes of a warp hold each.

Logits are read beside the targets, not after them: rows that do not count, too.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.rows import LOWEST
from kernels.common.strips import begin_of, columns_of, cut, strip_of

from .row import coefficients_of, loss_dtype, places_of, strides_of, width_of, with_target
from .total import outputs, total_of, write_rows


@triton.jit
def _strips_kernel(
    x_ptr, target_ptr, weight_ptr, rows_ptr, saved_ptr, scale_ptr, m, length,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_tn, stride_ts, ignore_index, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, PER_ROW: tl.constexpr,
    CLASSES: tl.constexpr, BLOCK_M: tl.constexpr, STRIPS: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr,
    ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of CLASSES, of probabilities none that begins ANYWHERE."""
    SUMS: tl.constexpr = PROBABILITIES or SMOOTHING
    if not ANYWHERE:
        stride_xb, stride_xs = stride_xb // VECTOR * VECTOR, stride_xs // VECTOR * VECTOR
    if PROBABILITIES:
        stride_tb, stride_ts = stride_tb // VECTOR * VECTOR, stride_ts // VECTOR * VECTOR
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    first = places_of(offs_m, length, stride_xb, stride_xs)
    target_row = target_ptr + places_of(offs_m, length, stride_tb, stride_ts)
    counted = mask_m
    if not PROBABILITIES:
        target = tl.load(target_row, mask=mask_m, other=ignore_index)
        counted = target != ignore_index
    base, shift = begin_of(first, VECTOR, ANYWHERE)
    end = tl.cast(m // length - 1, tl.int64) * stride_xb + (length - 1) * stride_xs + CLASSES
    held, coefficients = (), ()
    for i in tl.static_range(STRIPS):
        held += (strip_of(x_ptr, base, shift, mask_m, end, stride_xn, i, CLASSES, WIDTH, VECTOR, ANYWHERE),)
    for i in tl.static_range(STRIPS):
        c = tl.zeros([1, WIDTH], tl.float32)
        if SUMS:
            column = columns_of(shift, i, WIDTH) if ANYWHERE else i * WIDTH + tl.arange(0, WIDTH)[None, :]
            inside = mask_m[:, None] & (column >= 0) & (column < CLASSES)
            target_ptrs = target_row[:, None] + column.to(tl.int64) * stride_tn
            c = coefficients_of(
                target_ptrs, weight_ptr, tl.maximum(column, 0), inside, CLASSES, label_smoothing, PROBABILITIES,
                HAS_WEIGHT,
            )  # fmt: skip
            c = tl.where(inside, c, 0.0)
        coefficients += (c,)
    largest = held[0]
    for i in tl.static_range(1, STRIPS):
        largest = tl.maximum(largest, held[i])
    row_max = tl.maximum(tl.max(largest, axis=1), LOWEST)
    sums, below = tl.zeros([BLOCK_M, WIDTH], tl.float32), tl.zeros([BLOCK_M, WIDTH], tl.float32)
    of_classes = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    for i in tl.static_range(STRIPS):
        sums += tl.exp(held[i] - row_max[:, None])
        if SUMS:
            column = columns_of(shift, i, WIDTH)
            inside = (column >= 0) & (column < CLASSES)
            below += tl.where(inside, coefficients[i] * (row_max[:, None] - held[i]), 0.0)
            of_classes += coefficients[i]
    log_l = tl.log(tl.sum(sums, axis=1))
    lse = row_max + log_l
    loss = z_loss * lse * lse
    c = tl.sum(of_classes, axis=1)
    if SUMS:
        loss += c * log_l + tl.sum(below, axis=1)
    weight = tl.where(counted, 1.0, 0.0)
    if not PROBABILITIES:
        valid = counted & (target >= 0) & (target < CLASSES)
        logit = tl.load(x_ptr + first + target * stride_xn, mask=valid, other=float("nan")).to(tl.float32)
        loss, c, log_l, weight = with_target(
            loss, c, log_l, row_max, logit, target, valid, weight, weight_ptr, label_smoothing, HAS_WEIGHT
        )
    write_rows(
        rows_ptr, saved_ptr, scale_ptr, m, offs_m, mask_m, counted, loss, weight, row_max, log_l, c, SUMS, PER_ROW
    )  # fmt: skip


@triton.jit
def _strips_backward_kernel(
    x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, m, length,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_ts, stride_db, stride_dn, stride_ds,
    ignore_index, label_smoothing, z_loss,
    HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, PER_ROW: tl.constexpr, CLASSES: tl.constexpr,
    BLOCK_M: tl.constexpr, STRIPS: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of dx, of class indices; ``stride_d`` are of dx.  No row begins ANYWHERE."""
    stride_xb, stride_xs = stride_xb // VECTOR * VECTOR, stride_xs // VECTOR * VECTOR
    stride_db, stride_ds = stride_db // VECTOR * VECTOR, stride_ds // VECTOR * VECTOR
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    base, shift = begin_of(places_of(offs_m, length, stride_xb, stride_xs), VECTOR, ANYWHERE)
    row_max = tl.load(saved_ptr + offs_m, mask=mask_m, other=0.0)
    log_l = tl.load(saved_ptr + m + offs_m, mask=mask_m, other=0.0)
    total = 2.0 * z_loss * (row_max + log_l)
    if SMOOTHING:
        total += tl.load(saved_ptr + 2 * m + offs_m, mask=mask_m, other=0.0)
    target = tl.load(target_ptr + places_of(offs_m, length, stride_tb, stride_ts), mask=mask_m, other=ignore_index)
    counted = target != ignore_index
    held = ()
    for i in tl.static_range(STRIPS):
        held += (strip_of(x_ptr, base, shift, mask_m, 0, stride_xn, i, CLASSES, WIDTH, VECTOR, ANYWHERE),)
    g = tl.load(scale_ptr)
    if PER_ROW:
        g = g * tl.load(dloss_ptr + offs_m, mask=mask_m, other=0.0).to(tl.float32)
    else:
        g = g * tl.load(dloss_ptr).to(tl.float32) + tl.zeros([BLOCK_M], tl.float32)
    peak = tl.where(counted, 1.0 - label_smoothing, 0.0)
    if HAS_WEIGHT:
        valid = counted & (target >= 0) & (target < CLASSES)
        peak *= tl.load(weight_ptr + target, mask=valid, other=0.0).to(tl.float32)
    if not SMOOTHING:
        total += peak
    dx_row = places_of(offs_m, length, stride_db, stride_ds)[:, None]
    for i in tl.static_range(STRIPS):
        offs_n = i * WIDTH + tl.arange(0, WIDTH)[None, :]
        dx = tl.exp(held[i] - row_max[:, None] - log_l[:, None]) * total[:, None]
        if SMOOTHING:
            dx -= coefficients_of(target_ptr, weight_ptr, offs_n, True, CLASSES, label_smoothing, False, HAS_WEIGHT)
        dx -= tl.where(offs_n == target[:, None], peak[:, None], 0.0)
        # Multiplied by g last and once: an infinite g times a term that is 0 would be NaN.
        dx = tl.where(counted[:, None], dx * g[:, None], 0.0)
        tl.store(dx_ptr + (dx_row + offs_n.to(tl.int64) * stride_dn), dx, mask=mask_m[:, None] & (offs_n < CLASSES))


def launch_strips(
    x, target, weight, ignore_index, reduction, label_smoothing, z_loss, *, config, wide_loss=False
):  # fmt: skip
    b, n, length = x.shape
    m, probabilities, per_row = b * length, target.dim() == 3, reduction == "none"
    apart = [x.stride(axis) for axis in (0, 2) if x.shape[axis] > 1]
    # Rows that share elements may all reach the tensor's end, where vectors are not whole.
    neighbours = not probabilities and x.stride(1) == 1 and min(apart, default=n) >= n
    along = (x, target) if probabilities else (x,)
    shape, dtype = cut(n, x.element_size(), width_of(True, *along), neighbours, config), loss_dtype(x, wide_loss)
    programs = triton.cdiv(m, shape["BLOCK_M"])
    rows, saved, scale = outputs(x, target, label_smoothing, m if per_row else 2 * programs, per_row, dtype)
    targets = target if probabilities else target[:, None]
    launch(
        _strips_kernel, (programs,),
        x, target, weight, rows, saved, scale, m, length, *strides_of(x), *strides_of(targets),
        ignore_index, label_smoothing, z_loss,
        PROBABILITIES=probabilities, HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0, PER_ROW=per_row,
        CLASSES=n, **shape, num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of(rows, saved, scale, programs, reduction, dtype)


def launch_strips_backward(
    x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, of_target=False, *, config
):
    """dx; indices have no gradient, so ``of_target`` is not asked for."""
    b, n, length = x.shape
    m, dx = b * length, torch.empty_like(x)
    shape = cut(n, x.element_size(), width_of(True, x, dx), False, config)
    launch(
        _strips_backward_kernel, (triton.cdiv(m, shape["BLOCK_M"]),),
        x, target, weight, saved, scale, dloss, dx, m, length, *strides_of(x), *strides_of(target), *strides_of(dx),
        ignore_index, label_smoothing, z_loss,
        HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0, PER_ROW=dloss.dim(), CLASSES=n, **shape,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dx
