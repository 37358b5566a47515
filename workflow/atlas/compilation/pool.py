"""Compile many configs on several processes, each task with a time limit, each failure a result of its own."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from pathlib import Path

from .compiled import Compiled, death
from .worker import Task, serve

TIMEOUT_SECONDS = 120.0
"""Time one config may take to compile.  The slowest that are of use take some 10 s."""


_DYING_SECONDS = 5.0


class _Worker:
    """One process and the task it is at."""

    def __init__(self, context: BaseContext, log: Path):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, log), daemon=True)
        self.process.start()
        theirs.close()
        self.log = log
        self.index = -1
        self.deadline = 0.0

    def give(self, index: int, task: Task, timeout_seconds: float) -> None:
        self.index, self.deadline = index, time.monotonic() + timeout_seconds
        with contextlib.suppress(ConnectionError):  # it died before its first task; its silence will tell
            self.connection.send(task)

    def answer(self) -> Compiled | None:
        """The result of its task; None where the process has died."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            return None

    def outcome(self, readable: bool, timeout_seconds: float) -> tuple[Compiled | None, bool]:
        """What became of its task, None while it is under way, and whether the process can take another."""
        if readable:
            answer = self.answer()
            return (self.death(), False) if answer is None else (answer, True)
        if time.monotonic() >= self.deadline:
            return Compiled("failed", f"not compiled within {timeout_seconds:g} s"), False
        return None, True

    def death(self) -> Compiled:
        """How a process that gave no answer ended."""
        self.process.join(_DYING_SECONDS)
        printed = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return Compiled("failed", death(self.process.exitcode, printed))

    def kill(self) -> None:
        """End the process and whatever it started."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(self.process.pid) == self.process.pid:  # else it has not yet made its own group
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.connection.close()


def compile_all(
    tasks: Iterable[Task], jobs: int, timeout_seconds: float = TIMEOUT_SECONDS, start_method: str = "fork"
) -> Iterator[tuple[int, Compiled]]:
    """Compile ``tasks`` on up to ``jobs`` processes; yields (index of the task, result) as each ends.

    Tasks are drawn when a process is free for them, so an iterator may take its time to find the next.
    A task over its time, and one whose process dies, is ``failed`` and says so; a new process takes its place.  Closing
    the iterator early ends the processes.  ``start_method`` as for multiprocessing: ``fork`` is the fastest, and right
    where this process has a single thread and has not touched CUDA; elsewhere take ``forkserver`` or ``spawn``.
    """
    context = multiprocessing.get_context(start_method)
    workers: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="kernel-atlas-build-") as folder:
        try:
            started = (_Worker(context, Path(folder) / f"{number}.log") for number in itertools.count())
            yield from _compiled(tasks, jobs, timeout_seconds, workers, started)
        finally:
            for worker in workers:
                worker.kill()


def _compiled(
    tasks: Iterable[Task], jobs: int, timeout_seconds: float, workers: list[_Worker], started: Iterator[_Worker]
) -> Iterator[tuple[int, Compiled]]:
    """The results as they come; ``workers`` holds whoever is at work, ``started`` gives one more."""
    waiting = enumerate(tasks)
    upcoming = next(waiting, None)
    while upcoming is not None or workers:
        while upcoming is not None and len(workers) < jobs:
            workers.append(next(started))
            workers[-1].give(*upcoming, timeout_seconds)
            upcoming = next(waiting, None)
        first = min(worker.deadline for worker in workers)
        ready = wait([worker.connection for worker in workers], max(0.0, first - time.monotonic()))
        for worker in list(workers):
            result, fit = worker.outcome(worker.connection in ready, timeout_seconds)
            if result is None:
                continue
            index = worker.index
            if fit and upcoming is not None:
                worker.give(*upcoming, timeout_seconds)
                upcoming = next(waiting, None)
            else:
                workers.remove(worker)
                worker.kill()
            yield index, result
