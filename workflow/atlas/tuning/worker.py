"""The process that owns the device: it draws inputs, times candidates, checks results.

A trial that hangs, crashes or poisons the device's context costs this process and that trial, nothing else: the parent
starts another.  Requests and answers are the dataclasses below; one answer for each request, in order.

Importing this imports no torch: the parent starts the worker before it does anything else.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ..host.stopwatch import Stopwatch
from ..workers.process import NOTHING
from .candidates import Candidate
from .outcome import OK, OUT_OF_RESOURCES, STOPPED, UNSUPPORTED, WRONG, Outcome, reason_of, status_of

if TYPE_CHECKING:
    import torch

    from ..declaration import Case, Declaration
    from ..timing import Clock, Timing
    from ..validation import Certificate

SCREEN_SECONDS = 0.05
"""Most seconds of samples in one screening: slow work gets fewer samples, and varies less."""

FINAL_SECONDS = (0.02, 0.3)
"""Least and most seconds of samples of each finalist; the least number of samples may exceed the latter."""

FINAL_SAMPLES = (15, 150)
"""Least and most samples of each finalist."""

FEWEST_SAMPLES = 3
"""Of a finalist so slow that the least number would take too long."""

_SEED = 0
_POISONED = 70
"""Exit status of a worker whose device context an error has made useless."""


@dataclass(frozen=True)
class Prepare:
    """Draw the inputs of this problem, which all further requests are about."""

    direction: str
    case: Case


@dataclass(frozen=True)
class Screen:
    """Time one candidate; only its first sample if that is beyond ``limit_us``."""

    candidate: Candidate
    samples: int
    limit_us: float | None


@dataclass(frozen=True)
class Check:
    """Compare one candidate's results with the reference."""

    candidate: Candidate


@dataclass(frozen=True)
class Certify:
    """Validate one candidate on the edge cases of a dtype; the inputs drawn before are gone afterwards."""

    candidate: Candidate
    direction: str
    dtype: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Final:
    """Time several candidates in turns; ``slowest_us`` is the longest of their times so far."""

    candidates: tuple[Candidate, ...]
    slowest_us: float


@dataclass(frozen=True)
class Ready:
    """The worker's first message: it can be used, or ``mistake`` says why the user's request cannot be met."""

    mistake: str = ""


@dataclass(frozen=True)
class Answer:
    """The outcome of each candidate of a request (one for :class:`Prepare`); after ``poisoned`` the worker is gone."""

    outcomes: tuple[Outcome, ...]
    poisoned: bool = False


def by_validation(*asked: Any) -> Certificate:
    """:func:`atlas.validation.certify`, which is not imported before it is called."""
    from ..validation import certify

    return certify(*asked)


@dataclass(frozen=True)
class Setting:
    """What the worker works on, sent to it when it starts: functions that can be pickled, called in the worker.

    ``certify`` is called as :func:`atlas.validation.certify` is.  ``imported`` says which libraries the worker has from
    the start, as for a :class:`~atlas.workers.process.Process`.
    """

    load: Callable[[], Declaration]
    device: Callable[[], torch.device]
    clock: Callable[[torch.device], Clock]
    certify: Callable[..., Certificate] = by_validation
    imported: int = NOTHING


def serve(connection: Connection, setting: Setting) -> None:
    """The worker's main function: answer requests until left alone."""
    from ..errors import AtlasError

    try:
        bench = Bench(setting)
    except AtlasError as error:
        connection.send(Ready(str(error)))
        return
    connection.send(Ready())
    try:
        while True:
            answer = bench.answer(connection.recv())
            connection.send(answer)
            if answer.poisoned:
                os._exit(_POISONED)  # an orderly exit would try to release what the context holds
    except (EOFError, ConnectionResetError):
        return  # the parent is gone


class Bench:
    """A kernel on a device with a clock: the inputs of one problem stay warm between requests."""

    def __init__(self, setting: Setting):
        self._declaration, self._device = setting.load(), setting.device()
        self._clock, self._certifier = setting.clock(self._device), setting.certify
        # What the first check would have to wait for; while the device warms up this process only waits.
        needed = threading.Thread(target=importlib.import_module, args=(f"{__package__}.checking",))
        needed.start()
        self._clock.warm_up()
        needed.join()
        self._direction = ""
        self._case: Case | None = None
        self._inputs: dict[str, Any] = {}
        self._checker: Any = None

    def answer(self, request: Any) -> Answer:
        """Do what is asked; a failure is an outcome, and whatever it did to the device is found out here."""
        watch = Stopwatch()
        try:
            if isinstance(request, Prepare):
                outcomes: Sequence[Outcome] = (self._prepare(request, watch),)
            elif isinstance(request, Screen):
                outcomes = (self._screen(request, watch),)
            elif isinstance(request, Check):
                outcomes = (self._check(request, watch),)
            elif isinstance(request, Certify):
                outcomes = (self._certify(request, watch),)
            else:
                outcomes = self._final(request, watch)
        except Exception as error:  # whatever a kernel or the driver may raise
            outcome = Outcome(status_of(error), reason_of(error), whole_problem=isinstance(request, Prepare))
            del error  # its traceback holds tensors
            count = len(request.candidates) if isinstance(request, Final) else 1
            outcomes = (outcome,) * count
            poisoned = self._poisoned()
        else:
            poisoned = False
        watch.enter("")
        first = outcomes[0]
        return Answer((replace(first, seconds=watch.seconds), *outcomes[1:]), poisoned)

    def _poisoned(self) -> bool:
        """Whether the device no longer works in this process; frees its memory otherwise."""
        if self._device.type == "cpu":
            return False
        import torch

        from ..validation.device import obstacle

        if obstacle(self._device):
            return True
        torch.cuda.empty_cache()
        return False

    def _thunk(self, candidate: Candidate) -> Callable[[], Any]:
        launch = self._declaration.passes[self._direction].variant(candidate.variant).launch
        config, inputs = candidate.config, self._inputs
        return lambda: launch(config=config, **inputs)

    def _prepare(self, request: Prepare, watch: Stopwatch) -> Outcome:
        watch.enter("prepare")
        from ..host import runtime

        self._drop()  # before the next are drawn: they may fill the memory
        self._direction, self._case = request.direction, request.case
        self._inputs = runtime.draw(self._declaration.passes[request.direction], request.case, self._device, _SEED)
        self._synchronize()
        return Outcome(OK)

    def _screen(self, request: Screen, watch: Stopwatch) -> Outcome:
        watch.enter("time")
        thunk = self._thunk(request.candidate)
        timing = self._clock.screen(
            thunk, samples=request.samples, limit_us=request.limit_us, most_seconds=SCREEN_SECONDS
        )
        # The clock stops after a first sample beyond the limit; where it took more, the first was not.
        if request.limit_us is not None and timing.samples_us[0] > request.limit_us:
            return _outcome(timing, STOPPED, f"the first sample took more than {request.limit_us:.1f} µs")
        return _outcome(timing)

    def _check(self, request: Check, watch: Stopwatch) -> Outcome:
        watch.enter("check")
        from .checking import Checker

        if self._checker is None:
            self._checker = Checker(self._declaration, self._direction, self._case, self._device, self._inputs)
        reason = self._checker.wrong(self._thunk(request.candidate))
        return Outcome(WRONG, reason) if reason else Outcome(OK)

    def _certify(self, request: Certify, watch: Stopwatch) -> Outcome:
        watch.enter("certify")
        self._drop()  # the edge cases need the memory
        found = self._certifier(
            self._declaration,
            request.direction,
            request.candidate.variant,
            request.candidate.config,
            request.dtype,
            self._device,
            request.seeds,
        )
        self._release()
        certificate = {"cases": found.cases, "checks": found.checks, "seeds": found.seeds}
        return Outcome(_certified(found), found.reason, certificate=certificate)

    def _final(self, request: Final, watch: Stopwatch) -> tuple[Outcome, ...]:
        watch.enter("time")
        self._checker = None  # what it holds may be several times the inputs
        thunks = {str(candidate): self._thunk(candidate) for candidate in request.candidates}
        least = max(FEWEST_SAMPLES, min(FINAL_SAMPLES[0], int(1e6 * FINAL_SECONDS[1] / request.slowest_us)))
        timings = self._clock.interleave(
            thunks, min_seconds=FINAL_SECONDS[0], max_samples=FINAL_SAMPLES[1], min_samples=least, again=False
        )
        return tuple(_outcome(timings[str(candidate)]) for candidate in request.candidates)

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            import torch

            torch.cuda.synchronize(self._device)

    def _drop(self) -> None:
        """Forget the problem at hand."""
        self._inputs, self._checker = {}, None
        self._release()

    def _release(self) -> None:
        """Give cached blocks back when the device is half full of them: the next problem needs others."""
        if self._device.type != "cpu":
            import torch

            free, total = torch.cuda.mem_get_info(self._device)
            if free < total / 2:
                torch.cuda.empty_cache()


def _certified(found: Certificate) -> str:
    """The trial status that a certificate stands for: what ran on no case was not found wrong."""
    if not found.reason:
        return OK
    if found.cases:
        return WRONG
    return UNSUPPORTED if found.status == UNSUPPORTED else OUT_OF_RESOURCES


def _outcome(timing: Timing, status: str = OK, reason: str = "") -> Outcome:
    return Outcome(
        status,
        reason,
        timing.median_us,
        timing.q1_us,
        timing.q3_us,
        samples=len(timing.samples_us),
        samples_us=tuple(round(sample, 3) for sample in timing.samples_us),
    )
