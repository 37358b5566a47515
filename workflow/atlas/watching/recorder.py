"""A process that is watched: what it counted goes into the file soon after it began, now and then, and at its end."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import triton

from ..errors import AtlasError
from ..operators import native
from . import merging
from .book import Book
from .seats import Seats

VARIABLE = "KERNEL_ATLAS_WATCH"
"""Names the file that calls are written to."""

_FIRST, _LONGEST = 0.2, 5.0
"""Seconds after which what was counted is written: at first, and at most; they double."""

_REST = 20
"""Of the time that writing a long file takes, the least that passes before it is written again."""


class Recorder:
    """Writes what ``book`` counted to ``path``."""

    def __init__(self, path: Path, book: Book):
        self._path, self._book = path, book
        self._began = time.monotonic()
        self._told = False
        self._pid = os.getpid()
        self._wake = threading.Event()
        self._writer: threading.Thread | None = None
        self._writing = threading.Lock()
        self._unwritten: dict[str, Any] | None = None
        self._said: set[str] = set()

    def counted(self) -> None:
        """Something was counted: it will be written."""
        if not self._wake.is_set():
            self._wake.set()
            if self._writer is None:
                self._begin()

    def _begin(self) -> None:
        with self._writing:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_now_and_then, name="atlas-watch", daemon=True)
                with contextlib.suppress(RuntimeError):  # the program is at its end, which writes
                    self._writer.start()

    def _write_now_and_then(self) -> None:
        pause = _FIRST
        while True:
            self._wake.wait()
            time.sleep(pause)
            self._wake.clear()
            began = time.monotonic()
            self.write()
            pause = max(min(2 * pause, _LONGEST), _REST * (time.monotonic() - began))

    def write(self, last: bool = False) -> None:
        """Write what was counted since the last time, or could not be written then; what goes wrong is said once.

        Where the file is no longer one of calls, what this process counts goes beside it.
        """
        if os.getpid() != self._pid:
            return
        with self._writing:
            if last:
                self._book.spans.read(torch.cuda.synchronize)
                if self._book.spans.obstacle:
                    self._say(f"calls were not timed to the end: {self._book.spans.obstacle}")
            calls, left_out = self._book.taken()
            if calls or left_out:
                part = self._part(calls, left_out)
                self._told = True
                self._unwritten = merging.merged(self._unwritten, part) if self._unwritten else part
            if self._unwritten is None:
                return
            try:
                merging.add(self._path, self._unwritten)
            except merging.Foreign as error:
                self._path = self._path.with_name(f"{self._path.stem}-{os.getpid()}{self._path.suffix}")
                self._say(f"{error}: the calls of this process go to {self._path}")
                with contextlib.suppress(merging.Foreign, AtlasError, OSError):
                    merging.add(self._path, self._unwritten)
                    self._unwritten = None
            except (AtlasError, OSError) as error:
                self._say(f"{error}: tried again later")
            else:
                self._unwritten = None

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            print(f"atlas watch: {what}", file=sys.stderr)

    def _part(self, calls: list[dict[str, Any]], left_out: int) -> dict[str, Any]:
        on_gpu = any(run["timed"] for call in calls for run in call["runs"])
        return {
            "programs": [Path(sys.argv[0]).name] if sys.argv and sys.argv[0] else [],
            "processes": 0 if self._told else 1,
            "software": {
                "python": platform.python_version(), "torch": str(torch.__version__), "triton": triton.__version__
            },
            "devices": sorted(self._book.devices),
            "timed_by": merging.EVENTS if on_gpu else None,
            "seconds": round(time.monotonic() - self._began, 3),
            "left_out": left_out,
            "calls": calls,
        }  # fmt: skip

    def forked(self) -> None:
        """This process is a fork: it has counted nothing yet, and no thread."""
        self._pid, self._told, self._writer = os.getpid(), False, None
        self._wake, self._writing = threading.Event(), threading.Lock()
        self._unwritten = None
        self._book.forget()


_recorder: Recorder | None = None


def begin() -> None:
    """Watch this process from now on, as the environment says.

    The C++ extension stays off: calls that it repeats pass no seat.  Raises :class:`.merging.Foreign` where the
    file is another's.
    """
    global _recorder
    path = Path(os.environ[VARIABLE]).absolute()
    if _recorder is not None:
        return
    with merging.lock_of(path):
        merging.begun(path)
    os.environ[native.VARIABLE] = "off"
    book = Book()
    _recorder = Recorder(path, book)
    book.counted = _recorder.counted
    Seats(book).take(importlib.import_module("kernels"))
    atexit.register(_recorder.write, last=True)
    os.register_at_fork(after_in_child=_recorder.forked)
