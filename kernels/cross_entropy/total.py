"""The loss from those of the rows, and what launchers share: memory for losses and gradients, lanes of a row."""

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait

from kernels.common.early import launch_early


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
    scale = 1.0
    if MEAN:
        scale = 1.0 / tl.sum(count, axis=0).to(tl.float32)
    tl.store(scale_ptr, scale)
    if TOTAL:
        tl.store(loss_ptr, tl.sum(total, axis=0) * scale)


@triton.jit
def _early_total_kernel(
    rows_ptr, target_ptr, loss_ptr, scale_ptr, m, ignore_index,
    MEAN: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The same; EARLY: launched while the kernel that writes the rows' losses still runs, it waits for its end here."""
    if EARLY:
        gdc_wait()
    _total_kernel(rows_ptr, target_ptr, loss_ptr, scale_ptr, m, ignore_index, MEAN, TOTAL, BLOCK)


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


def total_of(rows, target, scale, ignore_index, reduction, dtype):
    """The loss; ``scale`` is written."""
    loss = rows if reduction == "none" else torch.empty((), dtype=dtype, device=rows.device)
    launch_early(
        _early_total_kernel, (1,), rows.device, rows, target, loss, scale, rows.shape[0], ignore_index,
        **_totals(rows.shape[0], reduction, reduction != "none"),
    )  # fmt: skip
    return loss


def launch_total(rows, target, loss, scale, ignore_index, reduction, total):
    m = target.shape[0]
    launch(_total_kernel, (1,), rows, target, loss, scale, m, ignore_index, **_totals(m, reduction, total))


def _totals(m, reduction, total):
    """What both kernels are launched with for m rows."""
    block = min(4096, max(128, triton.next_power_of_2(m)))
    return {"MEAN": reduction == "mean", "TOTAL": total, "BLOCK": block, "num_warps": max(4, block // 256)}
