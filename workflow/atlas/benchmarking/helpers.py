"""Cases of a benchmark on further GPUs of the host, while nobody else wants these: a long kernel ends sooner.

The stage itself times cases on its own device, from the first on.  Each device that is free beside it gets a process,
which times cases from the last on, and gives the device back when another job waits for one, or when none is left.  All
providers of a case are timed on one board.  Where a process fails, the stage times its case.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import timing
from ..cuda.programs import Programs
from ..declaration import Case, Declaration
from ..host import gpus, runtime
from ..results.surveyed import Survey
from ..workers.devices import ASK_SECONDS, Devices, Lease
from ..workers.process import TRITON, Process
from .measurement import Benchmark
from .providers import Tuned

Rows = list[dict[str, Any]]

START_SECONDS, CASE_SECONDS = 300.0, 3600.0
"""For a helper to import and warm up, and for one case: each provider may take minutes to prepare."""


@dataclass(frozen=True)
class Setting:
    """What a process needs to time a kernel's cases; it travels to helpers."""

    load: Callable[[], Declaration]
    kernel: str
    gpu_name: str
    block: Mapping[str, Any]
    folder: Path
    tuned: Mapping[str, Any]
    survey: Mapping[str, Any] | None
    min_seconds: float
    max_samples: int

    def benchmark(self) -> Benchmark:
        """The benchmark on the first fitting device that this process sees."""
        device = runtime.device_of(self.gpu_name, self.block)
        return Benchmark(
            declaration=self.load(),
            gpu=gpus.gpu(self.gpu_name, self.block),
            device=device,
            clock=timing.Clock(device),
            tuned=Tuned(self.tuned),
            survey=None if self.survey is None else Survey.of(self.survey),
            min_seconds=self.min_seconds,
            max_samples=self.max_samples,
            programs=Programs(self.kernel, self.gpu_name, self.folder, device),
        )


def serve(connection: Connection, setting: Setting) -> None:
    """In a helper: time each case that is asked for, as direction and case; ends with its parent."""
    bench = setting.benchmark()
    bench.clock.warm_up()
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(bench.rows(*connection.recv()))


class Shared:
    """The cases of one benchmark, and the rows of those that are done, each in its place.

    ``found`` are rows of an earlier run; ``keep`` is told of each case that is done in this one.
    """

    def __init__(
        self,
        work: Sequence[tuple[str, Case]],
        found: Mapping[int, Rows] = MappingProxyType({}),
        keep: Callable[[int, Rows], None] = lambda case, rows: None,
    ):
        self._work = work
        self._changed = threading.Condition()
        self._waiting = deque(case for case in range(len(work)) if case not in found)
        self._done = dict(found)
        self._keep = keep
        self._away = 0

    @property
    def waiting(self) -> int:
        """How many cases nobody has taken."""
        return len(self._waiting)

    @property
    def rows(self) -> Rows:
        """Those of all cases that are done, in the order of the cases."""
        return [row for _, rows in sorted(self._done.items()) for row in rows]

    def first(self) -> int | None:
        """The next case for the stage itself, waited for while helpers are at theirs; None where all are done."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._away)
            return self._waiting.popleft() if self._waiting else None

    def last(self) -> int | None:
        """A case for a helper, which must put it back or be done with it; None where no case waits."""
        with self._changed:
            if not self._waiting:
                return None
            self._away += 1
            return self._waiting.pop()

    def put_back(self, case: int) -> None:
        """A helper's case, which is for the stage."""
        with self._changed:
            self._away -= 1
            self._waiting.append(case)
            self._changed.notify_all()

    def done(self, case: int, rows: Rows, by_helper: bool = False) -> None:
        """The rows of a case."""
        with self._changed:
            self._done[case] = rows
            self._away -= by_helper
            self._changed.notify_all()
            self._keep(case, rows)


class Helpers:
    """Use it as a context manager around the stage's own work on ``shared``; none is left at its end.

    ``advance`` is called for each case that a helper is done with.
    """

    def __init__(
        self,
        shared: Shared,
        work: Sequence[tuple[str, Case]],
        setting: Setting,
        devices: Devices,
        advance: Callable[[], None],
        ask_seconds: float = ASK_SECONDS,
    ):
        self._shared, self._work, self._setting, self._devices = shared, work, setting, devices
        self._advance, self._ask_seconds = advance, ask_seconds
        self._over = threading.Event()
        self._hiring = threading.Thread(target=self._hire, name="atlas helpers", daemon=True)
        self._threads: list[threading.Thread] = []
        self._processes: list[Process] = []
        self._names: dict[str, str] = {}
        self._notes: list[str] = []

    def __enter__(self) -> Helpers:
        self._hiring.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._hiring.join()
        for process in self._processes:
            process.interrupt()
        for thread in self._threads:
            thread.join()

    def facts(self) -> dict[str, Any]:
        """The document's field ``devices``, where further ones took part or could not."""
        if not self._names and not self._notes:
            return {}
        own = self._devices.own
        names = [own.device_name if own else "", *self._names.values()]
        return {"devices": {"count": len(names), "names": names} | ({"notes": self._notes} if self._notes else {})}

    def _hire(self) -> None:
        while not self._over.wait(self._ask_seconds):
            starting = sum(thread.is_alive() for thread in self._threads)
            if self._notes or self._shared.waiting <= 1 + starting:
                continue  # after a failure no other: its reason may be theirs, too
            lease = self._devices.spare()
            if lease is not None:
                process = Process(
                    serve, self._setting, name="atlas-benchmark", environment=lease.environment, imported=TRITON
                )
                self._processes.append(process)
                thread = threading.Thread(target=self._help, args=(lease, process), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _help(self, lease: Lease, process: Process) -> None:
        try:
            with process:
                process.start()
                process.receive(START_SECONDS)
                while not self._over.is_set() and not self._devices.wanted():
                    if (case := self._shared.last()) is None:
                        return
                    self._one(case, process)
                    self._names[lease.uuid] = lease.device_name
                    self._advance()
        except Exception as error:  # it started not, died, or hung: the stage goes on without it
            if not self._over.is_set():
                self._notes.append(f"{lease.device_name} was not used to its end: {error or type(error).__name__}")
        finally:
            lease.release()

    def _one(self, case: int, process: Process) -> None:
        try:
            process.send(self._work[case])
            rows = process.receive(CASE_SECONDS)
        except BaseException:
            self._shared.put_back(case)
            raise
        self._shared.done(case, rows, by_helper=True)
