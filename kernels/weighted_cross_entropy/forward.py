"""The loss: variant `stream`."""

import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .row import coefficients_of, is_last, loss_dtype, places_of, strides_of, width_of, with_target
from .tiling import tile_of
from .total import outputs, total_of, write_rows


@triton.jit
def _held_classes(x_ptr, row, stride_xn, read, n, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """(all classes of rows, their maxima, the logarithm of the sums of exponentials less these)."""
    held = ()
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    for i in tl.static_range(WIDTH):
        x_ptrs = x_ptr + row + tl.cast(i, tl.int64) * stride_xn
        held += (tl.load(x_ptrs, mask=read & (i < n), other=-float("inf")).to(tl.float32),)
        row_max = tl.maximum(row_max, held[i])
    total = tl.zeros([BLOCK_M], tl.float32)
    for i in tl.static_range(WIDTH):
        total += tl.exp(held[i] - row_max)
    return held, row_max, tl.log(total)


@triton.jit
def _forward_kernel(
    x_ptr, target_ptr, weight_ptr, rows_ptr, saved_ptr, scale_ptr, m, n, length,
    stride_xb, stride_xn, stride_xs, stride_tb, stride_tn, stride_ts, ignore_index, label_smoothing, z_loss,
    PROBABILITIES: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTHING: tl.constexpr, PER_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr,
    HELD: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows and reads their classes in blocks of WIDTH x LANES.

    Each of LANES has a running maximum and sums of its own.  HELD: a thread has the WIDTH classes of its rows, so
    nothing is exchanged or merged, and the target's logit is found among them.  VECTOR divides n where classes lie
    LAST, else ``length``, and the strides of the other axes.
    """
    if LAST:
        n = n // VECTOR * VECTOR
        stride_xs = stride_xs // VECTOR * VECTOR
    else:
        length = length // VECTOR * VECTOR
        m = m // VECTOR * VECTOR
        stride_xn = stride_xn // VECTOR * VECTOR
    stride_xb = stride_xb // VECTOR * VECTOR
    if PROBABILITIES:
        stride_tb = stride_tb // VECTOR * VECTOR
        if LAST:
            stride_ts = stride_ts // VECTOR * VECTOR
        else:
            stride_tn = stride_tn // VECTOR * VECTOR
    SUMS: tl.constexpr = PROBABILITIES or SMOOTHING
    pid = tl.program_id(0)
    offs_m = pid * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    row = places_of(offs_m, length, stride_xb, stride_xs)
    target_row = target_ptr + places_of(offs_m, length, stride_tb, stride_ts)
    counted = mask_m
    if not PROBABILITIES:
        target = tl.load(target_row, mask=mask_m, other=ignore_index)
        counted = target != ignore_index
    # Rows that lie side by side are read whether they count or not: else each element of a vector were asked for by
    # itself, and only once the targets are known.
    read = counted if LAST else mask_m
    block = tl.arange(0, WIDTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    if HELD:
        held, row_max, log_l = _held_classes(x_ptr, row, stride_xn, read, n, BLOCK_M, WIDTH)
    else:
        m_i = tl.full([BLOCK_M, LANES], LOWEST, tl.float32)
        l_i = tl.zeros([BLOCK_M, LANES], tl.float32)
        c_i = tl.zeros([BLOCK_M, LANES], tl.float32)
        d_i = tl.zeros([BLOCK_M, LANES], tl.float32)
        for start in tl.range(0, n, WIDTH * LANES, num_stages=1):
            offs_n = (start + block)[None, :, :]
            mask = read[:, None, None] & (offs_n < n)
            x_ptrs = x_ptr + (row[:, None, None] + offs_n.to(tl.int64) * stride_xn)
            # -inf is the identity of max and becomes 0, the identity of the sum.
            x = tl.load(x_ptrs, mask=mask, other=-float("inf")).to(tl.float32)
            m_new = tl.maximum(m_i, tl.max(x, axis=1))
            shift = m_new[:, None, :]
            l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - shift), axis=1)
            if SUMS:
                target_ptrs = target_row[:, None, None] + offs_n.to(tl.int64) * stride_tn
                c = coefficients_of(
                    target_ptrs, weight_ptr, offs_n, mask, n, label_smoothing, PROBABILITIES, HAS_WEIGHT
                )
                d_i += tl.where(c_i == 0.0, 0.0, c_i * (m_new - m_i)) + tl.sum(
                    tl.where(mask, c * (shift - x), 0.0), axis=1
                )
                c_i += tl.sum(tl.where(mask, c, 0.0), axis=1)
            m_i = m_new
        row_max = tl.max(m_i, axis=1)
        shift = row_max[:, None]
        log_l = tl.log(tl.sum(l_i * tl.exp(m_i - shift), axis=1))
    lse = row_max + log_l
    loss = z_loss * lse * lse
    c = tl.zeros([BLOCK_M], tl.float32)
    if SUMS:
        c = tl.sum(c_i, axis=1)
        loss += c * log_l + tl.sum(d_i + tl.where(c_i == 0.0, 0.0, c_i * (shift - m_i)), axis=1)
    weight = tl.where(counted, 1.0, 0.0)
    if not PROBABILITIES:
        valid = counted & (target >= 0) & (target < n)
        if HELD:
            logit = tl.zeros([BLOCK_M], tl.float32)
            for i in tl.static_range(WIDTH):
                logit += tl.where(target == i, held[i], 0.0)
            logit = tl.where(valid, logit, float("nan"))
        else:
            logit = tl.load(x_ptr + row + target * stride_xn, mask=valid, other=float("nan")).to(tl.float32)
        loss, c, log_l, weight = with_target(
            loss, c, log_l, row_max, logit, target, valid, weight, weight_ptr, label_smoothing, HAS_WEIGHT
        )
    write_rows(
        rows_ptr, saved_ptr, scale_ptr, m, offs_m, mask_m, counted, loss, weight, row_max, log_l, c, SUMS, PER_ROW
    )  # fmt: skip


_HELD = 8
"""Classes of a row that a thread compares with the target sooner than it loads one of them again."""


def launch_stream(
    x, target, weight, ignore_index, reduction, label_smoothing, z_loss, *, config, wide_loss=False
):  # fmt: skip
    b, n, length = x.shape
    m, last, probabilities = b * length, is_last(x), target.dim() == 3
    programs, dtype, per_row = triton.cdiv(m, config["BLOCK_M"]), loss_dtype(x, wide_loss), reduction == "none"
    rows, saved, scale = outputs(x, target, label_smoothing, m if per_row else 2 * programs, per_row, dtype)
    of_target = strides_of(target if probabilities else target[:, None])
    lanes, width = tile_of(config, n, x.element_size())
    launch(
        _forward_kernel, (programs,),
        x, target, weight, rows, saved, scale, m, n, length, *strides_of(x), *of_target,
        ignore_index, label_smoothing, z_loss,
        PROBABILITIES=probabilities, HAS_WEIGHT=weight is not None, SMOOTHING=label_smoothing != 0, PER_ROW=per_row,
        BLOCK_M=config["BLOCK_M"], WIDTH=width, LANES=lanes, LAST=last,
        HELD=lanes == 1 and n <= width <= _HELD and not probabilities and label_smoothing == 0,
        VECTOR=width_of(last, x, *((target,) if probabilities else ())), num_warps=config["num_warps"],
    )  # fmt: skip
    return total_of(rows, saved, scale, programs, reduction, dtype)
