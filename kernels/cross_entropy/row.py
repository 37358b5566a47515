"""One row of logits on the device: its loss and gradient from its statistics."""

import triton
import triton.language as tl


@triton.jit
def target_of(x_ptr, target, n, ignore_index):
    """(counted, valid, logit) of a target, with x_ptr at its row's first element; an impossible one has a NaN."""
    counted = target != ignore_index
    valid = counted & (target >= 0) & (target < n)
    return counted, valid, tl.load(x_ptr + target, mask=valid, other=float("nan")).to(tl.float32)


@triton.jit
def loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING: tl.constexpr):
    """(loss, lse) of rows from their maximum, sum of exp(x - maximum), sum and target's logit; 0 where not counted.

    The maximum is subtracted from logits before log(row_sum) is added: lse itself is rounded to its own size.
    """
    log_l = tl.log(row_sum)
    lse = row_max + log_l
    below = row_max - logit
    if SMOOTHING:
        below = (1.0 - label_smoothing) * below + label_smoothing * (row_max - total / n)
    loss = below + log_l + z_loss * lse * lse
    lse = tl.where(valid, lse, float("nan"))  # so that the gradient is NaN, too, where the target is impossible
    return tl.where(counted, loss, 0.0), tl.where(counted, lse, 0.0)


@triton.jit
def factors_of(lse, n, label_smoothing, z_loss):
    """(weight, floor, peak) with dx = g (weight exp(x - lse) - floor - peak [at the target])."""
    return 1.0 + 2.0 * z_loss * lse, label_smoothing / n, 1.0 - label_smoothing


@triton.jit
def gradient_of(x, shift, weight, floor, peak, g, at_target, counted):
    """dx; multiplied by g last and once, since an infinite g times a term that is 0 would be NaN."""
    dx = tl.exp(x - shift) * weight - floor - tl.where(at_target, peak, 0.0)
    return tl.where(counted, dx * g, 0.0)
