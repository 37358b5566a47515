"""Compile many configs on several processes, each task with a time limit, each failure a result of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from .compiled import Compiled
from .complaint import death
from .worker import Task, serve

TIMEOUT_SECONDS = 120.0
"""Time one config may take to compile.  The slowest that are of use take some 10 s."""


@dataclass
class _Worker:
    process: BaseProcess
    tasks: Connection
    log: Path
    index: int | None = None  # of the task it is at
    deadline: float = 0.0

    def give(self, index: int, task: Task, timeout_seconds: float) -> None:
        self.index, self.deadline = index, time.monotonic() + timeout_seconds
        self.tasks.send(task)

    def kill(self) -> None:
        """End the process and whatever it started."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # not yet the leader of its group
                if os.getpgid(self.process.pid) == self.process.pid:
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.tasks.close()


def compile_all(
    tasks: Sequence[Task], jobs: int, timeout_seconds: float = TIMEOUT_SECONDS, start_method: str = "fork"
) -> Iterator[tuple[int, Compiled]]:
    """Compile ``tasks`` on up to ``jobs`` processes; yields (index of the task, result) as each ends.

    A task over its time, and one whose process dies, is ``failed`` and says so; a new process takes its place.  Closing
    the iterator early ends the processes.  ``start_method`` as for multiprocessing: ``fork`` is the fastest, and right
    where this process has a single thread and has not touched CUDA; elsewhere take ``forkserver`` or ``spawn``.
    """
    context = multiprocessing.get_context(start_method)
    workers: list[_Worker] = []
    waiting = iter(enumerate(tasks))

    with tempfile.TemporaryDirectory(prefix="kernel-atlas-build-") as folder:

        def start() -> _Worker:
            log = Path(folder) / f"{time.monotonic_ns()}.log"
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, log), daemon=True)
            process.start()
            theirs.close()
            worker = _Worker(process, ours, log)
            workers.append(worker)
            return worker

        def feed(worker: _Worker) -> None:
            following = next(waiting, None)
            if following is None:
                workers.remove(worker)
                worker.kill()
            else:
                worker.give(*following, timeout_seconds)

        try:
            for _ in range(min(jobs, len(tasks))):
                feed(start())
            while workers:
                patience = max(0.0, min(worker.deadline for worker in workers) - time.monotonic())
                ready = wait([worker.tasks for worker in workers], patience)
                for worker in list(workers):
                    index, result = worker.index, None
                    if worker.tasks in ready:
                        with contextlib.suppress(EOFError, ConnectionError):
                            result = worker.tasks.recv()
                    if result is None:
                        if worker.tasks in ready:
                            worker.process.join()
                            result = Compiled("failed", death(worker.process.exitcode, _printed(worker.log)))
                        elif time.monotonic() >= worker.deadline:
                            result = Compiled("failed", f"not compiled within {timeout_seconds:g} s")
                        else:
                            continue
                        workers.remove(worker)
                        worker.kill()
                        worker = start()
                    feed(worker)
                    yield index, result
        finally:
            for worker in workers:
                worker.kill()


def _printed(log: Path) -> str:
    return log.read_text("utf-8", "replace") if log.exists() else ""
