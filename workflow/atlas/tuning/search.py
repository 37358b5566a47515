"""One problem's search: run the strategy, check the best, time the finalists against each other, certify the winner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .candidates import Candidate, Problem
from .outcome import OK, STOPPED, WRONG, Outcome
from .strategies.strategy import Round, Strategy

FINALISTS = 4
"""How many are checked and timed in turns, the default besides."""


class Measuring(Protocol):
    """Who gives the figures: a :class:`~.session.Session`, or whatever stands for one."""

    @property
    def elapsed_seconds(self) -> float: ...

    def next_of(self, problem: Problem, pending: Sequence[Candidate]) -> Candidate: ...

    def screen(self, problem: Problem, candidate: Candidate, samples: int, limit_us: float | None) -> Outcome: ...

    def check(self, problem: Problem, candidate: Candidate) -> Outcome: ...

    def final(self, problem: Problem, finalists: Mapping[Candidate, Outcome]) -> Mapping[Candidate, Outcome]: ...

    def certify(self, problem: Problem, candidate: Candidate) -> Outcome: ...


class Limit(Protocol):
    """What tells that a problem has had its time: a :class:`~.budget.Share`."""

    @property
    def over(self) -> bool: ...


@dataclass
class Trial:
    """What is known of one candidate: its latest outcome and the last round it survived to."""

    outcome: Outcome
    rung: int
    at_seconds: float


@dataclass(frozen=True)
class Found:
    """A search's result.  ``finals`` are the outcomes of the last comparison, which decides.

    Those that were faster than the winner and failed their certification have its outcome there; ``certificate`` is
    the winner's.  ``regret`` is the winner's time over that of the fastest there is, minus 1, None where that is not
    known.
    """

    problem: Problem
    trials: Mapping[Candidate, Trial]
    finals: Mapping[Candidate, Outcome]
    regret: float | None
    certificate: Outcome | None = None

    @property
    def ranking(self) -> list[Candidate]:
        """The finalists that are right, fastest first."""
        return ranked(self.finals)

    @property
    def untried(self) -> list[Candidate]:
        """The candidates that the budget left no time for."""
        return [candidate for candidate in self.problem.candidates if candidate not in self.trials]


class Way(Protocol):
    """A way to search problems: by a strategy (:class:`ByStrategy`), or a few trials each (:class:`~.probe.Sample`)."""

    @property
    def name(self) -> str: ...

    @property
    def method(self) -> str:
        """How it works, for a document."""

    def first(self, problem: Problem) -> tuple[Sequence[Candidate], int]:
        """What it asks for first, to be compiled ahead, and with how many samples."""

    def begin(self, problem: Problem, measuring: Measuring, budget: Limit) -> Any:
        """The search of a problem: a :class:`Search`, or what has its steps."""


@dataclass(frozen=True)
class ByStrategy:
    """Whole searches, each by the same strategy."""

    strategy: Strategy

    @property
    def name(self) -> str:
        """The strategy's."""
        return self.strategy.name

    @property
    def method(self) -> str:
        """The strategy, and what follows it."""
        return (
            f"{self.strategy.summary}; then the {FINALISTS} fastest and the default are checked against the reference "
            "and sampled in turns"
        )

    def first(self, problem: Problem) -> tuple[Sequence[Candidate], int]:
        """The strategy's first round: a model does not know yet what it asks for later."""
        asked = next(self.strategy.search(problem.candidates))
        return asked.candidates, asked.samples

    def begin(self, problem: Problem, measuring: Measuring, budget: Limit) -> Search:
        """A search that nothing is known of."""
        return Search(problem, self.strategy, measuring, budget)


def search(problem: Problem, strategy: Strategy, measuring: Measuring, budget: Limit) -> Found:
    """The best config of one problem.

    The defaults come first, whatever the budget; without budget left, candidates are tried until one works.  A finalist
    that computes the wrong thing is out, and since it may have been what others were measured by, the strategy then
    starts again without it, from remembered figures.  Of the finalists the fastest that is certified wins: one that is
    right on this problem and fails elsewhere had an honest time here, so nothing is explored again unless all fail.
    """
    begun = Search(problem, strategy, measuring, budget)
    begun.compare()
    return begun.settle()


@dataclass
class Search:
    """A search in two steps, which :func:`search` takes in one; ``measuring`` may be another for the second."""

    problem: Problem
    strategy: Strategy
    measuring: Measuring
    budget: Limit
    trials: dict[Candidate, Trial] = field(default_factory=dict)
    measured: dict[tuple[Candidate, int], Outcome] = field(default_factory=dict)
    checked: dict[Candidate, Outcome] = field(default_factory=dict)
    finals: Mapping[Candidate, Outcome] = field(default_factory=dict)
    hopeless: bool = False
    cut_short: bool = False
    """Whether the budget ended before the strategy did."""

    def compare(self) -> Candidate | None:
        """Up to the comparison of the finalists; the fastest of them, None where nothing works."""
        while not ranked(self.finals):
            ended = self._explore()
            self.cut_short = not ended and not self.hopeless
            known_wrong = self._wrong()
            right = self._check(FINALISTS if ended else 1)
            if self._wrong() != known_wrong:
                continue  # what it was measured by was wrong, so explore again
            if not right:
                break
            self.finals = self._compare(right)
        return next(iter(ranked(self.finals)), None)

    def resume(self, budget: Limit) -> Candidate | None:
        """:meth:`compare` anew within more of the budget; what was measured is remembered."""
        self.budget, self.finals = budget, {}
        return self.compare()

    def settle(self) -> Found:
        """Certify the winner; where no finalist is certified, search on without them."""
        certificate = self._certify()
        while certificate is None and self.compare() is not None:
            certificate = self._certify()
        return Found(self.problem, self.trials, self.finals, self._regret(self.finals), certificate)

    def _wrong(self) -> set[Candidate]:
        return {candidate for candidate, outcome in self.checked.items() if outcome.status == WRONG}

    def _explore(self) -> bool:
        """Run the strategy on what is not known to fail; False where the budget cut it short."""
        left = [candidate for candidate in self.problem.candidates if self._in_play(candidate)]
        if not left:
            return True
        rounds = self.strategy.search(left)
        asked = next(rounds, None)
        if asked is not None:
            defaults = [c for c in left if c == self.problem.default] or left[:1]
            self._answer(Round(defaults, asked.samples, asked.rung))
        while asked is not None:
            answers = self._answer(asked)
            if self._stop():
                return False
            try:
                asked = rounds.send(answers)
            except StopIteration:
                break
        return True

    def _in_play(self, candidate: Candidate) -> bool:
        trial = self.trials.get(candidate)
        return trial is None or trial.outcome.worked

    def _stop(self) -> bool:
        return self.hopeless or (self.budget.over and any(t.outcome.status == OK for t in self.trials.values()))

    def _answer(self, asked: Round) -> dict[Candidate, Outcome]:
        answers: dict[Candidate, Outcome] = {}
        pending = [candidate for candidate in asked.candidates if self._in_play(candidate)]
        best = math.inf
        while pending:
            known = next((c for c in pending if self._known(c, asked, best)), None)
            if known is None and self._stop():
                break
            candidate = known or self.measuring.next_of(self.problem, pending)
            pending.remove(candidate)
            if known is None:
                limit = best * asked.stop_beyond if asked.stop_beyond and math.isfinite(best) else None
                outcome = self.measuring.screen(self.problem, candidate, asked.samples, limit)
                self.measured[candidate, asked.samples] = outcome
                self._note(candidate, outcome, asked.rung)
            outcome = answers[candidate] = self.measured[candidate, asked.samples]
            if outcome.status == OK:
                best = min(best, outcome.median_us)
            if outcome.whole_problem:
                self.hopeless = True
                break
        return answers

    def _known(self, candidate: Candidate, asked: Round, best: float) -> bool:
        """Whether an earlier answer to this question still holds."""
        outcome = self.measured.get((candidate, asked.samples))
        if outcome is None or outcome.status != STOPPED:
            return outcome is not None
        return asked.stop_beyond is not None and outcome.median_us > best * asked.stop_beyond

    def _note(self, candidate: Candidate, outcome: Outcome, rung: int) -> None:
        self.trials[candidate] = Trial(outcome, rung, self.measuring.elapsed_seconds)

    def _ranked(self) -> list[Candidate]:
        """What was measured and not stopped, the furthest first, and of those the fastest."""
        right = {c: t for c, t in self.trials.items() if t.outcome.status == OK}
        return sorted(right, key=lambda c: (-right[c].rung, right[c].outcome.median_us))

    def _check(self, count: int) -> list[Candidate]:
        """The best ``count`` that prove right, and the default if it does."""
        chosen: list[Candidate] = []
        for candidate in self._ranked():
            if len(chosen) < count or candidate == self.problem.default:
                outcome = self.checked.get(candidate) or self.measuring.check(self.problem, candidate)
                self.checked[candidate] = outcome
                if outcome.status == OK:
                    chosen.append(candidate)
                else:
                    self._note(candidate, outcome, self.trials[candidate].rung)
        return chosen

    def _compare(self, finalists: Sequence[Candidate]) -> Mapping[Candidate, Outcome]:
        last = 1 + max(self.trials[candidate].rung for candidate in finalists)
        finals = self.measuring.final(self.problem, {c: self.trials[c].outcome for c in finalists})
        for candidate, outcome in finals.items():
            self._note(candidate, outcome, last)
        return finals

    def _certify(self) -> Outcome | None:
        """The winner's certificate; whoever loses the first place to a failed certification is out of the finals."""
        while ranking := ranked(self.finals):
            certificate = self.measuring.certify(self.problem, ranking[0])
            if certificate.status == OK:
                return certificate
            failed = replace(certificate, reason=f"not certified: {certificate.reason}")
            self.finals = {**self.finals, ranking[0]: failed}
            self._note(ranking[0], failed, self.trials[ranking[0]].rung)
        return None

    def _regret(self, finals: Mapping[Candidate, Outcome]) -> float | None:
        """Known where all that works was compared in the end, or measured with the most samples any was."""
        if self.problem.left_out:
            return None
        working = [c for c in self.problem.candidates if self._in_play(c)]
        right = [c for c in working if c in finals]
        if not right or any(c not in self.trials or self.trials[c].outcome.status != OK for c in working):
            return None
        winner = min(right, key=lambda c: finals[c].median_us)
        if len(right) == len(working):
            return 0.0
        most = max(samples for _, samples in self.measured)
        to_the_end = _medians((c, self.measured.get((c, most))) for c in working)
        if len(to_the_end) < len(working):
            return None
        return to_the_end[winner] / min(to_the_end.values()) - 1


def ranked(finals: Mapping[Candidate, Outcome]) -> list[Candidate]:
    """The candidates of a comparison that worked, fastest first."""
    return sorted(_medians(finals.items()), key=lambda candidate: finals[candidate].median_us)


def _medians(outcomes: Iterable[tuple[Candidate, Outcome | None]]) -> dict[Candidate, float]:
    return {c: o.median_us for c, o in outcomes if o is not None and o.status == OK}
