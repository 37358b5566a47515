"""Which autotune documents, and which of their best configs, go into ``kernels/tuned/<gpu>.json``."""

from __future__ import annotations

from collections.abc import Iterable

from ..results.collection import Entry

KINDS = ("measured", "recorded")
"""Only what a GPU ran says which config is fast."""


def exportable(entries: Iterable[Entry]) -> list[Entry]:
    """The autotune documents that a real GPU wrote and that ended ok, sorted by kernel."""
    chosen = [e for e in entries if e.stage == "autotune" and e.kind in KINDS and e.document["status"] == "ok"]
    return sorted(chosen, key=lambda entry: entry.kernel or "")


def left_out(entry: Entry) -> str:
    """Which of a document's best configs are not exported, why and what to do; ``""`` where all are."""
    bests = entry.document["best"]
    count = sum(not best.get("certificate") for best in bests)
    if not count:
        return ""
    return (
        f"{count} of {len(bests)} cases of {entry.kernel} have no certificate that their config validates for its "
        f"dtype; run it again: python -m atlas autotune {entry.kernel} --gpu {entry.gpu}"
    )
