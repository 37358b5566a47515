"""What both passes do with a block of rows: where they begin, the coefficients of classes, how wide accesses are."""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES


@triton.jit
def places_of(offs_m, length, stride_b, stride_s):
    """Offsets of rows, numbered along the b matrices and the ``length`` places of each."""
    return (offs_m // length).to(tl.int64) * stride_b + (offs_m % length).to(tl.int64) * stride_s


@triton.jit
def coefficients_of(
    target_ptrs, weight_ptr, offs_n, mask, n, label_smoothing, PROBABILITIES: tl.constexpr, HAS_WEIGHT: tl.constexpr
):
    """c of classes, with loss = sum_j c_j (lse - x_j): of probabilities all of it, else what smoothing adds."""
    c = label_smoothing / n
    if PROBABILITIES:
        c += (1.0 - label_smoothing) * tl.load(target_ptrs, mask=mask, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        c *= tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
    return c


@triton.jit
def with_target(
    loss, c, log_l, row_max, logit, target, valid, weight, weight_ptr, label_smoothing, HAS_WEIGHT: tl.constexpr
):
    """(loss, c, log_l, weight) of rows with what their targets' own classes, of those logits, add to them.

    log_l is NaN where a target is impossible, so that the gradient is, too.
    """
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + target, mask=valid, other=0.0).to(tl.float32)
    peak = (1.0 - label_smoothing) * weight
    return loss + peak * (row_max - logit + log_l), c + peak, tl.where(valid, log_l, float("nan")), weight


def is_last(x):
    """Whether the classes of x [b, n, s] are what lies closest together."""
    return x.stride(1) == 1 or x.shape[2] == 1


def width_of(last, *tensors):
    """Elements of the widest access, up to 16 bytes, that sizes and strides of all tensors [b, n, s] allow."""
    fastest, wide = (1 if last else 2), []
    for x in tensors:
        if x.stride(fastest) != 1:
            return 1
        apart = [x.stride(axis) for axis in range(3) if axis != fastest and x.shape[axis] > 1]
        wide.append(math.gcd(VECTOR_BYTES // x.element_size(), x.shape[fastest], *apart))
    return min(wide)


def strides_of(x):
    """Strides; of an axis of one element 0, which is a multiple of anything."""
    return [step if size > 1 else 0 for size, step in zip(x.shape, x.stride(), strict=True)]


def saved_rows(target, label_smoothing):
    """Numbers kept of each row: maximum, log of the sum and, where several classes have one, the sum of c."""
    return 3 if target.dim() == 3 or label_smoothing else 2


def loss_dtype(x, wide_loss):
    return torch.float32 if wide_loss else x.dtype
