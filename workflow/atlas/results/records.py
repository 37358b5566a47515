"""Records: a GPU's measured documents, slimmed and copied to ``results/recorded/<gpu>/`` to travel by git."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from ..identity.needs import in_words
from . import collection, documents
from .collection import Entry

_KINDS = ("measured", "compiled")
_SAMPLE_DIGITS, _DIGITS = 4, 7
"""Significant digits kept of raw samples, which show a distribution's shape, and of every other number."""


@dataclass
class RecordResult:
    """What one ``record`` did: files written, with their sizes; files that were so already; refusals, with reasons."""

    written: dict[Path, int] = field(default_factory=dict)
    unchanged: list[Path] = field(default_factory=list)
    refused: dict[Path, str] = field(default_factory=dict)


def record(results: Path, gpu: str, force: bool = False) -> RecordResult:
    """Copy the measured documents of ``gpu``, the survey first, from ``measured/`` to ``recorded/``.

    A kernel travels whole or not at all: if one of its documents is not ok, or something in the kernel that it depends
    on has changed since, none is copied unless ``force``.  A record that is copied anew loses the documents that are no
    longer measured.  Proofs are copied whatever they came to.  Raises :class:`AtlasError` where nothing was measured,
    and for documents of the interpreter.
    """
    measured = [e for e in collection.collect(results, gpus=[gpu]) if e.path.is_relative_to(results / "measured")]
    if not any(entry.kind == "measured" for entry in measured):
        raise AtlasError(
            f"{results / 'measured' / gpu}: no measured documents; records hold what GPU {gpu!r} itself ran, "
            "so run the workflow where that GPU is"
        )
    outcome = RecordResult()
    groups: dict[str | None, list[Entry]] = {}
    for entry in measured:
        if not _passed_over(entry):
            groups.setdefault(entry.kernel, []).append(entry)
    for kernel, entries in groups.items():
        reasons = {} if force else _reasons(entries)
        if reasons:
            outcome.refused |= reasons
            continue
        folder = results / "recorded" / gpu / (kernel or "")
        if kernel is not None and folder.exists():
            _drop(folder, {entry.path.name for entry in entries})
        for entry in entries:
            _copy(entry, folder / entry.path.name, outcome)
    for entry in collection.proofs(results, gpus=[gpu]):
        if entry.kind == "measured":
            _copy(entry, results / "recorded" / gpu / "proof" / entry.path.name, outcome)
    return outcome


def _passed_over(entry: Entry) -> bool:
    """A document of what this host does not let anybody read: counters, energy."""
    return entry.stage in ("profile", "energy") and entry.document["status"] == "skipped"


def _reasons(entries: Iterable[Entry]) -> dict[Path, str]:
    """Why documents may not be recorded; empty where all may."""
    found = {}
    for entry in entries:
        if entry.kind not in _KINDS:
            found[entry.path] = f"is of kind {entry.kind}; only what a GPU ran is recorded"
        elif entry.document["status"] != "ok":
            found[entry.path] = f"ended {entry.document['status']}: {entry.document['reason']}"
        elif entry.stale:
            what = ", ".join(map(in_words, entry.changed))
            found[entry.path] = f"is of another version of {entry.kernel} than today's ({what}); run it again"
    kinds = {entry.kind for entry in entries}
    if not found and "measured" not in kinds:
        found = {entry.path: "is a build alone: nothing of this kernel ran on the GPU" for entry in entries}
    return found


def _drop(folder: Path, keep: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _copy(entry: Entry, target: Path, outcome: RecordResult) -> None:
    before = target.read_bytes() if target.exists() else None
    slimmed = slim(entry.document)
    documents.check(slimmed, entry.stage, str(entry.path))
    documents.write_text(target, text_of(slimmed))
    if target.read_bytes() == before:
        outcome.unchanged.append(target)
    else:
        outcome.written[target] = target.stat().st_size


def slim(document: Any) -> dict[str, Any]:
    """The document with its numbers rounded to what was measured; nothing is left out, and the same gives the same."""
    return _rounded(dict(document), _DIGITS)


def text_of(document: dict[str, Any]) -> str:
    """The document as JSON with a line per key, and per row in a list of rows: small, and readable in a diff."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            text = "[\n" + ",\n".join(f"  {_compact(item)}" for item in value) + "\n ]"
        else:
            text = _compact(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float) and not value.is_integer():  # bytes and flops are whole, and exact
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _rounded(item, _SAMPLE_DIGITS if key == "samples_us" else digits) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return value
