"""Shapes that are broadcast: the layout of the result, as torch's, and the fewest axes that say where operands lie."""

import torch

MOST_AXES = 4
"""Axes that the kernel tells apart; operands of more are copied first."""


def strides_in(x, shape):
    """The strides of x as a tensor of ``shape``: 0 along what is broadcast."""
    ahead = len(shape) - x.dim()
    return [
        0 if axis < ahead or (x.shape[axis - ahead] == 1 and size != 1) else x.stride(axis - ahead)
        for axis, size in enumerate(shape)
    ]


def _order(shape, strides):
    """Axes from the slowest to the fastest, as torch orders those of a result: by the first operand that tells."""

    def swapped(one, other):
        for of_operand in strides:
            if of_operand[one] and of_operand[other]:
                if of_operand[one] != of_operand[other]:
                    return of_operand[one] - of_operand[other]
                if shape[one] > shape[other]:
                    return 1
        return 0

    order = list(range(len(shape)))[::-1]
    for place in range(1, len(order)):
        moving = place
        for before in range(place - 1, -1, -1):
            verdict = swapped(order[before], order[moving])
            if verdict > 0:
                order[before], order[moving] = order[moving], order[before]
                moving = before
            elif verdict < 0:
                break
    return order[::-1]


def laid_out(operands):
    """(shape, axes): the shape of the result, and its axes from the slowest to the fastest in memory."""
    shape = torch.broadcast_shapes(*(x.shape for x in operands))
    if all(x.is_contiguous() for x in operands):
        return shape, list(range(len(shape)))
    return shape, _order(shape, [strides_in(x, shape) for x in operands])


def empty_result(operands, dtype):
    """Memory for the result of operands [...]; without gaps, its axes ordered as torch orders them."""
    shape, order = laid_out(operands)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, shape[axis])
    like = next((x for x in operands if x.dim()), operands[0])
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=like.device)


def merged(operands):
    """(sizes, strides of each operand) of as few axes as there are, from the slowest to the fastest, one at least."""
    shape, order = laid_out(operands)
    of_operands = [strides_in(x, shape) for x in operands]
    sizes, strides = [], [[] for _ in operands]
    for axis in order:
        if shape[axis] == 1:
            continue
        now = [of_operand[axis] for of_operand in of_operands]
        if sizes and all(known[-1] == shape[axis] * step for known, step in zip(strides, now, strict=True)):
            sizes[-1] *= shape[axis]
        else:
            sizes.append(shape[axis])
            for known in strides:
                known.append(0)
        for known, step in zip(strides, now, strict=True):
            known[-1] = step
    return (sizes, strides) if sizes else ([1], [[1] for _ in operands])


def summed_axes(of_operand, shape):
    """The axes of ``shape`` along which an operand of the shape ``of_operand`` was broadcast."""
    ahead = len(shape) - len(of_operand)
    return [axis for axis, size in enumerate(shape) if axis < ahead or (size != 1 and of_operand[axis - ahead] == 1)]
