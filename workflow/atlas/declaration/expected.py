"""What a config is expected to take at a case that nobody tuned, beside the default, and how sure that is.

The logarithm of the ratio of two configs' times is taken for a Gaussian process.  It walks at random as sizes double,
a little with blocks, more with warps and stages, and says nothing across variants.  An estimate rests on the few
timings that tell most of it.  It has an expectation and a standard error; far from all timings it is "as long as the
default, but who knows", and where timings contradict each other it is less sure.  Nothing is fitted to a kernel: the
constants are the same for all.  They were chosen on the H200's records with cases left out
(``python -m proofs choice``); twice or half as much of one changes little.

Plain Python, since a first call may run under any of torch's modes.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .timings import Timed, Timings, Trial
    from .types import Config

SCALE = 0.3
"""Standard deviation of the logarithm of the times of two configs that have nothing in common."""

SATURATES = 0.2
"""Logarithm of a time over the best, from which on slow is slow: how slow says nothing of the configs near the best."""

REACH, FLAG, DTYPE, ORDER = 256.0, 8.0, 0.1, 8.0
"""Doublings over which timings lose touch; how many of them a flag, a dtype and an operand in another order count."""

ELSEWHERE = 2.0
"""How many doublings it counts that a timing is of another GPU of the same architecture.

Of 120 cases that the H200 and the H100 timed both, a quarter and four times as much are as good, or nearly.
"""

WARPS, STAGES, NUMBER, WORD = 2.0, 4.0, 0.001, 0.5
"""How fast configs lose touch: with each doubling of warps, of stages, of other numbers; with a word or flag."""

NOISE, SHARED, TICK_US = 0.0025, 0.001, 0.4
"""Relative error of a timing; of the default's, which all of a case share; and microseconds, for short kernels."""

TELLING = 8
"""Timings that an estimate rests on: as good as all of them, with each case left out, and soon computed."""

Candidate = tuple[str, "Config"]
"""A variant's name and a config."""


@dataclass(frozen=True)
class Estimate:
    """Of one candidate: the expected logarithm of its time over the default's, its standard error, and its grounds."""

    variant: str
    config: Config
    log_ratio: float
    error: float
    told_by: tuple[Timed, ...]
    """The cases whose timings tell most of it, without repetition, the most telling first."""


def alike(one: Candidate, other: Candidate) -> float:
    """How much the times of two configs have in common, from 0 to 1."""
    if one[0] != other[0]:
        return 0.0
    apart = 0.0
    for name, value in one[1].items():
        there = other[1].get(name)
        if value == there:
            continue
        if _is_number(value) and _is_number(there):
            apart += _rate(name) * abs(math.log2(max(value, 0.5) / max(there, 0.5)))
        else:
            apart += WORD
    return math.exp(-apart)


def near(dtype: str, sizes: Mapping[str, Any], other: Timed, gpu: str = "") -> float:
    """How much the times of one config have in common at two cases, from 0 to 1; ``gpu`` as in :class:`Timed`."""
    apart, squares = (ELSEWHERE if gpu != other.gpu else 0.0), 0.0
    if sizes.get("layout") != other.sizes.get("layout"):
        orders = itertools.zip_longest(sizes.get("layout", ""), other.sizes.get("layout", ""), fillvalue="N")
        apart += ORDER * sum(mine != theirs for mine, theirs in orders)
    for name in sizes.keys() | other.sizes.keys():
        mine, theirs = sizes.get(name), other.sizes.get(name)
        if mine == theirs or name == "layout":
            continue
        if _is_number(mine) and _is_number(theirs) and mine and theirs:
            squares += math.log2(mine / theirs) ** 2
        else:
            apart += FLAG
    apart += math.sqrt(squares) + (DTYPE if dtype != other.dtype else 0.0)
    return math.exp(-apart / REACH)


def estimates(
    timings: Timings, dtype: str, sizes: Mapping[str, Any], default: Candidate, candidates: Sequence[Candidate]
) -> list[Estimate]:
    """Of each candidate beside ``default``, what the timings of the same pass tell; the order is kept."""
    touch = [near(dtype, sizes, one) for one in timings.cases]
    of_default = [alike(default, one) for one in timings.configs]
    return [_estimate(timings, touch, of_default, default, candidate) for candidate in candidates]


def _estimate(
    timings: Timings, touch: Sequence[float], of_default: Sequence[float], default: Candidate, candidate: Candidate
) -> Estimate:
    own = [alike(candidate, one) - other for one, other in zip(timings.configs, of_default, strict=True)]
    told = [
        (SCALE**2 * touch[trial.case] * (own[trial.config] - own[trial.default]), trial) for trial in timings.trials
    ]
    told = heapq.nlargest(TELLING, told, key=lambda item: item[0] ** 2 / item[1].variance)
    trials = [trial for shared, trial in told if shared]
    lower = _factor(timings, trials)
    shared = _forward(lower, [one for one, _ in told if one])
    found = _forward(lower, [trial.log_ratio for trial in trials])
    variance = 2 * SCALE**2 * (1 - alike(candidate, default)) - _product(shared, shared)
    # Timings that contradict each other more than the process allows make an estimate of them less sure.
    surprise = max(1.0, _product(found, found) / len(trials)) if trials else 1.0
    cases = dict.fromkeys(trial.case for trial in trials)
    error = math.sqrt(max(variance, 0.0) * surprise)
    return Estimate(*candidate, _product(shared, found), error, tuple(timings.cases[one] for one in cases))


def _factor(timings: Timings, trials: Sequence[Trial]) -> list[list[float]]:
    """Cholesky's lower factor of the trials' covariances, by rows."""
    lower: list[list[float]] = []
    for row, one in enumerate(trials):
        line: list[float] = []
        for column, other in enumerate(trials[: row + 1]):
            rest = timings.covariance(one, other) - _product(line, lower[column] if column < row else line)
            line.append(math.sqrt(rest) if column == row else rest / lower[column][column])
        lower.append(line)
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The values in the basis of the factor: their products there are those with the covariances' inverse."""
    found: list[float] = []
    for line, value in zip(lower, values, strict=True):
        found.append((value - _product(line, found)) / line[-1])
    return found


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    """Of as many elements as the shorter has."""
    return sum(map(operator.mul, one, other))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rate(name: str) -> float:
    """By the words in which Triton and the kernels name a config's parameters."""
    words = name.lower().split("_")
    return WARPS if "warps" in words else STAGES if "stages" in words else NUMBER
