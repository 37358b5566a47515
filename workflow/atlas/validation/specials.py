"""Inputs that are hard on arithmetic: NaN and infinities planted, and large magnitudes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

KINDS = {"NaN": math.nan, "+inf": math.inf, "-inf": -math.inf}

# Powers of two, so that scaling is exact.  fp16: squares of N(0, 1) times 2^6 summed over a thousand columns pass
# 65504, their own magnitude does not.  The wide dtypes: exp overflows, squares and their sums do not.
_SCALE = {torch.float16: 2.0**6, torch.bfloat16: 2.0**12, torch.float32: 2.0**12, torch.float64: 2.0**12}


def plantable(inputs: Mapping[str, Any], among: set[str] | None = None) -> list[str]:
    """Names of the floating inputs that can hold NaN and infinities, restricted to ``among`` where given."""
    return [
        name
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype in _SCALE
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
    """The inputs with the named tensors scaled up to where careless arithmetic overflows."""
    return dict(inputs) | {name: inputs[name] * _SCALE[inputs[name].dtype] for name in names}
