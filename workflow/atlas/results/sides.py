"""The runs of a benchmark that are compared: documents out of files, folders and git commits."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from . import documents, files
from .collection import Entry

_NAME = "benchmark"
_RECORD = re.compile(r"(?:.*/)?recorded/(?P<gpu>[^/]+)/(?P<kernel>[^/]+)/benchmark\.json(?:\.xz)?")


@dataclass
class Side:
    """Runs by GPU and kernel, in the order in which they were named; ``name`` is how the user called them."""

    name: str
    runs: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> Side:
        """Take entries as further runs; a copy of one that is there (a record of it) is no second run."""
        for entry in entries:
            own = self.runs.setdefault((entry.gpu, entry.kernel or ""), [])
            if _date(entry) is None or _date(entry) not in map(_date, own):
                own.append(entry)
        return self


def of_path(path: Path) -> list[Entry]:
    """The benchmarks of a document, or of a folder: of what it measured, else of its records, else of all within.

    Records of other hosts than a GPU's first are no further runs of it: their own folder is to be named.

    Raises :class:`~atlas.errors.AtlasError` where there is none.
    """
    if path.is_file():
        return [_entry(documents.read(path, _NAME), str(path))]
    for folder in (path / "measured", path / "recorded", path):
        found = [
            one
            for one in files.listed(folder, f"**/{_NAME}")
            if folder.name != "recorded" or files.HOST not in one.relative_to(folder).parts[0]
        ]
        if found:
            return [_entry(documents.read(one, _NAME), str(one)) for one in found]
    raise AtlasError(f"{path}: no {_NAME}.json in this folder; name one that a benchmark wrote into with --results")


def is_commit(name: str) -> bool:
    """Whether git knows a commit of this name here."""
    return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") is not None


def of_commit(name: str) -> list[Entry]:
    """The benchmarks recorded at a commit, of each GPU's first host.

    Raises :class:`~atlas.errors.AtlasError` where there is none.
    """
    listed = _git("ls-tree", "-r", "--name-only", "--full-tree", name) or ""
    found = [(match["gpu"], path) for path in listed.splitlines() if (match := _RECORD.fullmatch(path))]
    paths = [path for gpu, path in found if files.HOST not in gpu]
    if not paths:
        raise AtlasError(f"commit {name}: no benchmark under results/recorded; name a commit that has records")
    return [_shown(name, path) for path in paths]


def history(kernels: Iterable[str], gpus: Iterable[str] | None) -> Iterator[tuple[str, Entry]]:
    """Every benchmark of these kernels ever recorded in the git history here, oldest first, with its commit.

    Documents whose identities alone were written anew count once, those of a form that is no longer read not at all.
    Raises :class:`~atlas.errors.AtlasError` outside a checkout.
    """
    if _git("rev-parse", "HEAD") is None:
        raise AtlasError("--history reads the git history of results/recorded: run it in a checkout, or name folders")
    wanted = None if gpus is None else set(gpus)
    for kernel in kernels:
        pattern = f":(top,glob)**/recorded/*/{kernel}/{_NAME}.json*"
        listed = _git("log", "--format=%h", "--reverse", "--", pattern) or ""
        seen: set[tuple[str, str | None]] = set()
        for commit in listed.split():
            paths = _git("ls-tree", "-r", "--name-only", "--full-tree", commit) or ""
            for path in paths.splitlines():
                match = _RECORD.fullmatch(path)
                if match is None or match["kernel"] != kernel:
                    continue
                gpu = match["gpu"]
                if wanted is not None and files.gpu_of(gpu) not in wanted:
                    continue
                with contextlib.suppress(documents.DocumentError):  # of a form that this release does not read
                    entry = replace(_shown(commit, path), gpu=gpu)
                    if (gpu, _date(entry)) not in seen:
                        seen.add((gpu, _date(entry)))
                        yield commit, entry


def same_runs(before: Iterable[Entry], after: Iterable[Entry]) -> bool:
    """Whether both are the same measurements: a record and its copy, or a record that no commit between changed."""
    dates = [{_date(entry) for entry in side} for side in (before, after)]
    return dates[0] == dates[1] and None not in dates[0]


def _shown(commit: str, path: str) -> Entry:
    """A document as it was at a commit."""
    name = f"{commit}:{path}"
    return _entry(documents.parse(_git_bytes("show", name) or b"", _NAME, name), name)


def _entry(document: dict[str, Any], name: str) -> Entry:
    if document["kind"] != "measured":
        raise AtlasError(f"{name}: of kind {document['kind']}: the interpreter's times are no speeds; name a GPU's run")
    return Entry(document["gpu"], document["kernel"], "benchmark", document, document["kind"], Path(name))


def _date(entry: Entry) -> str | None:
    return entry.document["software"].get("date")


def _git(*words: str) -> str | None:
    """What git says in the working folder; None where it fails, or is not there."""
    said = _git_bytes(*words)
    return None if said is None else said.decode(errors="replace")


def _git_bytes(*words: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
