"""The process that compiles: a compiler that hangs or crashes takes its own process down and no other."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from ..declaration import GPU, Case, Config, Declaration
from .compiled import Compiled, compile_with_requests, complaint, with_printed
from .listings import write_listings


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
        return dataclasses.replace(
            compiled, kernels=write_listings(self.listings, compiled.kernels, requests, self.sass)
        )


def serve(tasks: Connection, log: Path) -> None:
    """Run tasks as they come until the other end closes; what compilers print goes to ``log``, one task's at a time."""
    os.setsid()  # the compiler's own processes die with this one when its group is killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Kernels must be compiled here, also in the child of a process that interprets them.
    os.environ.pop("TRITON_INTERPRET", None)
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        os.ftruncate(descriptor, 0)
        try:
            compiled = task.run()
        except Exception as error:  # importing the kernel, writing a listing
            compiled = Compiled("failed", complaint(error))
        if compiled.status == "failed":
            compiled = dataclasses.replace(
                compiled, reason=with_printed(compiled.reason, log.read_text("utf-8", "replace"))
            )
        tasks.send(compiled)
