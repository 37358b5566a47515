"""What a reduction keeps of the elements it has seen, and how it takes in more: device functions of all kernels."""

import triton
import triton.language as tl

NO_INDEX = tl.constexpr(2**31 - 1)
"""The index of no element: the identity of min, by which the first of several maxima is found."""


@triton.jit
def identity_of(OP: tl.constexpr):
    """The operation's identity, as which elements count that are not there."""
    return 0.0 if OP == "sum" or OP == "mean" else -float("inf")


@triton.jit
def first_state(x, block, valid, OP: tl.constexpr):
    """State after a first element at each place: x, and beside it how many ties there are, or which block it is from.

    Of a block and the place in it the index is made at the end: a register less for each element meanwhile.
    """
    beside = x
    if OP == "ties":
        beside = tl.where(valid & (x == x), 1.0, 0.0)  # a NaN equals nothing and has none
    if OP == "max":
        beside = tl.where(valid, block + tl.zeros(x.shape, tl.int32), NO_INDEX)
    return x, beside


@triton.jit
def fold(acc, beside, x, block, valid, OP: tl.constexpr):
    """State after one more element at each place; ``block`` grows from call to call, so the first maximum stays."""
    if OP == "sum" or OP == "mean":
        new = acc + x
    elif OP == "max":
        better = ((x <= acc) == 0) & (acc == acc) & valid  # larger, or the first NaN
        new = tl.where(better, x, acc)
        beside = tl.where(better, block, beside)
    else:
        new = tl.maximum(acc, x, propagate_nan=tl.PropagateNan.ALL)
        if OP == "ties":
            beside = tl.where(acc == new, beside, 0.0) + tl.where((x == new) & valid, 1.0, 0.0)
    return new, beside


@triton.jit
def _peak(x, axis: tl.constexpr):
    """The maximum along an axis, NaN where there is one: ``tl.max`` would drop it.

    As integers that order as the numbers do, with NaN above infinity.
    """
    bits = x.to(tl.int32, bitcast=True)
    key = tl.max(tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF), axis=axis)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def collapse(acc, beside, axis: tl.constexpr, OP: tl.constexpr):
    """State of all places along an axis."""
    if OP == "sum" or OP == "mean":
        result = tl.sum(acc, axis=axis)
        beside = result
    else:
        result = _peak(acc, axis)
        along = tl.expand_dims(result, axis)
        if OP == "amax":
            beside = result
        elif OP == "ties":
            beside = tl.sum(tl.where(acc == along, beside, 0.0), axis=axis)
        else:
            attained = (acc == along) | ((acc != acc) & (along != along))
            beside = tl.min(tl.where(attained, beside, NO_INDEX), axis=axis)
    return result, beside


@triton.jit
def write_results(out_ptr, beside_ptr, offs, value, beside, n, mask, OP: tl.constexpr):
    """Store results, and indices or ties where the operation has them."""
    if OP == "mean":
        value = tl.div_rn(value, tl.cast(n, tl.float32))
    tl.store(out_ptr + offs, value, mask=mask)
    if OP == "ties" or OP == "max":
        tl.store(beside_ptr + offs, beside, mask=mask)
