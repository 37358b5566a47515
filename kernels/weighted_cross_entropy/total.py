"""What variants of the forward pass leave of rows, and the loss from it."""

import torch
import triton
import triton.language as tl

from kernels.common.early import launch_early
from kernels.common.totals import folded, together_kernel

from .row import saved_rows


@triton.jit
def write_rows(
    rows_ptr, saved_ptr, scale_ptr, m, offs_m, mask_m, counted, loss, weight, row_max, log_l, c,
    SUMS: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Write what the gradient needs of rows, and their losses or the sums of these and of weights."""
    loss = tl.where(counted, loss, 0.0)
    # Apart, since lse is rounded to its own size: where x is the maximum, exp(x - lse) would be.
    finite = log_l > -float("inf")  # else both are NaN, and so is the gradient
    row_max, log_l = tl.where(finite, row_max, float("nan")), tl.where(finite, log_l, float("nan"))
    tl.store(saved_ptr + offs_m, tl.where(counted, row_max, 0.0), mask=mask_m)
    tl.store(saved_ptr + m + offs_m, tl.where(counted, log_l, 0.0), mask=mask_m)
    if SUMS:
        tl.store(saved_ptr + 2 * m + offs_m, tl.where(counted, c, 0.0), mask=mask_m)
    pid = tl.program_id(0)
    if PER_ROW:
        tl.store(rows_ptr + offs_m, loss, mask=mask_m)
        if pid == 0:
            tl.store(scale_ptr, 1.0)
    else:
        tl.store(rows_ptr + pid, tl.sum(loss, axis=0))
        tl.store(rows_ptr + tl.num_programs(0) + pid, tl.sum(weight, axis=0))


def outputs(x, target, label_smoothing, parts, per_row, dtype):
    """(rows, saved, scale), empty: losses of rows, or ``parts`` sums of these and of weights in fp32."""
    m = x.shape[0] * x.shape[2]
    rows = torch.empty(parts, dtype=dtype if per_row else torch.float32, device=x.device)
    saved = torch.empty((saved_rows(target, label_smoothing), m), dtype=torch.float32, device=x.device)
    return rows, saved, torch.empty(1, dtype=torch.float32, device=x.device)


def total_of(rows, saved, scale, programs, reduction, dtype):
    """(loss, saved, scale): of each row, or what ``programs`` have left added up."""
    if reduction == "none":
        return rows, saved, scale
    loss = torch.empty((), dtype=dtype, device=rows.device)
    rows, programs = folded(rows, programs)
    block = min(16384, max(128, triton.next_power_of_2(programs)))
    launch_early(
        together_kernel, (1,), rows.device, rows, loss, scale, programs,
        MEAN=reduction == "mean", TOTAL=True, COUNTS=False, BLOCK=block, num_warps=max(4, block // 512),
    )  # fmt: skip
    return loss, saved, scale
