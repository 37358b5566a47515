"""Inputs that are hard on arithmetic: NaN and infinities planted, large magnitudes, and a large common offset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

KINDS = {"NaN": math.nan, "+inf": math.inf, "-inf": -math.inf}

# The largest magnitude is brought between half of this power of two and all of it.  fp16: its square passes 65504, it
# does not by far.  The wide dtypes: exp overflows, squares and their sums do not.  fp8: near the end of its range.
_LARGEST = {
    torch.float16: 9,
    torch.bfloat16: 13,
    torch.float32: 13,
    torch.float64: 13,
    torch.float8_e4m3fn: 8,
    torch.float8_e5m2: 13,
}

OFFSETS = {"fp32": 10, "fp16": 10, "bf16": 7}
"""By a case's dtype, the power of two that is added to inputs of root mean square 1 (others in proportion).

A variance taken as E[x^2] - mean^2 in fp32 loses 2^(2k) roundings of itself to an offset of 2^k, a careful one 2^k: at
k = 10 a factor of a thousand lies between them.  fp16 and bf16 keep a spacing of no more than the inputs' spread, or
there would be nothing left to compute with; for bf16 that is so up to k = 8, where the careless loss of 2^-8 is below
its own rounding.  So in bf16 the check finds 16-bit arithmetic alone, and the same code is tried in fp32.

Other dtypes have none.  A tensor core that truncates fp32 to tf32 errs in one direction, which random signs average out
and equal ones add up; fp8 has too few bits for an offset.
"""

OFFSET_CONDITIONING = 64.0
"""In the place of :data:`.tolerances.CONDITIONING_FACTOR`, with a common offset.

There conditioning is the tolerance and no rare excuse.  The reference's inputs are changed at random, which averages
out over a row and over rows, but the rounding of a mean (its sum, and 2 ulp of a GPU's division) is common to its row
and hits the row with the smallest variance hardest.  Kernels that are right use up to a fifth of it, and a variance as
E[x^2] - mean^2 in fp32 many times as much.
"""


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

    One at a time, so that as much as possible of the result stays finite and the masks say something.  Infinities are
    left out where the dtype has none (e4m3).
    """
    generator = torch.Generator().manual_seed(seed)
    for name in names:
        for kind, value in KINDS.items():
            if math.isinf(value) and not math.isinf(float(torch.tensor(value).to(inputs[name].dtype))):
                continue
            tensor = inputs[name].clone()
            index = tuple(int(torch.randint(size, (1,), generator=generator)) for size in tensor.shape)
            tensor[index] = value
            where = ", ".join(map(str, index))
            yield f"{kind} in {name}[{where}]", dict(inputs) | {name: tensor}


def magnified(inputs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The inputs with the named tensors scaled, exactly, up to where careless arithmetic overflows."""
    return dict(inputs) | {name: _magnified(inputs[name]) for name in names}


def offset(inputs: Mapping[str, Any], names: list[str], dtype: str) -> dict[str, Any]:
    """The inputs with each named tensor raised by a power of two of its own, by :data:`OFFSETS`; rounded to its dtype.

    Raises KeyError for a dtype that has none.
    """
    return dict(inputs) | {name: _offset(inputs[name], OFFSETS[dtype]) for name in names}


def _offset(tensor: torch.Tensor, power: int) -> torch.Tensor:
    rms = float(tensor.double().square().mean().sqrt())
    if not 0 < rms < math.inf:
        return tensor
    # Raised this far, even fp16 has room for the inputs themselves.
    power = min(power + round(math.log2(rms)), math.frexp(torch.finfo(tensor.dtype).max)[1] - 2)
    return (tensor.double() + 2.0**power).to(tensor.dtype)


def _magnified(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor.double()  # fp8 has no arithmetic
    largest = float(wide.abs().max())
    if not 0 < largest < math.inf:
        return tensor
    return (wide * 2.0 ** (_LARGEST[tensor.dtype] - math.frexp(largest)[1])).to(tensor.dtype)
