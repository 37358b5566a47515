"""Variant `flat` of the backward pass: rows of few classes, read as the memory that they are one after the other."""

import math

import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .row import factors_of, gradient_of
from .total import empty_like, stride


@triton.jit
def _known_of(row, target_ptr, lse_ptr, dloss_ptr, PER_ROW: tl.constexpr):
    """(target, lse, the gradient that arrives) of rows."""
    lse = tl.load(lse_ptr + row)
    if PER_ROW:
        dloss = tl.load(dloss_ptr + row).to(tl.float32)
    else:  # once, and not for each of them
        dloss = tl.load(dloss_ptr).to(tl.float32) + tl.zeros_like(lse)
    return tl.load(target_ptr + row), lse, dloss


@triton.jit
def _gradient_of_lanes(
    x, lead, target_ptr, lse_ptr, scale_ptr, dloss_ptr, first, last, n, pitch, ignore_index, label_smoothing, z_loss,
    PER_ROW: tl.constexpr, TWO_ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx of lanes x [:, WIDTH], which begin with the elements number ``lead`` of the rows from ``first`` to ``last``.

    TWO_ROWS: no lane reaches into a third row, so it asks for what is known of two, and not for each element.
    """
    # A quotient is at least half a column from an integer: more than rounding takes of so few elements.
    a_row = 1.0 / pitch
    within = tl.arange(0, WIDTH)[None, :]
    if TWO_ROWS:
        i = ((lead.to(tl.float32) + 0.5) * a_row).to(tl.int32)
        column = (lead - i * pitch)[:, None] + within
        second = column >= pitch
        column = tl.where(second, column - pitch, column)
        target, lse, g = _known_of(tl.minimum(first + i, last), target_ptr, lse_ptr, dloss_ptr, PER_ROW)
        next_target, next_lse, next_g = _known_of(
            tl.minimum(first + i + 1, last), target_ptr, lse_ptr, dloss_ptr, PER_ROW
        )  # fmt: skip
        target = tl.where(second, next_target[:, None], target[:, None])
        lse = tl.where(second, next_lse[:, None], lse[:, None])
        g = tl.where(second, next_g[:, None], g[:, None])
    else:
        e = lead[:, None] + within
        i = ((e.to(tl.float32) + 0.5) * a_row).to(tl.int32)
        column = e - i * pitch
        target, lse, g = _known_of(tl.minimum(first + i, last), target_ptr, lse_ptr, dloss_ptr, PER_ROW)
    weight, floor, peak = factors_of(lse, n, label_smoothing, z_loss)
    g *= tl.load(scale_ptr)
    return gradient_of(x, lse, weight, floor, peak, g, column == target, target != ignore_index)


@triton.jit
def _flat_kernel(
    x_ptr, target_ptr, lse_ptr, scale_ptr, dloss_ptr, dx_ptr, m, n, pitch, rows,
    ignore_index, label_smoothing, z_loss,
    PER_ROW: tl.constexpr, TWO_ROWS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns ``rows`` rows of dx, whole lanes of WIDTH elements, but for the end of the last row of all.

    Logits are read before targets are known, whether rows count or not.  Of rows ``pitch`` > n apart what is between
    them is read but not used, and written where dx has room for it.
    """
    first = tl.program_id(0) * rows
    base = first.to(tl.int64) * pitch // WIDTH * WIDTH
    end = (tl.minimum(rows, m - first) - 1) * pitch + n
    body = tl.where(first + rows < m, rows * pitch, end) // WIDTH * WIDTH
    x_ptr += base
    dx_ptr += base
    lead = tl.arange(0, LANES) * WIDTH
    offs = lead[:, None] + tl.arange(0, WIDTH)[None, :]
    whole = (lead < body)[:, None]
    x = tl.load(x_ptr + offs, mask=whole, other=0.0).to(tl.float32)
    dx = _gradient_of_lanes(
        x, lead, target_ptr, lse_ptr, scale_ptr, dloss_ptr, first, m - 1, n, pitch, ignore_index, label_smoothing,
        z_loss, PER_ROW, TWO_ROWS, WIDTH,
    )  # fmt: skip
    tl.store(dx_ptr + offs, dx, mask=whole)
    if end > body:
        edge = body + tl.arange(0, WIDTH)[None, :]
        of_edge = tl.load(x_ptr + edge, mask=edge < end, other=0.0).to(tl.float32)
        dx_of_edge = _gradient_of_lanes(
            of_edge, body + tl.arange(0, 1), target_ptr, lse_ptr, scale_ptr, dloss_ptr, first, m - 1, n, pitch,
            ignore_index, label_smoothing, z_loss, PER_ROW, TWO_ROWS, WIDTH,
        )  # fmt: skip
        tl.store(dx_ptr + edge, dx_of_edge, mask=edge < end)


def launch_flat(x, target, lse, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, *, config):
    m, n = x.shape
    dx, pitch, width = empty_like(x), stride(x), VECTOR_BYTES // x.element_size()
    together = width // math.gcd(pitch, width)  # rows that are whole lanes
    lanes = max(32 * config["num_warps"] * config["VECTORS"], triton.next_power_of_2(together * pitch // width))
    rows = lanes * width // (together * pitch) * together
    launch(
        _flat_kernel, (triton.cdiv(m, rows),),
        x, target, lse, scale, dloss, dx, m, n, pitch, rows, ignore_index, label_smoothing, z_loss,
        PER_ROW=dloss.dim(), TWO_ROWS=pitch >= width - 1, LANES=lanes, WIDTH=width, num_warps=config["num_warps"],
    )  # fmt: skip
    return dx
