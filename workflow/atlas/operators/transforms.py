"""Calls under torch.func's transforms (grad, vjp, jvp, vmap) and with forward-mode derivatives: right, or an error.

An operator that launches kernels knows one rule, its gradient.  The others follow from it, in torch's way of telling
functorch about a function: :class:`torch.autograd.Function` with ``setup_context``, ``jvp`` and ``vmap``.  They take
longer than a plain call; who takes none of them does not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

_transforms = torch._C._are_functorch_transforms_active


def transformed() -> bool:
    """Whether the caller is under a transform of torch.func, or takes derivatives in forward mode."""
    return not torch.compiler.is_compiling() and (_transforms() or forward_ad._current_level >= 0)


def derivative_wanted(*tensors: torch.Tensor | None) -> bool:
    """Whether a derivative of what is computed from these may be asked for: a gradient, or one in forward mode."""
    if transformed():
        return True
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def torch_gradients(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor | None], upstream: torch.Tensor
) -> list[torch.Tensor | None]:
    """The gradients of ``function(*inputs)``, written in torch's operations, for the incoming one ``upstream``.

    One for each of ``inputs``, None where that is None.  They are differentiable themselves, under torch.func, too.
    """
    given = [number for number, tensor in enumerate(inputs) if tensor is not None]

    def of_given(*tensors):
        every = list(inputs)
        for number, tensor in zip(given, tensors, strict=True):
            every[number] = tensor
        return function(*every)

    _, pull = torch.func.vjp(of_given, *(inputs[number] for number in given))
    found = dict(zip(given, pull(upstream), strict=True))
    return [found.get(number) for number in range(len(inputs))]


def transformable(
    name: str,
    call: Callable[..., Any],
    op: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    pushforward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The function ``call`` of the operator ``name``, in a form that transforms and forward mode can take.

    ``op`` computes it on plain tensors.  Without a ``backward`` every derivative raises NotImplementedError; with it,
    those taken forwards are ``pushforward(args, tangents)``, or found by taking the gradient twice, for which
    ``backward`` must be differentiable itself.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*args):
            return op(*args)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.given = [None if isinstance(value, torch.Tensor) else value for value in inputs]
            if backward is not None:
                setup_context(ctx, inputs, output)
            outputs, constant = (output if isinstance(output, tuple) else (output,)), ctx.non_differentiable or ()
            ctx.moves = [y.is_floating_point() and not any(y is other for other in constant) for y in outputs]
            ctx.save_for_forward(*(value if isinstance(value, torch.Tensor) else None for value in inputs))

        @staticmethod
        def backward(ctx, *gradients):
            if backward is None:
                raise NotImplementedError(f"{name} has no gradient")
            return backward(ctx, *gradients)

        @staticmethod
        def jvp(ctx, *tangents):
            if backward is None:
                raise NotImplementedError(f"{name} has no derivative")
            # Without the tangents that they have, or this would be asked for again.
            saved = [None if x is None else forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            args = [given if x is None else x for given, x in zip(ctx.given, saved, strict=True)]
            if pushforward is not None:
                return pushforward(args, tangents)
            found = _pushed_forward(name, call, args, tangents, ctx.moves)
            return found if len(found) > 1 else found[0]

        @staticmethod
        def vmap(info, in_dims, *args):
            return _one_by_one(call, info.batch_size, in_dims, args)

    Function.__name__ = Function.__qualname__ = name
    return Function.apply


def _pushed_forward(
    name: str, call: Callable[..., Any], args: Sequence[Any], tangents: Sequence[Any], moves: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """J t of the function at ``args`` by J t = (d/dv) (v -> J^T v) t, the gradient of the gradient.

    A tangent for each output that ``moves``, None for the others.
    """
    turning = [n for n, t in enumerate(tangents) if isinstance(t, torch.Tensor) and args[n].is_floating_point()]

    def outputs(*values):
        given = list(args)
        for number, value in zip(turning, values, strict=True):
            given[number] = value
        found = call(*given)
        found = (found,) if isinstance(found, torch.Tensor) else found
        return [output for output, moving in zip(found, moves, strict=True) if moving]

    def weighted(values, weights):
        return sum((output * weight).sum() for output, weight in zip(outputs(*values), weights, strict=True))

    at = tuple(args[number] for number in turning)
    zeros = [torch.zeros_like(output) for output in outputs(*at)]
    try:
        gradient = torch.func.grad(weighted)
        _, push = torch.func.vjp(lambda *weights: gradient(at, weights), *zeros)
        found = iter(push(tuple(tangents[number] for number in turning)))
    except NotImplementedError as error:
        raise NotImplementedError(f"{name} has no derivative in forward mode: {error}") from None
    return tuple(next(found) if moving else None for moving in moves)


def _one_by_one(call: Callable[..., Any], size: int, dims: Sequence[int | None], args: Sequence[Any]) -> Any:
    """The function on each element of a batch, stacked; an operator of several outputs gives several stacks."""
    found = [
        call(*(value if dim is None else value.select(dim, number) for value, dim in zip(args, dims, strict=True)))
        for number in range(size)
    ]
    if isinstance(found[0], torch.Tensor):
        return torch.stack(found), 0
    stacks = tuple(torch.stack(outputs) for outputs in zip(*found, strict=True))
    return stacks, (0,) * len(stacks)
