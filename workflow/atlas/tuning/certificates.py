"""Certificates: that a config computes the right thing for a dtype, asked once however many cases it wins."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from .candidates import Candidate, Problem
from .journal import Journal
from .outcome import OK, Outcome


class Certificates:
    """Those of one run, shared by its sessions and kept in its journal.

    ``protocol`` is validation's; ``seeds`` are what inputs are drawn from.  Without seeds nothing is certified and
    every candidate passes, with no certificate to show.
    """

    def __init__(self, journal: Journal, protocol: str, seeds: tuple[int, ...]):
        self.protocol, self.seeds = protocol, seeds
        self._journal = journal
        self._method = f"certify {protocol}, {len(seeds)} seeds"
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._turn = threading.Lock()
        self._known: dict[str, Outcome] = {}

    def has(self, problem: Problem, candidate: Candidate) -> bool:
        """Whether :meth:`get` would ask nobody."""
        if not self.seeds:
            return True
        subject = problem.without_sizes
        known = self._journal.key(subject, candidate, self._method) in self._known
        return known or self._journal.has(subject, candidate, self._method)

    def get(self, problem: Problem, candidate: Candidate, ask: Callable[[], Outcome]) -> Outcome:
        """The outcome for this pass, variant, config and dtype: from the journal, else of ``ask``.

        Two sessions that want the same certificate at once ask for it once.
        """
        if not self.seeds:
            return Outcome(OK)
        subject = problem.without_sizes
        key = self._journal.key(subject, candidate, self._method)
        with self._alone(key):
            if key not in self._known:
                known = self._journal.find(subject, candidate, self._method)
                if known is None:
                    known = ask()
                    self._journal.add(subject, candidate, self._method, known)
                self._known[key] = known
            return self._known[key]

    def to_json(self, outcome: Outcome) -> dict[str, Any] | None:
        """The certificate as documents hold it; None where there is none."""
        if outcome.status != OK or outcome.certificate is None:
            return None
        return {"protocol": self.protocol, **outcome.certificate}

    @contextlib.contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        with self._turn:
            turn = self._turns[key]
        with turn:
            yield
