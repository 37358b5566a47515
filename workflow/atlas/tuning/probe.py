"""A few trials at each case of a sample: a model of all that was timed says which, and learns from each.

The journal and the session are the tuner's, the aim is another: to know between tuned cases which config is fast, not
to find the best of one case.  So configs are not checked at the case: what is exported is certified on edge cases.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from .candidates import Candidate, Problem
from .outcome import OK, Outcome
from .search import Found, Limit, Measuring, Trial, ranked
from .transfer import Expectation, Model, Seen

POOL = 12
"""Configs a case that are compiled: the likeliest to be the fastest, by draws from the model; the default besides."""

MOST, BATCH = 8, 2
"""Configs a case that are timed, beside the default, and how many between one look at the model and the next.

``python -m proofs samples`` tries these on records: smaller pools miss the best more often, more trials find little."""

SAMPLES = 10
STOP_BEYOND = 3.0
"""A config this many times slower than the best is stopped after one sample."""

NEGLIGIBLE = 0.0003
"""An expected gain under this fraction of the best is not worth a trial."""

FINALISTS = 3
"""Timed in turns in the end, with the default."""

WORTH = 0.02
"""A config that gains this much on all that are certified gets a certificate; another one stays a trial."""

CERTIFICATES = 10
"""Most that a sample asks for: edge cases take seconds each."""

_DRAWS = 256

METHOD = (
    f"at each case the default and up to {MOST} configs with {SAMPLES} samples, {BATCH} at a time, those of which a "
    "Gaussian process of all trials at all cases expects the greatest gain; then the "
    f"{FINALISTS} fastest and the default in turns; what gains {WORTH:.0%} on all certified configs is certified, "
    f"{CERTIFICATES} at most"
)

Certified = tuple[str, str, Candidate]
"""Direction, dtype, config."""


@dataclass
class Sample:
    """What the cases of one sample share: a model of each pass, certificates, and what else deserves one.

    ``models`` know what the tuner timed at the kernel's own cases; ``certified`` are the certificates of those.
    """

    models: Mapping[str, Model]
    certified: Mapping[Certified, Outcome]
    seed: int = 0
    gains: defaultdict[Certified, float] = field(default_factory=lambda: defaultdict(float))
    """By config without a certificate, the logarithms of what it gains at all cases together."""
    _pools: dict[Problem, list[Candidate]] = field(default_factory=dict)

    name = "sample"
    method = METHOD

    def begin(self, problem: Problem, measuring: Measuring, budget: Limit) -> Probe:
        """A case's turn."""
        return Probe(self, problem, measuring, budget)

    def first(self, problem: Problem) -> tuple[list[Candidate], int]:
        """What may be timed of a problem, to be compiled ahead, and with how many samples."""
        return self.pool(problem), SAMPLES

    def pool(self, problem: Problem) -> list[Candidate]:
        """The default, and the likeliest to be faster: half by what is expected, half by draws."""
        if problem not in self._pools:
            default, *others = _default_first(problem)
            if len(others) > POOL:
                found = self.models[problem.direction].expect(
                    problem.case.dtype, dict(problem.case.sizes), default, others
                )
                lucky = found.draws(_DRAWS, zlib.crc32(f"{self.seed} {problem}".encode())).argmin(axis=1)
                likely = np.argsort(found.mean, kind="stable")
                order = dict.fromkeys((*likely[: POOL // 3], *lucky, *likely))
                others = [others[index] for index in list(order)[:POOL]]
            self._pools[problem] = [default, *others]
        return self._pools[problem]

    def key(self, problem: Problem, candidate: Candidate) -> Certified:
        """Under which a certificate is kept."""
        return problem.direction, problem.case.dtype, candidate

    def deserving(self) -> Collection[Certified]:
        """The configs to be certified: those that gain most."""
        return sorted(self.gains, key=lambda one: -self.gains[one])[:CERTIFICATES]


@dataclass
class Probe:
    """One problem's trials, in the two steps of a :class:`~.search.Search`."""

    sample: Sample
    problem: Problem
    measuring: Measuring
    budget: Limit
    trials: dict[Candidate, Trial] = field(default_factory=dict)
    finals: Mapping[Candidate, Outcome] = field(default_factory=dict)
    cut_short: bool = False
    """Never: a case less is no case gone wrong."""

    def compare(self) -> Candidate | None:
        """Time what may be fastest; the config to be certified, None where there is none."""
        default, *others = self.sample.pool(self.problem)
        if self._screen(default).status != OK:
            return None  # nothing could be compared with it
        while others and len(self.trials) <= MOST and not self.budget.over:
            asked = self._next(default, others)
            if not asked:
                break
            for candidate in asked:
                others.remove(candidate)
                self._screen(candidate)
        self._compare(default)
        self.sample.models[self.problem.direction].add(self._seen(default))
        return self._contender(default)

    def settle(self) -> Found:
        """Certify the winner where it deserves it; without a certificate it is passed over for one that has one."""
        default, *_ = self.sample.pool(self.problem)
        certificate = None
        for candidate in ranked(self.finals):
            certificate = self._certificate(candidate)
            if certificate is not None or candidate == default:
                break
            self.finals = {one: outcome for one, outcome in self.finals.items() if one != candidate}
        return Found(self.problem, self.trials, self.finals, None, certificate)

    def _certificate(self, candidate: Candidate) -> Outcome | None:
        key = self.sample.key(self.problem, candidate)
        if key in self.sample.certified:
            return self.sample.certified[key]
        if key not in self.sample.deserving():
            return None
        found = self.measuring.certify(self.problem, candidate)
        return found if found.status == OK else None

    def _screen(self, candidate: Candidate) -> Outcome:
        best = min((one.outcome.median_us for one in self.trials.values() if one.outcome.status == OK), default=None)
        limit = None if best is None else STOP_BEYOND * best
        outcome = self.measuring.screen(self.problem, candidate, SAMPLES, limit)
        self.trials[candidate] = Trial(outcome, 0, self.measuring.elapsed_seconds)
        return outcome

    def _seen(self, default: Candidate) -> Seen:
        case = self.problem.case
        us = {one: trial.outcome.median_us for one, trial in self.trials.items() if trial.outcome.worked}
        return Seen(case.dtype, dict(case.sizes), default, us)

    def _next(self, default: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
        """Of the others those that gain most by expectation; none where it is not worth a trial."""
        seen = self._seen(default)
        found = self.sample.models[self.problem.direction].expect(seen.dtype, seen.sizes, default, others, seen)
        gains = expected_gains(found, math.log(min(seen.us.values()) / seen.us[default]))
        best = np.argsort(-gains, kind="stable")[: min(BATCH, MOST + 1 - len(self.trials))]
        return [others[index] for index in best if gains[index] > NEGLIGIBLE]

    def _compare(self, default: Candidate) -> None:
        working = {one: trial.outcome for one, trial in self.trials.items() if trial.outcome.status == OK}
        fastest = sorted(working, key=lambda one: working[one].median_us)[:FINALISTS]
        chosen = {one: working[one] for one in dict.fromkeys((default, *fastest))}
        self.finals = self.measuring.final(self.problem, chosen) if len(chosen) > 1 else chosen
        for candidate, outcome in self.finals.items():
            self.trials[candidate] = Trial(outcome, 1, self.measuring.elapsed_seconds)

    def _contender(self, default: Candidate) -> Candidate | None:
        """The fastest where it has no certificate and is worth one; it is noted."""
        times = {one: self.finals[one].median_us for one in ranked(self.finals)}
        fastest = next(iter(times), default)
        if fastest == default or self.sample.key(self.problem, fastest) in self.sample.certified:
            return None
        known = [us for one, us in times.items() if self.sample.key(self.problem, one) in self.sample.certified]
        gain = math.log(min([*known, times.get(default, math.inf)]) / times[fastest])
        if gain < WORTH:
            return None
        self.sample.gains[self.sample.key(self.problem, fastest)] += gain
        return fastest


def _default_first(problem: Problem) -> list[Candidate]:
    """All candidates; what an untuned call runs leads."""
    first = problem.default or problem.candidates[0]
    return [first, *(one for one in problem.candidates if one != first)]


def expected_gains(found: Expectation, best: float) -> np.ndarray:
    """Of each candidate the expected improvement on ``best``, the logarithm of a time over the default's."""
    spread = np.sqrt(np.maximum(np.diag(found.covariance), 1e-12))
    z = (best - found.mean) / spread
    return spread * (z * ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
