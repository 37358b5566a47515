"""The file of calls: processes add to it what they counted, under a lock, each time as a whole.

``workflow/schemas/calls.schema.json`` is its form; :mod:`atlas.workload` reads it strictly.  A program that is watched
looks only whether it can add to what is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..reading import strict
from ..results.documents import write_text
from ..workload.problems import seconds

FORMAT = "kernel-atlas calls"
VERSION = 1
EVENTS = "cuda events"

_COUNTS = ("count", "backward", "captured", "failed")


class Foreign(ValueError):
    """What is there is no file of calls of this version; says which file, and what to do."""


def empty() -> dict[str, Any]:
    """A file in which nothing was counted."""
    return {
        "format": FORMAT, "version": VERSION, "programs": [], "processes": 0, "software": {}, "devices": [],
        "timed_by": None, "seconds": 0.0, "left_out": 0, "calls": [],
    }  # fmt: skip


def lock_of(path: Path) -> FileLock:
    """What a process holds while it adds to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def begun(path: Path) -> dict[str, Any]:
    """The file's content, that of an empty one where there is none; raises :class:`Foreign`."""
    try:
        found = strict.load_json(path)
    except FileNotFoundError:
        return empty()
    except strict.Unreadable as error:
        raise Foreign(f"{path}: {error}; move it away, or name another file of calls") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("calls"), list):
        raise Foreign(f"{path}: key 'format' is not {FORMAT!r}; name another file of calls")
    if found.get("version") != VERSION:
        raise Foreign(f"{path}: key 'version' is {found.get('version')!r}, this release writes {VERSION}; move it away")
    return found


def add(path: Path, part: Mapping[str, Any]) -> None:
    """Add what a process counted to the file; raises :class:`Foreign`, or AtlasError where it cannot be written."""
    with lock_of(path):
        write_text(path, json.dumps(merged(begun(path), part), indent=1, allow_nan=False) + "\n")


def merged(document: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Both together: counts and times add up, of equal calls and in them of equal runs."""
    found = empty() | dict(document)
    try:
        for key in ("programs", "devices"):
            found[key] = sorted({*found[key], *part[key]})
        for key in ("processes", "left_out"):
            found[key] += part[key]
        found["seconds"] = max(found["seconds"], part["seconds"])
        found["software"] = found["software"] | part["software"]
        found["timed_by"] = found["timed_by"] or part["timed_by"]
        found["calls"] = _shared(_together([*found["calls"], *part["calls"]]))
    except (KeyError, TypeError, AttributeError) as error:
        raise Foreign(f"what is there is no file of calls ({type(error).__name__}: {error}); move it away") from None
    return found


def _together(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for call in calls:
        key = json.dumps([call["function"], call["seen"], call["arguments"]])
        kind = kinds.setdefault(key, dict(call) | dict.fromkeys(_COUNTS, 0) | {"reason": "", "runs": []})
        for count in _COUNTS:
            kind[count] += call[count]
        kind["reason"] = call["reason"] or kind["reason"]
        kind["runs"] = _added([*kind["runs"], *call["runs"]])
    return list(kinds.values())


def _added(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for run in runs:
        what = {key: value for key, value in run.items() if key not in ("count", "timed", "timed_seconds")}
        kind = kinds.setdefault(json.dumps(what), what | {"count": 0, "timed": 0, "timed_seconds": 0.0})
        for count in ("count", "timed", "timed_seconds"):
            kind[count] += run[count]
    return list(kinds.values())


def _shared(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls with their share of the time of all, largest first; None of those that were not timed."""
    took = [_seconds(call) for call in calls]
    total = sum(one for one in took if one is not None)
    shares = [None if own is None or not total else round(own / total, 4) for own in took]
    shared = [call | {"share": share} for call, share in zip(calls, shares, strict=True)]
    return sorted(shared, key=lambda call: (-(call["share"] or 0.0), -call["count"]))


def _seconds(call: Mapping[str, Any]) -> float | None:
    found = [one for run in call["runs"] if not run.get("inside") and (one := seconds(run)) is not None]
    return sum(found) if found else None
