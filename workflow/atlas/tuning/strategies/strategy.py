"""What a search strategy is: it asks for rounds of measurements, and is told what came of them.

The two that need no answers stand here too: they ask for everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..candidates import Candidate
from ..outcome import Outcome


@dataclass(frozen=True)
class Round:
    """Measure these candidates with this many samples each.

    ``rung`` counts the rounds that raise the number of samples: 0 is the first look.  A candidate whose first sample
    is more than ``stop_beyond`` times the best median of the round so far is stopped there.
    """

    candidates: Sequence[Candidate]
    samples: int
    rung: int = 0
    stop_beyond: float | None = None


Answers: TypeAlias = Mapping[Candidate, Outcome]
"""The outcome of each candidate of a round that was tried; when the budget ends, some are missing."""

Search: TypeAlias = Generator[Round, Answers, None]


@dataclass(frozen=True)
class Strategy:
    """A named way to search.  ``search(candidates)`` yields rounds, receives their answers, and ends when it is done.

    Whatever the strategy, the defaults are measured first, the best candidates are checked against the reference and
    timed against each other last, and no candidate is asked for twice with the same samples: answers are remembered.
    """

    name: str
    summary: str
    search: Callable[[Sequence[Candidate]], Search]


def fastest_first(answers: Answers) -> list[Candidate]:
    """The candidates measured to the end of a round, fastest first."""
    ended = {candidate: outcome for candidate, outcome in answers.items() if outcome.status == "ok"}
    return sorted(ended, key=lambda candidate: ended[candidate].median_us)


EXHAUSTIVE_SAMPLES = 60
"""One batch of the clock: by these the regret of other strategies is judged, and 4 us kernels scatter by 8 %."""


def _everything(candidates: Sequence[Candidate]) -> Search:
    yield Round(candidates, EXHAUSTIVE_SAMPLES)


EXHAUSTIVE = Strategy("exhaustive", f"every config with {EXHAUSTIVE_SAMPLES} samples", _everything)
"""Measure everything to the end: slow, and afterwards the optimum is known."""


def _once(candidates: Sequence[Candidate]) -> Search:
    yield Round(candidates, 1)


FUNCTIONAL = Strategy("functional", "every candidate once, without regard to its time", _once)
"""What the interpreter gets: everything once, since its times say nothing of speed."""
