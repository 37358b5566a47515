"""Start processes by forking one that has imported torch: milliseconds each instead of seconds.

A run of Snakemake has one server, and a job that has none starts its own.  Whoever wants a process sends a function and
files to it over a socket (:mod:`.forking`).  The process belongs to the socket's other end: when that closes, however
its owner ended, the server kills the process and all it started.  When the server ends, so does all it forked.

Why forking is safe here:

- A server has one thread when it forks, so that no lock is copied in another thread's hands.  It counts its threads
  before each fork.  Where an import started one, it starts a fresh Python instead, which is slow and safe.
- It never initialises CUDA: it imports and does nothing else.  This, too, is asked before each fork.
- It imports no module of the project but this package: an edit counts for the next job, as if that started alone.
- It imports in stages, each in a process of its own: nothing, torch, torch and Triton.  Triton decides when it is
  imported whether it compiles or interprets, so there are two of the last.

A server runs on Linux alone, as Triton does.  Only processes of its own user may ask it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from .family import kill_family
from .forked import become, become_afresh, end_with

REPLY = struct.Struct("<ci")
"""What a server says of a process: ``p`` and its id, ``e`` and its exit status."""

LENGTH = struct.Struct("<I")
"""What stands before every message to a server: its bytes."""

AS_IT_IS = b"-"
"""The stage of a server that imports nothing: a process forked as it was."""

_LIBRARIES = {
    b"t": ("torch", "rich.progress", "jsonschema", "jsonschema_rs", "yaml"),
    b"c": ("triton",),
    b"i": ("triton",),
}
"""What each stage imports; beside torch what nearly every job needs, none of which depends on the environment."""

_OF_A_RUN = {
    b"t": ("scipy.special", "torch.fx.experimental.symbolic_shapes"),
    b"c": ("torch._dynamo", "triton.experimental.gluon"),
    b"i": ("torch._dynamo",),
}
"""What a run's server imports beside, since many jobs come to it: statistics of timings, checks of gradients, and what
torch loads to compute with meta tensors.  The last, which imports Triton, takes 2 s, the others half a second each.
"""

_ASKING_SECONDS, _FINISHING_SECONDS = 30.0, 5.0
_MOST_FILES, _MOST_STAGES = 8, 16


def serve(listener: socket.socket, owner: int, run: bool) -> Callable[[], NoReturn] | None:
    """Serve until the file ``owner`` is closed at its other end; in a forked process, return what that is to do.

    ``run`` says that many jobs will ask.
    """
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's would start its threads when it is imported
    _ignore_signals()
    added = _OF_A_RUN if run else {}
    libraries = {letter: (*names, *added.get(letter, ())) for letter, names in _LIBRARIES.items()}
    return _Server(b"", listener, owner, libraries).run()


def serve_as_it_is(source: socket.socket, parent: int) -> NoReturn:
    """In a fork of a process: fork what that asks for over ``source``, until it ends or closes its side."""
    status = 1
    try:
        end_with(parent)
        _ignore_signals()
        gc.freeze()  # else a collection in a forked process would copy all pages
        work = _Server(AS_IT_IS, source).run()
        if work is not None:
            work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # what is next on the stack is the parent's


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a server ends with its owner, after whom nobody needs it


class _Server:
    """One stage of importing: ``stages`` are the letters of what is imported.

    ``source`` gives connections; the first stage's is a listening socket, a later one's the stage's before it.
    ``libraries`` says what each stage imports.
    """

    def __init__(
        self,
        stages: bytes,
        source: socket.socket,
        owner: int | None = None,
        libraries: Mapping[bytes, Sequence[str]] = MappingProxyType({}),
    ):
        self._stages, self._source, self._owner, self._libraries = stages, source, owner, libraries
        self._later: dict[bytes, socket.socket] = {}
        self._of: dict[socket.socket, int] = {}
        self._owners: dict[int, socket.socket] = {}
        self._woken, self._wakes = os.pipe()
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def run(self) -> Callable[[], NoReturn] | None:
        """Fork what is asked for; None at the end, and in a forked process what it is to do."""
        while True:
            poll = select.poll()
            for file in (self._source, self._woken, self._owner, *self._of):
                if file is not None:
                    poll.register(file, select.POLLIN)
            ready = {file for file, _ in poll.poll()}
            if self._owner in ready:
                return self._finish()
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._reap()
            for connection in [one for one in self._of if one.fileno() in ready]:
                self._obey(connection)
            if self._source.fileno() in ready:
                connection, stages = self._accept()
                if stages is None:
                    return self._finish()
                if connection is not None and (became := self._answer(connection, stages)) is not None:
                    return became

    def _accept(self) -> tuple[socket.socket | None, bytes | None]:
        """The next connection, None where it is none of this user's, and the stages it asks for, None at the end."""
        if self._owner is None:
            stages, files, _, _ = socket.recv_fds(self._source, _MOST_STAGES, 1)
            if not files:
                return None, None
            connection = socket.socket(fileno=files[0])
            connection.settimeout(_ASKING_SECONDS)
            return connection, stages
        connection, _ = self._source.accept()
        connection.settimeout(_ASKING_SECONDS)
        try:
            user = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if user == os.getuid():
                return connection, _message(connection)[0]
        except (OSError, EOFError):
            pass
        connection.close()
        return None, b""

    def _answer(self, connection: socket.socket, stages: bytes) -> Callable[[], NoReturn] | None:
        """Hand a connection on to the stage it asks for, or fork for it; in a forked process, what that is to do."""
        if len(stages) > len(self._stages):
            letter = stages[len(self._stages) : len(self._stages) + 1]
            if letter not in self._later and (later := self._begin_stage(letter)) is not None:
                return later.run() or functools.partial(os._exit, 0)
            with connection, contextlib.suppress(OSError):  # it has died: the owner sees its connection closed
                socket.send_fds(self._later[letter], [stages], [connection.fileno()])
            return None
        try:
            request, files = _message(connection, files=True)
        except (OSError, EOFError):  # whoever asked is gone
            connection.close()
            return None
        parent = os.getpid()
        fresh = not fit()
        child = os.fork()
        if child == 0:
            self._leave()
            connection.close()
            return functools.partial(become_afresh if fresh else become, request, files, parent)
        for file in files:
            os.close(file)
        self._of[connection], self._owners[child] = child, connection
        connection.settimeout(_ASKING_SECONDS)
        with contextlib.suppress(OSError):  # its end is seen in the next round
            connection.sendall(REPLY.pack(b"p", child))
        return None

    def _begin_stage(self, letter: bytes) -> _Server | None:
        """Fork the server of the next stage, which imports; in the forked process, that server."""
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        parent = os.getpid()
        if os.fork():
            theirs.close()
            self._later[letter] = ours
            return None
        self._leave()
        ours.close()
        end_with(parent)
        if letter == b"i":
            os.environ["TRITON_INTERPRET"] = "1"
        for library in self._libraries[letter]:
            with contextlib.suppress(Exception):  # whoever needs it meets it again
                importlib.import_module(library)
        if letter == b"c":
            _know_triton()
        gc.collect()
        gc.freeze()  # else a collection in a forked process would copy all pages
        return _Server(self._stages + letter, theirs, libraries=self._libraries)

    def _obey(self, connection: socket.socket) -> None:
        """Pass a signal on; where the owner is gone, end the process."""
        try:
            told = connection.recv(1)
        except OSError:
            told = b""
        child = self._of[connection]
        if not told:
            del self._of[connection]
            connection.close()
        number = told[0] if told else signal.SIGKILL
        if child in self._owners:
            _signal(child, number)

    def _finish(self) -> None:
        """End all that was forked, with what it started; what is not gone in time the system kills after this."""
        for child in self._owners:
            kill_family(child)
        for later in self._later.values():
            later.close()
        until = time.monotonic() + _FINISHING_SECONDS
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(0.01)

    def _reap(self) -> None:
        """Tell the owners of ended processes."""
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            connection = self._owners.pop(child, None)
            if connection is None:  # a later stage: the next request begins it again
                self._later = {letter: one for letter, one in self._later.items() if not _closed(one)}
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what it has left behind
            if self._of.pop(connection, None) is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(REPLY.pack(b"e", os.waitstatus_to_exitcode(status)))
                connection.close()

    def _leave(self) -> None:
        """In a forked process: hold nothing of the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self._source, *self._later.values(), *self._of):
            one.close()
        os.close(self._woken)
        os.close(self._wakes)


def _know_triton() -> None:
    """Compute the key of Triton's own files, half a gigabyte, for which every process asks that compiles anything."""
    with contextlib.suppress(Exception):
        importlib.import_module("triton.runtime.cache").triton_key()


def fit() -> bool:
    """Whether this process may be forked: it has one thread, and no context on a device."""
    torch = sys.modules.get("torch")
    on_device = torch is not None and torch.cuda.is_initialized()
    return len(os.listdir("/proc/self/task")) == 1 and not on_device  # noqa: PTH208 - nothing is to be imported here


def _signal(child: int, number: int) -> None:
    if number == signal.SIGKILL:
        kill_family(child)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, number)


def _closed(one: socket.socket) -> bool:
    try:
        return one.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _message(connection: socket.socket, files: bool = False) -> tuple[bytes, list[int]]:
    """The next message with its length before it, and the files that came along."""
    received: list[int] = []
    if files:
        head, received, _, _ = socket.recv_fds(connection, LENGTH.size, _MOST_FILES)
    else:
        head = connection.recv(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    for file in received:
        os.set_inheritable(file, False)
    content, length = b"", LENGTH.unpack(head)[0]
    while len(content) < length:
        some = connection.recv(length - len(content))
        if not some:
            raise EOFError
        content += some
    return content, received
