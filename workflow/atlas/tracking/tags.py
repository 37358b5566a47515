"""The tags every run carries, since a filter sees a run's own tags alone, and how one benchmark row is put on a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import catalog
from ..results.collection import Entry
from ..results.verdict import case_label
from .runs import Run, numbers, words

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
    place = {"variant": variant, "direction": row["direction"], "dtype": row["dtype"], "case": case_label(row["sizes"])}
    run.params |= words(place | dict(row["config"] or {}))
    run.tags |= words(place)


def add_row(run: Run, row: Mapping[str, Any]) -> None:
    """Put a benchmark row on a run: its case, its config and its figures."""
    add_case(run, row, row["provider"])
    run.metrics |= numbers(figures_of(row))


def figures_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a benchmark row by metric name."""
    found = {key: row.get(key) for key in ("median_us", "q1_us", "q3_us", "gb_per_s", "tflop_per_s", "speedup")}
    fraction = row.get("roof_fraction")
    return found | {"percent_of_roof": None if fraction is None else 100 * fraction}


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a document as a row of a table: mappings as text a person reads, lists of samples left out."""
    return {
        key: case_label(value) if isinstance(value, Mapping) else value
        for key, value in row.items()
        if not isinstance(value, list)
    }
