"""Compare providers of one case: speed-up over the fastest peer, and whether the difference is decided."""

from __future__ import annotations

from typing import Any

APART = 0.005
"""Quartile intervals must be this far apart for a difference to count."""
TOO_FAST = 10.0
"""A variant this many times faster than the fastest peer is checked by a person before it is believed."""


def verdict(row: dict[str, Any], other: dict[str, Any]) -> str:
    """``faster``, ``slower``, ``same`` or ``undecided``: this row's times against another's.

    Decided where the quartile intervals are 0.5 % apart; ``same`` where they are not and the medians are within 0.5 %.
    """
    if row["q3_us"] * (1 + APART) < other["q1_us"]:
        return "faster"
    if other["q3_us"] * (1 + APART) < row["q1_us"]:
        return "slower"
    smaller, larger = sorted((row["median_us"], other["median_us"]))
    return "same" if larger <= smaller * (1 + APART) else "undecided"


def compare(rows: list[dict[str, Any]]) -> None:
    """Fill ``speedup`` and ``verdict`` of one case's rows, and mark variants that are too fast to be true.

    Beside a peer that is not ``queued`` any factor may be true: its figure holds what its launches take.
    """
    peers = [row for row in rows if row["provider_kind"] == "peer" and row["status"] == "ok"]
    if not peers:
        return
    fastest = min(peers, key=lambda row: row["median_us"])
    for row in rows:
        if row.get("median_us") is None:
            continue
        row["speedup"] = fastest["median_us"] / row["median_us"]
        row["verdict"] = None if row is fastest else verdict(row, fastest)
        if row["status"] == "ok" and row["speedup"] > TOO_FAST and fastest["queued"]:
            row["status"] = "suspect"
            row["reason"] = f"{row['speedup']:.3g} times faster than the fastest peer, {fastest['provider']}"
