"""What a benchmark's rows amount to: the document's status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def outcome(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """``status`` and ``reason`` of the document: the worst of the variants' rows, with the first that has it.

    Peers that are wrong, fail or are missing concern nobody but their own row; but one that is faster than the
    hardware allows shows that the yardstick is wrong, so ``suspect`` counts whoever it is.
    """
    ranked = {"wrong": [], "failed": [], "suspect": []}
    for row in rows:
        if row["status"] in ranked and (row["provider_kind"] != "peer" or row["status"] == "suspect"):
            ranked[row["status"]].append(row)
    for status, found in ranked.items():
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return {"status": status, "reason": f"{_name(found[0])}: {found[0]['reason']}{more}"}
    return {"status": "ok", "reason": ""}


def _name(row: Mapping[str, Any]) -> str:
    sizes = " ".join(f"{name}={value}" for name, value in row["sizes"].items())
    kind = {"variant": "tuned", "default": "untuned", "peer": "peer"}[row["provider_kind"]]
    return f"{kind} {row['provider']} {row['direction']} {sizes} {row['dtype']}"
