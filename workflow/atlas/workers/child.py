"""A child process that may hang or die without taking its parent along.

Spawned, not forked: it shall own a device context of its own.  Parent and child exchange pickled messages over a pipe.
What the child writes to stderr is kept in a file, so that its last words can be quoted when it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BURIAL_SECONDS = 60.0
"""What the driver is given to take a killed process off its device."""


class Hung(Exception):
    """The child gave no answer in time; it has been killed."""


class Died(Exception):
    """The child ended instead of answering; the text says how, and quotes its last words."""


class Child:
    """One process running ``target(connection, *args)``, a module-level function; as a context manager, it ends there.

    The child's part is to receive and answer.  ``environment`` is added to what it inherits.  Linux ends the child with
    the thread that started it.  One thread uses a child at a time; :meth:`interrupt` is for the others.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *args: Any,
        name: str = "atlas-child",
        environment: Mapping[str, str] = MappingProxyType({}),
    ):
        self._target, self._args, self._name = target, args, name
        self._environment = dict(environment)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._stderr: Path | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        """True between :meth:`start` and the child's end as far as the parent knows."""
        return self._process is not None

    @property
    def connection(self) -> Connection:
        """The parent's end of the pipe, for :func:`multiprocessing.connection.wait`."""
        assert self._connection is not None, "the child is not running"
        return self._connection

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process; its first answer may be awaited with :meth:`receive`."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        handle, path = tempfile.mkstemp(prefix=f"{self._name}.", suffix=".stderr")
        os.close(handle)
        self._stderr = Path(path)
        arguments = (theirs, path, os.getpid(), self._environment, self._target, self._args)
        self._process = context.Process(target=_run, args=arguments, name=self._name, daemon=True)
        self._process.start()
        theirs.close()  # so that the child's death shows as the end of the pipe

    def send(self, message: Any) -> None:
        """Send one message; a dead child shows in the :meth:`receive` that follows."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self, timeout_seconds: float | None) -> Any:
        """The next answer.  Raises :class:`Hung` or :class:`Died`; in both cases the process is gone."""
        try:
            if not self.connection.poll(timeout_seconds):
                self.kill()
                raise Hung
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise Died(self._bury()) from None

    def kill(self) -> None:
        """End the child at once."""
        if self._process is not None:
            self._process.kill()
            self._bury()

    def interrupt(self) -> None:
        """End the child from another thread: the one that waits for its answer finds it dead."""
        process = self._process
        with contextlib.suppress(AttributeError, ValueError):  # not yet begun; already buried
            process.kill()

    def _bury(self) -> str:
        """Release what the ended process held; how it ended, in words."""
        assert self._process is not None and self._connection is not None and self._stderr is not None
        self._process.join(_BURIAL_SECONDS)
        if self._process.exitcode is None:
            raise RuntimeError(f"process {self._process.pid} cannot be ended; its device may need a reset")
        code = self._process.exitcode
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        words = [line.strip() for line in self._stderr.read_text(errors="replace").splitlines() if line.strip()]
        self._connection.close()
        self._process.close()
        self._stderr.unlink()
        self._process = self._connection = self._stderr = None
        return f"{how}: {words[-1]}" if words else how


def _run(
    connection: Connection,
    stderr: str,
    parent: int,
    environment: Mapping[str, str],
    target: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    os.environ.update(environment)  # before the target can initialise CUDA, which reads it once
    handle = os.open(stderr, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    if sys.platform == "linux":
        # A parent killed outright cannot end its children, and one that hangs on a device would not notice.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    target(connection, *args)
