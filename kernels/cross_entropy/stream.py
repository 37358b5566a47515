"""Variants `stream` and `stream_gradient`: rows of any length, with a running maximum and sum for each lane."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.lanes import edges, lanes_of
from kernels.common.rows import LOWEST

from .row import factors_of, gradient_of, loss_of, target_of
from .total import empty_like, lanes, launch_total, loss_dtype, rows_and_scale, stride, total_of


@triton.jit
def row_statistics(
    x_ptr, begin, body, end,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, SMOOTHING: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """(maximum, sum of exp(x - maximum), sum) of a row, in blocks of LANES x WIDTH elements.

    Each lane, which one thread loads at once, has a running maximum m_i and sum l_i of its own, so that the sweep needs
    no exchange between threads.
    """
    lane = tl.arange(0, LANES) * WIDTH
    offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    s_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, body, LANES * WIDTH, num_stages=1):  # a prefetch through shared memory is slower
        whole = start + lane < body
        # -inf is the identity of max and becomes 0, the identity of the sum.
        x = tl.load(x_ptr + start + offs, mask=whole[:, None], other=-float("inf"), eviction_policy=POLICY)
        x = x.to(tl.float32)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
        if SMOOTHING:
            s_i += tl.where(whole, tl.sum(x, axis=1), 0.0)
    row_max, total = tl.max(m_i, axis=0), tl.sum(s_i, axis=0)
    if not ALIGNED:
        edge = edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end)
        x = tl.load(x_ptr + edge, mask=inside, other=-float("inf")).to(tl.float32)
        row_max = tl.maximum(row_max, tl.max(x, axis=0))
        total += tl.sum(tl.where(inside, x, 0.0), axis=0)
    row_sum = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        row_sum += tl.sum(tl.exp(x - row_max), axis=0)
    return row_max, row_sum, total


@triton.jit
def _stream_kernel(
    x_ptr, target_ptr, rows_ptr, lse_ptr, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: loss_i and lse_i.  A row that does not count is not read."""
    pid = tl.program_id(0)
    row = pid.to(tl.int64) * stride_xm
    counted, valid, logit = target_of(x_ptr + row, tl.load(target_ptr + pid), n, ignore_index)
    base, begin, body, end = lanes_of(row, n, WIDTH, ALIGNED)
    body, end = tl.where(counted, body, 0), tl.where(counted, end, begin)
    row_max, row_sum, total = row_statistics(x_ptr + base, begin, body, end, LANES, WIDTH, ALIGNED, SMOOTHING, "")
    loss, lse = loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + pid, loss)
    tl.store(lse_ptr + pid, lse)


@triton.jit
def _stream_gradient_kernel(
    x_ptr, target_ptr, rows_ptr, scale_ptr, dx_ptr, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: loss_i, then dx in a second sweep; dx may lie where x does.

    The second sweep goes backwards: what was read last is in cache.  Stores are marked as streaming, so that they do
    not displace what is still to be read again.
    """
    pid = tl.program_id(0)
    row = pid.to(tl.int64) * stride_xm
    target = tl.load(target_ptr + pid)
    counted, valid, logit = target_of(x_ptr + row, target, n, ignore_index)
    base, begin, body, end = lanes_of(row, n, WIDTH, ALIGNED)
    x_ptr += base
    dx_ptr += base
    read = tl.where(counted, body, 0)
    row_max, row_sum, total = row_statistics(
        x_ptr, begin, read, tl.where(counted, end, begin), LANES, WIDTH, ALIGNED, SMOOTHING, "evict_last"
    )
    loss, lse = loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + pid, loss)
    weight, floor, peak = factors_of(lse, n, label_smoothing, z_loss)
    weight, g = weight / row_sum, tl.load(scale_ptr)
    at = (begin + target).to(tl.int32)
    lane = tl.arange(0, LANES) * WIDTH
    offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
    last = (body - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    tl.debug_barrier()  # dx may lie where x does: every thread has read its target's logit and the edges
    for done in tl.range(0, body, LANES * WIDTH):
        start = last - done
        mask = (start + lane < read)[:, None]
        x = tl.load(x_ptr + start + offs, mask=mask, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
        dx = gradient_of(x, row_max, weight, floor, peak, g, start + offs == at, counted)
        tl.store(dx_ptr + start + offs, dx, mask=(start + lane < body)[:, None], cache_modifier=".cs")
    if not ALIGNED:
        edge = edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end)
        x = tl.load(x_ptr + edge, mask=inside & counted, other=-float("inf")).to(tl.float32)
        tl.store(dx_ptr + edge, gradient_of(x, row_max, weight, floor, peak, g, edge == at, counted), mask=inside)


def launch_stream(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, wide_loss=False):
    m, n = x.shape
    rows, scale = rows_and_scale(x, reduction, wide_loss)
    lse = torch.empty(m, dtype=torch.float32, device=x.device)
    launch(
        _stream_kernel, (m,), x, target, rows, lse, n, stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, **lanes(x, config), num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of(rows, target, scale, ignore_index, reduction, loss_dtype(x, wide_loss)), lse, scale


def launch_stream_gradient(
    x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, dx=None, wide_loss=False
):
    rows, scale = rows_and_scale(x, reduction, wide_loss)
    dx = empty_like(x) if dx is None else dx
    launch_total(rows, target, rows, scale, ignore_index, reduction, total=False)
    launch(
        _stream_gradient_kernel, (x.shape[0],),
        x, target, rows, scale, dx, x.shape[1], stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, **lanes(x, config), num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of(rows, target, scale, ignore_index, reduction, loss_dtype(x, wide_loss)), dx, scale
