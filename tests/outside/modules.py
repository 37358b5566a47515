"""A module as a function: of what it is constructed with, of its parameters, and of what it is called with.

So the parameters are arguments like others, which gradients are asked for and float64 is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .functions import Call


def calls(inputs: Iterator[Any], module_class: type[torch.nn.Module], device: str, dtype: torch.dtype) -> list[Call]:
    """Calls of that function for torch's ``ModuleInput``s; the parameters are those that torch initialises."""
    found = []
    for one in inputs:
        constructor = one.constructor_input.args, one.constructor_input.kwargs
        forward = one.forward_input
        args, kwargs = ((), {}) if forward is None else (forward.args, forward.kwargs)
        found.append(Call((constructor, _parameters(module_class, constructor, device, dtype), args, kwargs)))
    return found


def _parameters(module_class, constructor, device, dtype) -> dict[str, torch.Tensor]:
    """None where the constructor raises: then so will the call."""
    try:
        module = module_class(*constructor[0], **constructor[1])
    except Exception:
        return {}
    named = module.to(device, dtype).named_parameters()
    return {name: parameter.detach().requires_grad_() for name, parameter in named}
