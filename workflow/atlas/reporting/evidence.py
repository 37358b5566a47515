"""What was proved of the measuring itself, and on which GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..results.collection import Entry
from .grid import DASH, Cell, Grid, badge, text


def proof_table(proofs: Sequence[Entry]) -> Grid:
    """A row for each claim, with what was found beside its limit; a proof without claims says why."""
    return Grid(
        "proofs",
        ("proof", "GPU", "kind", "claim", "found", "limit", "outcome", "date"),
        [row for entry in proofs for row in _rows(entry)],
        empty="Nothing was proved: `python -m proofs` tries the measuring core on the GPU at hand.",
        caption="What each proof does, and what it does not show: docs/proving.md.",
    )


def _rows(entry: Entry) -> list[list[Cell]]:
    document = entry.document
    date = (document["software"].get("date") or DASH)[:10]
    head = [text(document["proof"], style="name"), text(entry.gpu, style="name"), badge("kind", label=entry.kind)]
    if not document["claims"]:
        return [[*head, text(document["reason"]), text(None), text(None), badge("failed"), text(date)]]
    return [
        [
            *head,
            text(claim["text"]),
            text(_figure(claim["found"])),
            text(_limit(claim)),
            badge("ok", label="holds") if claim["holds"] else badge("wrong", label="does not hold"),
            text(date),
        ]
        for claim in document["claims"]
    ]


def _limit(claim: Mapping[str, Any]) -> str | None:
    """The limit with its sense, which the document's outcome tells: ``at most 3``, ``at least 0.8``."""
    found, limit = claim["found"], claim["limit"]
    numbers = all(isinstance(value, int | float) for value in (found, limit))
    if not numbers or found == limit:
        return _figure(limit)
    return f"at {'most' if (found < limit) == claim['holds'] else 'least'} {_figure(limit)}"


def _figure(value: float | str | None) -> str | None:
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
