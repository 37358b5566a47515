"""The backward pass: variant `blocks`."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .row import coefficients_of, is_last, places_of, strides_of, width_of
from .tiling import tile_of


@triton.jit
def _backward_kernel(
    x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, m, n, length, splits,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_tn, stride_ts,
    stride_db, stride_dn, stride_ds, stride_eb, stride_en, stride_es, ignore_index, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, OF_TARGET: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr,
    PER_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr,
    ONE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of dx, and of their blocks of BLOCK_N classes each ``splits``-th.

    ``stride_d`` are of dx, ``stride_e`` of the targets' gradient; VECTOR as in the forward pass.  Where that is ONE
    block, no loop keeps its logits waiting for what is known of rows.
    """
    if LAST:
        n = n // VECTOR * VECTOR
        stride_xs, stride_ds = stride_xs // VECTOR * VECTOR, stride_ds // VECTOR * VECTOR
    else:
        length, m = length // VECTOR * VECTOR, m // VECTOR * VECTOR
        stride_xn, stride_dn = stride_xn // VECTOR * VECTOR, stride_dn // VECTOR * VECTOR
    stride_xb, stride_db = stride_xb // VECTOR * VECTOR, stride_db // VECTOR * VECTOR
    if PROBABILITIES:
        stride_tb, stride_eb = stride_tb // VECTOR * VECTOR, stride_eb // VECTOR * VECTOR
        if LAST:
            stride_ts, stride_es = stride_ts // VECTOR * VECTOR, stride_es // VECTOR * VECTOR
        else:
            stride_tn, stride_en = stride_tn // VECTOR * VECTOR, stride_en // VECTOR * VECTOR
    split = tl.program_id(0) % splits
    offs_m = tl.program_id(0) // splits * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    row = places_of(offs_m, length, stride_xb, stride_xs)[:, None]
    dx_row = places_of(offs_m, length, stride_db, stride_ds)[:, None]
    target_row = target_ptr + places_of(offs_m, length, stride_tb, stride_ts)
    row_max = tl.load(saved_ptr + offs_m, mask=mask_m, other=0.0)
    log_l = tl.load(saved_ptr + m + offs_m, mask=mask_m, other=0.0)
    total = 2.0 * z_loss * (row_max + log_l)
    if PROBABILITIES or SMOOTHING:
        total += tl.load(saved_ptr + 2 * m + offs_m, mask=mask_m, other=0.0)
    g = tl.load(scale_ptr) * tl.load(dloss_ptr + offs_m * PER_ROW, mask=mask_m, other=0.0).to(tl.float32)
    counted = mask_m
    if not PROBABILITIES:
        target = tl.load(target_row, mask=mask_m, other=ignore_index)
        counted = target != ignore_index
        peak = tl.where(counted, 1.0 - label_smoothing, 0.0)
        if HAS_WEIGHT:
            valid = counted & (target >= 0) & (target < n)
            peak *= tl.load(weight_ptr + target, mask=valid, other=0.0).to(tl.float32)
        if not SMOOTHING:
            total += peak
    first = split * BLOCK_N
    for beyond in tl.range(0, BLOCK_N if ONE else n - first, BLOCK_N if ONE else splits * BLOCK_N):
        offs_n = first + beyond + tl.arange(0, BLOCK_N)[None, :]
        inside = mask_m[:, None] & (offs_n < n)
        # A row that does not count is not read where rows lie apart; side by side they are, in whole vectors.
        mask = (counted if LAST else mask_m)[:, None] & inside
        wide = offs_n.to(tl.int64)
        x = tl.load(x_ptr + (row + wide * stride_xn), mask=mask, other=-float("inf")).to(tl.float32)
        below = x - row_max[:, None] - log_l[:, None]
        dx = tl.exp(below) * total[:, None]
        if PROBABILITIES or SMOOTHING:
            target_ptrs = target_row[:, None] + wide * stride_tn
            dx -= coefficients_of(target_ptrs, weight_ptr, offs_n, mask, n, label_smoothing, PROBABILITIES, HAS_WEIGHT)
        if not PROBABILITIES:
            dx -= tl.where(offs_n == target[:, None], peak[:, None], 0.0)
        # Multiplied by g last and once: an infinite g times a term that is 0 would be NaN.
        tl.store(dx_ptr + (dx_row + wide * stride_dn), tl.where(counted[:, None], dx * g[:, None], 0.0), mask=inside)
        if OF_TARGET:
            share = (label_smoothing - 1.0) * below
            if HAS_WEIGHT:
                share *= tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
            place = places_of(offs_m, length, stride_eb, stride_es)[:, None] + wide * stride_en
            tl.store(dtarget_ptr + place, share * g[:, None], mask=inside)


def launch_backward(
    x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, of_target=False, *, config
):
    """dx; with ``of_target`` also the gradient of probabilities."""
    b, n, length = x.shape
    m, last, probabilities = b * length, is_last(x), target.dim() == 3
    dx = torch.empty_like(x)
    dtarget = torch.empty_like(target) if of_target else None
    lanes, width = tile_of(config, n, x.element_size())
    blocks, rows = triton.cdiv(n, lanes * width), triton.cdiv(m, config["BLOCK_M"])
    splits = max(1, min(blocks, 16 * gpu_of(x.device).sms // rows))
    along = [tensor for tensor in (x, dx, target if probabilities else None, dtarget) if tensor is not None]
    strided = (x, target if probabilities else target[:, None], dx, along[-1])
    strides = [step for tensor in strided for step in strides_of(tensor)]
    launch(
        _backward_kernel, (rows * splits,),
        x, target, weight, saved, scale, dloss, dx, dtarget, m, n, length, splits, *strides,
        ignore_index, label_smoothing, z_loss,
        PROBABILITIES=probabilities, OF_TARGET=of_target, HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0,
        PER_ROW=dloss.dim(), BLOCK_M=config["BLOCK_M"], BLOCK_N=lanes * width, VECTOR=width_of(last, *along), LAST=last,
        ONE=splits == blocks, num_warps=config["num_warps"],
    )  # fmt: skip
    return (dx, dtarget) if of_target else dx
