"""The loss from those of the rows, and what launchers share: memory for losses and gradients, lanes of a row."""

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait

from kernels.common.early import launch_early
from kernels.common.totals import folded, together_kernel, write_total


@triton.jit
def _total_kernel(
    rows_ptr, target_ptr, loss_ptr, scale_ptr, m, ignore_index,
    MEAN: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program owns all rows: scale = 1 / (targets that count) for the MEAN, else 1; with TOTAL the loss as well."""
    total, count = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, m, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        if MEAN:
            target = tl.load(target_ptr + offs, mask=offs < m, other=ignore_index)
            count += (target != ignore_index).to(tl.int32)
        if TOTAL:
            total += tl.load(rows_ptr + offs, mask=offs < m, other=0.0)
    write_total(total, count, loss_ptr, scale_ptr, MEAN, TOTAL)


@triton.jit
def _early_total_kernel(
    rows_ptr, target_ptr, loss_ptr, scale_ptr, m, ignore_index,
    MEAN: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The same; EARLY: launched while the kernel that writes the rows' losses still runs, it waits for its end here."""
    if EARLY:
        gdc_wait()
    _total_kernel(rows_ptr, target_ptr, loss_ptr, scale_ptr, m, ignore_index, MEAN, TOTAL, BLOCK)


@triton.jit
def _parts_kernel(
    rows_ptr, target_ptr, parts_ptr, m, ignore_index,
    MEAN: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK rows: with TOTAL the sum of their losses, for the MEAN how many count."""
    if EARLY:
        gdc_wait()
    pid = tl.program_id(0)
    offs = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if TOTAL:
        tl.store(parts_ptr + pid, tl.sum(tl.load(rows_ptr + offs, mask=offs < m, other=0.0), axis=0))
    if MEAN:
        target = tl.load(target_ptr + offs, mask=offs < m, other=ignore_index)
        count = tl.sum((target != ignore_index).to(tl.int32), axis=0)
        tl.store(parts_ptr + tl.num_programs(0) + pid, count.to(tl.float32))


@triton.jit
def write_rows(rows_ptr, lse_ptr, scale_ptr, offs_m, mask_m, counted, loss, lse, PER_ROW: tl.constexpr):
    """Write lse of a program's rows, and their losses PER_ROW, else the sum of these and how many rows count."""
    pid = tl.program_id(0)
    tl.store(lse_ptr + offs_m, lse, mask=mask_m)
    if PER_ROW:
        tl.store(rows_ptr + offs_m, loss, mask=mask_m)
        if pid == 0:
            tl.store(scale_ptr, 1.0)
    else:
        tl.store(rows_ptr + pid, tl.sum(loss, axis=0))
        tl.store(rows_ptr + tl.num_programs(0) + pid, tl.sum(counted.to(tl.int32), axis=0).to(tl.float32))


def left_by(programs, x, reduction, dtype):
    """(rows, lse, scale), empty, for :func:`write_rows`: losses in ``dtype``, or [2, programs] sums and counts."""
    m, per_row = x.shape[0], reduction == "none"
    rows = torch.empty(m if per_row else (2, programs), dtype=dtype if per_row else torch.float32, device=x.device)
    lse = torch.empty(m, dtype=torch.float32, device=x.device)
    return rows, lse, torch.empty(1, dtype=torch.float32, device=x.device)


def total_of_left(rows, lse, scale, reduction, dtype):
    """(loss, lse, scale): of each row, or what programs have left added up."""
    if reduction == "none":
        return rows, lse, scale
    loss = torch.empty((), dtype=dtype, device=rows.device)
    launch_together(rows, loss, scale, reduction == "mean")
    return loss, lse, scale


def stride(x):
    """Elements from one row to the next."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


def lanes(x, config):
    width = VECTOR_BYTES // x.element_size()
    aligned = stride(x) % width == 0 and x.shape[1] % width == 0
    return {"LANES": config["BLOCK_N"] // width, "WIDTH": width, "ALIGNED": aligned}


def empty_like(x):
    """A matrix with the rows as far apart as those of ``x``, so that lanes are the same in both."""
    return torch.empty((x.shape[0], stride(x)), dtype=x.dtype, device=x.device)[:, : x.shape[1]]


def rows_and_scale(x, reduction, wide_loss):
    """Losses of the rows, in fp32 where they are still to be summed, and what they are multiplied by."""
    rows = torch.empty(x.shape[0], dtype=loss_dtype(x, wide_loss or reduction != "none"), device=x.device)
    return rows, torch.empty(1, dtype=torch.float32, device=x.device)


def loss_dtype(x, wide_loss):
    return torch.float32 if wide_loss else x.dtype


MOST = 2**14
"""Rows that one program sums; a million losses and targets are 12 MB, some 240 us for one SM of an H200."""

_OF_PART = 2048
"""Rows of a program where they are more."""


def total_of(rows, target, scale, ignore_index, reduction, dtype):
    """The loss; ``scale`` is written."""
    loss = rows if reduction == "none" else torch.empty((), dtype=dtype, device=rows.device)
    total = reduction != "none"
    if total and rows.shape[0] > MOST:
        _total_of_parts(rows, target, loss, scale, ignore_index, reduction, total)
        return loss
    launch_early(
        _early_total_kernel, (1,), rows.device, rows, target, loss, scale, rows.shape[0], ignore_index,
        **_totals(rows.shape[0], reduction, total),
    )  # fmt: skip
    return loss


def launch_total(rows, target, loss, scale, ignore_index, reduction, total):
    m = target.shape[0]
    if m > MOST and (total or reduction == "mean"):
        _total_of_parts(rows, target, loss, scale, ignore_index, reduction, total)
    else:
        launch(_total_kernel, (1,), rows, target, loss, scale, m, ignore_index, **_totals(m, reduction, total))


def _total_of_parts(rows, target, loss, scale, ignore_index, reduction, total):
    """The same of many rows: each program sums some of them, and one what these leave, in the same order each time."""
    m = target.shape[0]
    programs, mean = triton.cdiv(m, _OF_PART), reduction == "mean"
    parts = torch.empty((2, programs), dtype=torch.float32, device=target.device)
    launch_early(
        _parts_kernel, (programs,), target.device, rows, target, parts, m, ignore_index,
        MEAN=mean, TOTAL=total, BLOCK=_OF_PART, num_warps=8,
    )  # fmt: skip
    launch_together(parts, loss, scale, mean, total)


def launch_together(parts, loss, scale, mean, total=True):
    """Write ``scale`` and the loss from parts [2, programs]: sums of losses, then numbers of rows that count."""
    left, count = folded(parts, parts.shape[1])
    block = min(4096, max(128, triton.next_power_of_2(count)))
    launch_early(
        together_kernel, (1,), parts.device, left, loss, scale, count,
        MEAN=mean, TOTAL=total, COUNTS=True, BLOCK=block, num_warps=max(4, block // 256),
    )  # fmt: skip


def _totals(m, reduction, total):
    """What both kernels are launched with for m rows."""
    block = min(4096, max(128, triton.next_power_of_2(m)))
    return {"MEAN": reduction == "mean", "TOTAL": total, "BLOCK": block, "num_warps": max(4, block // 256)}
