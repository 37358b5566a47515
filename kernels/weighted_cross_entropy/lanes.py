"""Variant `lanes` of both passes: rows of any length that may begin anywhere, in whole 16-byte lanes and their edges.

Rows that are no whole vectors would be read element by element.  What lies before and behind the lanes of a row, fewer
elements than one has, is a block of its own.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from kernels.common.lanes import edges, lanes_of
from kernels.common.rows import LOWEST

from .row import coefficients_of, loss_dtype, places_of, strides_of, with_target
from .total import outputs, total_of, write_rows


@triton.jit
def _base_of(row, begin, stride_n, WIDTH: tl.constexpr, ALIKE: tl.constexpr):
    """Where the class lies that begins the logits' first lane, ``begin`` <= 0 elements behind the row's first.

    ALIKE: it begins 16 bytes here, too; so said, the compiler accesses whole lanes.
    """
    base = row - begin * stride_n
    return base // WIDTH * WIDTH if ALIKE else base


@triton.jit
def _lanes_kernel(
    x_ptr, target_ptr, weight_ptr, rows_ptr, saved_ptr, scale_ptr, m, n, length,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_tn, stride_ts, ignore_index, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, PER_ROW: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, X_ALIKE: tl.constexpr, TARGET_ALIKE: tl.constexpr,
):  # fmt: skip
    """One program owns one row and reads it in blocks of LANES x WIDTH elements; a lane has a maximum and sums.

    ALIKE: whether lanes are 16 bytes of neighbours.
    """
    SUMS: tl.constexpr = PROBABILITIES or SMOOTHING
    pid = tl.program_id(0)
    row = places_of(pid, length, stride_xb, stride_xs)
    target_row = places_of(pid, length, stride_tb, stride_ts)
    _, begin, body, end = lanes_of(row, n, WIDTH, False)
    x_row = x_ptr + row
    x_ptr += _base_of(row, begin, stride_xn, WIDTH, X_ALIKE)
    counted = pid < m
    if PROBABILITIES:
        target_ptr += _base_of(target_row, begin, stride_tn, WIDTH, TARGET_ALIKE)
    else:
        target = tl.load(target_ptr + target_row)
        counted = target != ignore_index
        body, end = tl.where(counted, body, 0), tl.where(counted, end, begin)
    lead = tl.arange(0, LANES) * WIDTH
    offs = lead[:, None] + tl.arange(0, WIDTH)[None, :]
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    c_i = tl.zeros([LANES], tl.float32)
    d_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, body, LANES * WIDTH, num_stages=1):
        mask = (start + lead < body)[:, None]
        # -inf is the identity of max and becomes 0, the identity of the sum.
        classes = (start + offs).to(tl.int64)
        x = tl.load(x_ptr + classes * stride_xn, mask=mask, other=-float("inf")).to(tl.float32)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        shift = m_new[:, None]
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - shift), axis=1)
        if SUMS:
            c = coefficients_of(
                target_ptr + classes * stride_tn, weight_ptr, start + offs - begin, mask, n, label_smoothing,
                PROBABILITIES, HAS_WEIGHT,
            )  # fmt: skip
            c = tl.where(mask, c, tl.zeros([LANES, WIDTH], tl.float32))  # of each class, also where it is one number
            d_i += tl.where(c_i == 0.0, 0.0, c_i * (m_new - m_i)) + tl.sum(tl.where(mask, c * (shift - x), 0.0), axis=1)
            c_i += tl.sum(c, axis=1)
        m_i = m_new
    edge = edges(body, WIDTH)
    inside = (edge >= begin) & (edge < end)
    x = tl.load(x_ptr + edge.to(tl.int64) * stride_xn, mask=inside, other=-float("inf")).to(tl.float32)
    row_max = tl.maximum(tl.max(m_i, axis=0), tl.max(x, axis=0))
    row_sum = tl.sum(l_i * tl.exp(m_i - row_max), axis=0) + tl.sum(tl.exp(x - row_max), axis=0)
    log_l = tl.log(row_sum)
    lse = row_max + log_l
    loss = z_loss * lse * lse
    sum_c = 0.0
    if SUMS:
        c = coefficients_of(
            target_ptr + edge.to(tl.int64) * stride_tn, weight_ptr, tl.where(inside, edge - begin, 0), inside, n,
            label_smoothing, PROBABILITIES, HAS_WEIGHT,
        )  # fmt: skip
        sum_c = tl.sum(c_i, axis=0) + tl.sum(tl.where(inside, c, 0.0), axis=0)
        loss += sum_c * log_l + tl.sum(d_i + tl.where(c_i == 0.0, 0.0, c_i * (row_max - m_i)), axis=0)
        loss += tl.sum(tl.where(inside, c * (row_max - x), 0.0), axis=0)
    weight = tl.where(counted, 1.0, 0.0)
    if not PROBABILITIES:
        valid = counted & (target >= 0) & (target < n)
        logit = tl.load(x_row + target * stride_xn, mask=valid, other=float("nan")).to(tl.float32)
        loss, sum_c, log_l, weight = with_target(
            loss, sum_c, log_l, row_max, logit, target, valid, weight, weight_ptr, label_smoothing, HAS_WEIGHT
        )
    one = tl.zeros([1], tl.float32)
    offs_m = pid + tl.arange(0, 1)
    write_rows(
        rows_ptr, saved_ptr, scale_ptr, m, offs_m, offs_m < m, counted, loss + one, weight + one, row_max + one,
        log_l + one, sum_c + one, SUMS, PER_ROW,
    )  # fmt: skip


@triton.jit
def _lanes_backward_kernel(
    x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, m, n, length, blocks,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_tn, stride_ts,
    stride_db, stride_dn, stride_ds, stride_eb, stride_en, stride_es,
    ignore_index, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, OF_TARGET: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr,
    PER_ROW: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, X_ALIKE: tl.constexpr, TARGET_ALIKE: tl.constexpr,
    DX_ALIKE: tl.constexpr, DTARGET_ALIKE: tl.constexpr,
):  # fmt: skip
    """One program owns a block of LANES x WIDTH elements of one row of dx, the row's first one its edges as well.

    ``stride_d`` are of dx, ``stride_e`` of the targets' gradient, each with an ALIKE of its own.
    """
    i = tl.program_id(0) // blocks
    block = tl.program_id(0) - i * blocks
    row = places_of(i, length, stride_xb, stride_xs)
    _, begin, body, end = lanes_of(row, n, WIDTH, False)
    x_ptr += _base_of(row, begin, stride_xn, WIDTH, X_ALIKE)
    dx_ptr += _base_of(places_of(i, length, stride_db, stride_ds), begin, stride_dn, WIDTH, DX_ALIKE)
    target_row = places_of(i, length, stride_tb, stride_ts)
    if OF_TARGET:
        e_row = places_of(i, length, stride_eb, stride_es)
        dtarget_ptr += _base_of(e_row, begin, stride_en, WIDTH, DTARGET_ALIKE)
    target = ignore_index
    counted = i < m
    if PROBABILITIES:
        target_ptr += _base_of(target_row, begin, stride_tn, WIDTH, TARGET_ALIKE)
    else:
        target = tl.load(target_ptr + target_row)
        counted = target != ignore_index
    lead = block * (LANES * WIDTH) + tl.arange(0, LANES) * WIDTH
    _write_gradients(
        x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, i, m, n, begin,
        stride_xn, stride_tn, stride_dn, stride_en, target, counted,
        lead[:, None] + tl.arange(0, WIDTH)[None, :], (lead < body)[:, None], label_smoothing, z_loss,
        PROBABILITIES, OF_TARGET, HAS_WEIGHT, SMOOTHING, PER_ROW,
    )  # fmt: skip
    if block == 0:
        edge = edges(body, WIDTH)
        _write_gradients(
            x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, i, m, n, begin,
            stride_xn, stride_tn, stride_dn, stride_en, target, counted, edge, (edge >= begin) & (edge < end),
            label_smoothing, z_loss, PROBABILITIES, OF_TARGET, HAS_WEIGHT, SMOOTHING, PER_ROW,
        )  # fmt: skip


@triton.jit
def _write_gradients(
    x_ptr, target_ptr, weight_ptr, saved_ptr, scale_ptr, dloss_ptr, dx_ptr, dtarget_ptr, i, m, n, begin,
    stride_xn, stride_tn, stride_dn, stride_en, target, counted, offs, inside, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, OF_TARGET: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr,
    PER_ROW: tl.constexpr,
):  # fmt: skip
    """Gradients of the elements ``offs`` of row i, counted from its first lane, that lie ``inside``."""
    wide = offs.to(tl.int64)
    # A row that does not count is not read: -inf becomes 0.
    x = tl.load(x_ptr + wide * stride_xn, mask=inside & counted, other=-float("inf")).to(tl.float32)
    column = tl.where(inside, offs - begin, 0)
    c = tl.zeros_like(x)
    if PROBABILITIES or SMOOTHING:
        c += coefficients_of(
            target_ptr + wide * stride_tn, weight_ptr, column, inside, n, label_smoothing, PROBABILITIES, HAS_WEIGHT
        )  # fmt: skip
    row_max, log_l = tl.load(saved_ptr + i), tl.load(saved_ptr + m + i)
    total = 2.0 * z_loss * (row_max + log_l)
    if PROBABILITIES or SMOOTHING:
        total += tl.load(saved_ptr + 2 * m + i)
    g = tl.load(scale_ptr) * tl.load(dloss_ptr + i * PER_ROW).to(tl.float32)
    if not PROBABILITIES:
        peak = 1.0 - label_smoothing
        if HAS_WEIGHT:
            valid = counted & (target >= 0) & (target < n)
            peak *= tl.load(weight_ptr + target, mask=valid, other=0.0).to(tl.float32)
        if not SMOOTHING:
            total += peak
        c += tl.where(column == target, peak, 0.0)
    below = x - row_max - log_l
    # Multiplied by g last and once: an infinite g times a term that is 0 would be NaN.
    dx = (tl.exp(below) * total - c) * g
    tl.store(dx_ptr + wide * stride_dn, tl.where(counted, dx, 0.0), mask=inside)
    if OF_TARGET:
        share = (label_smoothing - 1.0) * below
        if HAS_WEIGHT:
            share *= tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(dtarget_ptr + wide * stride_en, share * g, mask=inside)


def _alike(x, other):
    """Whether classes of ``other`` [b, n, s] are neighbours, and rows begin as many off a lane as those of x."""
    width = VECTOR_BYTES // x.element_size()
    of_x, of_other = strides_of(x), strides_of(other)
    return other.stride(1) == 1 and not any((of_x[axis] - of_other[axis]) % width for axis in (0, 2))


def _cut(x, config):
    width = VECTOR_BYTES // x.element_size()
    return {"LANES": 32 * config["num_warps"] * config["VECTORS"], "WIDTH": width, "num_warps": config["num_warps"]}


def launch_lanes(
    x, target, weight, ignore_index, reduction, label_smoothing, z_loss, *, config, wide_loss=False
):  # fmt: skip
    b, n, length = x.shape
    m, probabilities, per_row = b * length, target.dim() == 3, reduction == "none"
    dtype = loss_dtype(x, wide_loss)
    rows, saved, scale = outputs(x, target, label_smoothing, m if per_row else 2 * m, per_row, dtype)
    targets = target if probabilities else target[:, None]
    launch(
        _lanes_kernel, (m,),
        x, target, weight, rows, saved, scale, m, n, length, *strides_of(x), *strides_of(targets),
        ignore_index, label_smoothing, z_loss,
        PROBABILITIES=probabilities, HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0, PER_ROW=per_row,
        X_ALIKE=_alike(x, x), TARGET_ALIKE=_alike(x, targets), **_cut(x, config),
    )  # fmt: skip
    return total_of(rows, saved, scale, m, reduction, dtype)


def launch_lanes_backward(
    x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, of_target=False, *, config
):
    """dx; with ``of_target`` also the gradient of probabilities."""
    b, n, length = x.shape
    m, probabilities = b * length, target.dim() == 3
    dx, dtarget = torch.empty_like(x), torch.empty_like(target) if of_target else None
    targets = target if probabilities else target[:, None]
    of_targets = dtarget if of_target else dx
    cut = _cut(x, config)
    blocks = triton.cdiv(n, cut["LANES"] * cut["WIDTH"])
    launch(
        _lanes_backward_kernel, (m * blocks,),
        x, target, weight, saved, scale, dloss, dx, dtarget, m, n, length, blocks,
        *strides_of(x), *strides_of(targets), *strides_of(dx), *strides_of(of_targets),
        ignore_index, label_smoothing, z_loss,
        PROBABILITIES=probabilities, OF_TARGET=of_target, HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0,
        PER_ROW=dloss.dim(), X_ALIKE=_alike(x, x), TARGET_ALIKE=_alike(x, targets), DX_ALIKE=_alike(x, dx),
        DTARGET_ALIKE=_alike(x, of_targets), **cut,
    )  # fmt: skip
    return (dx, dtarget) if of_target else dx
