"""Guided by a model: for spaces too big to try.

A model of log time learns from the configs measured so far; the next batch are the configs of which it expects the
greatest improvement on the best.  Then what is left goes through the rungs of halving, so that noise is dealt with in
the same way.  :mod:`.model` says which model, and why.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence

from ..candidates import Candidate
from ..outcome import OK, Outcome
from . import halving
from .strategy import Answers, Round, Search, Strategy

SMALL = 24
"""Spaces up to this size are tried whole: a model would need as many trials to learn from."""

START = 20
"""Configs spread over the space before the model is asked."""

BATCH = 8
"""Configs asked for at a time; the model learns between batches, and compilers work on one meanwhile."""

NEGLIGIBLE = 0.0001
"""An expected improvement under this fraction of the best is not worth a trial."""

STOP_BEYOND = 3.0
"""As in halving, but further off: a model learns from what is slow, too."""

SHARE, LEAST = 0.15, 60
"""Most of a space that is measured: this share of its configs, or so many where that is more."""

MOST = 300
"""Most configs that are measured, however large the space: fitting takes time with the cube of their number."""


def guided(seed: int = 0) -> Strategy:
    """The strategy; ``seed`` decides on the first configs."""
    return Strategy(
        "guided",
        f"{START} configs spread over the space, then batches of {BATCH} by expected improvement under a Gaussian "
        f"process until that is under {NEGLIGIBLE:.2%} or {SHARE:.0%} of the space ({LEAST} to {MOST} configs) is "
        f"measured with {halving.SAMPLES[0]} samples; then as halving. Spaces of up to {SMALL} are tried whole",
        lambda candidates: _search(candidates, seed),
    )


GUIDED = guided()


def _search(candidates: Sequence[Candidate], seed: int) -> Search:
    if len(candidates) <= SMALL:
        answers = yield Round(candidates, halving.SAMPLES[0], 0, halving.STOP_BEYOND)
    else:
        answers = yield from _explore(candidates, seed)
    yield from halving.climb(answers)


def _explore(candidates: Sequence[Candidate], seed: int) -> Generator[Round, Answers, Answers]:
    """Batch after batch of first looks; returns the answers to all of them."""
    from . import model  # numpy and scipy: not before a worker has been started

    places = model.scaled(model.matrix(candidates))
    # By the candidate's name: where one proves wrong and the search starts again, the others keep their luck.
    luck = [random.Random(f"{seed} {candidate}").random() for candidate in candidates]
    batch = model.spread_out(places, _first_of_each_variant(candidates), START, luck)
    most = min(MOST, max(LEAST, math.ceil(SHARE * len(candidates))))
    asked: list[int] = []
    answers: dict[Candidate, Outcome] = {}
    kernel = None
    while batch:
        answers |= yield Round([candidates[i] for i in batch], halving.SAMPLES[0], 0, STOP_BEYOND)
        asked += batch
        known = set(asked)
        unknown = sorted((i for i in range(len(candidates)) if i not in known), key=luck.__getitem__)
        slowness = _slowness([answers.get(candidates[i]) for i in asked])
        if slowness is None:  # there is nothing to learn from until one works
            batch = unknown[:BATCH]
        elif len(asked) < most and unknown:
            gains, kernel = model.expected_gain(places[asked], slowness, places[unknown], kernel)
            best = sorted(zip(gains, unknown, strict=True), key=lambda pair: -pair[0])[: min(BATCH, most - len(asked))]
            batch = [index for gain, index in best if gain > NEGLIGIBLE]
        else:
            batch = []
    return answers


def _first_of_each_variant(candidates: Sequence[Candidate]) -> list[int]:
    """Where each variant begins: defaults lead the list."""
    first: dict[str, int] = {}
    for index, candidate in enumerate(candidates):
        first.setdefault(candidate.variant, index)
    return list(first.values())


def _slowness(outcomes: Sequence[Outcome | None]) -> list[float] | None:
    """The logarithm of each time over the best, at most that of what would be stopped; None where nothing worked.

    What failed counts as that slow: it is as far from a candidate for the best, and in a region of its like.
    """
    times = [one.median_us if one is not None and one.worked else math.inf for one in outcomes]
    best = min((one.median_us for one in outcomes if one is not None and one.status == OK), default=None)
    if best is None:
        return None
    return [math.log(min(time / best, STOP_BEYOND)) for time in times]
