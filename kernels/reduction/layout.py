"""Which axes of a tensor are reduced, and how they lie in memory: [outer, n, inner]."""

import math

from kernels.common.axes import axis_of


def sizes_around(shape, begin, end):
    """(outer, n, inner) of a shape of which the axes from ``begin`` up to ``end`` are reduced."""
    return math.prod(shape[:begin]), math.prod(shape[begin:end]), math.prod(shape[end:])


def flattened(x, begin, end):
    """x as [outer, n, inner], where n counts the axes from ``begin`` up to ``end``."""
    return x.view(sizes_around(x.shape, begin, end))


def result_shape(x, begin, end, keepdim):
    """The shape of what is left of x when the axes from ``begin`` up to ``end`` are reduced."""
    return (*x.shape[:begin], *((1,) * (end - begin) if keepdim else ()), *x.shape[end:])


_MOST_AXES = 64
"""torch's, where a dim is named."""


def laid_out(name, x, dim, keepdim):
    """x contiguous, the range of its axes to reduce, and how to put the result's axes in order again, None for as is.

    Raises TypeError for what is no axis, IndexError for one that is not there, RuntimeError for one named twice and for
    one of more than 64.
    """
    rank = x.dim()
    if type(dim) is int and 0 < rank <= _MOST_AXES and x.is_contiguous():  # what is asked for most, and first
        begin = axis_of(name, dim, rank)
        return x, begin, begin + 1, None
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        if x.is_contiguous():
            return x, 0, rank, None
        axes = list(range(rank))
    else:
        if rank > _MOST_AXES:
            raise RuntimeError(f"{name} takes a dim of inputs of up to {_MOST_AXES} axes, as torch does: {rank}")
        axes = [axis_of(name, d, rank) for d in (dim if isinstance(dim, (list, tuple)) else (dim,))]
        if len(axes) == 1 and rank and x.is_contiguous():
            return x, axes[0], axes[0] + 1, None
        if len(set(axes)) < len(axes):
            raise RuntimeError(f"{name}: dim {tuple(dim)} names an axis more than once")
        axes = axes if rank else []
    # The axes as they lie in memory, where that is without gaps; then those to reduce have to be neighbours.
    order = sorted(range(rank), key=lambda axis: -x.stride(axis))
    places = sorted(order.index(axis) for axis in axes)
    if (places and places[-1] - places[0] >= len(places)) or not x.permute(order).is_contiguous():
        order = [axis for axis in range(rank) if axis not in axes] + sorted(axes)
        places = list(range(rank - len(axes), rank))
    begin = places[0] if places else 0
    # Places of the result's axes among those of x.permute(order).
    left = order if keepdim else [axis for axis in order if axis not in axes]
    back = [left.index(axis) for axis in sorted(left)]
    restore = None if back == sorted(back) else lambda out: out.permute(back)
    return x.permute(order).contiguous(), begin, begin + len(places), restore
