"""Variant `flat` of the backward pass: rows of probabilities of few classes, read as the memory that they are one after
the other."""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .backward import launch_backward
from .row import coefficients_of, strides_of


@triton.jit
def _known_of(row, saved_ptr, dloss_ptr, m, z_loss, PER_ROW: tl.constexpr):
    """(maximum, logarithm of the sum, factor of the exponential, the gradient that arrives) of rows."""
    row_max, log_l = tl.load(saved_ptr + row), tl.load(saved_ptr + m + row)
    total = 2.0 * z_loss * (row_max + log_l) + tl.load(saved_ptr + 2 * m + row)
    if PER_ROW:
        dloss = tl.load(dloss_ptr + row).to(tl.float32)
    else:  # once, and not for each of them
        dloss = tl.load(dloss_ptr).to(tl.float32) + tl.zeros_like(log_l)
    return row_max, log_l, total, dloss


@triton.jit
def _write_lanes(
    x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, base, lead, end, first, m, n,
    pitch, label_smoothing, z_loss,
    OF_TARGET: tl.constexpr, HAS_WEIGHT: tl.constexpr, PER_ROW: tl.constexpr, TWO_ROWS: tl.constexpr,
    WHOLE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of lanes, which begin with the elements number ``lead`` of the rows from ``first`` on, before ``end``.

    TWO_ROWS: no lane reaches into a third row, so it asks for what is known of two, and not for each element.  WHOLE:
    lanes are before the end or not, else elements are.
    """
    within = tl.arange(0, WIDTH)[None, :]
    offs = lead[:, None] + within
    mask = (lead < end)[:, None] if WHOLE else offs < end
    x = tl.load(x_ptr + base + offs, mask=mask, other=0.0).to(tl.float32)
    # A quotient is at least half a column from an integer: more than rounding takes of so few elements.
    a_row = 1.0 / pitch
    if TWO_ROWS:
        i = ((lead.to(tl.float32) + 0.5) * a_row).to(tl.int32)
        column = (lead - i * pitch)[:, None] + within
        second = column >= pitch
        column = tl.where(second, column - pitch, column)
        row_max, log_l, total, g = _known_of(tl.minimum(first + i, m - 1), saved_ptr, dloss_ptr, m, z_loss, PER_ROW)
        next_max, next_log_l, next_total, next_g = _known_of(
            tl.minimum(first + i + 1, m - 1), saved_ptr, dloss_ptr, m, z_loss, PER_ROW
        )  # fmt: skip
        row_max = tl.where(second, next_max[:, None], row_max[:, None])
        log_l = tl.where(second, next_log_l[:, None], log_l[:, None])
        total = tl.where(second, next_total[:, None], total[:, None])
        g = tl.where(second, next_g[:, None], g[:, None]) if PER_ROW else g[:, None]
    else:
        i = ((offs.to(tl.float32) + 0.5) * a_row).to(tl.int32)
        column = offs - i * pitch
        row_max, log_l, total, g = _known_of(tl.minimum(first + i, m - 1), saved_ptr, dloss_ptr, m, z_loss, PER_ROW)
    g *= tl.load(scale_ptr)
    below = x - row_max - log_l
    c = coefficients_of(target_ptr + base + offs, weight_ptr, column, mask, n, label_smoothing, True, HAS_WEIGHT)
    # Multiplied by g last and once: an infinite g times a term that is 0 would be NaN.
    tl.store(dx_ptr + base + offs, (tl.exp(below) * total - c) * g, mask=mask)
    if OF_TARGET:
        share = (label_smoothing - 1.0) * below
        if HAS_WEIGHT:
            share *= tl.load(weight_ptr + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(dtarget_ptr + base + offs, share * g, mask=mask)


@triton.jit
def _flat_kernel(
    x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, m, n, pitch, rows,
    label_smoothing, z_loss,
    OF_TARGET: tl.constexpr, HAS_WEIGHT: tl.constexpr, PER_ROW: tl.constexpr, TWO_ROWS: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns ``rows`` rows of dx, whole lanes of WIDTH elements, but for the end of the last row of all.

    Of rows ``pitch`` > n apart what is between them is read but not used, and written where dx has room for it.
    """
    first = tl.program_id(0) * rows
    base = first.to(tl.int64) * pitch // WIDTH * WIDTH
    end = (tl.minimum(rows, m - first) - 1) * pitch + n
    body = tl.where(first + rows < m, rows * pitch, end) // WIDTH * WIDTH
    _write_lanes(
        x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, base,
        tl.arange(0, LANES) * WIDTH, body, first, m, n, pitch, label_smoothing, z_loss,
        OF_TARGET, HAS_WEIGHT, PER_ROW, TWO_ROWS, True, WIDTH,
    )  # fmt: skip
    if end > body:
        _write_lanes(
            x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, base,
            body + tl.arange(0, 1), end, first, m, n, pitch, label_smoothing, z_loss,
            OF_TARGET, HAS_WEIGHT, PER_ROW, TWO_ROWS, False, WIDTH,
        )  # fmt: skip


def _pitch(x):
    """Elements from each row of x [b, n, s] to the next, or 0 where that is not one number of neighbours."""
    (b, n, length), (stride_b, stride_n, stride_s) = x.shape, x.stride()
    if n > 1 and stride_n != 1:
        return 0
    pitch = stride_s if length > 1 else stride_b if b > 1 else n
    return pitch if b == 1 or length == 1 or stride_b == length * stride_s else 0


def launch_flat(
    x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, of_target=False, *, config
):
    """dx; with ``of_target`` also the gradient of probabilities.  Rows that lie otherwise are those of `blocks`."""
    b, n, length = x.shape
    m, pitch = b * length, _pitch(x)
    if not n <= pitch <= 2 * n or strides_of(target) != strides_of(x):
        return launch_backward(
            x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, of_target,
            config={"BLOCK_M": 8, "VECTORS": 2, "num_warps": 4},
        )  # fmt: skip
    dx = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    dtarget = torch.empty_strided(x.shape, x.stride(), dtype=target.dtype, device=x.device) if of_target else None
    width = VECTOR_BYTES // x.element_size()
    together = width // math.gcd(pitch, width)  # rows that are whole lanes
    lanes = max(32 * config["num_warps"] * config["VECTORS"], triton.next_power_of_2(together * pitch // width))
    rows = lanes * width // (together * pitch) * together
    launch(
        _flat_kernel, (triton.cdiv(m, rows),),
        x, target, weight, saved, scale, dloss, dx, dtarget, m, n, pitch, rows, label_smoothing, z_loss,
        OF_TARGET=of_target, HAS_WEIGHT=weight is not None, PER_ROW=dloss.dim(), TWO_ROWS=pitch >= width - 1,
        LANES=lanes, WIDTH=width, num_warps=config["num_warps"],
    )  # fmt: skip
    return (dx, dtarget) if of_target else dx
