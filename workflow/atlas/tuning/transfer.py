"""What the tuner expects of configs at a case, from all that was timed at others: the model that guides a sample.

The process of :mod:`atlas.declaration.likeness`, which says it in words: of the logarithm of a config's time over that
of the case's default.  There it rests on a few timings, in plain Python; here on all of the nearest cases, and it tells
of all configs together, so that the next ones to time can be drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..declaration import likeness
from ..declaration.timings import Timed
from .candidates import Candidate

NEAREST = 16
"""Cases that an expectation rests on: with more it is as good, and slower."""

_JITTER = 1e-9


@dataclass(frozen=True)
class Seen:
    """What was timed at one case: microseconds by candidate, that of ``default`` among them."""

    dtype: str
    sizes: Mapping[str, object]
    default: Candidate
    us: Mapping[Candidate, float]

    def ratios(self) -> dict[Candidate, float]:
        """The logarithm of each time over the default's, where slow is slow."""
        best = min(self.us.values())
        logs = {one: _saturated(math.log(us / best)) for one, us in self.us.items()}
        return {one: log - logs[self.default] for one, log in logs.items() if one != self.default}

    @property
    def noise(self) -> float:
        """Variance of such a logarithm by the timing alone."""
        return likeness.NOISE**2 + (likeness.TICK_US / min(self.us.values())) ** 2


@dataclass(frozen=True)
class Expectation:
    """Of candidates at a case: mean and covariance of the logarithm of their times over the default's."""

    mean: np.ndarray
    covariance: np.ndarray

    def draws(self, count: int, seed: int) -> np.ndarray:
        """``count`` rows of what the times may be; the same for the same seed."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return self.mean + np.random.default_rng(seed).standard_normal((count, len(self.mean))) @ root.T


@dataclass
class Model:
    """All cases of one pass that are known; :meth:`add` makes it know more."""

    seen: list[Seen] = field(default_factory=list)
    _alike: dict[tuple[Candidate, Candidate], float] = field(default_factory=dict, repr=False)

    def add(self, one: Seen) -> None:
        """Learn what was timed at one more case, or more at the last one that is the same."""
        if one.default in one.us:
            self.seen.append(one)

    def expect(
        self,
        dtype: str,
        sizes: Mapping[str, object],
        default: Candidate,
        candidates: Sequence[Candidate],
        own: Seen | None = None,
    ) -> Expectation:
        """Of each candidate at a case; ``own`` is what was timed there so far."""
        if not candidates:
            return Expectation(np.zeros(0), np.zeros((0, 0)))
        nearest = sorted(self.seen, key=lambda one: -likeness.near(dtype, sizes, _timed(one)))[:NEAREST]
        cases = [*nearest, *([own] if own is not None else [])]
        trials = [(place, c, log) for place, one in enumerate(cases) for c, log in one.ratios().items()]
        trials = [one for one in trials if self._apart(one[1], cases[one[0]].default)]
        asked = self._shared([(c, default) for c in candidates], [(c, default) for c in candidates])
        if not trials:
            return Expectation(np.zeros(len(candidates)), likeness.SCALE**2 * asked)
        pairs = [(c, cases[place].default) for place, c, _ in trials]
        at = np.array([place for place, _, _ in trials])
        touch = np.array([[likeness.near(one.dtype, one.sizes, _timed(other)) for other in cases] for one in cases])
        to_here = np.array([likeness.near(dtype, sizes, _timed(one)) for one in cases])
        known = likeness.SCALE**2 * touch[np.ix_(at, at)] * self._shared(pairs, pairs)
        known += likeness.SHARED**2 * (at[:, None] == at) + np.diag([cases[place].noise + _JITTER for place in at])
        across = likeness.SCALE**2 * to_here[at] * self._shared([(c, default) for c in candidates], pairs)
        lower = np.linalg.cholesky(known)
        left, right = np.linalg.solve(lower, across.T), np.linalg.solve(lower, np.array([log for *_, log in trials]))
        surprise = max(1.0, float(right @ right) / len(trials))
        covariance = (likeness.SCALE**2 * asked - left.T @ left) * surprise
        return Expectation(left.T @ right, covariance)

    def _shared(self, rows: Sequence[tuple[Candidate, Candidate]], columns: Sequence[tuple[Candidate, Candidate]]):
        """How much of two ratios is of the same configs; a ratio is of a candidate and a default."""
        names = list(dict.fromkeys(one for pair in (*rows, *columns) for one in pair))
        place = {one: index for index, one in enumerate(names)}
        table = np.array([[1.0 - self._apart(one, other) for other in names] for one in names])
        (a, b), (c, d) = (np.array([[place[x], place[y]] for x, y in pairs]).T for pairs in (rows, columns))
        return table[np.ix_(a, c)] - table[np.ix_(a, d)] - table[np.ix_(b, c)] + table[np.ix_(b, d)]

    def _apart(self, one: Candidate, other: Candidate) -> float:
        key = (one, other)
        if key not in self._alike:
            found = likeness.alike((one.variant, one.config), (other.variant, other.config))
            self._alike[key] = self._alike[other, one] = found
        return 1.0 - self._alike[key]


def _saturated(log: float) -> float:
    return likeness.SATURATES * math.tanh(log / likeness.SATURATES)


def _timed(one: Seen) -> Timed:
    return Timed(one.dtype, one.sizes, 0, {})
