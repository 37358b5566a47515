"""How much of an output hangs on the last bit of the inputs: what a right kernel may be off by where terms cancel.

A result that is exact for inputs changed by one rounding of fp32 is as good as fp32 arithmetic gives (backward
stability: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 1.5).  So the float64 reference is
evaluated again on inputs whose every element is changed by half an ulp of fp32 up or down, and the root mean square of
what an output changes by, times :data:`FACTOR`, is added to its absolute tolerance.  It is computed only where a result
would fail otherwise: widening a tolerance fails nothing that passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .tolerances import U32

FACTOR = 4.0
"""As for one rounding: the largest of many elements, and a few roundings in a row."""

_REPETITIONS = 4  # one alone may cancel, too, where an output has a single element


def slack(
    evaluate: Callable[[Mapping[str, Any]], Sequence[torch.Tensor]],
    inputs: Mapping[str, Any],
    expected: Sequence[torch.Tensor],
    seed: int,
    factor: float = FACTOR,
) -> list[float]:
    """For each output the tolerance that its conditioning grants; nothing where memory does not suffice to tell.

    ``evaluate`` gives the float64 reference's outputs of inputs that are in float64 already.
    """
    squares = [0.0] * len(expected)
    try:
        for repetition in range(_REPETITIONS):
            for position, output in enumerate(evaluate(_nudged(inputs, seed + repetition))[: len(expected)]):
                change = (output.double() - expected[position].double()).flatten()
                change = change[change.isfinite()]
                squares[position] += float(change.square().mean()) if change.numel() else 0.0
    except torch.OutOfMemoryError:
        return []
    return [factor * math.sqrt(total / _REPETITIONS) for total in squares]


def _nudged(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    nudged = {}
    for position, (name, value) in enumerate(inputs.items()):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            generator = torch.Generator(device=value.device).manual_seed(1000 * seed + position)
            sign = torch.randint(0, 2, value.shape, generator=generator, device=value.device) * 2 - 1
            value = value.detach().double() * (1 + sign.double() * U32)
        nudged[name] = value
    return nudged
