"""Variant `held` of the backward pass: columns of so few classes that a thread holds all of those of its rows.

What the forward pass kept of rows would be more to read than logits and their gradient: it is computed again.  Nothing
is exchanged between threads, and nothing waits for anything but memory.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .row import coefficients_of, places_of, strides_of, width_of


@triton.jit
def _held_kernel(
    x_ptr, target_ptr, weight_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, m, length,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_tn, stride_ts,
    stride_db, stride_dn, stride_ds, stride_eb, stride_en, stride_es, ignore_index, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, OF_TARGET: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr,
    PER_ROW: tl.constexpr, BLOCK_M: tl.constexpr, CLASSES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of CLASSES each; ``stride_d`` are of dx, ``stride_e`` of the targets'
    gradient.  VECTOR divides ``length`` and the strides of the other axes."""
    length, m = length // VECTOR * VECTOR, m // VECTOR * VECTOR
    stride_xb, stride_xn = stride_xb // VECTOR * VECTOR, stride_xn // VECTOR * VECTOR
    stride_db, stride_dn = stride_db // VECTOR * VECTOR, stride_dn // VECTOR * VECTOR
    if PROBABILITIES:
        stride_tb, stride_tn = stride_tb // VECTOR * VECTOR, stride_tn // VECTOR * VECTOR
        stride_eb, stride_en = stride_eb // VECTOR * VECTOR, stride_en // VECTOR * VECTOR
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    x_ptr += places_of(offs_m, length, stride_xb, stride_xs)
    target_ptr += places_of(offs_m, length, stride_tb, stride_ts)
    held, coefficients = (), ()
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    for j in tl.static_range(CLASSES):
        # Rows that do not count are read as well: side by side they are, in whole vectors.
        held += (tl.load(x_ptr + tl.cast(j, tl.int64) * stride_xn, mask=mask_m, other=0.0),)
    for j in tl.static_range(CLASSES):
        c = tl.zeros([BLOCK_M], tl.float32)
        if PROBABILITIES or SMOOTHING:
            c += coefficients_of(
                target_ptr + tl.cast(j, tl.int64) * stride_tn, weight_ptr, j, mask_m, CLASSES, label_smoothing,
                PROBABILITIES, HAS_WEIGHT,
            )  # fmt: skip
        coefficients += (c,)
    g = tl.load(scale_ptr)
    if PER_ROW:
        g = g * tl.load(dloss_ptr + offs_m, mask=mask_m, other=0.0).to(tl.float32)
    else:
        g = g * tl.load(dloss_ptr).to(tl.float32) + tl.zeros([BLOCK_M], tl.float32)
    counted = mask_m
    peak = tl.zeros([BLOCK_M], tl.float32)
    if not PROBABILITIES:
        target = tl.load(target_ptr, mask=mask_m, other=ignore_index)
        counted = target != ignore_index
        valid = counted & (target >= 0) & (target < CLASSES)
        # NaN, and so is the gradient, where the target is impossible.
        peak = tl.where(valid, 1.0 - label_smoothing, float("nan"))
        if HAS_WEIGHT:
            peak *= tl.load(weight_ptr + target, mask=valid, other=0.0).to(tl.float32)
    total, row_sum = peak, tl.zeros([BLOCK_M], tl.float32)
    for j in tl.static_range(CLASSES):
        row_max = tl.maximum(row_max, held[j].to(tl.float32))
        total += coefficients[j]
    for j in tl.static_range(CLASSES):
        row_sum += tl.exp(held[j].to(tl.float32) - row_max)
    log_l = tl.log(row_sum)
    total = (total + 2.0 * z_loss * (row_max + log_l)) / row_sum
    dx_ptr += places_of(offs_m, length, stride_db, stride_ds)
    if OF_TARGET:
        dtarget_ptr += places_of(offs_m, length, stride_eb, stride_es)
    for j in tl.static_range(CLASSES):
        below = held[j].to(tl.float32) - row_max
        dx = tl.exp(below) * total - coefficients[j]
        if not PROBABILITIES:
            dx -= tl.where(target == j, peak, 0.0)
        # Multiplied by g last and once: an infinite g times a term that is 0 would be NaN.
        tl.store(dx_ptr + tl.cast(j, tl.int64) * stride_dn, tl.where(counted, dx * g, 0.0), mask=mask_m)
        if OF_TARGET:
            share = (label_smoothing - 1.0) * (below - log_l)
            if HAS_WEIGHT:
                share *= tl.load(weight_ptr + j).to(tl.float32)
            tl.store(dtarget_ptr + tl.cast(j, tl.int64) * stride_en, share * g, mask=mask_m)


def launch_held(
    x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, of_target=False, *, config
):
    """dx; with ``of_target`` also the gradient of probabilities."""
    b, n, length = x.shape
    m, probabilities = b * length, target.dim() == 3
    dx, dtarget = torch.empty_like(x), torch.empty_like(target) if of_target else None
    along = [tensor for tensor in (x, dx, target if probabilities else None, dtarget) if tensor is not None]
    strided = (x, target if probabilities else target[:, None], dx, along[-1])
    rows = 32 * config["num_warps"] * config["BYTES"] // x.element_size()
    launch(
        _held_kernel, (triton.cdiv(m, rows),),
        x, target, weight, scale, dloss, dx, dtarget, m, length,
        *[step for tensor in strided for step in strides_of(tensor)], ignore_index, label_smoothing, z_loss,
        PROBABILITIES=probabilities, OF_TARGET=of_target, HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0,
        PER_ROW=dloss.dim(), BLOCK_M=rows, CLASSES=n, VECTOR=width_of(False, *along),
        num_warps=config["num_warps"],
    )  # fmt: skip
    return (dx, dtarget) if of_target else dx
