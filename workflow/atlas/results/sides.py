"""The runs of a benchmark that are compared: documents out of files, folders and git commits."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import AtlasError
from . import documents
from .collection import Entry

_NAME = "benchmark.json"
_RECORD = re.compile(r"(?:.*/)?recorded/[^/]+/[^/]+/benchmark\.json")


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

    Raises :class:`~atlas.errors.AtlasError` where there is none.
    """
    if path.is_file():
        return [_entry(path, str(path))]
    for folder in (path / "measured", path / "recorded", path):
        found = sorted(folder.glob(f"**/{_NAME}"))
        if found:
            return [_entry(one, str(one)) for one in found]
    raise AtlasError(f"{path}: no {_NAME} in this folder; name one that a benchmark wrote into with --results")


def is_commit(name: str) -> bool:
    """Whether git knows a commit of this name here."""
    return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") is not None


def of_commit(name: str) -> list[Entry]:
    """The benchmarks recorded at a commit.  Raises :class:`~atlas.errors.AtlasError` where there is none."""
    listed = _git("ls-tree", "-r", "--name-only", "--full-tree", name) or ""
    paths = [path for path in listed.splitlines() if _RECORD.fullmatch(path)]
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
        listed = _git("log", "--format=%h", "--reverse", "--", f":(top,glob)**/recorded/*/{kernel}/{_NAME}") or ""
        seen: set[tuple[str, str | None]] = set()
        for commit in listed.split():
            paths = _git("ls-tree", "-r", "--name-only", "--full-tree", commit) or ""
            for path in paths.splitlines():
                gpu, named = path.split("/")[-3:-1] if _RECORD.fullmatch(path) else ("", "")
                if named == kernel and (wanted is None or gpu in wanted):
                    with contextlib.suppress(documents.DocumentError):  # of a form that this release does not read
                        entry = _shown(commit, path)
                        if (gpu, _date(entry)) not in seen:
                            seen.add((gpu, _date(entry)))
                            yield commit, entry


def same_runs(before: Iterable[Entry], after: Iterable[Entry]) -> bool:
    """Whether both are the same measurements: a record and its copy, or a record that no commit between changed."""
    dates = [{_date(entry) for entry in side} for side in (before, after)]
    return dates[0] == dates[1] and None not in dates[0]


def _shown(commit: str, path: str) -> Entry:
    """A document as it was at a commit."""
    text = _git("show", f"{commit}:{path}")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text or "")
        file.flush()
        try:
            return _entry(Path(file.name), f"{commit}:{path}")
        except documents.DocumentError as error:
            raise documents.DocumentError(str(error).replace(file.name, f"{commit}:{path}")) from None


def _entry(path: Path, name: str) -> Entry:
    document = documents.read(path, "benchmark")
    if document["kind"] != "measured":
        raise AtlasError(f"{name}: of kind {document['kind']}: the interpreter's times are no speeds; name a GPU's run")
    return Entry(document["gpu"], document["kernel"], "benchmark", document, document["kind"], Path(name))


def _date(entry: Entry) -> str | None:
    return entry.document["software"].get("date")


def _git(*words: str) -> str | None:
    """What git says in the working folder; None where it fails, or is not there."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
