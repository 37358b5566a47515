"""Inputs that are hard on arithmetic: NaN and infinities planted, and large magnitudes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

KINDS = {"NaN": math.nan, "+inf": math.inf, "-inf": -math.inf}

# The largest magnitude is brought between half of this power of two and all of it.  fp16: its square passes 65504, it
# does not by far.  The wide dtypes: exp overflows, squares and their sums do not.
_LARGEST = {torch.float16: 9, torch.bfloat16: 13, torch.float32: 13, torch.float64: 13}


def plantable(inputs: Mapping[str, Any], among: set[str] | None = None) -> list[str]:
    """Names of the floating inputs that can hold NaN and infinities, restricted to ``among`` where given."""
    return [
        name
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype in _LARGEST
        and value.numel()
        and (among is None or name in among)
    ]


def planted(inputs: Mapping[str, Any], names: list[str], seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each named input and each of :data:`KINDS`, the inputs with that one value at one random element.

    One at a time, so that as much as possible of the result stays finite and the masks say something.
    """
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        for kind, value in KINDS.items():
            tensor = inputs[name].clone()
            index = tuple(int(torch.randint(size, (1,), generator=generator)) for size in tensor.shape)
            tensor[index] = value
            where = ", ".join(map(str, index))
            yield f"{kind} in {name}[{where}]", dict(inputs) | {name: tensor}


def magnified(inputs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The inputs with the named tensors scaled, exactly, up to where careless arithmetic overflows."""
    return dict(inputs) | {name: _magnified(inputs[name]) for name in names}


def _magnified(tensor: torch.Tensor) -> torch.Tensor:
    largest = float(tensor.abs().max())
    if not 0 < largest < math.inf:
        return tensor
    return tensor * 2.0 ** (_LARGEST[tensor.dtype] - math.frexp(largest)[1])
