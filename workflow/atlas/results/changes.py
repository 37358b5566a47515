"""Did a change make a kernel slower?  Two sides, case by case: runs before and after, or a run and its GPU's record.

Two runs differ by more than the kernel: another process, day, board or driver.  The peers are the control, since they
ran in both and nobody changed them here.  The rule is that of :mod:`.differences`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .differences import difference
from .stacks import differing
from .subject import PassCase
from .summary import times

Rows = list[Mapping[str, Any]]
"""The same work in each run of a side."""


def against_record(pairs: Iterable[tuple[Any, Any]]) -> Iterator[dict[str, Any]]:
    """A row per case that a measured benchmark and the record of its GPU and kernel both timed.

    ``pairs`` are of :func:`atlas.results.collection.measured_and_recorded`.  The rows are those of :func:`compared`,
    with ``recorded_`` in place of ``before_``.
    """
    for measured, recorded in pairs:
        for row in compared([recorded], [measured]):
            yield {key.replace("before_", "recorded_"): value for key, value in row.items()}


def compared(before: Sequence[Any], after: Sequence[Any], every: bool = False) -> Iterator[dict[str, Any]]:
    """A row per case that all runs of both sides timed: fastest variant against fastest variant.

    ``before`` and ``after`` are entries of the collection, a run each, of one kernel and GPU.  Each variant is compared
    with itself instead where ``every`` is true.  Keys: ``kernel gpu direction dtype sizes``; of each side ``provider
    config median_us`` (the median of its runs) and the same with ``before_``; ``runs before_runs``; ``step low high
    peer_step verdict reason`` of :class:`~atlas.results.differences.Difference`; ``software`` (what of torch and Triton
    differs); ``same_source`` (both ran the same variant of the same code), ``date``, ``before_date``.
    """
    first, older = after[0], before[0]
    sides = [_variants(side) for side in (before, after)]
    peers = [_variants(side, "peer") for side in (before, after)]
    protocols = {entry.document["protocol"] for entry in (*before, *after)}
    for at, now in sides[1].items():
        then = sides[0].get(at, {})
        mine, theirs = (found.get(at, {}) for found in (peers[1], peers[0]))
        controls = [(_medians(theirs[name]), _medians(mine[name])) for name in mine if name in theirs]
        for old, new in _pairs(then, now, every):
            found = difference(then[old], now[new], controls)
            known = len(protocols) == 1
            yield {
                "kernel": first.kernel,
                "gpu": first.gpu,
                **at.to_json(),
                **_side(new, now[new]),
                **{f"before_{key}": value for key, value in _side(old, then[old]).items()},
                "step": found.step,
                "low": found.low,
                "high": found.high,
                "peer_step": found.peer_step,
                "verdict": found.verdict if known else "undecided",
                "reason": found.reason if known else f"timed by {' and '.join(sorted(protocols))}",
                "software": differing(older.document, first.document),
                "same_source": new == old and len({e.identity(at.direction, new) for e in (*before, *after)}) == 1,
                "date": first.document["software"].get("date"),
                "before_date": older.document["software"].get("date"),
            }


def _variants(runs: Sequence[Any], kind: str = "variant") -> dict[PassCase, dict[str, Rows]]:
    """By case, and by variant or peer, the rows of all runs; those that one of the runs did not time are left out."""
    believed = ("ok", "suspect") if kind == "variant" else ("ok",)
    found: dict[PassCase, dict[str, Rows]] = {}
    for number, run in enumerate(runs):
        for row in run.document["rows"]:
            if row["provider_kind"] == kind and row["status"] in believed and row.get("median_us"):
                rows = found.setdefault(PassCase.of(row), {}).setdefault(row["provider"], [])
                if len(rows) == number:
                    rows.append(row)
    whole = {at: {name: rows for name, rows in own.items() if len(rows) == len(runs)} for at, own in found.items()}
    return {at: own for at, own in whole.items() if own}


def _pairs(before: Mapping[str, Rows], after: Mapping[str, Rows], every: bool) -> list[tuple[str, str]]:
    """Which variant of before is set against which of after."""
    if every or not before:
        return [(name, name) for name in after if name in before]
    fastest = [min(side, key=lambda name: statistics.median(_medians(side[name]))) for side in (before, after)]
    return [(fastest[0], fastest[1])]


def _side(name: str, rows: Rows) -> dict[str, Any]:
    return {
        "provider": name,
        "config": rows[0]["config"],
        "median_us": statistics.median(_medians(rows)),
        "runs": len(rows),
    }


def _medians(rows: Rows) -> list[float]:
    return [row["median_us"] for row in rows]


def sentences(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each kernel and GPU: how many cases came out slower, the worst of them, and how many faster."""
    return [sentence(kernel, gpu, own) for (kernel, gpu), own in by_kernel(rows).items()]


def by_kernel(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """The rows of each kernel and GPU, sorted by both."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["kernel"], row["gpu"]), []).append(row)
    return dict(sorted(groups.items()))


def sentence(kernel: str, gpu: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """``softmax on h200 against its record of 2026-11-20: 2 of 16 cases slower (0.81x at worst: …), 1 faster.``"""
    slower = sorted((row for row in rows if row["verdict"] == "slower"), key=lambda row: row["step"])
    faster = sum(row["verdict"] == "faster" for row in rows)
    undecided = sum(row["verdict"] == "undecided" for row in rows)
    worst = ""
    if slower:
        first = slower[0]
        worst = f" ({times(first['step'])} at worst: {PassCase.of(first)})"
    parts = [f"{len(slower)} of {len(rows)} cases slower{worst}", f"{faster} faster"]
    parts += [f"{undecided} undecided"] if undecided else []
    source = ", its variants are the same" if all(row["same_source"] for row in rows) else ""
    source += f", {rows[0]['software']}" if rows[0]["software"] else ""
    return (
        f"{kernel} on {gpu} against its record of {(rows[0]['recorded_date'] or '?')[:10]}{source}: {', '.join(parts)}."
    )
