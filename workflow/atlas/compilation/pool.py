"""Compile many configs on several processes, each task with a time limit, each failure a result of its own.

A compiler that hangs or crashes takes its own process down and no other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..declaration import GPU, Case, Config, Declaration
from ..workers.pool import run_jobs
from ..workers.process import TRITON, Died, Process, Snapshot, TimedOut, printed
from ..workers.protocol import serve_jobs
from .compiled import Compiled, compile_with_requests, complaint, death, with_printed
from .listings import write_listings

TIMEOUT_SECONDS = 120.0
"""Time one config may take to compile.  The slowest that are of use take some 10 s."""


@dataclass(frozen=True)
class Task:
    """One config to compile, as it travels to a worker.

    ``load`` gives the declaration, ``functools.partial(catalog.load, "softmax")`` for one of the project's.
    ``listings`` is the path that the names of kept listings begin with, None keeps none; ``sass`` adds machine code.
    """

    load: Callable[[], Declaration]
    direction: str
    variant: str
    case: Case
    config: Config
    gpu: GPU
    listings: Path | None = None
    sass: bool = False

    def run(self) -> Compiled:
        """Compile it, in this process."""
        compiled, requests = compile_with_requests(
            self.load(), self.direction, self.variant, self.case, self.config, self.gpu
        )
        if self.listings is None or not requests:
            return compiled
        names = write_listings(self.listings, [kernel.name for kernel in compiled.kernels], requests, self.sass)
        kernels = zip(compiled.kernels, names, strict=True)
        return dataclasses.replace(
            compiled, kernels=tuple(dataclasses.replace(kernel, listing=name) for kernel, name in kernels)
        )


def compile_all(
    tasks: Iterable[Task],
    jobs: int,
    timeout_seconds: float = TIMEOUT_SECONDS,
    imported: int | Snapshot = TRITON,
) -> Iterator[tuple[int, Compiled]]:
    """Compile ``tasks`` on up to ``jobs`` processes; yields (index of the task, result) as each ends.

    Tasks are drawn when a process is free for them, so an iterator may take its time to find the next.
    A task over its time, and one whose process dies, is ``failed`` and says so; a new process takes its place.  Closing
    the iterator early ends the processes.  ``imported`` is what they begin with, as :class:`Process` takes it.
    """
    calls = (functools.partial(_in_worker, task) for task in tasks)
    for index, result in run_jobs(calls, jobs, timeout_seconds, functools.partial(_worker, imported)):
        if isinstance(result, TimedOut):
            result = Compiled("failed", f"not compiled within {timeout_seconds:g} s")
        elif isinstance(result, Died):
            result = Compiled("failed", death(result.exit_code, result.printed))
        yield index, result


def _worker(imported: int | Snapshot) -> Process:
    # Kernels must be compiled there, also for a process that interprets them.
    return Process(serve_jobs, name="atlas-compiler", environment={"TRITON_INTERPRET": None}, imported=imported)


def _in_worker(task: Task) -> Compiled:
    """The result; for a failure with what compilers printed of it."""
    try:
        compiled = task.run()
    except Exception as error:  # importing the kernel, writing a listing
        compiled = Compiled("failed", complaint(error))
    if compiled.status != "failed":
        return compiled
    return dataclasses.replace(compiled, reason=with_printed(compiled.reason, printed()))
