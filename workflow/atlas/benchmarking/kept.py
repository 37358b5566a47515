"""The rows of a benchmark's finished cases, in a file beside its document: a run that was cut off goes on from them.

A benchmark may take ten minutes, and a job that reaches its time limit would lose them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..results.pieces import Pieces
from ..results.subject import PassCase

Rows = list[dict[str, Any]]

_AGAIN = frozenset({"failed", "wrong", "suspect"})
"""Statuses of a row whose case is timed again: memory may have been held by somebody else."""


class Kept:
    """What was timed under ``context``, and holds for no other; what is kept of others goes with the first new line."""

    def __init__(self, path: Path, context: Mapping[str, Any], cases: Sequence[PassCase]):
        self._pieces, self._names = Pieces(path, context), [str(case) for case in cases]
        known = self._pieces.all()
        self.found = {number: known[name] for number, name in enumerate(self._names) if name in known}
        """The rows of each case that is done, by its number."""
        self._fresh = not self.found

    def add(self, number: int, rows: Rows) -> None:
        """Keep the rows of a case, if all are well; :class:`~atlas.errors.AtlasError` where they cannot be written."""
        if any(row["status"] in _AGAIN for row in rows):
            return
        if self._fresh:
            self.clear()
            self._fresh = False
        self._pieces.add(self._names[number], rows)

    def clear(self) -> None:
        """Forget them: the document has them all."""
        self._pieces.clear()
