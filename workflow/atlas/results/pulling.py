"""Somebody else's record, brought in as data: checked document by document, and put where its content says.

No name from outside becomes a path, nothing is executed or imported, and a record that is there is not lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import catalog
from ..errors import AtlasError
from ..host import gpus
from ..reading import strict
from . import documents, files, records
from .records import RecordResult
from .sources import opened

_NOT_RECORDED = ("predict", "cuda")
_PROOF = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_SURVEY, _PROOFS = "survey", "proof"


@dataclass(frozen=True)
class Wanted:
    """Documents of which GPUs (None: all), the host under which they go, and whether they go over what is there."""

    gpus: Sequence[str] | None = None
    host: str = ""
    force: bool = False


@dataclass
class _Group:
    """What goes together or not at all: the documents of a kernel, by stage; or a survey, or the proofs."""

    gpu: str
    name: str
    documents: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By name of the document where it is from, and what it holds."""


def pull(source: str, results: Path, blocks: Mapping[str, Mapping[str, Any]], wanted: Wanted) -> RecordResult:
    """Bring the documents of ``source`` to ``recorded/``; :mod:`.sources` says what that may be.

    A kernel comes whole or not at all.  It is refused where another record of it is there, unless ``force``: then that
    one goes to ``results/replaced/``.  Raises :class:`AtlasError` for a source that cannot be read or is hostile, for a
    document that does not fit its schema, and for a GPU without a block; then nothing is written.
    """
    groups = _groups(source, opened(source, results), blocks, wanted)
    outcome = RecordResult()
    for group in groups:
        folder = results / "recorded" / files.folder_of(group.gpu, wanted.host)
        target = folder if group.name == _SURVEY else folder / group.name
        if reason := _refusal(group, wanted):
            outcome.refused[target] = reason
            continue
        if _differs(group, target):
            if not wanted.force:
                outcome.refused[target] = (
                    "another record of it is there; --host LABEL keeps both, --force replaces it and keeps it in "
                    "results/replaced"
                )
                continue
            _set_aside(group, target, results)
        for _, document in group.documents.values():
            records.put(target, document, outcome)
    return outcome


def _groups(source: str, found: Iterable[tuple[str, bytes]], blocks: Mapping[str, Any], wanted: Wanted) -> list[_Group]:
    groups: dict[tuple[str, str], _Group] = {}
    for name, content in found:
        document = documents.parse(content, None, name)
        if document["stage"] in _NOT_RECORDED or (wanted.gpus is not None and document["gpu"] not in wanted.gpus):
            continue
        gpus.names_of([document["gpu"]], blocks, "gpu", name)
        key, own = _place(document, name)
        group = groups.setdefault((document["gpu"], key), _Group(document["gpu"], key))
        if own in group.documents:
            raise AtlasError(f"{name}: the same document as {group.documents[own][0]}; name a folder with one of them")
        group.documents[own] = name, document
    if not groups:
        raise AtlasError(f"{source}: no document of a record in it; name one that holds benchmark.json or its like")
    return [groups[key] for key in sorted(groups)]


def _place(document: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The group of a document, and its name there: words of its own that have been looked at."""
    if document["stage"] == "survey":
        return _SURVEY, "survey"
    if document["stage"] == "prove":
        if not _PROOF.fullmatch(document["proof"]):
            raise AtlasError(f"{name}: key 'proof' is {document['proof']!r}; a proof's name has small letters and -")
        return _PROOFS, document["proof"]
    if document["kernel"] is None:
        raise AtlasError(f"{name}: key 'kernel' is null in a document of stage {document['stage']}; name its kernel")
    return document["kernel"], document["stage"]


def _refusal(group: _Group, wanted: Wanted) -> str:
    """Why a group may not come in; ``""`` where it may."""
    if group.name not in (_SURVEY, _PROOFS) and group.name not in catalog.names():
        return f"no kernel {group.name!r} here; check out the code that it is of"
    for name, document in group.documents.values():
        if document["kind"] not in records.KINDS:
            return f"{name} is of kind {document['kind']}; only what a GPU ran is a record"
        if document["status"] != "ok" and document["stage"] != "prove" and not wanted.force:
            return f"{name} ended {document['status']}: {document['reason']}"
    return ""


def _differs(group: _Group, target: Path) -> bool:
    """Whether another record is there: of a kernel any other document, of a survey or a proof the same one."""
    whole = group.name not in (_SURVEY, _PROOFS)
    there = {files.name_of(path) for path in files.listed(target, "*")} if whole else set(group.documents)
    for own in there:
        path = files.found(target, own)
        if own not in group.documents and path.exists():
            return True
        try:
            if path.exists() and documents.load(path) != records.slim(group.documents[own][1]):
                return True
        except strict.Unreadable:  # damaged: whatever it was
            return True
    return False


def _set_aside(group: _Group, target: Path, results: Path) -> None:
    """Move what is there to ``results/replaced/``, under a name that is free."""
    whole = group.name not in (_SURVEY, _PROOFS)
    moved = [target] if whole else [path for own in group.documents if (path := files.found(target, own)).exists()]
    for path in moved:
        place = results / "replaced" / path.relative_to(results / "recorded")
        number = 1
        while place.with_name(f"{place.name}.{number}").exists():
            number += 1
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place.with_name(f"{place.name}.{number}"))
