"""The side of a forked process: be what was asked for, as if whoever asked had started it.

It begins with what its server has imported, and with nothing else of the server's: environment, folder, path, arguments
and files are those of its owner.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

VARIABLE = "KERNEL_ATLAS_SERVER"
"""The server at hand, with the Python and the checkout that it serves."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@dataclass(frozen=True)
class Request:
    """A process to be: ``call`` is a pickled ``(function, arguments)``; the function is given the files first.

    ``orderly`` waits at its end for its threads and runs what is registered for the exit; no device's context is taken
    down, which takes seconds.
    """

    call: bytes
    environment: dict[str, str]
    name: str
    orderly: bool
    words: Sequence[str] = field(default_factory=lambda: list(sys.argv))
    path: Sequence[str] = field(default_factory=lambda: list(sys.path))
    folder: str = field(default_factory=os.getcwd)
    mask: int = field(default_factory=_umask)
    ignores_interrupt: bool = field(default_factory=lambda: signal.getsignal(signal.SIGINT) == signal.SIG_IGN)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become_afresh(packed: bytes, files: Sequence[int], parent: int) -> NoReturn:
    """Be a Python that has imported nothing: this one's parent was not fit to be forked."""
    end_with(parent)
    sent = os.memfd_create("request")
    os.write(sent, packed)
    os.lseek(sent, 0, os.SEEK_SET)
    for file in (sent, *files):
        os.set_inheritable(file, True)
    request: Request = pickle.loads(packed)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, request.path))}
    words = [sys.executable, "-m", __package__, "become", str(parent), *map(str, (sent, *files))]
    os.execve(sys.executable, words, environment)


def became(parent: int, sent: int, *files: int) -> NoReturn:
    """The other side of :func:`become_afresh`."""
    with open(sent, "rb") as file:
        packed = file.read()
    for one in files:
        os.set_inheritable(one, False)
    become(packed, files, parent)


def become(packed: bytes, files: Sequence[int], parent: int) -> NoReturn:
    """Do what was asked for, as the process that asked would have started it."""
    with contextlib.suppress(PermissionError):
        os.setsid()  # what it starts dies with it when its group is killed
    end_with(parent)
    request: Request = pickle.loads(packed)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, request.name.encode()[:15])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if request.ignores_interrupt else signal.default_int_handler)
    at_hand = {name: value for name, value in os.environ.items() if name == VARIABLE}
    os.environ.clear()
    os.environ.update(request.environment | at_hand)
    os.umask(request.mask)
    os.chdir(request.folder)
    sys.path[:], sys.argv[:] = request.path, request.words
    _settle_libraries()
    status = _done(request.call, files)
    if request.orderly:
        threading._shutdown()
        atexit._run_exitfuncs()
    _flush()
    os._exit(status)  # to take apart all that the server has imported takes half a second


def _done(call: bytes, files: Sequence[int]) -> int:
    """Call the function; the exit status that it returned, or ended with."""
    try:
        function, arguments = pickle.loads(call)
        return function(files, *arguments) or 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # Python ends by the signal, so that whoever waits sees it
        raise
    except BaseException:
        traceback.print_exc()
        return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _settle_libraries() -> None:
    """What libraries took from the server's environment, or drew there, as this process would have it."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
    if numpy is not None:
        numpy.random.seed()
