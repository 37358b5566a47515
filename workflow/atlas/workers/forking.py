"""Ask a server for processes; :mod:`.server` says what that is good for, and why it is safe.

A run of Snakemake has one server (:func:`begin`).  A process that is of no run starts one of its own on first need.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .. import ROOT
from .forked import VARIABLE, Request
from .server import AS_IT_IS, LENGTH, REPLY, fit, serve_as_it_is

NOTHING, TORCH, TRITON = 0, 1, 2
"""What a process is to have imported when it begins: the libraries up to this one."""

INTERPRETED = "KERNEL_ATLAS_INTERPRETED"
"""Names of a run's GPUs whose commands interpret kernels, with commas between."""

_BACKLOG = 1024

_ENDED = "the server that starts processes has ended, and all it started with it"


class ServerEnded(RuntimeError):
    """The server is gone, and with it all it forked."""


class Forked:
    """A process that a server forked, or is about to; it lives no longer than this object's connection."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._read = b""
        self._pid: int | None = None
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Its process id; waits until it has one.  Raises :class:`ServerEnded`."""
        if self._pid is None:
            self._next_reply(None)
        assert self._pid is not None
        return self._pid

    def wait(self, timeout_seconds: float | None) -> int | None:
        """Its exit status, negative for a signal; None where it has not ended in time.  Raises :class:`ServerEnded`."""
        while self._exit_code is None:
            if not self._next_reply(timeout_seconds):
                return None
        return self._exit_code

    def signal(self, number: int) -> None:
        """Send it a signal, SIGKILL to its whole group; nothing where it has ended.  Any thread may."""
        with contextlib.suppress(OSError):
            self._connection.send(bytes([number]), socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Let go of it: what has not ended is killed."""
        self._connection.close()

    def _next_reply(self, timeout_seconds: float | None) -> bool:
        self._connection.settimeout(timeout_seconds)
        try:
            while len(self._read) < REPLY.size:
                some = self._connection.recv(REPLY.size - len(self._read))
                if not some:
                    raise ConnectionResetError
                self._read += some
        except TimeoutError:
            return False
        except ConnectionError:
            raise ServerEnded(_ENDED) from None
        kind, value = REPLY.unpack(self._read)
        self._read = b""
        if kind == b"p":
            self._pid = value
        else:
            self._exit_code = value
        return True


def fork(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    files: Sequence[int],
    environment: Mapping[str, str | None],
    *,
    name: str,
    imported: int | Snapshot = NOTHING,
    orderly: bool = False,
) -> Forked:
    """Have ``function(files, *arguments)`` run in a process of its own; waits for nothing.

    Function and arguments are pickled.  The process gets this one's environment, with ``environment`` added and what is
    None there left out; its own copies of the open ``files``; and this one's folder, path and arguments.  ``imported``
    is one of :data:`NOTHING`, :data:`TORCH` and :data:`TRITON`; the latter compiles or interprets as the environment
    says.  Of a :class:`Snapshot` the process is a fork.  Raises :class:`ServerEnded`.
    """
    given = {key: value for key, value in (os.environ | environment).items() if value is not None}
    request = pickle.dumps(Request(pickle.dumps((function, tuple(arguments))), given, name, orderly))
    try:
        if isinstance(imported, Snapshot) and imported.taken:
            connection = imported.connect()
        else:
            connection, stages = connect(), _stages(TRITON if isinstance(imported, Snapshot) else imported, given)
            connection.sendall(LENGTH.pack(len(stages)) + stages)
        socket.send_fds(connection, [LENGTH.pack(len(request))], list(files))
        connection.sendall(request)
    except ConnectionError:
        raise ServerEnded(_ENDED) from None
    return Forked(connection)


class Snapshot:
    """This process as it is when the snapshot is entered, to fork workers from: they have what it loaded and found.

    Use it as a context manager, which ends them.  A process with more than one thread or with a context on a device
    may not be forked: of such a one there is none ``taken``, and workers have Triton imported.
    """

    def __init__(self) -> None:
        self._ours: socket.socket | None = None
        self._pid = 0

    def __enter__(self) -> Snapshot:
        if fit():
            self._ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            parent = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                self._ours.close()
                serve_as_it_is(theirs, parent)
            theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours is not None:
            self._ours.close()
            os.waitpid(self._pid, 0)
            self._ours = None

    @property
    def taken(self) -> bool:
        """Whether there is one."""
        return self._ours is not None

    def connect(self) -> socket.socket:
        """A connection to it.  Raises ConnectionError where it is gone."""
        assert self._ours is not None, "no snapshot was taken"
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._ours, [AS_IT_IS], [theirs.fileno()])
        return ours


def _stages(imported: int, environment: Mapping[str, str]) -> bytes:
    """The servers on the way: one letter for each stage of importing."""
    triton = b"i" if environment.get("TRITON_INTERPRET", "0") not in ("", "0") else b"c"
    return (b"t" + triton)[:imported]


def command(
    function: Callable[[list[str]], int],
    words: list[str],
    imported: int = TORCH,
    environment: Mapping[str, str | None] = MappingProxyType({}),
) -> int:
    """Run a command, ``function(words)``, in a process that has torch imported; returns its exit status.

    ``imported`` and ``environment`` are as :func:`fork` takes them.  The process has this one's standard files and the
    third one, where the rules leave the terminal.  Signals that end this process are passed on.
    """
    files = [number for number in range(4) if _inherited(number)]
    forked = fork(
        _command,
        (files, function, words),
        files,
        environment,
        name=f"atlas {words[0]}",
        imported=imported,
        orderly=True,
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: forked.signal(number))
    try:
        status = forked.wait(None)
    except ServerEnded as ended:
        print(f"atlas {words[0]}: {ended}", file=sys.stderr)
        return 1
    if status < 0:  # whoever waits for this process is to see how the command ended
        with contextlib.suppress(OSError):  # SIGKILL cannot be handled otherwise
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _inherited(number: int) -> bool:
    try:
        return number < 3 or os.get_inheritable(number)  # not one that Python opened
    except OSError:
        return False


def _command(files: Sequence[int], numbers: Sequence[int], function: Callable[[list[str]], int], words: list) -> int:
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number)
    return function(words)


class _Own:
    """A server that this process started; it ends when this process does."""

    def __init__(self, run: bool):
        self.pid = os.getpid()
        name = f"kernel-atlas-{os.getpid()}-{secrets.token_hex(16)}"
        self.address = "|".join((name, *_serves()))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}")
            listener.listen(_BACKLOG)
            environment = os.environ | {VARIABLE: self.address, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            words = [sys.executable, "-m", __package__, "serve", str(listener.fileno()), *(["run"] if run else [])]
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment,
                pass_fds=[listener.fileno()], start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it can be asked; a fork of the process that started it needs one of its own."""
        return self.pid == os.getpid() and self.process.poll() is None


_own: _Own | None = None
_starting = threading.Lock()


def begin() -> None:
    """Start a server for this process and for the commands it starts.  It imports when it is first asked to."""
    os.environ[VARIABLE] = _mine(run=True).address


def connect() -> socket.socket:
    """A connection to the server at hand: the run's, or else this process's own, started on first need."""
    return _to_the_runs() or _connected(_mine().address.partition("|")[0])


def in_a_run() -> bool:
    """Whether a run's server is at hand."""
    connection = _to_the_runs()
    if connection is not None:
        connection.close()
    return connection is not None


def _to_the_runs() -> socket.socket | None:
    name, *serves = os.environ.get(VARIABLE, "").split("|")
    if serves == _serves():
        with contextlib.suppress(OSError):  # of another host, or gone
            return _connected(name)
    return None


def _mine(run: bool = False) -> _Own:
    global _own
    with _starting:
        if _own is None or not _own.alive:
            _own = _Own(run)
        return _own


def _serves() -> list[str]:
    return [sys.prefix, str(ROOT)]


def _connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
    except OSError:
        connection.close()
        raise
    return connection
