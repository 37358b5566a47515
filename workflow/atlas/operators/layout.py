"""Layouts: what operators take as it lies without copying it first, and results in the shape of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_result_in = torch.ops.aten._unsafe_view.default


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` itself where it is contiguous, or rows of neighbours at equal distances; else a contiguous copy."""
    if x.is_contiguous():
        return x
    shape, stride = x.shape, x.stride()
    even = all(stride[d] == stride[d + 1] * shape[d + 1] for d in range(x.dim() - 2))
    return x if x.dim() > 1 and stride[-1] == 1 and even else x.contiguous()


def shaped(result: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """``result``, which nobody else holds, in ``shape``; it may be changed in place, as torch's results may.

    Without gradients it is no view: of one made there, autograd lets nobody change that in place later where a gradient
    is wanted.  With them it is one, so that a change of what backward keeps is noticed.
    """
    return result.view(shape) if torch.is_grad_enabled() else _result_in(result, shape)


def permuted(result: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """``result``, which nobody else holds, with its axes in this order; of views as :func:`shaped`."""
    result = result.permute(axes)
    return result if torch.is_grad_enabled() else _result_in(result, result.shape)


def slowest_first(strides: Sequence[int]) -> list[int]:
    """Axes by falling strides; of equal ones the first comes first.

    By comparing: torch.compile sorts no sizes that it does not know.
    """
    order: list[int] = []
    for axis, step in enumerate(strides):
        place = len(order)
        while place and strides[order[place - 1]] < step:
            place -= 1
        order.insert(place, axis)
    return order


def as_laid_out(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """``function`` of ``tensors`` of one shape, which it takes as :func:`as_rows` gives them, element by element.

    Tensors that all lie in memory in one other order of dimensions (transposed, channels last) are given to it in that
    order, and the result keeps it.
    """
    first = tensors[0]
    if all(x.is_contiguous() for x in tensors):
        return function(*tensors)
    order = slowest_first(first.stride())
    ordered = [x.permute(order) for x in tensors]
    if all(x.is_contiguous() for x in ordered):
        return permuted(function(*ordered), [order.index(d) for d in range(first.dim())])
    return function(*[as_rows(x) for x in tensors])
