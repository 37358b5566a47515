"""What a long proof has measured so far, so that one that was cut off goes on instead of starting again."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atlas import catalog
from atlas.stages import frame


def context(job: frame.Job, kernel: str) -> dict[str, Any]:
    """What a piece holds for: another kernel file, GPU or version measures anew."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
    return {"kernel_digest": catalog.digest(kernel), "gpu": job.gpu_name, **versions}


class Pieces:
    """A file of finished pieces, one JSON object a line, each true of the ``context`` it carries."""

    def __init__(self, path: Path, context: Mapping[str, Any]):
        self._path, self._context = path, dict(context)
        self._known: dict[str, Any] = {}
        text = path.read_text() if path.exists() else ""
        self._cut_off = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # cut off with the run that wrote it
                continue
            if entry["context"] == self._context:
                self._known[entry["name"]] = entry["piece"]

    def all(self) -> dict[str, Any]:
        """Every piece by name, in the order in which they were made."""
        return dict(self._known)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The piece of this name, made and kept where it is not there yet; it must be what JSON can hold."""
        if name not in self._known:
            piece = make()
            line = json.dumps({"context": self._context, "name": name, "piece": piece})
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"\n{line}\n" if self._cut_off else f"{line}\n")
            self._cut_off = False
            self._known[name] = json.loads(line)["piece"]
        return self._known[name]
