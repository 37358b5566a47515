"""Variant `held`: many rows of few classes, of which a thread holds all; each program leaves one sum of losses.

Nothing is exchanged between threads but that sum, and no loss of a row is written to be read again.
"""

import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .row import loss_of
from .total import left_by, loss_dtype, stride, total_of_left, write_rows


@triton.jit
def _held_kernel(
    x_ptr, target_ptr, rows_ptr, lse_ptr, scale_ptr, m, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, PER_ROW: tl.constexpr, BLOCK_M: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of CLASSES: lse_i, and loss_i where they are wanted PER_ROW, else the sum of these
    and how many rows count.

    Logits are read beside the targets, not after them: rows that do not count, too.
    """
    pid = tl.program_id(0)
    offs_m = pid.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    x_ptr += offs_m * stride_xm
    target = tl.load(target_ptr + offs_m, mask=mask_m, other=ignore_index)
    held = ()
    for j in tl.static_range(CLASSES):
        held += (tl.load(x_ptr + j, mask=mask_m, other=0.0).to(tl.float32),)
    counted = target != ignore_index
    valid = counted & (target >= 0) & (target < CLASSES)
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    logit, total = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    for j in tl.static_range(CLASSES):
        row_max = tl.maximum(row_max, held[j])
        logit = tl.where(target == j, held[j], logit)
        if SMOOTHING:
            total += held[j]
    logit = tl.where(valid, logit, float("nan"))
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for j in tl.static_range(CLASSES):
        row_sum += tl.exp(held[j] - row_max)
    loss, lse = loss_of(row_max, row_sum, total, logit, CLASSES, label_smoothing, z_loss, counted, valid, SMOOTHING)
    write_rows(rows_ptr, lse_ptr, scale_ptr, offs_m, mask_m, counted, loss, lse, PER_ROW)


def launch_held(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, wide_loss=False):
    m, n = x.shape
    block, per_row, dtype = 32 * config["num_warps"] * config["ROWS"], reduction == "none", loss_dtype(x, wide_loss)
    programs = triton.cdiv(m, block)
    left, lse, scale = left_by(programs, x, reduction, dtype)
    launch(
        _held_kernel, (programs,), x, target, left, lse, scale, m, stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, PER_ROW=per_row, BLOCK_M=block, CLASSES=n, num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of_left(left, lse, scale, reduction, dtype)
