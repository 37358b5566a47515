"""What each stage's document puts on its run: tags, counts always, times where the GPU was timed, tables, children."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import catalog
from ..results.collection import Entry, calls
from ..results.subject import PassCase, label
from .runs import Point, Run, metric_name, numbers, words

_SOFTWARE = ("torch", "triton", "python", "cuda", "hip", "commit", "date")
_DEVICE = ("device_name", "driver", "power_cap_w")


def tags_of(entry: Entry) -> dict[str, str]:
    """Where a document is from and what made it: kernel, gpu, stage, kind, status, versions, commit."""
    document = entry.document
    found = {
        "kernel": entry.kernel,
        "gpu": entry.gpu,
        "stage": entry.stage,
        "kind": entry.kind,
        "status": document["status"],
        "reason": document["reason"],
        "stale": str(entry.stale).lower(),
        "kernel_digest": (document["kernel_digest"] or "")[:12],
        "protocol": document.get("protocol"),
        "mlflow.source.name": catalog.home(entry.kernel) if entry.kernel else None,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": document["software"].get("commit"),
    }
    found |= {key: document["software"].get(key) for key in _SOFTWARE}
    found |= {key: document["device"].get(key) for key in _DEVICE}
    return words(found)


def add_case(run: Run, row: Mapping[str, Any], variant: str) -> None:
    """Say on a run which case and config its figures belong to: the config as params, under its own names."""
    of = PassCase.of(row)
    place = {"variant": variant, "direction": of.direction, "dtype": of.dtype, "case": of.case}
    run.params |= words(place | dict(row["config"] or {}))
    run.tags |= words(place)


def add_row(run: Run, row: Mapping[str, Any]) -> None:
    """Put a benchmark row on a run: its case, its config and its figures."""
    add_case(run, row, row["provider"])
    run.metrics |= numbers(figures_of(row))


def figures_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a benchmark row by metric name."""
    found = {key: row.get(key) for key in ("median_us", "q1_us", "q3_us", "gb_per_s", "tflop_per_s", "speedup")}
    found["tflop_per_s"] = found["tflop_per_s"] or None  # a kernel that only moves data has none
    fraction = row.get("roof_fraction")
    return found | {"percent_of_roof": None if fraction is None else 100 * fraction}


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a document as a row of a table: mappings as text a person reads, lists of samples left out."""
    return {
        key: label(value) if isinstance(value, Mapping) else value
        for key, value in row.items()
        if not isinstance(value, list)
    }


@dataclass(frozen=True)
class Context:
    """What a stage's run takes from the other documents of its kernel and GPU.

    ``headline`` is the benchmark row the kernel is judged by, None where nothing was timed.
    """

    title: str
    trial_runs: int
    headline: Mapping[str, Any] | None = None


def describe(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    """Fill a stage's run from its document; ``timed`` is false where times say nothing of a GPU's speed."""
    _OF_STAGE[entry.stage](run, entry, context, timed)
    run.params |= words({f"configs_of_{name}": used for name, used in calls(entry.document).items()})


def _build(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    document = entry.document
    configs = document["configs"]
    run.params |= words({**document["target"], "scope": document["scope"]["mode"]})
    run.metrics |= numbers(
        {
            "configs": document["scope"]["total"],
            "compiled": document["scope"]["compiled"],
            "compile_seconds": sum(config.get("compile_seconds") or 0 for config in configs),
            "most_registers": max((config.get("registers") or 0 for config in configs), default=None),
            "configs_that_spill": sum(bool(config.get("spill_bytes")) for config in configs),
        }
    )
    run.metrics |= _counts("configs", configs)
    chosen = next((config for config in configs if _is(config, context.headline)), None)
    if chosen is not None:
        add_case(run, chosen, chosen["variant"])
        keys = ("registers", "spill_bytes", "shared_bytes", "occupancy", "widest_access_bits")
        run.metrics |= numbers({key: chosen.get(key) for key in keys})
        run.tags |= words({key: chosen.get(key) for key in ("matrix_instruction", "async_copies")})
    run.tables["configs.json"] = [table_row(config) for config in configs]
    listings = sorted((entry.path.parent / "listings").glob("*.ptx"))
    run.files |= {f"listings/{listing.name}": listing for listing in listings}


def _validate(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    checks = entry.document["checks"]
    run.params |= words({"seeds": len(entry.document["seeds"])})
    run.metrics |= {"checks": float(len(checks))} | _counts("checks", checks)
    for key in ("tolerance_used", "error_over_torch"):
        values = [check[key] for check in checks if check.get(key) is not None]
        run.metrics |= numbers({f"worst_{key}": max(values, default=None)})
    run.tables["checks.json"] = [table_row(check) for check in checks]


def _autotune(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    document = entry.document
    run.params |= words({"strategy": document["strategy"], "budget_seconds": document["budget_seconds"]})
    counts = {f"trials_{status}": count for status, count in document["trials_by_status"].items()}
    phases = {f"{phase}_seconds": seconds for phase, seconds in document["seconds_by_phase"].items()}
    run.metrics |= numbers({"trials": len(document["trials"]), **counts, **phases})
    run.tables["trials.json"] = [table_row(trial) for trial in document["trials"]]
    if not timed:
        return
    run.tables["best.json"] = [table_row(best) for best in document["best"]]
    chosen = next((best for best in document["best"] if _same_case(best, context.headline)), None)
    if chosen is None:
        return
    add_case(run, chosen, chosen["variant"])
    figures = {key: chosen.get(key) for key in ("median_us", "q1_us", "q3_us", "default_us", "regret")}
    if chosen.get("default_us"):
        figures["gain_over_default"] = chosen["default_us"] / chosen["median_us"]
    run.metrics |= numbers(figures)
    trials = [t for t in document["trials"] if t.get("median_us") is not None and _same_case(t, chosen)]
    run.curves["best_so_far_us"] = _best_so_far(trials, run.span[0])
    finished = [trial for trial in trials if trial["status"] == "ok"]
    # A config that survived to a later round was timed longer: its median is worth more than a faster screen's.
    finished.sort(key=lambda trial: (-trial.get("rung", 0), trial["median_us"]))
    for rank, trial in enumerate(finished[: context.trial_runs], start=1):
        run.children.append(_trial(run, trial, rank, context))


def _trial(parent: Run, trial: Mapping[str, Any], rank: int, context: Context) -> Run:
    ended = parent.span[0] + round(1000 * trial.get("at_seconds", 0))
    run = Run(
        # What tells it from the others first: a list beside a chart shows twenty characters.
        name=f"#{rank} {trial['variant']} {label(trial['config'])} · {context.title}",
        tags=parent.tags | {"level": "trial", "rank": str(rank), ORDER: _order(parent, rank)},
        span=(ended, ended),
    )
    add_case(run, trial, trial["variant"])
    # An axis of the interface's parallel coordinates, which know parameters alone; kinds stay apart on it.  Of a longer
    # name the interface shows three characters at either end: h20…ed) and h10…ed).
    run.params["gpu"] = parent.tags["gpu"] + (" rec." if parent.tags["kind"] == "recorded" else "")
    keys = ("median_us", "q1_us", "q3_us", "samples", "rung", "compile_seconds")
    run.metrics = numbers({key: trial.get(key) for key in keys})
    for work, rate, unit in (("bytes", "gb_per_s", 1e3), ("flops", "tflop_per_s", 1e6)):
        amount = context.headline and context.headline.get(work)
        if amount:
            run.metrics |= numbers({rate: amount / trial["median_us"] / unit})
    run.metrics |= numbers(_as_of_headline(trial["median_us"], context.headline))
    return run


def _as_of_headline(median_us: float, headline: Mapping[str, Any] | None) -> dict[str, float | None]:
    """A time as figures that compare across GPUs: over the fastest peer of the headline case, and of its roof."""
    if headline is None:
        return {}
    scale = headline["median_us"] / median_us
    found = {"speedup": headline.get("speedup"), "percent_of_roof": figures_of(headline)["percent_of_roof"]}
    return {name: None if value is None else value * scale for name, value in found.items()}


ORDER = "atlas.order"
"""Tag that sorts runs by kernel and GPU, and within them the fastest first: an interface sorts by one column alone."""


def _order(parent: Run, rank: int) -> str:
    return f"{parent.tags['kernel']} {parent.tags['gpu']} {rank:03d}"


def _best_so_far(trials: Iterable[Mapping[str, Any]], began: int) -> list[Point]:
    """The tuning curve: the best median at each trial that improved it, over the time since the search began."""
    points: list[Point] = []
    ordered = sorted(trials, key=lambda trial: trial.get("at_seconds", 0))
    for step, trial in enumerate(ordered):
        if trial["status"] == "ok" and (not points or trial["median_us"] < points[-1].value):
            points.append(Point(trial["median_us"], step, began + round(1000 * trial.get("at_seconds", 0))))
    return points


def _benchmark(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    rows = entry.document["rows"]
    run.metrics |= {"rows": float(len(rows))} | _counts("rows", rows)
    if not timed:
        return
    run.tables["rows.json"] = [table_row(row) for row in rows]
    if context.headline:
        add_row(run, context.headline)
    providers: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        providers.setdefault((row["provider_kind"], row["provider"]), []).append(row)
    for (kind, provider), own in providers.items():
        if any(row.get("median_us") is not None for row in own):
            run.children.append(_provider(run, kind, provider, own, context))
    run.children.sort(key=lambda child: child.metrics.get("median_us", math.inf))
    for rank, child in enumerate(run.children, start=1):
        child.tags[ORDER] = _order(run, rank)


def _provider(parent: Run, kind: str, provider: str, rows: Sequence[Mapping[str, Any]], context: Context) -> Run:
    """A provider's run: figures of the headline case, and a curve over the traffic of all cases of each pass and dtype.

    Runs of several providers, or of one provider on several GPUs, lie over one another in the interface's charts.
    """
    name = f"{provider}, untuned" if kind == "default" else provider
    run = Run(
        name=f"{name} · {context.title}",
        tags=parent.tags | {"level": "provider", "provider": provider, "provider_kind": kind},
        span=parent.span,
    )
    for key in ("variant", "peer"):
        run.tags.pop(key, None)
    for row in rows:
        for figure in ("gb_per_s", "tflop_per_s", "speedup"):
            if row.get(figure):
                curve = run.curves.setdefault(metric_name(f"{row['direction']} {row['dtype']}/{figure}"), [])
                curve.append(Point(row[figure], round(row["bytes"])))
    headline = next((row for row in rows if _same_case(row, context.headline)), None)
    if headline is not None:
        add_case(run, headline, provider)
        run.metrics |= numbers(figures_of(headline))
        run.tags |= words({"status": headline["status"], "reason": headline["reason"]})
    return run


def _counts(noun: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    return {f"{noun}_{status}": float(n) for status, n in collections.Counter(row["status"] for row in rows).items()}


def _same_case(row: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and PassCase.of(row) == PassCase.of(other)


def _is(config: Mapping[str, Any], headline: Mapping[str, Any] | None) -> bool:
    return (
        headline is not None
        and _same_case(config, headline)
        and (config["variant"], config["config"]) == (headline["provider"], headline["config"])
    )


def _profile(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    rows = entry.document["rows"]
    run.metrics |= {"rows": float(len(rows))}
    run.tables["counters.json"] = [table_row(row) | table_row(launch) for row in rows for launch in row["launches"]]


def _energy(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    document = entry.document
    run.params |= words({"how": document.get("how")})
    run.metrics |= _counts("rows", document["rows"]) | numbers({"rest_w": document.get("rest_w")})
    run.tables["rows.json"] = [table_row(row) for row in document["rows"]]


def _beyond(run: Run, entry: Entry, context: Context, timed: bool) -> None:
    rows = entry.document["rows"]
    run.params |= words({"seed": entry.document["seed"]})
    run.metrics |= {"rows": float(len(rows))} | _counts("rows", rows)
    if timed:
        run.tables["rows.json"] = [table_row(row) for row in rows]


_OF_STAGE = {
    "build": _build,
    "validate": _validate,
    "autotune": _autotune,
    "sample": _autotune,
    "benchmark": _benchmark,
    "beyond": _beyond,
    "profile": _profile,
    "energy": _energy,
}
