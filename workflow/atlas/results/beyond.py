"""What a document of the stage beyond comes to: calls of a public function beside the fastest peer of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import collection
from .subject import label

if TYPE_CHECKING:
    from ..declaration import Case

OURS = "public"
"""The provider that is the kernel's public function."""


def outcome(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Status and reason of a document: ``wrong`` where a result is, ``failed`` where a call did."""
    for status in ("wrong", "failed"):
        found = [row for row in rows if row["provider"] == OURS and row["status"] == status]
        if found:
            more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
            return {"status": status, "reason": f"{_named(found[0])}: {found[0]['reason']}{more}"}
    return {}


def sampled(results: Path, kernel: str, gpu: str) -> list[Case]:
    """The cases that the tuner saw beside the sweep, measured here or recorded: they are no longer unseen."""
    from ..declaration import Case

    found = collection.collect(results, [kernel], [gpu])
    return [Case.from_json(trial) for entry in found if entry.stage == "sample" for trial in entry.document["trials"]]


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['mode']} {label(row['sizes'])} {row['dtype']}"


def against_peers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each call our row with ``peer``, the fastest one's name, ``peer_us``, and ``ratio``, its time over ours.

    None where there is no such time.
    """
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        calls.setdefault(json.dumps([row["mode"], row["dtype"], row["sizes"]]), []).append(row)
    found = []
    for own in calls.values():
        ours = next((row for row in own if row["provider"] == OURS), None)
        if ours is None:
            continue
        timed = {
            row["provider"]: row["median_us"]
            for row in own
            if row is not ours and row["status"] == "ok" and row.get("median_us")
        }
        peer = min(timed, key=timed.__getitem__, default=None)
        us = ours.get("median_us") if ours["status"] == "ok" else None
        peer_us = timed.get(peer)
        found.append(dict(ours) | {"peer": peer, "peer_us": peer_us, "ratio": peer_us / us if us and peer_us else None})
    return found
