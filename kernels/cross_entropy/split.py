"""Variant `split`: several programs a row where rows are too few for all SMs; a second kernel joins their parts.

Part p of a row has a maximum m_p and a sum l_p of exp(x - m_p).  With m the largest m_p the row's sum is
sum of l_p exp(m_p - m).
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait

from kernels.common.early import launch_early
from kernels.common.lanes import lanes_of
from kernels.common.rows import LOWEST

from .row import loss_of, target_of
from .stream import row_statistics
from .total import lanes, loss_dtype, rows_and_scale, stride


@triton.jit
def _parts_kernel(
    x_ptr, target_ptr, parts_ptr, n, stride_xm, ignore_index,
    SPLITS: tl.constexpr, SMOOTHING: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Program (part, row): maximum, sum of exponentials and sum of a part of a row, to parts[3, row, part].

    Parts are whole blocks, of which the last ones may have none.  A row that does not count is not read.
    """
    part, pid, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = pid.to(tl.int64) * stride_xm
    counted = tl.load(target_ptr + pid) != ignore_index
    base, begin, body, end = lanes_of(row, n, WIDTH, ALIGNED)
    size = tl.cdiv(tl.cdiv(body, LANES * WIDTH), SPLITS) * LANES * WIDTH
    start = tl.minimum(part * size, body)
    own = tl.minimum(size, body - start)  # the first part has the edge before whole lanes, the last that behind
    begin = tl.where(part == 0, begin, 0)
    end = tl.where(part == SPLITS - 1, end - start, tl.minimum(own, end))
    own, end = tl.where(counted, own, 0), tl.where(counted, end, begin)
    row_max, row_sum, total = row_statistics(
        x_ptr + base + start, begin, own, end, LANES, WIDTH, ALIGNED, SMOOTHING, ""
    )  # fmt: skip
    at = parts_ptr + pid * SPLITS + part
    tl.store(at, row_max)
    tl.store(at + rows * SPLITS, row_sum)
    if SMOOTHING:
        tl.store(at + 2 * rows * SPLITS, total)


@triton.jit
def _together_kernel(
    x_ptr, target_ptr, parts_ptr, rows_ptr, lse_ptr, loss_ptr, scale_ptr, m, n, stride_xm, ignore_index,
    label_smoothing, z_loss, SPLITS: tl.constexpr, SMOOTHING: tl.constexpr, MEAN: tl.constexpr, BLOCK_M: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One program: loss_i and lse_i of all rows from their parts, the scale, and the loss where ``loss_ptr`` is given.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    part = tl.arange(0, SPLITS)[None, :]
    sums, count = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.int32)
    if EARLY:
        gdc_wait()
    for first in tl.range(0, m, BLOCK_M):
        offs = first + tl.arange(0, BLOCK_M)
        mask = offs < m
        target = tl.load(target_ptr + offs, mask=mask, other=ignore_index)
        counted, valid, logit = target_of(x_ptr + offs.to(tl.int64) * stride_xm, target, n, ignore_index)
        at = parts_ptr + offs[:, None] * SPLITS + part
        maxima = tl.load(at, mask=mask[:, None], other=LOWEST)
        row_max = tl.max(maxima, axis=1)
        row_sum = tl.load(at + m * SPLITS, mask=mask[:, None], other=1.0)
        row_sum = tl.sum(row_sum * tl.exp(maxima - row_max[:, None]), axis=1)
        total = row_sum
        if SMOOTHING:
            total = tl.sum(tl.load(at + 2 * m * SPLITS, mask=mask[:, None], other=0.0), axis=1)
        loss, lse = loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
        tl.store(lse_ptr + offs, lse, mask=mask)
        tl.store(rows_ptr + offs, loss, mask=mask)
        sums += loss
        count += counted.to(tl.int32)
    scale = 1.0
    if MEAN:
        scale = 1.0 / tl.sum(count, axis=0).to(tl.float32)
    tl.store(scale_ptr, scale)
    if loss_ptr is not None:
        tl.store(loss_ptr, tl.sum(sums, axis=0) * scale)


def launch_split(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, wide_loss=False):
    m, n = x.shape
    rows, scale = rows_and_scale(x, reduction, wide_loss)
    loss = None if reduction == "none" else torch.empty((), dtype=loss_dtype(x, wide_loss), device=x.device)
    lse = torch.empty(m, dtype=torch.float32, device=x.device)
    smoothing, splits = label_smoothing != 0, config["SPLITS"]
    parts = torch.empty((3 if smoothing else 2, m, splits), dtype=torch.float32, device=x.device)
    launch(
        _parts_kernel, (splits, m), x, target, parts, n, stride(x), ignore_index,
        SPLITS=splits, SMOOTHING=smoothing, **lanes(x, config), num_warps=config["num_warps"],
    )  # fmt: skip
    launch_early(
        _together_kernel, (1,), x.device, x, target, parts, rows, lse, loss, scale, m, n, stride(x), ignore_index,
        label_smoothing, z_loss, SPLITS=splits, SMOOTHING=smoothing, MEAN=reduction == "mean",
        BLOCK_M=min(triton.next_power_of_2(m), max(1, 2048 // splits)), num_warps=4,
    )  # fmt: skip
    return rows if loss is None else loss, lse, scale
