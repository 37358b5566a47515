"""One pass on one case: prepare all providers, check them, time them in turns, and make their rows."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import timing
from ..cuda.programs import Programs
from ..declaration import GPU, Case, Declaration, Pass
from ..errors import in_a_line
from ..host import runtime
from ..host.stopwatch import Stopwatch
from ..results.subject import PassCase
from ..results.surveyed import Survey
from ..timing import Clock
from ..timing.samples import Thunk
from ..validation.device import check_alive
from ..validation.problems import Problem
from . import judging, roofs
from .judging import Expected
from .providers import Provider, Tuned, providers

PREPARE_SECONDS = 300.0
"""What a provider may take to prepare and run for the first time; torch.compile may search for long."""
SEED = 0
"""Of the inputs."""
_WAITED = "launch latency is in the figure: the call waits for the device by itself"
"""The reason of a row that is not ``queued``."""
_LOOKS = 2
"""Samples that tell whether a provider waits for the device by itself."""


def timed_cases(declaration: Declaration, gpu: GPU) -> list[tuple[str, Case]]:
    """What a benchmark goes through: every pass of every case of the sweep."""
    return [(direction, case) for case in runtime.sweep(declaration, gpu) for direction in declaration.passes]


@dataclass
class Measured:
    """A provider on its way to a row."""

    provider: Provider
    thunk: Thunk | None = None
    status: str = "ok"
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """What all cases of a benchmark share."""

    declaration: Declaration
    gpu: GPU
    device: torch.device
    clock: timing.Clock
    tuned: Tuned
    survey: Survey | None
    min_seconds: float
    max_samples: int
    programs: Programs | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Seconds by phase, as the schema of the benchmark's document tells them apart."""

    def rows(self, direction: str, case: Case) -> list[dict[str, Any]]:
        """The rows of a case, one for each provider; what they needed is freed.

        Raises :class:`~atlas.validation.device.DeviceLost`.
        """
        rows = self._measured(direction, case)
        self.watch.enter("free")
        gc.collect()  # autograd graphs of peers hold their tensors in cycles
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.watch.enter("")
        return rows

    def _measured(self, direction: str, case: Case) -> list[dict[str, Any]]:
        work = self.declaration.passes[direction]
        entries = {p.key: Measured(p) for p in providers(work, direction, case, self.gpu, self.tuned, self.programs)}
        with precision(case.dtype):
            problem = self._prepare(entries, direction, case)
            running = {key: entry for key, entry in entries.items() if entry.thunk is not None}
            if problem is not None and running:
                self.watch.enter("time")
                self._time(running)
                self.watch.enter("memory")
                self._measure_memory(running)
                self.watch.enter("latency")
                self._measure_latency(running, problem)
        self._share(entries)
        rows = [self._row(entry, direction, case, work) for entry in entries.values()]
        if not self.gpu.functional:
            judging.compare(rows)
        return rows

    def _prepare(self, entries: dict[str, Measured], direction: str, case: Case) -> Problem | None:
        """Make the thunks and check what they return; the reference is let go before anything is timed.

        Without inputs or reference nothing runs: every row says why.
        """
        ready = []
        for entry in entries.values():
            if entry.provider.prepare is None:
                entry.status, entry.reason = entry.provider.status, entry.provider.reason
            elif not entry.provider.same_as:
                ready.append(entry)
        if not ready:
            return None
        self.watch.enter("inputs")
        try:
            problem = Problem(self.declaration, direction, case, self.device, SEED)
            check = Expected(problem)
        except Exception as error:
            for entry in ready:
                entry.status, entry.reason = "failed", f"no inputs or no reference: {in_a_line(error)}"
            check_alive(self.device, "inputs and reference", error)
            return None
        for entry in ready:
            with self._kept(entry), deadline(PREPARE_SECONDS, f"preparing {entry.provider.key}"):
                thunk, wrong = self._made_ready(entry.provider, problem, check)
                if wrong:
                    entry.status, entry.reason = "wrong", wrong
                else:
                    entry.thunk = thunk
        for name in ("expected", "yardstick"):
            problem.__dict__.pop(name, None)
        return problem

    def _made_ready(self, provider: Provider, problem: Problem, check: Expected) -> tuple[Thunk, str]:
        """A provider's thunk, and why what it returns is wrong, or ``""``."""
        peer = provider.kind == "peer"
        self.watch.enter("peers" if peer else "variants")
        thunk = provider.prepare(problem.inputs)
        outputs = thunk()
        self.watch.enter("check")
        return thunk, (check.peer if peer else check.variant)(outputs)

    @contextlib.contextmanager
    def _kept(self, entry: Measured) -> Iterator[None]:
        """An exception of the body becomes the entry's status, unless the device is gone."""
        try:
            yield
        except Exception as error:
            entry.thunk = None
            entry.status = "unsupported" if isinstance(error, NotImplementedError) else "failed"
            entry.reason = in_a_line(error)
            check_alive(self.device, entry.provider.key, error)
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()

    def _time(self, running: dict[str, Measured]) -> None:
        """All in turns; if one of them fails meanwhile, each by itself, so that it costs only its own row.

        Who waits for the device takes turns with its like: between others it would put launch latency into theirs.
        """
        limits = {"min_seconds": self.min_seconds, "max_samples": self.max_samples}
        timings = {}
        try:
            waiting = {key for key, entry in running.items() if not self.clock.screen(entry.thunk, _LOOKS).queued}
            for group in (running.keys() - waiting, waiting):
                turns = {key: entry.thunk for key, entry in running.items() if key in group}
                timings |= self.clock.interleave(turns, **limits)
        except Exception:
            timings = {}
            for key, entry in running.items():
                with self._kept(entry):
                    timings[key] = self.clock.measure(entry.thunk, **limits)
                    entry.reason = "timed by itself: another provider of this case failed while they took turns"
        for key, found in timings.items():
            running[key].figures = _figures(found)
            if not found.queued:
                running[key].reason = "; ".join(filter(None, (running[key].reason, _WAITED)))

    def _measure_memory(self, running: dict[str, Measured]) -> None:
        """What one call adds to the device's memory at most."""
        if self.device.type != "cuda":
            return
        for entry in running.values():
            if entry.status != "ok":
                continue
            with self._kept(entry):
                torch.cuda.synchronize(self.device)
                before = torch.cuda.memory_allocated(self.device)
                torch.cuda.reset_peak_memory_stats(self.device)
                entry.thunk()
                torch.cuda.synchronize(self.device)
                entry.figures["peak_bytes"] = torch.cuda.max_memory_allocated(self.device) - before

    def _measure_latency(self, running: dict[str, Measured], problem: Problem) -> None:
        """Host time and graph replay of every provider, where the fastest is short.

        A forward variant is called as a user does, through the public function; its host time is the same for all
        configs.  Autograd runs a backward on the stream of its forward, so a peer's backward cannot be captured.  What
        cannot be called or captured has no figure.
        """
        timed = [entry for entry in running.values() if entry.status == "ok"]
        shortest = min((entry.figures["median_us"] for entry in timed), default=SHORT_US)
        if self.gpu.functional or shortest >= SHORT_US:
            return
        forward = problem.direction == "forward"
        for entry in timed:
            peer = entry.provider.kind == "peer"
            with contextlib.suppress(Exception):
                entry.figures["call_us"] = self.clock.call_us(
                    entry.thunk if peer or not forward else self._public(problem)
                )
            if forward or not peer:
                with contextlib.suppress(Exception):
                    entry.figures["graph_us"] = graph_us(self.clock, entry.thunk)
            check_alive(self.device, f"{entry.provider.key}, called or captured in a graph")

    def _public(self, problem: Problem) -> Thunk:
        declaration, inputs = self.declaration, dict(problem.inputs)
        return lambda: declaration.call(declaration.function, inputs)

    def _share(self, entries: dict[str, Measured]) -> None:
        for entry in entries.values():
            if entry.provider.same_as:
                twin = entries[entry.provider.same_as]
                entry.status, entry.reason, entry.figures = twin.status, twin.reason, dict(twin.figures)

    def _row(self, entry: Measured, direction: str, case: Case, work: Pass) -> dict[str, Any]:
        spent, provider = roofs.cost(work, case), entry.provider
        row = {
            "provider": provider.name,
            "provider_kind": provider.kind,
            **PassCase.at(direction, case).to_json(),
            "config": None if provider.config is None else dict(provider.config),
            "status": entry.status,
            "reason": entry.reason,
            "bytes": spent.bytes,
            "flops": spent.flops,
        }
        if provider.kind == "peer" and provider.name in work.weak:
            row["weak"] = work.weak[provider.name]
        if entry.status != "ok":
            return row
        row |= entry.figures
        if self.gpu.functional:
            return row
        median = row["median_us"]
        row |= {"gb_per_s": spent.bytes / median / 1e3, "tflop_per_s": spent.flops / median / 1e6}
        limit = roofs.bound(spent, case.dtype, self.survey) if self.survey else None
        if limit is not None:
            row |= {"roof": limit.roof, "roof_fraction": limit.roof_us / median}
            impossible = roofs.beyond(median, limit)
            if impossible:
                row |= {"status": "suspect", "reason": impossible}
        return row


@contextlib.contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Let torch multiply fp32 by tensor cores in ``tf32`` cases and nowhere else, in what is compiled inside too."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _figures(found: timing.Timing) -> dict[str, Any]:
    return {
        "median_us": found.median_us,
        "q1_us": found.q1_us,
        "q3_us": found.q3_us,
        "samples_us": [round(sample, 3) for sample in found.samples_us],
        "queued": found.queued,
        "throttled": found.throttled,
        "throttled_by": list(found.throttled_by),
        "sm_clock_mhz": found.sm_clock_mhz,
        "temperature_c": found.temperature_c,
        "power_w": found.power_w,
    }


@contextlib.contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Raise TimeoutError in the body once ``seconds`` have passed.

    It is raised between two steps of Python, so a single call into a library is not cut short; and in the main thread
    only, since signals reach no other: elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(signum: int, frame: object) -> None:
        raise TimeoutError(f"{what} took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


SHORT_US = 20.0
"""Below this device time launching matters, since it takes the host about as long."""
CALLS = 20
"""Calls in one graph."""


def graph_us(clock: Clock, thunk: Thunk) -> float:
    """Microseconds of one of :data:`CALLS` calls captured in one CUDA graph, replayed.

    L2 is cold for the first call of a replay and holds what the one before left for the others: a warm figure.  Raises
    RuntimeError where the work cannot be captured.
    """
    graph = captured(thunk)
    try:
        return clock.measure(graph.replay, min_seconds=0.01, max_samples=50).median_us / CALLS
    finally:
        graph.reset()


def captured(thunk: Thunk) -> torch.cuda.CUDAGraph:
    """:data:`CALLS` calls in one CUDA graph, to be reset by who asked; RuntimeError where they cannot be captured."""
    usual, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(usual)
    with torch.cuda.stream(side):  # capture runs on another stream: let libraries set up their workspaces there
        thunk()
    usual.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            for _ in range(CALLS):
                thunk()
    finally:
        torch.cuda.set_stream(usual)  # a capture that fails leaves its own stream behind
    return graph
