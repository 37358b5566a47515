"""One worker: a process that may hang or die without taking its parent along.

Parent and worker exchange pickled messages over a pipe.  The worker is a process of its own from the server's hands
(:mod:`.server`), so that it may have a device context of its own.  What it prints is kept in a file without a name, so
that its last words can be quoted when it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from types import MappingProxyType
from typing import IO, Any

from . import forking
from .forking import NOTHING, TORCH, TRITON, Snapshot

__all__ = [
    "NOTHING",
    "TORCH",
    "TRITON",
    "Died",
    "NoWorker",
    "Process",
    "Snapshot",
    "TimedOut",
    "forget_printed",
    "printed",
]

_END_SECONDS = 60.0
"""What the driver is given to take a killed process off its device."""


class TimedOut(Exception):
    """The worker gave no answer in time; it has been killed."""


class NotEnded(RuntimeError):
    """A killed worker is still there after a minute: whatever waits for its memory may wait for good."""


class Died(Exception):
    """The worker ended instead of answering; the text says how, and quotes its last words.

    ``exit_code`` is negative for a signal, ``printed`` all that it printed.
    """

    def __init__(self, exit_code: int, printed: str = ""):
        self.exit_code, self.printed = exit_code, printed
        how = f"ended by {_signal(-exit_code)}" if exit_code < 0 else f"ended with exit status {exit_code}"
        words = [line.strip() for line in printed.splitlines() if line.strip()]
        super().__init__(f"{how}: {words[-1]}" if words else how)

    @property
    def killed(self) -> bool:
        """Whether somebody else killed it: no kernel kills its process, a host short of memory does."""
        return self.exit_code == -signal.SIGKILL


class NoWorker(RuntimeError):
    """No worker starts; the text says why."""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class Process:
    """One process running ``target(connection, *args)``, a module-level function; as a context manager, it ends there.

    The worker's part is to receive and answer.  ``environment`` is added to what it inherits, without what is None
    there.  ``imported`` says which libraries it has when it begins, :data:`NOTHING`, :data:`TORCH` or :data:`TRITON`;
    a :class:`Snapshot` is of all that its parent has.  It ends with its parent, however that ends.  One thread uses a
    process at a time; :meth:`interrupt` is for the others.
    """

    def __init__(
        self,
        target: Callable[..., None],
        *args: Any,
        name: str = "atlas-worker",
        environment: Mapping[str, str | None] = MappingProxyType({}),
        imported: int | Snapshot = NOTHING,
    ):
        self._target, self._args, self._name = target, args, name
        self._environment, self._imported = dict(environment), imported
        self._forked: forking.Forked | None = None
        self._connection: Connection | None = None
        self._printed: IO[bytes] | None = None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        """True between :meth:`start` and the worker's end as far as the parent knows."""
        return self._forked is not None

    @property
    def connection(self) -> Connection:
        """The parent's end of the pipe, for :func:`multiprocessing.connection.wait`."""
        assert self._connection is not None, "the worker is not running"
        return self._connection

    @property
    def pid(self) -> int | None:
        """The worker's process id; waits until it has one."""
        return self._forked.pid if self._forked else None

    def start(self) -> None:
        """Have the process started, and wait for nothing; its first answer may be awaited with :meth:`receive`."""
        self._connection, theirs = Pipe()
        self._printed = tempfile.TemporaryFile(prefix=f"{self._name}.")  # noqa: SIM115 - closed by _end
        with theirs:  # once it is sent, so that the worker's death shows as the end of the pipe
            self._forked = forking.fork(
                _run, (self._target, self._args), [theirs.fileno(), self._printed.fileno()], self._environment,
                name=self._name, imported=self._imported,
            )  # fmt: skip

    def send(self, message: Any) -> None:
        """Send one message; a dead worker shows in the :meth:`receive` that follows."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self, timeout_seconds: float | None) -> Any:
        """The next answer.  Raises :class:`TimedOut` or :class:`Died`; in both cases the process is gone."""
        try:
            if not self.connection.poll(timeout_seconds):
                self.kill()
                raise TimedOut
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._end() from None

    def kill(self) -> None:
        """End the worker at once, and all it started."""
        if self._forked is not None:
            self._forked.signal(signal.SIGKILL)
            self._end()

    def interrupt(self) -> None:
        """End the worker from another thread: the one that waits for its answer finds it dead."""
        forked = self._forked
        if forked is not None:
            forked.signal(signal.SIGKILL)

    def _end(self) -> Died:
        """Release what the ended process held; how it ended."""
        assert self._forked is not None and self._connection is not None and self._printed is not None
        forked, connection, kept = self._forked, self._connection, self._printed
        try:
            exit_code = forked.wait(_END_SECONDS)
        except forking.ServerEnded:
            exit_code = -signal.SIGKILL  # it took its processes along
        if exit_code is None:
            raise NotEnded(f"process {forked.pid} cannot be ended; its device may need a reset")
        said = _content(kept.fileno())
        connection.close()
        forked.close()
        kept.close()
        self._forked = self._connection = self._printed = None
        return Died(exit_code, said)


def _run(files: Sequence[int], target: Callable[..., None], args: tuple[Any, ...]) -> None:
    """In the worker."""
    connection, kept = files
    for stream in (1, 2):
        os.dup2(kept, stream)
    os.close(kept)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    target(Connection(connection), *args)


def printed() -> str:
    """In a worker: what was printed since :func:`forget_printed`, by libraries and compilers, too."""
    return _content(2)


def forget_printed() -> None:
    """In a worker: drop what was printed so far."""
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)


def _content(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", "replace")
