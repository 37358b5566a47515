"""A record brought back to ``measured/``: the next run makes what has changed since, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from ..identity import today
from ..identity.kernel import CASES, PUBLIC, REFERENCES
from ..identity.needs import in_words
from . import collection, documents, files
from .collection import Entry

_VERSIONS = ("torch", "triton")

_VALIDATED = frozenset({CASES, PUBLIC, REFERENCES})
"""What may change and leave all but the validation true."""

_APART_NS = 10_000_000
"""Between the files of one stage and the next: more than the clocks of file systems leave out."""


@dataclass(frozen=True)
class Here:
    """What a run of this host would state: of ``device`` only what is known where the GPU itself is not here."""

    software: Mapping[str, Any]
    device: Mapping[str, Any]


@dataclass
class Restored:
    """Documents by kernel (None: the survey): written, measured here already, and left, each with the reason."""

    written: dict[str | None, list[str]] = field(default_factory=dict)
    there: dict[str | None, list[str]] = field(default_factory=dict)
    left: dict[str | None, dict[str, str]] = field(default_factory=dict)

    @property
    def kernels(self) -> list[str]:
        """All that the record has, in its order."""
        return [kernel for kernel in dict.fromkeys((*self.written, *self.there, *self.left)) if kernel is not None]


def restore(results: Path, gpu: str, here: Here, host: str = "", force: bool = False) -> Restored:
    """Write those documents of a record that a run of this host would not make anew.

    One is left where it is if the code of its kernel or its stage has changed since, or if it is of other versions,
    driver or device than ``here``; with ``force`` the kernel's code alone matters.  What was measured here stays.  What
    was restored before and is due by now goes again: Snakemake keeps no notes of files that it did not make, so it
    would not see that.  Files are as old, one to another, as after a run, which it goes by.

    Raises :class:`AtlasError` where the GPU has no such record.
    """
    folder = files.folder_of(gpu, host)
    entries = [entry for entry in collection.recorded(results, gpu) if entry.gpu == folder]
    if not entries:
        raise AtlasError(f"{results / 'recorded' / folder}: no record of {gpu}; `record check` lists what there is")
    restored, now = Restored(), time.time_ns()
    with today.held():
        for entry in entries:
            target = results / "measured" / gpu / (entry.kernel or "") / f"{entry.stage}{files.PLAIN}"
            elsewhere = [] if force else [*_elsewhere(entry.document, here)]
            reason = "; ".join([*_changes(entry, force), *elsewhere])
            if _measured_here(target, entry):
                restored.there.setdefault(entry.kernel, []).append(entry.stage)
                continue
            for old in (target, target.with_suffix(files.DUE)):
                old.unlink(missing_ok=True)
            if reason:
                restored.left.setdefault(entry.kernel, {})[entry.stage] = reason
            else:
                restored.written.setdefault(entry.kernel, []).append(entry.stage)
            if not reason or (_alone(entry) and not elsewhere):
                documents.write(target, dict(entry.document))
                moment = now - _APART_NS * (len(files.STAGES) - files.STAGES.index(entry.stage))
                os.utime(target, ns=(moment, moment))
                if reason:
                    documents.write_text(target.with_suffix(files.DUE), f"{reason}\n")
    return restored


def _alone(entry: Entry) -> bool:
    """Whether the document is a validation that alone is due: it comes back, with a file beside it that says so.

    Without it Snakemake would make all that waits for one.
    """
    return entry.stage == "validate" and _VALIDATED.issuperset(entry.changed)


def _measured_here(target: Path, entry: Entry) -> bool:
    """Whether there is a document that is not the record's own."""
    return target.exists() and documents.load(target) != entry.document


def _changes(entry: Entry, force: bool) -> Iterator[str]:
    """What of the code has changed since."""
    if entry.changed:
        yield f"{', '.join(map(in_words, entry.changed))} changed"
    elif not force and entry.document.get("code") not in (None, today.of_stage(entry.stage)):
        yield "the stage's own code changed"


def _elsewhere(stated: Mapping[str, Any], here: Here) -> Iterator[str]:
    """In what a document differs from one that this host would write."""
    for name in _VERSIONS:
        if stated["software"][name] != here.software[name]:
            yield f"of {name} {stated['software'][name]}, here {here.software[name]}"
    for name in ("device_name", "driver"):
        then, now = stated["device"].get(name), here.device.get(name)
        if None not in (then, now) and then != now:
            yield f"of {name.replace('_', ' ')} {then}, here {now}"
