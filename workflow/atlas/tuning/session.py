"""Where figures come from: the journal where it has them, else a worker process, after the compilation is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import AtlasError
from ..validation import PROTOCOL as VALIDATION
from .candidates import Candidate, Problem
from .child import Child, Died, Hung
from .journal import Journal
from .outcome import COMPILE_ERROR, CRASHED, OK, OUT_OF_RESOURCES, STOPPED, TIMEOUT, Outcome
from .worker import Answer, Check, Final, Prepare, Ready, Screen, Setting, serve

if TYPE_CHECKING:
    from .ahead import Ahead

START_SECONDS = 300.0
"""What a worker is given to import torch, load the kernel and bring the device to steady clocks."""

CHECK_TIMEOUTS = 3
"""A check and the drawing of inputs may take this many trial time-outs: they work in float64 on whole tensors."""


class Session:
    """All measurements of one run; use it as a context manager, which ends the worker."""

    def __init__(self, setting: Setting, journal: Journal, trial_timeout_seconds: float):
        self.journal = journal
        self.ahead: Ahead | None = None
        """The compilations under way; None where the worker compiles what it launches."""
        self.seconds: Counter[str] = Counter()
        """Wall seconds by phase: start, restart (of workers), prepare, time, check, message, compile (stood still for
        it), lost (to hangs and crashes)."""
        self.measured = 0
        """Requests that a worker answered, or died of."""
        self._timeout = trial_timeout_seconds
        self._worker = Child(serve, setting, name="atlas-worker")
        self._ready = False
        self._prepared: Problem | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker at hand."""
        return self._worker.pid

    @property
    def elapsed_seconds(self) -> float:
        """Since the session began."""
        return time.monotonic() - self._began

    @property
    def busy_seconds(self) -> float:
        """What counts against a budget: the device's time, and not waiting for compilers or a worker's first start."""
        return sum(seconds for phase, seconds in self.seconds.items() if phase not in ("compile", "start"))

    def begin(self) -> None:
        """Start the worker's process, and wait for nothing."""
        self._prepared = None
        self._ready = False
        self._worker.start()

    def _await_worker(self) -> None:
        """Have a worker that takes requests; AtlasError where the device it needs is not here."""
        if self._ready and self._worker.running:
            return
        since = time.perf_counter()
        if not self._worker.running:
            self.begin()
        try:
            ready = self._worker.receive(START_SECONDS)
        except Hung:
            raise RuntimeError(f"the worker did not start within {START_SECONDS:g} s") from None
        except Died as death:
            raise RuntimeError(f"the worker did not start: its process {death}") from None
        assert isinstance(ready, Ready)
        self._spend("restart" if "start" in self.seconds else "start", time.perf_counter() - since)
        self._ready = True
        if ready.mistake:
            self._worker.kill()
            raise AtlasError(ready.mistake)

    def compile_seconds(self, problem: Problem, candidate: Candidate) -> float | None:
        """Seconds the compiler took; None where it had the result already, or nothing is compiled."""
        if self.ahead is None or not self.ahead.ready(problem, candidate):
            return None
        compiled = self.ahead.result(problem, candidate)
        return compiled.seconds if compiled else None

    def next_of(self, problem: Problem, pending: Sequence[Candidate]) -> Candidate:
        """The first of ``pending`` that can be measured at once; waits for a compilation where none can."""
        if self.ahead is None:
            return pending[0]
        for candidate in pending:
            if self.ahead.ready(problem, candidate):
                return candidate
        self.ahead.wait_for_any(problem, pending)
        self.seconds["compile"] = self.ahead.waited_seconds
        return next(candidate for candidate in pending if self.ahead.ready(problem, candidate))

    @staticmethod
    def method(samples: int) -> str:
        """The journal's name for a screening with so many samples."""
        return f"screen {samples}"

    def screen(self, problem: Problem, candidate: Candidate, samples: int, limit_us: float | None) -> Outcome:
        """The candidate's time by ``samples`` samples; ``stopped`` where the first is beyond ``limit_us``."""
        method = self.method(samples)
        known = self.journal.find(problem, candidate, method)
        if known is not None and (known.status != STOPPED or _beyond(known, limit_us)):
            return known
        outcome = self._compiled(problem, candidate) or self._one(
            problem, Screen(candidate, samples, limit_us), self._timeout
        )
        return self._keep(problem, candidate, method, outcome)

    def check(self, problem: Problem, candidate: Candidate) -> Outcome:
        """``ok`` or ``wrong``, or how the check itself failed."""
        method = f"check {VALIDATION}"
        known = self.journal.find(problem, candidate, method)
        if known is not None:
            return known
        outcome = self._one(problem, Check(candidate), CHECK_TIMEOUTS * self._timeout)
        return self._keep(problem, candidate, method, outcome)

    def final(self, problem: Problem, finalists: Mapping[Candidate, Outcome]) -> dict[Candidate, Outcome]:
        """The finalists' times, sampled in turns; given with their outcomes so far.

        Where that fails they are timed one by one, so that the failure falls on the one that causes it.
        """
        method = f"final against {'; '.join(sorted(map(str, finalists)))}"
        known = {candidate: self.journal.find(problem, candidate, method) for candidate in finalists}
        if all(outcome is not None for outcome in known.values()):
            return known
        slowest = max(outcome.median_us for outcome in finalists.values())
        answer = self._ask(problem, Final(tuple(finalists), slowest), self._timeout * len(finalists))
        outcomes = dict(zip(finalists, answer, strict=True))
        if len(finalists) > 1 and any(outcome.status != OK for outcome in outcomes.values()):
            outcomes = {c: self._one(problem, Final((c,), slowest), self._timeout) for c in finalists}
        for candidate, outcome in outcomes.items():
            self._keep(problem, candidate, method, outcome)
        return outcomes

    def _compiled(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """How a compilation failed, or None where the candidate can be launched."""
        if self.ahead is None:
            return None
        compiled = self.ahead.result(problem, candidate)
        self.seconds["compile"] = self.ahead.waited_seconds
        if compiled is None or compiled.status == "ok":
            return None
        # Untuned calls run the defaults, spilling or not; what cannot launch says so itself.
        if compiled.status == "pruned" and candidate in problem.defaults:
            return None
        return Outcome(OUT_OF_RESOURCES if compiled.status == "pruned" else COMPILE_ERROR, compiled.reason)

    def _keep(self, problem: Problem, candidate: Candidate, method: str, outcome: Outcome) -> Outcome:
        if not outcome.whole_problem:
            self.journal.add(problem, candidate, method, outcome)
        return outcome

    def _one(self, problem: Problem, request: object, timeout_seconds: float) -> Outcome:
        return self._ask(problem, request, timeout_seconds)[0]

    def _ask(self, problem: Problem, request: object, timeout_seconds: float) -> tuple[Outcome, ...]:
        """The worker's answer to a request about ``problem``, whose inputs it is given first where it lacks them."""
        self._await_worker()
        if self._prepared is not problem:
            self._prepared = None
            wanted = Prepare(problem.direction, problem.case)
            (prepared,) = self._exchange(wanted, CHECK_TIMEOUTS * self._timeout)
            if prepared.status != OK:
                failed = Outcome(prepared.status, f"drawing the inputs: {prepared.reason}", whole_problem=True)
                return (failed,) * _asked(request)
            self._prepared = problem
        self.measured += 1
        outcomes = self._exchange(request, timeout_seconds)
        # A hang or a crash is one outcome, whoever caused it.
        return outcomes if len(outcomes) == _asked(request) else outcomes * _asked(request)

    def _exchange(self, request: object, timeout_seconds: float) -> tuple[Outcome, ...]:
        since = time.perf_counter()
        self._worker.send(request)
        try:
            answer = self._worker.receive(timeout_seconds)
        except Hung:
            outcome = Outcome(TIMEOUT, f"no answer within {timeout_seconds:g} s")
        except Died as death:
            outcome = Outcome(CRASHED, f"the process {death}")
        else:
            assert isinstance(answer, Answer)
            if answer.poisoned:
                self._worker.kill()
            passed = time.perf_counter() - since
            known = answer.outcomes[0].seconds
            for phase, seconds in known.items():
                self._spend(phase, seconds)
            self._spend("message", passed - sum(known.values()))
            return answer.outcomes
        self._spend("lost", time.perf_counter() - since)
        return (outcome,)

    def _spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds


def _asked(request: object) -> int:
    """How many outcomes a request asks for."""
    return len(request.candidates) if isinstance(request, Final) else 1


def _beyond(known: Outcome, limit_us: float | None) -> bool:
    return limit_us is not None and known.median_us is not None and known.median_us > limit_us
