"""What a run amounts to, kernel by kernel and GPU by GPU: the one place of the rules for headline and mean.

*Headline case.*  The forward pass, in bf16 where that was timed, else fp16, else fp32, else the first dtype there is;
of its cases the one with the largest traffic (``bytes``), because there launch latency and caches matter least.  On it
stands the fastest variant that is right.  Its figure is TFLOP/s where a matmul roof binds the case, else GB/s.

*Means.*  ``speedup_geomean`` and ``speedup_worst`` are taken over every timed case, both passes and all dtypes, each
case weighing the same: on each, the fastest variant against the fastest peer.  Cases no peer could run do not enter,
nor do those whose peers are all declared ``weak``.

*Kinds.*  A row has one kind, the strongest its documents have, and every figure in it comes from a benchmark of that
kind.  What the interpreter ran has no figures: it says that a kernel works, and nothing of its speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import summary
from .subject import PassCase

if TYPE_CHECKING:
    from .collection import Entry

Row = TypeVar("Row", bound=Mapping[str, Any])

KINDS = ("measured", "recorded", "functional", "compiled")
"""Kinds from the strongest evidence to the weakest."""

PERFORMANCE = KINDS[:2]
"""Those whose times say something of a GPU's speed."""

SEVERITY = ("wrong", "failed", "suspect", "skipped", "unsupported", "ok")
"""Statuses from the worst to the best; a row has the worst of its documents."""

FAILING = frozenset({"wrong", "failed", "suspect"})
"""Statuses that make a run fail."""

_DTYPES = ("bf16", "fp16", "fp32")
JUDGING = ("build", "validate", "autotune", "benchmark")
"""Stages whose documents judge a kernel; a profile, say, does not."""


def verdicts(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """One row per (kernel, GPU) that has any document, sorted by kernel, then GPU.

    Keys: ``kernel gpu kind status reason failing stale stages`` (stage -> status); of the headline case ``direction
    dtype headline_case`` (sizes) ``provider config median_us figure unit roof roof_fraction peer speedup verdict weak``
    (why its peers are no even match); over all cases ``cases`` (how many were timed) ``weak_cases`` (how many of them
    the means leave out as weak) ``speedup_geomean speedup_worst worst_case`` (direction, dtype, sizes); in words
    ``note against`` (:mod:`.summary`).  What there is no figure of is None.  ``failing``: see :func:`fails`.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.kernel is not None and entry.stage in JUDGING:
            groups.setdefault((entry.kernel, entry.gpu), []).append(entry)
    return [_verdict(kernel, gpu, group) for (kernel, gpu), group in sorted(groups.items())]


def fails(entry: Entry) -> bool:
    """True for a document that makes a run fail: of a failing status, and this checkout's own rather than a record.

    A recorded build is of kind ``compiled`` like any other, so it is told by its folder: recorded/<gpu>/<kernel>/.
    """
    record = entry.kind == "recorded" or Path(entry.path).parts[-4:-3] == ("recorded",)
    return entry.document["status"] in FAILING and not record


def best_of_each_case(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fastest right variant of every case of a benchmark's rows, with ``peer``: the fastest peer's name or None."""
    best: dict[PassCase, dict[str, Any]] = {}
    peers: dict[PassCase, Mapping[str, Any]] = {}
    for row in rows:
        if row["status"] not in ("ok", "suspect") or row.get("median_us") is None:
            continue
        key = PassCase.of(row)
        if row["provider_kind"] == "variant" and row["median_us"] < best.get(key, {"median_us": math.inf})["median_us"]:
            best[key] = dict(row)
        elif row["provider_kind"] == "peer" and row["median_us"] < peers.get(key, {"median_us": math.inf})["median_us"]:
            peers[key] = row
    return [row | {"peer": peers[key]["provider"] if key in peers else None} for key, row in best.items()]


def headline(best: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The headline case's row, out of what :func:`best_of_each_case` gives; None where no forward case was timed."""
    forward = [row for row in best if row["direction"] == "forward"]
    return next(iter(busiest(forward)), None)


def busiest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the one dtype that stands for all, bf16 where there is any, those with the most traffic first."""
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    dtype = next((name for name in (*_DTYPES, *dtypes) if name in dtypes), None)
    return sorted((row for row in rows if row["dtype"] == dtype), key=lambda row: -row["bytes"])


def even(best: Iterable[Row]) -> list[Row]:
    """Those rows of :func:`best_of_each_case`, or of the table, that means are of: compared, and with no weak peer."""
    return [row for row in best if row.get("speedup") and not row.get("weak")]


def figure(row: Mapping[str, Any]) -> tuple[float | None, str]:
    """A row's rate and its unit: TFLOP/s where a matmul roof binds, else GB/s."""
    if (row.get("roof") or "").startswith("matmul"):
        return row.get("tflop_per_s"), "TFLOP/s"
    return row.get("gb_per_s"), "GB/s"


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _verdict(kernel: str, gpu: str, entries: list[Entry]) -> dict[str, Any]:
    kind = min((entry.kind for entry in entries), key=KINDS.index)
    # A build is compiled whatever else the GPU did, so it belongs to a row of any kind.
    own = sorted((e for e in entries if e.kind in (kind, "compiled")), key=lambda e: JUDGING.index(e.stage))
    # What fails the run comes first: a record's worse status must not hide it.
    worst = min(own, key=lambda entry: (not fails(entry), SEVERITY.index(entry.document["status"])))
    status = worst.document["status"]
    benchmark = next((e.document for e in own if e.stage == "benchmark"), None)
    figures = _figures(benchmark["rows"] if benchmark and kind in PERFORMANCE else [])
    row = {
        "kernel": kernel,
        "gpu": gpu,
        "kind": kind,
        "status": status,
        "reason": "" if status == "ok" else f"{worst.stage}: {worst.document['reason'] or status}",
        "failing": fails(worst),
        "stale": any(entry.stale for entry in own),
        "stages": {entry.stage: entry.document["status"] for entry in own},
    } | figures
    return row | {"note": summary.note(row), "against": "" if row["figure"] is None else summary.against(row)}


def _figures(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    best = best_of_each_case(rows)
    top = headline(best) or {}
    compared = even(best)
    worst = min(compared, key=lambda row: row["speedup"], default=None)
    value, unit = figure(top) if top else (None, None)
    return {
        "direction": top.get("direction"),
        "dtype": top.get("dtype"),
        "headline_case": top.get("sizes"),
        "provider": top.get("provider"),
        "config": top.get("config"),
        "median_us": top.get("median_us"),
        "figure": value,
        "unit": unit,
        "roof": top.get("roof"),
        "roof_fraction": top.get("roof_fraction"),
        "peer": top.get("peer"),
        "speedup": top.get("speedup"),
        "verdict": top.get("verdict"),
        "weak": top.get("weak"),
        "cases": len(best),
        "weak_cases": sum(bool(row.get("weak")) for row in best),
        "speedup_geomean": geometric_mean([row["speedup"] for row in compared]),
        "speedup_worst": worst and worst["speedup"],
        "worst_case": worst and PassCase.of(worst).to_json(),
    }
