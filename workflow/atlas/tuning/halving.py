"""Successive halving: look at everything briefly, spend the samples on what is left.

Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.  Kernel
times are far less noisy than training losses, so each rung keeps a third instead of half; and whatever lies within the
noise of the rung's best is kept however many that is, so that no near tie is settled by a handful of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .candidates import Candidate
from .strategy import Answers, Round, Search, Strategy, fastest_first

SAMPLES = (5, 15, 45)
"""Samples per candidate on each rung."""

KEPT = 3
"""One in this many goes on to the next rung."""

LEAST = 4
"""The fewest that go on; with no more than these left, the search is done: finalists are timed anyway."""

NOISE = 0.02
"""Medians this close to the best go on, whatever their rank."""

STOP_BEYOND = 3.0
"""A candidate this many times slower than the best is stopped after one sample."""


def survivors(answers: Answers) -> list[Candidate]:
    """The candidates of a rung that go on to the next, fastest first."""
    ranked = fastest_first(answers)
    if not ranked:
        return []
    limit = answers[ranked[0]].median_us * (1 + NOISE)
    close = sum(answers[candidate].median_us <= limit for candidate in ranked)
    return ranked[: max(LEAST, math.ceil(len(ranked) / KEPT), close)]


def _search(candidates: Sequence[Candidate]) -> Search:
    left = list(candidates)
    for rung, samples in enumerate(SAMPLES):
        if rung and len(left) <= LEAST:
            return
        answers = yield Round(left, samples, rung, STOP_BEYOND if rung == 0 else None)
        left = survivors(answers)


HALVING = Strategy(
    "halving",
    f"{', '.join(map(str, SAMPLES))} samples, one config in {KEPT} goes on and all within {NOISE:.0%} of the best; "
    f"stopped after one sample beyond {STOP_BEYOND:g} times the best",
    _search,
)
