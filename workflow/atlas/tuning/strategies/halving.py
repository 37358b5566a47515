"""Successive halving: look at everything briefly, spend the samples on what is left.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.  Kernel
times are far less noisy than training losses, and how noisy they are shows in the samples.  So a rung keeps no fixed
share, but whatever its samples cannot tell from the best: where 5 samples suffice, few go on, where the timer blurs a
kernel of 4 us, most do.  docs/tuning.md gives the simulated figures behind the constants.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence

from ..candidates import Candidate
from .strategy import Answers, Round, Search, Strategy, fastest_first

SAMPLES = (5, 15, 45)
"""Samples per candidate on each rung."""

LEAST = 4
"""The fewest that go on; with no more than these left, the search is done: finalists are timed anyway."""

ERRORS = 4.0
"""Medians within so many standard errors of the best go on: three errors of a difference of two medians, nearly."""

NOISE = 0.01
"""Medians this close to the best go on however calm the samples: they were not taken in turns, so drift is between."""

STOP_BEYOND = 1.5
"""A candidate this many times slower than the best is stopped after one sample: no single sample errs so far."""


def survivors(answers: Answers) -> list[Candidate]:
    """The candidates of a rung that go on to the next, fastest first."""
    ranked = fastest_first(answers)
    if not ranked:
        return []
    limit = answers[ranked[0]].median_us * (1 + max(NOISE, ERRORS * standard_error(answers, ranked)))
    return ranked[: max(LEAST, sum(answers[candidate].median_us <= limit for candidate in ranked))]


def standard_error(answers: Answers, ranked: Sequence[Candidate]) -> float:
    """The standard error of a rung's medians as a fraction of them, from the quartiles of its faster half.

    That of n normal samples' median is sqrt(pi / 2) sigma / sqrt(n), and their quartiles lie 1.349 sigma apart.  A few
    samples tell their own spread badly, hence the median over the candidates.
    """
    faster = [answers[candidate] for candidate in ranked[: max(LEAST, math.ceil(len(ranked) / 2))]]
    spread = statistics.median((one.q3_us - one.q1_us) / one.median_us for one in faster)
    samples = statistics.median(one.samples for one in faster)
    return math.sqrt(math.pi / 2) / 1.349 * spread / math.sqrt(samples)


def climb(answers: Answers) -> Generator[Round, Answers, None]:
    """The rungs after the first look, which ``answers`` are."""
    for rung, samples in enumerate(SAMPLES[1:], 1):
        left = survivors(answers)
        if len(left) <= LEAST:
            return
        answers = yield Round(left, samples, rung)


def _search(candidates: Sequence[Candidate]) -> Search:
    answers = yield Round(candidates, SAMPLES[0], 0, STOP_BEYOND)
    yield from climb(answers)


HALVING = Strategy(
    "halving",
    f"{', '.join(map(str, SAMPLES))} samples; all within {ERRORS:g} standard errors or {NOISE:.0%} of the best go on; "
    f"stopped after one sample beyond {STOP_BEYOND:g} times the best",
    _search,
)
