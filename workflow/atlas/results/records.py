"""Records: a GPU's measured documents, slimmed and packed into ``results/recorded/<gpu>/`` to travel by git."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from ..identity.needs import in_words
from ..reading import strict
from . import collection, documents, files, packed
from .collection import Entry

KINDS = ("measured", "compiled")
"""Of documents that may be recorded."""
MOST_BYTES = 2 * 2**20
"""Of one GPU's records: they stay in git's history for ever."""

_PROVENANCE = ("torch", "triton", "date")
"""What a record says beside its schema's version, its device, and the identities of its code; a host without git knows
no commit."""

_SAMPLE_DIGITS, _DIGITS = 4, 7
"""Significant digits kept of raw samples, which show a distribution's shape, and of every other number."""

_DIGESTS, _DIGEST_CHARACTERS = ("ptx_sha256", "binary_sha256"), 16
"""Of what was compiled, and how much of each is kept: whole they were most of what a build's record weighs."""


@dataclass
class RecordResult:
    """What one ``record`` did: files written, with their sizes; files that were so already; refusals, with reasons.

    ``devices`` are facts in which a record that was replaced differs: it may be another host's.
    """

    written: dict[Path, int] = field(default_factory=dict)
    unchanged: list[Path] = field(default_factory=list)
    refused: dict[Path, str] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)


def record(results: Path, gpu: str, force: bool = False, host: str = "") -> RecordResult:
    """Copy the measured documents of ``gpu``, the survey first, from ``measured/`` to ``recorded/``.

    A kernel travels whole or not at all: if one of its documents is not ok or does not say where it is from, or
    something in the kernel that it depends on has changed since, none is copied unless ``force``.  A record that is
    copied anew loses the documents that are no longer measured.  Proofs are copied whatever they came to.  A ``host``
    that is named has a record of its own.

    Raises :class:`AtlasError` where nothing was measured, and for documents of the interpreter.
    """
    measured = [e for e in collection.collect(results, gpus=[gpu]) if e.path.is_relative_to(results / "measured")]
    proofs = [
        entry
        for entry in collection.proofs(results, gpus=[gpu])
        if entry.path.is_relative_to(results / "measured") and entry.kind == "measured"
    ]
    if not any(entry.kind == "measured" for entry in (*measured, *proofs)):
        raise AtlasError(
            f"{results / 'measured' / gpu}: no measured documents; records hold what GPU {gpu!r} itself ran, "
            "so run the workflow where that GPU is"
        )
    outcome = RecordResult()
    target = results / "recorded" / files.folder_of(gpu, host)
    groups: dict[str | None, list[Entry]] = {}
    for entry in measured:
        if not _passed_over(entry):
            groups.setdefault(entry.kernel, []).append(entry)
    for kernel, entries in groups.items():
        reasons = {} if force else _reasons(entries)
        if reasons:
            outcome.refused |= reasons
            continue
        folder = target / (kernel or "")
        if kernel is not None and folder.exists():
            _drop(folder, {files.name_of(entry.path) for entry in entries})
        for entry in entries:
            put(folder, entry.document, outcome)
    for entry in proofs:
        put(target / "proof", entry.document, outcome)
    return outcome


def _passed_over(entry: Entry) -> bool:
    """A document of what this host does not let anybody read: counters, energy."""
    return entry.stage in ("profile", "energy") and entry.document["status"] == "skipped"


def _reasons(entries: Iterable[Entry]) -> dict[Path, str]:
    """Why documents may not be recorded; empty where all may."""
    found = {}
    for entry in entries:
        if entry.kind not in KINDS:
            found[entry.path] = f"is of kind {entry.kind}; only what a GPU ran is recorded"
        elif entry.document["status"] != "ok":
            found[entry.path] = f"ended {entry.document['status']}: {entry.document['reason']}"
        elif entry.stale:
            what = ", ".join(map(in_words, entry.changed))
            found[entry.path] = f"is of another version of {entry.kernel} than today's ({what}); run it again"
        elif lacking := [key for key in _PROVENANCE if entry.document["software"].get(key) is None]:
            found[entry.path] = f"does not say its {', '.join(lacking)}; run it again"
    kinds = {entry.kind for entry in entries}
    if not found and "measured" not in kinds:
        found = {entry.path: "is a build alone: nothing of this kernel ran on the GPU" for entry in entries}
    return found


def _drop(folder: Path, keep: set[str]) -> None:
    for path in folder.iterdir():
        if files.name_of(path) not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def size(folder: Path) -> int:
    """Bytes of all that a GPU's folder of records holds."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def put(folder: Path, document: Mapping[str, Any], outcome: RecordResult) -> None:
    """Slim a document and pack it into a folder, where it is not there as it is; a plain file of it goes.

    What was packed is read back and compared before the file is written.
    """
    name = document["proof"] if document["stage"] == "prove" else document["stage"]
    slimmed = slim(document)
    documents.check(slimmed, slimmed["stage"], str(folder / name))
    target, plain = folder / f"{name}{files.PACKED}", folder / f"{name}{files.PLAIN}"
    before = _there(files.found(folder, name))
    if target.exists() and before is not None and text_of(before) == text_of(slimmed):
        outcome.unchanged.append(target)
    else:
        outcome.devices |= dict.fromkeys(_differing((before or {}).get("device") or {}, slimmed["device"]))
        outcome.written[target] = write(target, slimmed)
    plain.unlink(missing_ok=True)


def _there(path: Path) -> dict[str, Any] | None:
    """A record that is there; None of one that is damaged, or is no document: it is written anew."""
    with contextlib.suppress(strict.Unreadable, FileNotFoundError):
        found = documents.load(path)
        return found if isinstance(found, dict) else None
    return None


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``driver 580.95 before, now 590.1``: facts of a device that are told in both and differ."""
    shared = [key for key in after if before.get(key) is not None and after[key] is not None]
    return [f"{key} {before[key]} before, now {after[key]}" for key in shared if before[key] != after[key]]


def write(path: Path, document: Mapping[str, Any]) -> int:
    """Pack a document into a file, once what was packed reads back as it was; its size."""
    content = packed.pack(document)
    if text_of(packed.unpack(content)) != text_of(document):
        raise RuntimeError(f"{path}: what was packed does not read back as it was")
    documents.write_bytes(path, content)
    return len(content)


def pack(folder: Path) -> dict[Path, tuple[int, int]]:
    """Pack the plain files of a folder of records, documents and journals, and remove them; sizes before and after.

    Nothing is rounded or left out.  Raises :class:`AtlasError` for a file that cannot be read, or is no such document.
    """
    found = {}
    for path in sorted(folder.glob(f"**/*{files.PLAIN}")):
        document = documents.parse(path.read_bytes(), None, str(path))
        target = path.with_name(path.name + ".xz")
        found[target] = path.stat().st_size, write(target, document)
        path.unlink()
    for path in sorted(folder.glob("**/*.jsonl")):
        before, content = path.read_bytes(), packed.pack_lines(path.read_text())
        target = path.with_name(path.name + ".xz")
        if packed.unpack_lines(content) != before:
            raise AtlasError(f"{path}: its lines are not as a journal writes them; record it as the tuner left it")
        documents.write_bytes(target, content)
        found[target] = len(before), len(content)
        path.unlink()
    return found


def slim(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document, numbers rounded to what was measured and digests of binaries cut; the same gives the same."""
    return _rounded(dict(document), _DIGITS)


def text_of(document: Mapping[str, Any]) -> str:
    """The document as JSON with a line per key, and per row in a list of rows: readable, and in a diff."""
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


def _kept(key: str, value: Any, digits: int) -> Any:
    """A value as the record of its document has it."""
    if key in _DIGESTS and isinstance(value, str):
        return value[:_DIGEST_CHARACTERS]
    return _rounded(value, _SAMPLE_DIGITS if key == "samples_us" else digits)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float) and not value.is_integer():  # bytes and flops are whole, and exact
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _kept(key, item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return value
