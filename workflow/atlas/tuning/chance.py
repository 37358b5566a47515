"""Trying configs at random: what any cleverer strategy has to beat with as many trials."""

from __future__ import annotations

import random
from collections.abc import Sequence

from . import halving
from .candidates import Candidate
from .strategy import Round, Search, Strategy


def chance(count: int, seed: int) -> Strategy:
    """The first candidate and ``count - 1`` drawn from the others, then the rungs of halving."""

    def search(candidates: Sequence[Candidate]) -> Search:
        first, *others = candidates
        drawn = random.Random(seed).sample(others, min(count - 1, len(others)))
        answers = yield Round([first, *drawn], halving.SAMPLES[0], 0, halving.STOP_BEYOND)
        yield from halving.climb(answers)

    return Strategy("random", f"{count} configs drawn at random; then as halving", search)
