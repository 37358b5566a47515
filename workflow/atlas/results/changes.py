"""Did a change make a kernel slower?  What was measured here against the record of the same GPU, case by case.

Two runs differ by more than the kernel: another day, board or driver.  The peers are the control, since they ran in
both and nobody changed them here.  So a case is ``slower`` (or ``faster``) only where its fastest variant is beyond the
margin against its own recorded time, and beyond it, too, after the peers' own difference is divided out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .subject import PassCase
from .summary import times
from .verdict import best_of_each_case, geometric_mean

SHORT_US = 20.0
MARGIN, SHORT_MARGIN = 0.02, 0.10
"""How far two runs of the same code lie apart at the 95th percentile (docs/proving.md, repeatability): of cases over
20 us the limit that is claimed; shorter ones have none, and came to just under a tenth."""


def against_record(pairs: Iterable[tuple[Any, Any]]) -> Iterator[dict[str, Any]]:
    """A row per case that a measured benchmark and the record of its GPU and kernel both timed.

    ``pairs`` are of :func:`atlas.results.collection.measured_and_recorded`.  Keys: ``kernel gpu direction dtype
    sizes``; of each side's fastest variant ``provider config median_us`` and the same with ``recorded_``; ``step``
    (recorded over measured time, above 1 is faster now), ``peer_step`` (the same of the peers both timed, geometric
    mean, or None), ``verdict``, ``same_source`` (both ran the same variant), ``date``, ``recorded_date``.
    """
    for measured, recorded in pairs:
        now, before = measured.document, recorded.document
        older = {PassCase.of(row): row for row in best_of_each_case(before["rows"])}
        peers_now, peers_before = _peers(now["rows"]), _peers(before["rows"])
        for row in best_of_each_case(now["rows"]):
            old = older.get(PassCase.of(row))
            if old is None:
                continue
            step = old["median_us"] / row["median_us"]
            mine, theirs = (peers.get(PassCase.of(row), {}) for peers in (peers_now, peers_before))
            peer_step = geometric_mean([theirs[name] / mine[name] for name in mine if name in theirs])
            margin = SHORT_MARGIN if max(row["median_us"], old["median_us"]) < SHORT_US else MARGIN
            alike = now["protocol"] == before["protocol"]
            yield {
                "kernel": measured.kernel,
                "gpu": measured.gpu,
                **PassCase.of(row).to_json(),
                **{key: row[key] for key in ("provider", "config", "median_us")},
                **{f"recorded_{key}": old[key] for key in ("provider", "config", "median_us")},
                "step": step,
                "peer_step": peer_step,
                "verdict": _verdict(step, peer_step, margin) if alike else "undecided",
                "same_source": row["provider"] == old["provider"]
                and _identity(measured, row) == _identity(recorded, old),
                "date": now["software"].get("date"),
                "recorded_date": before["software"].get("date"),
            }


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
    parts += [f"{undecided} not comparable, since the protocols differ"] if undecided else []
    source = ", its variants are the same" if all(row["same_source"] for row in rows) else ""
    return (
        f"{kernel} on {gpu} against its record of {(rows[0]['recorded_date'] or '?')[:10]}{source}: {', '.join(parts)}."
    )


def _verdict(step: float, peer_step: float | None, margin: float) -> str:
    steps = (step, step / (peer_step or 1.0))
    if max(steps) < 1 - margin:
        return "slower"
    return "faster" if min(steps) > 1 / (1 - margin) else "same"


def _identity(entry: Any, row: Mapping[str, Any]) -> str:
    return entry.identity(row["direction"], row["provider"])


def _peers(rows: Iterable[Mapping[str, Any]]) -> dict[PassCase, dict[str, float]]:
    """The times of every case's peers, by name."""
    found: dict[PassCase, dict[str, float]] = {}
    for row in rows:
        if row["provider_kind"] == "peer" and row["status"] == "ok" and row.get("median_us"):
            found.setdefault(PassCase.of(row), {})[row["provider"]] = row["median_us"]
    return found
