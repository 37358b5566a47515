"""Software stacks: which torch and Triton a document is of, so that views never take two of them for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .collection import Entry

_SHOWN = {"triton": "Triton", "torch": "torch"}
_TIMED = ("survey", "autotune", "sample", "benchmark", "beyond", "profile", "energy")


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What of two documents' software differs: ``Triton 3.2.0 to 3.7.1``; empty where nothing does."""
    pairs = [(words, *(one["software"].get(name) for one in (before, after))) for name, words in _SHOWN.items()]
    return ", ".join(f"{words} {old} to {new}" for words, old, new in pairs if old != new)


def told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, those of another stack than their GPU's under a name that says so: ``t4 (Triton 3.2.0)``.

    A GPU's stack is that of what was timed on it last.  Views group by the name, so nothing is averaged or compared
    across stacks.  A build or a validation goes with what was timed of its kernel, and is told apart by its own stack.
    """
    last: dict[str, Entry] = {}
    others: set[tuple[str, str | None]] = set()
    timed = [entry for entry in entries if entry.stage in _TIMED and entry.kind in ("measured", "recorded")]
    for entry in sorted(timed, key=lambda entry: entry.document["software"].get("date") or ""):
        last[entry.gpu] = entry
    for entry in timed:
        if _stack(entry) != _stack(last[entry.gpu]):
            others.add((entry.gpu, entry.kernel))
    return [
        dataclasses.replace(entry, gpu=_named(entry, last[entry.gpu]))
        if (entry.gpu, entry.kernel) in others and _stack(entry) != _stack(last[entry.gpu])
        else entry
        for entry in entries
    ]


def _stack(entry: Entry) -> tuple[str | None, ...]:
    return tuple(entry.document["software"].get(name) for name in _SHOWN)


def _named(entry: Entry, usual: Entry) -> str:
    own, others = entry.document["software"], usual.document["software"]
    parts = [f"{words} {own.get(name)}" for name, words in _SHOWN.items() if own.get(name) != others.get(name)]
    return f"{entry.gpu} ({', '.join(parts)})"
