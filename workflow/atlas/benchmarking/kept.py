"""The rows of a benchmark's finished cases, in a file beside its document: a run that was cut off goes on from them.

A benchmark may take ten minutes, and a job that reaches its time limit would lose them.  One JSON object a line: the
digest of all that a row depends on, the pass and the case, and the rows.  A line that was cut off costs itself.  The
file is nobody's declared output, so a workflow that removes a failed job's outputs leaves it alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import unwritable
from ..results.subject import PassCase

Rows = list[dict[str, Any]]

_AGAIN = frozenset({"failed", "wrong", "suspect"})
"""Statuses of a row whose case is timed again: memory may have been held by somebody else."""


class Kept:
    """What was timed under ``context``, and holds for no other; what is kept of others goes with the first new line."""

    def __init__(self, path: Path, context: Mapping[str, Any], cases: Sequence[PassCase]):
        self._path = path
        self._context = hashlib.sha256(json.dumps(context, sort_keys=True).encode()).hexdigest()[:32]
        self._cases = [case.to_json() for case in cases]
        self.found = self._read()
        """The rows of each case that is done, by its number."""
        self._fresh = not self.found

    def _read(self) -> dict[int, Rows]:
        found: dict[int, Rows] = {}
        if not self._path.exists():
            return found
        for line in self._path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off, or of something else
                entry = json.loads(line)
                if entry["context"] == self._context:
                    found[self._cases.index(entry["case"])] = entry["rows"]
        return found

    def add(self, number: int, rows: Rows) -> None:
        """Keep the rows of a case, if all are well; :class:`~atlas.errors.AtlasError` where they cannot be written."""
        if any(row["status"] in _AGAIN for row in rows):
            return
        line = json.dumps({"context": self._context, "case": self._cases[number], "rows": rows})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("w" if self._fresh else "a") as file:
                file.write(f"\n{line}\n")  # behind a line that was cut off
        except OSError as error:
            raise unwritable(self._path, error, "the cases before it are kept, and the next run goes on") from None
        self._fresh = False

    def clear(self) -> None:
        """Forget them: the document has them all."""
        self._path.unlink(missing_ok=True)
