"""The tuner's memory: an append-only file of finished measurements, from which a killed run resumes.

One JSON object a line.  A line with ``context`` says what the measurements after it hold for: kernel digest, device,
power cap, driver, compiler versions, protocol.  A line with ``key`` is one measurement; its key is a digest of the
context, the problem, the candidate and the way of measuring: whatever changes is measured anew, and nothing else.

The journal is nobody's declared output: a workflow that removes a failed job's outputs must leave it alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import filelock

from ..errors import AtlasError
from .candidates import Candidate, Problem
from .outcome import OUT_OF_MEMORY, TIMEOUT, Outcome

_SYNC_SECONDS = 1.0
"""At most this much of a search is lost with the power; with the process, nothing."""


class Journal:
    """The measurements of one kernel on one GPU; use it as a context manager, which holds the file's lock.

    ``context`` is all that a measurement depends on apart from problem and candidate.  ``trial_timeout_seconds``
    decides whether an earlier time-out still counts: one under a shorter limit does not.
    """

    def __init__(self, path: Path, context: Mapping[str, Any], trial_timeout_seconds: float):
        self.path = path
        self.damaged = 0
        """Lines that could not be read: a run that was cut off leaves one at most."""
        self.reused = 0
        """Measurements answered from the file."""
        self._context = json.dumps(context, sort_keys=True)
        self._timeout = trial_timeout_seconds
        self._known: dict[str, Outcome] = {}
        self._lock = filelock.FileLock(f"{path}.lock")
        self._synced = 0.0

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise AtlasError(
                f"{self.path}: another autotune run is writing this journal; wait for it to end, "
                "or give this one another --results"
            ) from None
        except OSError as error:
            raise AtlasError(f"{self.path}: cannot be written: {error.strerror}; check the permissions") from None
        whole = self._read()
        self._file = self.path.open("a")
        if not whole:
            self._file.write("\n")  # what follows must not join the line that was cut off
        self._write({"context": json.loads(self._context)})
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self._file.close()
        self._lock.release()

    def key(self, problem: Problem, candidate: Candidate, method: str) -> str:
        """The digest under which a measurement is kept; ``method`` is for instance ``screen 5``."""
        named = [
            self._context,
            problem.direction,
            problem.case.to_json(),
            candidate.variant,
            candidate.config,
            method,
        ]
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:32]

    def has(self, problem: Problem, candidate: Candidate, method: str) -> bool:
        """Whether :meth:`find` would find it."""
        return self.key(problem, candidate, method) in self._known

    def find(self, problem: Problem, candidate: Candidate, method: str) -> Outcome | None:
        """The finished measurement of this key, if there is one that still counts."""
        outcome = self._known.get(self.key(problem, candidate, method))
        self.reused += outcome is not None
        return outcome

    def add(self, problem: Problem, candidate: Candidate, method: str, outcome: Outcome) -> None:
        """Append a finished measurement."""
        key = self.key(problem, candidate, method)
        self._known[key] = outcome
        named = {"direction": problem.direction, **problem.case.to_json()}
        tried = {"variant": candidate.variant, "config": candidate.config, "method": method}
        entry = {"key": key, **named, **tried, **outcome.to_json()}
        if outcome.status == TIMEOUT:
            entry["timeout_seconds"] = self._timeout
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _read(self) -> bool:
        """Take in what is there; False where the last line lacks its end."""
        if not self.path.exists():
            return True
        text = self.path.read_text(errors="replace")
        for line in filter(None, text.split("\n")):
            try:
                entry = json.loads(line)
                if "context" not in entry and self._counts(entry):
                    self._known[entry["key"]] = Outcome.from_json(entry)
            except (ValueError, KeyError, TypeError):
                self.damaged += 1
        return not text or text.endswith("\n")

    def _counts(self, entry: Mapping[str, Any]) -> bool:
        # Memory may have been held by somebody else, so that is tried again.
        if entry["status"] == OUT_OF_MEMORY:
            return False
        return entry["status"] != TIMEOUT or entry["timeout_seconds"] >= self._timeout
