"""How far a result may be from the float64 reference: the one table, and the formula for what it does not cover.

An element passes where ``|result - reference| <= rtol |reference| + atol``.

*rtol* by dtype is that of ``torch.testing.assert_close``.  Of the case's dtype and the output's dtype the coarser
counts: an fp32 output of bf16 inputs may rest on products that were rounded to bf16 on the way.

*atol* covers outputs that are small because large terms cancel.  A sum of K terms accumulated in fp32 carries an error
of about sqrt(K) u32 times the size of the terms' sum (Higham and Mary, "A new approach to probabilistic rounding error
analysis", SIAM J. Sci. Comput. 41, 2019: sqrt(K) in the place of K of the worst case), and each rounding of an
intermediate to the dtype (the weights of attention, for instance) carries one of about u, both against the scale of
the output, not of the one element.  With u the unit roundoff of the dtype, u32 = 2^-24, and rms the root mean square of
the finite reference values:

    atol = (4 u + extreme(N) sqrt(K) u32) rms + least,    extreme(N) = 3 + 0.37 ln N

The factors are for the largest of the output's N elements; a kernel that accumulates in fp16 exceeds it from K = 64 on.
A rounding has bounded errors, so 4 serves any N.  A sum taken term by term has not: its error is normal with a variance
that is itself the integral of a squared Brownian path (the partial sums), and together they fall off as exp(-2.72 x) in
units of sqrt(K) u32 rms, hence 0.37 = 1 / 2.72 for each e-fold of elements.  With the 3 in front about one output in a
million of a right kernel is beyond it (a million simulated sums of 1024 products: one in a million past 3.3).

A rounding's part may differ from element to element: attention's rows that see few keys, or that hang on one of them,
are many times the rms of an output whose other rows are averages of thousands.  A pass that knows declares the spread,
for an output that is a sum of terms t_j, each rounded to within u |t_j|,

    spread = sqrt(sum_j t_j^2),    atol = 4 u spread + extreme(N) sqrt(K) u32 rms + least

Independent roundings of mean 0 that are bounded by u |t_j| add up to more than x u spread with a probability of at most
2 exp(-x^2 / 2) (Hoeffding, "Probability inequalities for sums of bounded random variables", J. Amer. Stat. Assoc. 58,
1963, theorem 2).  Most are well within their bound, so 4 is more than it says: see docs/measuring.md for what P in e4m3
was seen to take.  The spread stands in the place of rms also where it is smaller.  Every rounding is a share of some
term of its own element: what other elements are is no excuse, and rows of thousands of keys are judged no milder for
having rows of two beside them.  With all such roundings in the spread, rtol is that of the output's dtype alone.

``least`` is the spacing of subnormal numbers, and for dtypes of fp32's range the least normal number, since GPUs flush
to zero.

*Against torch*: the largest error may be twice that of torch's own operation at the same dtype on the same inputs.
Torch may be exact by luck, so its error counts as at least one rounding of the largest output to the dtype; in fp32 as
eight, because exponentials, divisions and reciprocal roots of GPUs are each good to about 2 ulp; to that comes half of
what atol grants to summation.  Triton's interpreter truncates where a GPU rounds to bf16 (3.7.1), so on it one rounding
counts as two.

*Cancellation*: a sum that nearly vanishes as a whole (a bias gradient of one column) is smaller than its terms, and so
is rms.  So what the reference changes by when its inputs change by a rounding is allowed, too.  A result that is exact
for inputs changed by one rounding of fp32 is as good as fp32 arithmetic gives (backward stability: Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 1.5).  The float64 reference is evaluated again on inputs whose every
element is changed by half an ulp of fp32 up or down, and the root mean square of what an output changes by, times
:data:`CONDITIONING_FACTOR`, is added to its absolute tolerance.  It is computed only where a result would fail
otherwise: widening a tolerance fails nothing that passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

RTOL = {
    "fp64": 1e-7,
    "fp32": 1.3e-6,
    "tf32": 1e-3,
    "fp16": 1e-3,
    "bf16": 1.6e-2,
    "fp8e4m3": 2**-3,
    "fp8e5m2": 2**-2,
}
"""Relative tolerance by dtype; integers are compared exactly.  fp8: twice the unit roundoff, as for fp16."""

OVER_TORCH = 2.0
"""The most that the largest error may be, in units of torch's."""

_FACTOR = 4.0
_ROUNDOFF = {"fp64": 2**-53, "fp32": 2**-24, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8,
             "fp8e4m3": 2**-4, "fp8e5m2": 2**-3}  # fmt: skip
U32 = 2**-24
"""Unit roundoff of fp32, in which kernels accumulate."""
_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4m3",
    torch.float8_e5m2: "fp8e5m2",
}


def governing(case_dtype: str, output: torch.dtype) -> str | None:
    """The dtype whose tolerance counts: the coarser of the case's and the output's; None for integer outputs."""
    if output not in _NAMES:
        return None
    names = [name for name in (case_dtype, _NAMES[output]) if name in RTOL]
    return max(names, key=RTOL.__getitem__)


def rtol(dtype: str | None) -> float:
    """Relative tolerance; 0 for integers."""
    return RTOL[dtype] if dtype else 0.0


def extreme(count: int) -> float:
    """How far the largest of ``count`` errors of sums may be from 0, in units of sqrt(K) u32 rms."""
    return 3.0 + 0.37 * math.log(max(count, 1))


def atol(
    dtype: str | None, output: torch.dtype, reduction: int, rms: float, count: int, spread: float | None = None
) -> float:
    """Absolute tolerance for sums of ``reduction`` terms and ``count`` outputs of root mean square ``rms``.

    ``spread`` is that of an element, where its pass declares one.  0 for integers.
    """
    if dtype is None:
        return 0.0
    limits = torch.finfo(output)
    least = limits.tiny if limits.tiny < 1e-30 else limits.tiny * limits.eps
    return rounding(dtype, rms if spread is None else spread) + _summation(reduction, count) * rms + least


_Size = TypeVar("_Size", float, torch.Tensor)


def rounding(dtype: str, size: _Size) -> _Size:
    """The part of the absolute tolerance for what one pass rounds to ``dtype`` on the way to its outputs.

    ``size`` is an output's root mean square, or the spread of its elements.
    """
    return _FACTOR * _ROUNDOFF[dtype] * size


def _summation(reduction: int, count: int) -> float:
    return extreme(count) * math.sqrt(max(reduction, 1)) * U32


def least_torch_error(
    dtype: str | None, device: torch.device, reduction: int, rms: float, largest: float, count: int
) -> float:
    """What torch's error counts as at least on a device, given the largest finite reference value."""
    if dtype is None:
        return 0.0
    roundings = 8 if dtype == "fp32" else 2 if (dtype, device.type) == ("bf16", "cpu") else 1
    return roundings * _ROUNDOFF[dtype] * largest + _summation(reduction, count) * rms / OVER_TORCH


CONDITIONING_FACTOR = 4.0
"""As for one rounding: the largest of many elements, and a few roundings in a row."""

_CONDITIONING_REPETITIONS = 4  # one alone may cancel, too, where an output has a single element


def conditioning_slack(
    evaluate: Callable[[Mapping[str, Any]], Sequence[torch.Tensor]],
    inputs: Mapping[str, Any],
    expected: Sequence[torch.Tensor],
    seed: int,
    factor: float = CONDITIONING_FACTOR,
) -> list[float]:
    """For each output the tolerance that its conditioning grants; nothing where memory does not suffice to tell.

    ``evaluate`` gives the float64 reference's outputs of inputs that are in float64 already.
    """
    squares = [0.0] * len(expected)
    try:
        for repetition in range(_CONDITIONING_REPETITIONS):
            for position, output in enumerate(evaluate(_nudged(inputs, seed + repetition))[: len(expected)]):
                change = (output.double() - expected[position].double()).flatten()
                change = change[change.isfinite()]
                squares[position] += float(change.square().mean()) if change.numel() else 0.0
    except torch.OutOfMemoryError:
        return []
    return [factor * math.sqrt(total / _CONDITIONING_REPETITIONS) for total in squares]


def _nudged(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    nudged = {}
    for position, (name, value) in enumerate(inputs.items()):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            generator = torch.Generator(device=value.device).manual_seed(1000 * seed + position)
            sign = torch.randint(0, 2, value.shape, generator=generator, device=value.device) * 2 - 1
            value = value.detach().double() * (1 + sign.double() * U32)
        nudged[name] = value
    return nudged
