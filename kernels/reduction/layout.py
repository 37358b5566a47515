"""Which axes of a tensor are reduced, and how they lie in memory: [outer, n, inner], or five axes with strides."""

import math

from atlas.operators import permuted, slowest_first

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
    """x as kernels take it, the range of its axes to reduce, and how to put the result's axes in order again.

    x is contiguous, or where the range is (None, None) a view [k0, n1, k1, n2, k2] with any strides, of which n1 and n2
    are to be reduced.  What puts in order is None where the result is as it should be.  Raises TypeError for what is no
    axis, IndexError for one that is not there, RuntimeError for one named twice and for one of more than 64.
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
    order = slowest_first(x.stride())
    places = sorted(order.index(axis) for axis in axes)
    if (places and places[-1] - places[0] >= len(places)) or not x.permute(order).is_contiguous():
        found = _strided(x, axes, keepdim)
        if found is not None:
            return found
        order = [axis for axis in range(rank) if axis not in axes] + sorted(axes)
        places = list(range(rank - len(axes), rank))
    begin = places[0] if places else 0
    # Places of the result's axes among those of x.permute(order).
    left = order if keepdim else [axis for axis in order if axis not in axes]
    back = [left.index(axis) for axis in sorted(left)]
    restore = None if back == sorted(back) else lambda out: permuted(out, back)
    return x.permute(order).contiguous(), begin, begin + len(places), restore


def _grouped(x, axes):
    """``axes`` of x, from the slowest, in groups that are one axis each."""
    groups = []
    for axis in axes:
        if groups and x.stride(groups[-1][-1]) == x.shape[axis] * x.stride(axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _strided(x, axes, keepdim):
    """What ``laid_out`` returns for a view [k0, n1, k1, n2, k2]; None where x has no such view.

    Axes of stride 0 count as the slowest: what is read there is in cache.
    """
    strides = x.stride()
    order = [axis for axis in range(x.dim()) if strides[axis] == 0]
    order += [axis for axis in slowest_first(strides) if strides[axis] != 0]
    long = [axis for axis in order if x.shape[axis] > 1]
    kept, reduced = ([axis for axis in long if (axis in axes) is wanted] for wanted in (False, True))
    of_kept, of_reduced = _grouped(x, kept), _grouped(x, reduced)
    by_row = not kept or (bool(reduced) and long[-1] in axes)
    if not reduced or len(of_reduced) > 2 or len(of_kept) > (2 if by_row else 3):
        return None
    k2 = [] if by_row else of_kept.pop()
    k0, k1 = [[], [], *of_kept][-2:]
    n1, n2 = [[], *of_reduced][-2:]
    groups = (k0, n1, k1, n2, k2)
    sizes = [math.prod([x.shape[axis] for axis in group]) for group in groups]
    short = [axis for axis in order if axis not in long]
    view = x.permute([*k0, *n1, *k1, *n2, *k2, *short]).view(sizes)
    left = [axis for axis in range(x.dim()) if keepdim or axis not in axes]
    places = [*kept, *(axis for axis in left if axis not in kept)]
    shape = [x.shape[axis] if axis in kept else 1 for axis in places]
    back = [places.index(axis) for axis in left]
    return view, None, None, lambda out: permuted(out.view(shape), back)
