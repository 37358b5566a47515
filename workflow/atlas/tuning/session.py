"""Where figures come from: the journal where it has them, else a worker process, after the compilation is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..workers.devices import Ended, NotHere
from ..workers.process import Died, NoWorker, Process, TimedOut
from .candidates import Candidate, Problem
from .certificates import Certificates
from .journal import Journal
from .outcome import COMPILE_ERROR, CRASHED, OK, OUT_OF_RESOURCES, STOPPED, TIMEOUT, Outcome, killed
from .worker import Answer, Certify, Check, Final, Prepare, Ready, Screen, Setting, serve

if TYPE_CHECKING:
    from .ahead import Ahead

START_SECONDS = 300.0
"""What a worker is given to import torch, load the kernel and bring the device to steady clocks."""

CHECK_TIMEOUTS = 3
"""A check and the drawing of inputs may take this many trial time-outs: they work in float64 on whole tensors."""

CERTIFY_TIMEOUTS = 15
"""So may a certification: it draws, compiles for and checks many cases."""

KILLED_ATTEMPTS = 3
"""How often a worker is started, or given a request, where somebody else kills it: that is no candidate's fault."""


WORKER = "atlas-worker"
"""What the system calls a worker's process."""


def worker(setting: Setting, environment: Mapping[str, str] | None = None) -> Process:
    """A worker for a session, not yet started; ``environment`` says which device it sees."""
    return Process(serve, setting, name=WORKER, environment=environment or {}, imported=setting.imported)


class Session:
    """The measurements on one device; use it as a context manager, which ends the worker.

    One thread uses it; :meth:`end` is for another.  ``process`` is a worker that was started already, ``environment``
    what a worker needs to see the session's device alone, ``certificates`` those shared with other sessions, and
    ``began`` the :func:`time.monotonic` that the run's trials are dated from.
    """

    def __init__(
        self,
        setting: Setting,
        journal: Journal,
        trial_timeout_seconds: float,
        *,
        certificates: Certificates | None = None,
        process: Process | None = None,
        environment: Mapping[str, str] | None = None,
        began: float | None = None,
    ):
        self.journal = journal
        self.ahead: Ahead | None = None
        """The compilations under way; None where the worker compiles what it launches."""
        self.seconds: Counter[str] = Counter()
        """Wall seconds by phase: start, restart (of workers), prepare, time, check, certify, message, compile (stood
        still for it), lost (to hangs and crashes), stop."""
        self.measured = 0
        """Requests that a worker answered, or died of."""
        self._timeout = trial_timeout_seconds
        self._certificates = certificates or Certificates(journal, "", ())
        self._worker = process or worker(setting, environment)
        self._ready = False
        self._ended = False
        self._prepared: Problem | None = None
        self._began = time.monotonic() if began is None else began

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker; a second time does nothing."""
        since = time.perf_counter()
        if self._worker.running:
            # Not an orderly exit, which would take a second and has nothing to save.
            self._worker.kill()
            self._spend("stop", time.perf_counter() - since)

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker at hand."""
        return self._worker.pid

    @property
    def ready(self) -> bool:
        """Whether a worker takes requests."""
        return self._ready

    @property
    def elapsed_seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    @property
    def busy_seconds(self) -> float:
        """What counts against a budget: the device's time, and not waiting for compilers or a worker's first start."""
        return sum(seconds for phase, seconds in self.seconds.items() if phase not in ("compile", "start"))

    def begin(self) -> None:
        """Start the worker's process, if none was, and wait for nothing."""
        if self._worker.running:
            return
        self._prepared = None
        self._ready = False
        self._worker.start()

    def end(self) -> None:
        """From another thread: end the worker, so that the session's thread gets :class:`Ended` and nothing is kept."""
        self._ended = True
        self._worker.interrupt()
        if self.ahead is not None:
            self.ahead.close()

    def await_worker(self) -> None:
        """Have a worker that takes requests.

        Raises :class:`NotHere` where the device it needs is not here, :class:`NoWorker` where it does not start.
        """
        if self._ready and self._worker.running:
            return
        since = time.perf_counter()
        for attempts_left in reversed(range(KILLED_ATTEMPTS)):
            self.begin()
            if self._ended:
                raise Ended
            try:
                ready = self._worker.receive(START_SECONDS)
                break
            except TimedOut:
                raise NoWorker(f"the worker did not start within {START_SECONDS:g} s") from None
            except Died as death:
                if self._ended:
                    raise Ended from None
                if not (death.killed and attempts_left):
                    raise NoWorker(f"the worker did not start: its process {death}") from None
        assert isinstance(ready, Ready)
        self._spend("restart" if "start" in self.seconds else "start", time.perf_counter() - since)
        self._ready = True
        if ready.mistake:
            self._worker.kill()
            raise NotHere(ready.mistake)

    def compile_seconds(self, problem: Problem, candidate: Candidate) -> float | None:
        """Seconds the compiler took; None where it had the result already, or nothing is compiled."""
        compiled = self.ahead.result(problem, candidate) if self.ahead else None
        return compiled.seconds if compiled else None

    def next_of(self, problem: Problem, pending: Sequence[Candidate]) -> Candidate:
        """The first of ``pending`` that can be measured at once; waits for a compilation where none can."""
        if self.ahead is None:
            return pending[0]
        for candidate in pending:
            if self.ahead.ready(problem, candidate):
                return candidate
        self._wait_for(problem, pending)
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
        from ..validation import PROTOCOL

        method = f"check {PROTOCOL}"
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

    def prepare_certificate(self, problem: Problem, candidate: Candidate) -> None:
        """Have compiled what certifying the candidate will launch, unless its certificate is there."""
        if self.ahead is not None and not self._certificates.has(problem, candidate):
            self.ahead.prepare(problem, candidate)

    def certify(self, problem: Problem, candidate: Candidate) -> Outcome:
        """``ok`` with the candidate's certificate for the problem's dtype, ``wrong``, or how the attempt failed."""
        request = Certify(candidate, problem.direction, problem.case.dtype, self._certificates.seeds)

        def ask() -> Outcome:
            if self.ahead is not None:
                self._wait("compile", lambda: self.ahead.wait_for_prepared(problem, candidate))
            self.await_worker()
            self._prepared = None  # the worker drops the inputs
            self.measured += 1
            (outcome,) = self._exchange(request, CERTIFY_TIMEOUTS * self._timeout)
            return outcome

        return self._certificates.get(problem, candidate, ask)

    def _wait_for(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        self._wait("enumerate", lambda: self.ahead.wait_for_look_up(problem))
        self._wait("compile", lambda: self.ahead.wait_for_any(problem, candidates))

    def _wait(self, phase: str, wait: Callable[[], float]) -> None:
        from .ahead import Closed

        try:
            self._spend(phase, wait())
        except Closed:
            raise Ended from None

    def _compiled(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """How a compilation failed, or None where the candidate can be launched."""
        if self.ahead is None:
            return None
        if not self.ahead.ready(problem, candidate):
            self._wait_for(problem, [candidate])
        compiled = self.ahead.result(problem, candidate)
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
        for _ in range(KILLED_ATTEMPTS):
            self.await_worker()
            if self._prepared is not problem:
                self._prepared = None
                (prepared,) = self._exchange(Prepare(problem.direction, problem.case), CHECK_TIMEOUTS * self._timeout)
                if _killed(prepared):
                    outcomes = (prepared,)
                    continue
                if prepared.status != OK:
                    failed = Outcome(prepared.status, f"drawing the inputs: {prepared.reason}", whole_problem=True)
                    return (failed,) * _asked(request)
                self._prepared = problem
            self.measured += 1
            outcomes = self._exchange(request, timeout_seconds)
            if not _killed(outcomes[0]):
                break
        # A hang or a crash is one outcome, whoever caused it.
        return outcomes if len(outcomes) == _asked(request) else outcomes * _asked(request)

    def _exchange(self, request: object, timeout_seconds: float) -> tuple[Outcome, ...]:
        if self._ended:
            raise Ended
        since = time.perf_counter()
        self._worker.send(request)
        try:
            answer = self._worker.receive(timeout_seconds)
        except TimedOut:
            outcome = Outcome(TIMEOUT, f"no answer within {timeout_seconds:g} s")
        except Died as death:
            if self._ended:
                raise Ended from None
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


def _killed(outcome: Outcome) -> bool:
    """Whether somebody else ended the worker."""
    return outcome.status == CRASHED and killed(outcome.reason)


def _beyond(known: Outcome, limit_us: float | None) -> bool:
    return limit_us is not None and known.median_us is not None and known.median_us > limit_us
