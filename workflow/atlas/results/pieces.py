"""A file of what a long run has finished, piece by piece: one that was cut off goes on from it.

It is nobody's declared output, so a workflow that removes a failed job's outputs leaves it alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import AtlasError, unwritable


class Pieces:
    """Finished pieces by name, one JSON object a line, each true of the ``context`` it carries; what was cut off costs
    itself."""

    def __init__(self, path: Path, context: Mapping[str, Any]):
        self._path, self._context = path, json.loads(json.dumps(context))
        self._known: dict[str, Any] = {}
        text = path.read_text(errors="replace") if path.exists() else ""
        self._cut_off = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            with contextlib.suppress(ValueError):  # cut off with the run that wrote it
                entry = json.loads(line)
                if entry["context"] == self._context:
                    self._known[entry["name"]] = entry["piece"]

    def all(self) -> dict[str, Any]:
        """Every piece by name, in the order in which they were made."""
        return dict(self._known)

    def add(self, name: str, piece: Any) -> None:
        """Keep a piece, which must be what JSON can hold; AtlasError where it cannot be written."""
        line = json.dumps({"context": self._context, "name": name, "piece": piece})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"\n{line}\n" if self._cut_off else f"{line}\n")
        except OSError as error:
            raise _refused(self._path, error) from None
        self._cut_off = False
        self._known[name] = json.loads(line)["piece"]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The piece of this name, made and kept where it is not there yet."""
        if name not in self._known:
            self.add(name, make())
        return self._known[name]

    def clear(self) -> None:
        """Remove the file, of whatever context its pieces are; AtlasError where it cannot be removed."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise _refused(self._path, error) from None
        self._known, self._cut_off = {}, False


def _refused(path: Path, error: OSError) -> AtlasError:
    return unwritable(path, error, "what was finished before is kept, and the next run goes on")
