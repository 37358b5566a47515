"""Search again without a device: a journal answers in its place, and a clock is simulated.

What a screening of n samples says is the median of n recorded samples that were taken one after the other, from a place
that seed, candidate and n decide, going on from the beginning after the last (the circular block bootstrap of Politis
and Romano, 1992).  Neighbouring samples, since a live screening is one batch, too: drift and slow spells hit all of it,
and samples drawn one by one would average them away.  Not simply the first n: a longer screening would then contain the
shorter one, while live it is taken anew.  The place does not depend on what was asked before, so a question asked twice
has one answer.

Two things are kinder than a device.  Finals are decided by all recorded samples, which are also what regret is measured
by: a replay says whether a strategy brings the optimum to the finals, not whether those would tell it from a near tie.
And the screenings are a part of the samples that are the truth.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atlas.timing.samples import quartiles
from atlas.tuning.candidates import Candidate, Problem
from atlas.tuning.outcome import OK, STOPPED, Outcome
from atlas.tuning.search import search
from atlas.tuning.strategies.strategy import Strategy
from atlas.tuning.worker import FEWEST_SAMPLES, FINAL_SAMPLES, FINAL_SECONDS, SCREEN_SECONDS

from .recording import Recorded

TRIAL_SECONDS = 1.5e-3
"""Of a screening beside its calls: the request, a first launch, waiting for the device.  H200's record, from the times
at which its trials ended: 2 to 3 ms each with 5 samples of kernels under 60 us."""

SAMPLE_SECONDS = 1e-4
"""Of a call beside its time: the flush of L2 and the launches that are queued ahead.  From the same record."""

CHECK_SECONDS = 0.03
"""Of a check against the reference: the same record's seconds of checking over its finalists."""


class Replayed:
    """One recorded problem in place of a session: :class:`~.search.Measuring` on a simulated clock."""

    def __init__(self, recorded: Recorded, seed: int = 0):
        self.elapsed_seconds = 0.0
        """Device seconds that what was asked so far would have cost, compilation and certification left out."""
        self.best_so_far: list[tuple[float, Candidate]] = []
        """When another candidate became the fastest by what was measured until then, in simulated seconds."""
        self.trials: set[Candidate] = set()
        """The candidates that were screened."""
        self._recorded, self._seed = recorded, seed
        self._best_us = float("inf")

    def next_of(self, problem: Problem, pending: Sequence[Candidate]) -> Candidate:
        return pending[0]

    def screen(self, problem: Problem, candidate: Candidate, samples: int, limit_us: float | None) -> Outcome:
        self.trials.add(candidate)
        outcome = self._screened(candidate, samples, limit_us)
        self._spend(TRIAL_SECONDS, (0.0, *outcome.samples_us))
        if outcome.status == OK and outcome.median_us < self._best_us:
            self._best_us = outcome.median_us
            self.best_so_far.append((self.elapsed_seconds, candidate))
        return outcome

    def check(self, problem: Problem, candidate: Candidate) -> Outcome:
        self.elapsed_seconds += CHECK_SECONDS
        return self._recorded.checked.get(candidate, Outcome(OK))

    def certify(self, problem: Problem, candidate: Candidate) -> Outcome:
        return self._recorded.certified.get(candidate, Outcome(OK))

    def final(self, problem: Problem, finalists: Mapping[Candidate, Outcome]) -> Mapping[Candidate, Outcome]:
        found = {c: _of_samples(self._recorded.screened[c].samples_us) for c in finalists}
        slowest = max(outcome.median_us for outcome in found.values())
        least = max(FEWEST_SAMPLES, min(FINAL_SAMPLES[0], int(1e6 * FINAL_SECONDS[1] / slowest)))
        for outcome in found.values():
            count = min(FINAL_SAMPLES[1], max(least, int(1e6 * FINAL_SECONDS[0] / outcome.median_us)))
            self._spend(0.0, (outcome.median_us,) * count)
        return found

    def _screened(self, candidate: Candidate, samples: int, limit_us: float | None) -> Outcome:
        known = self._recorded.screened[candidate]
        if known.status != OK:
            return known
        there = known.samples_us
        begin = random.Random(f"{self._seed} {candidate} {samples}").randrange(len(there))
        first = there[begin]
        if limit_us is not None and first > limit_us:
            stopped = _of_samples((first,))
            return replace(stopped, status=STOPPED, reason=f"the first sample took more than {limit_us:.1f} µs")
        count = max(1, min(samples, len(there), int(1e6 * SCREEN_SECONDS / first)))
        return _of_samples(tuple(there[(begin + step) % len(there)] for step in range(count)))

    def _spend(self, seconds: float, calls_us: Sequence[float]) -> None:
        self.elapsed_seconds += seconds + len(calls_us) * SAMPLE_SECONDS + 1e-6 * sum(calls_us)


@dataclass(frozen=True)
class Limit:
    """A budget in simulated seconds, or none."""

    replayed: Replayed
    seconds: float | None = None

    @property
    def over(self) -> bool:
        """Whether it is used up."""
        return self.seconds is not None and self.replayed.elapsed_seconds >= self.seconds


@dataclass(frozen=True)
class Run:
    """One strategy's search of one recorded problem.

    ``regret`` is the winner's time over that of the fastest right candidate, minus 1, by the medians of all recorded
    samples; None where the search found none that works.  ``default_regret`` is that of the default.  ``curve`` are
    (simulated seconds, regret of the best so far).
    """

    strategy: str
    seed: int
    problem: Problem
    winner: Candidate | None
    regret: float | None
    default_regret: float | None
    trials: int
    seconds: float
    curve: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """The run as a plain object."""
        return {
            "strategy": self.strategy,
            "seed": self.seed,
            "direction": self.problem.direction,
            **self.problem.case.to_json(),
            "winner": {"variant": self.winner.variant, "config": self.winner.config} if self.winner else None,
            "regret": self.regret,
            "default_regret": self.default_regret,
            "trials": self.trials,
            "candidates": len(self.problem.candidates),
            "seconds": round(self.seconds, 6),
            "best_so_far": [[round(seconds, 6), regret] for seconds, regret in self.curve],
        }


def replay(recorded: Recorded, strategy: Strategy, seed: int = 0, budget_seconds: float | None = None) -> Run:
    """Search a recorded problem once; ``budget_seconds`` are simulated ones, for this problem."""
    replayed = Replayed(recorded, seed)
    found = search(recorded.problem, strategy, replayed, Limit(replayed, budget_seconds))
    winner = found.ranking[0] if found.ranking else None
    right = recorded.right
    least = min((recorded.time_us(candidate) for candidate in right), default=None)

    def regret(candidate: Candidate | None) -> float | None:
        known = candidate in right and least is not None
        return recorded.time_us(candidate) / least - 1 if known else None

    curve = [(at, regret(candidate)) for at, candidate in replayed.best_so_far]
    curve.append((replayed.elapsed_seconds, regret(winner)))
    return Run(
        strategy=strategy.name,
        seed=seed,
        problem=recorded.problem,
        winner=winner,
        regret=regret(winner),
        default_regret=regret(recorded.problem.default),
        trials=len(replayed.trials),
        seconds=replayed.elapsed_seconds,
        curve=tuple((at, value) for at, value in curve if value is not None),
    )


def _of_samples(samples: tuple[float, ...]) -> Outcome:
    q1, median, q3 = quartiles(samples)
    return Outcome(OK, "", median, q1, q3, len(samples), samples_us=samples)
