"""The tuner's memory: an append-only file of finished measurements, from which a killed run resumes.

One JSON object a line.  A line with ``context`` says what the measurements after it hold for: kernel digest, device,
power cap, driver, compiler versions, protocol.  A line with ``key`` is one measurement; its key is a digest of the
context, the problem, the candidate, the identity of its variant and the way of measuring: whatever changes is measured
anew, and nothing else.
``crc`` is the CRC-32 of the line without it, so that a garbled line costs itself and is never taken for a figure.

The journal is nobody's declared output: a workflow that removes a failed job's outputs must leave it alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import filelock

from ..errors import AtlasError, unwritable
from ..identity import kernel
from .candidates import Candidate, Problem
from .outcome import CRASHED, OUT_OF_MEMORY, TIMEOUT, Outcome, killed

_SYNC_SECONDS = 1.0
"""At most this much of a search is lost with the power; with the process, nothing."""

_KEPT = "all that was measured before is kept up to its last whole line, and the next run resumes from it"


class Journal:
    """The measurements of one kernel on one GPU; use it as a context manager, which holds the file's lock.

    ``context`` is all that a measurement depends on apart from problem, candidate and code.  ``identities`` are the
    kernel's, by name: a measurement depends on its variant's, a check on the references', too, and a certificate on
    those of the cases besides.  Without any the ``kernel_digest`` of the context counts for all.
    ``trial_timeout_seconds`` decides whether an earlier time-out still counts: one under a shorter limit does not.

    The threads of one process may share it; another process is refused.  Once a line could not be written (disk full,
    quota, read-only), that call and every later :meth:`add` raise :class:`AtlasError`, and the file ends with a whole
    line.
    """

    def __init__(
        self,
        path: Path,
        context: Mapping[str, Any],
        trial_timeout_seconds: float,
        identities: Mapping[str, str] = MappingProxyType({}),
    ):
        self.path = path
        self.damaged = 0
        """Lines that could not be read: a run that was cut off leaves one at most, and the next one removes it."""
        self.reused = 0
        """Measurements answered from the file."""
        self._context = dict(context)
        self._identities = dict(identities)
        shared = {name: value for name, value in context.items() if name != "kernel_digest" or not identities}
        self._shared = json.dumps(shared, sort_keys=True)
        self._timeout = trial_timeout_seconds
        self._known: dict[str, Outcome] = {}
        self._lock = filelock.FileLock(f"{path}.lock")
        self._turn = threading.Lock()
        self._handle = -1
        self._end = 0
        """Where the last whole line ends."""
        self._failed = ""
        self._synced = 0.0

    def __enter__(self) -> Self:
        self._acquire()
        with contextlib.ExitStack() as undo:
            undo.callback(self._release)
            try:
                self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                self._end = self._read()
                os.ftruncate(self._handle, self._end)
            except OSError as error:
                raise unwritable(self.path, error, "nothing was measured") from None
            self._write({"context": self._context})
            undo.pop_all()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if not self._failed:
                os.fsync(self._handle)
        except OSError as error:
            if kind is None:
                raise unwritable(self.path, error, _KEPT) from None
        finally:
            self._release()

    def _acquire(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise AtlasError(
                f"{self.path}: another autotune run is writing this journal; wait for it to end, "
                "or give this one another --results"
            ) from None
        except NotImplementedError:
            raise AtlasError(
                f"{self.path}: its file system cannot lock files, so two runs could mix their lines; "
                "give --results on another"
            ) from None
        except OSError as error:
            raise unwritable(self.path, error, "nothing was measured") from None

    def _release(self) -> None:
        if self._handle >= 0:
            with contextlib.suppress(OSError):  # what close has to say was said by fsync
                os.close(self._handle)
            self._handle = -1
        self._lock.release()

    def key(self, problem: Problem, candidate: Candidate, method: str) -> str:
        """The digest under which a measurement is kept; ``method`` is for instance ``screen 5``."""
        named = [
            self._shared,
            self._depends(problem, candidate, method),
            problem.direction,
            problem.case.to_json(),
            candidate.variant,
            candidate.config,
            method,
        ]
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:32]

    def _depends(self, problem: Problem, candidate: Candidate, method: str) -> list[str | None]:
        """The identities that a measurement depends on."""
        names = [kernel.name_of(problem.direction, candidate.variant), kernel.INPUTS]
        way = method.split()[0]
        names += [kernel.REFERENCES] if way in ("check", "certify") else []
        names += [kernel.CASES] if way == "certify" else []
        return [kernel.find(self._identities, name) for name in names]

    def has(self, problem: Problem, candidate: Candidate, method: str) -> bool:
        """Whether :meth:`find` would find it."""
        key = self.key(problem, candidate, method)
        with self._turn:
            return key in self._known

    def find(self, problem: Problem, candidate: Candidate, method: str) -> Outcome | None:
        """The finished measurement of this key, if there is one that still counts."""
        key = self.key(problem, candidate, method)
        with self._turn:
            outcome = self._known.get(key)
            self.reused += outcome is not None
        return outcome

    def add(self, problem: Problem, candidate: Candidate, method: str, outcome: Outcome) -> None:
        """Append a finished measurement; :class:`AtlasError` where it cannot be written."""
        key = self.key(problem, candidate, method)
        named = {"direction": problem.direction, **problem.case.to_json()}
        tried = {"variant": candidate.variant, "config": candidate.config, "method": method}
        entry = {"key": key, **named, **tried, **outcome.to_json()}
        if outcome.status == TIMEOUT:
            entry["timeout_seconds"] = self._timeout
        with self._turn:
            self._write(entry)
            self._known[key] = outcome

    def _write(self, entry: dict[str, Any]) -> None:
        if self._failed:
            raise AtlasError(self._failed)
        line = _sealed(entry)
        try:
            # Not through a buffer, which would write the failed line's rest when it is closed.
            left = memoryview(line)
            while left:
                left = left[os.write(self._handle, left) :]
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._handle)
                self._synced = time.monotonic()
        except OSError as error:
            refusal = unwritable(self.path, error, _KEPT)
            self._failed = str(refusal)
            with contextlib.suppress(OSError):  # the next run removes what this one cannot
                os.ftruncate(self._handle, self._end)
            raise refusal from None
        self._end += len(line)

    def _read(self) -> int:
        """Take in what is there; where its last whole line ends, in bytes."""
        content = self.path.read_bytes()
        *lines, rest = content.split(b"\n")
        for line in filter(None, lines):
            try:
                entry = unsealed(line)
                if "context" not in entry and self._counts(entry):
                    self._known[entry["key"]] = Outcome.from_json(entry)
            except (ValueError, KeyError, TypeError, RecursionError):
                self.damaged += 1
        self.damaged += bool(rest)
        return len(content) - len(rest)

    def _counts(self, entry: Mapping[str, Any]) -> bool:
        # Memory may have been held by somebody else, so that is tried again.
        if entry["status"] == OUT_OF_MEMORY:
            return False
        if entry["status"] == CRASHED and killed(entry["reason"]):
            return False
        return entry["status"] != TIMEOUT or entry["timeout_seconds"] >= self._timeout


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The measurements a journal holds, in the order they were added and whatever their context; damage left out.

    Each has ``key``, ``direction``, ``dtype``, ``sizes``, ``variant``, ``config``, ``method`` and an outcome's fields.
    """
    for line in path.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            entry = unsealed(line)
            if "key" in entry:
                yield entry


def _sealed(entry: Mapping[str, Any]) -> bytes:
    """The entry as a line with its checksum."""
    text = json.dumps(entry)
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()


def unsealed(line: bytes) -> dict[str, Any]:
    """The entry of a line, less its checksum; ValueError or TypeError where it is not what was written."""
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    crc = entry.pop("crc", None)
    if crc is not None and crc != zlib.crc32(json.dumps(entry).encode()):
        raise ValueError("garbled")
    return entry
