"""What a config is expected to take at a case that nobody tuned, beside the default, and how sure that is.

By the Gaussian process of :mod:`.likeness` an estimate rests on the few timings that tell most of it.  It has an
expectation and a standard error; far from all timings it is "as long as the default, but who knows", and where timings
contradict each other it is less sure.

Plain Python, since a first call may run under any of torch's modes.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .likeness import SCALE, Candidate, alike, near

if TYPE_CHECKING:
    from .timings import Timed, Timings, Trial
    from .types import Config

TELLING = 8
"""Timings that an estimate rests on: as good as all of them, with each case left out, and soon computed."""


@dataclass(frozen=True)
class Estimate:
    """Of one candidate: the expected logarithm of its time over the default's, its standard error, and its grounds."""

    variant: str
    config: Config
    log_ratio: float
    error: float
    told_by: tuple[Timed, ...]
    """The cases whose timings tell most of it, without repetition, the most telling first."""


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
    """Cholesky's lower factor of the trials' covariances, by rows.

    What is left of a trial when the others are known is at least its own noise; less is rounding.
    """
    lower: list[list[float]] = []
    for row, one in enumerate(trials):
        line: list[float] = []
        for column, other in enumerate(trials[: row + 1]):
            rest = timings.covariance(one, other) - _product(line, lower[column] if column < row else line)
            line.append(math.sqrt(max(rest, one.noise)) if column == row else rest / lower[column][column])
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
