"""The two tables of kernel x GPU cells: what there is (coverage), and what it amounts to (verdicts)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..host.gpus import functional
from ..results.collection import Entry
from ..results.verdict import case_label, verdicts
from .rows import Row, compact

NONE = "none"
"""Status and kind of a cell that no document stands behind."""

_STAGES = ("build", "validate", "autotune", "benchmark")


def coverage(entries: Iterable[Entry], blocks: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """One row per (kernel, GPU, stage): of the kernels and GPUs that have any document, every stage the GPU has.

    ``blocks`` are those of gpus.yaml; the survey's rows have no kernel.
    """
    entries = list(entries)
    by_cell = {(entry.kernel, entry.gpu, entry.stage): entry for entry in entries}
    kernels, gpus = _axes(entries)
    cells = [(None, gpu, "survey") for gpu in gpus if not _functional(gpu, blocks)]
    cells += [
        (kernel, gpu, stage)
        for kernel in kernels
        for gpu in gpus
        for stage in _STAGES
        if not (stage == "build" and _functional(gpu, blocks))
    ]
    for kernel, gpu, stage in cells:
        entry = by_cell.get((kernel, gpu, stage))
        yield {"kernel": kernel, "gpu": gpu, "stage": stage} | (_there(entry) if entry else _absent(kernel, gpu, stage))


def _there(entry: Entry) -> Row:
    document = entry.document
    return {
        "kind": entry.kind,
        "status": document["status"],
        "reason": document["reason"],
        "seconds": document["seconds"],
        "stale": entry.stale,
        "date": document["software"].get("date"),
    }


def _absent(kernel: str | None, gpu: str, stage: str) -> Row:
    subject = gpu if kernel is None else f"{kernel} on {gpu}"
    reason = "nothing was compiled" if stage == "build" else f"{subject} was not measured here and there is no record"
    return {"kind": NONE, "status": NONE, "reason": reason, "stale": False}


def verdict_rows(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per kernel and GPU; of a pair without documents it says so, with status ``none``."""
    entries = list(entries)
    judged = {(row["kernel"], row["gpu"]): row for row in verdicts(entries)}
    kernels, gpus = _axes(entries)
    for kernel in kernels:
        for gpu in gpus:
            row = judged.get((kernel, gpu))
            if row is None:
                yield {"kernel": kernel, "gpu": gpu} | _absent(kernel, gpu, "any") | {"failing": False, "stages": "{}"}
            else:
                yield _flat(row)


def _flat(row: Mapping[str, Any]) -> Row:
    worst = row["worst_case"]
    flat = dict(row) | {
        "stages": compact(row["stages"]),
        "config": compact(row["config"]),
        "case": row["headline_case"] and case_label(row["headline_case"]),
        "worst_case": worst and f"{worst['direction']} {worst['dtype']} {case_label(worst['sizes'])}",
    }
    del flat["headline_case"]
    return flat


def _axes(entries: list[Entry]) -> tuple[list[str], list[str]]:
    kernels = sorted({entry.kernel for entry in entries if entry.kernel is not None})
    return kernels, sorted({entry.gpu for entry in entries})


def _functional(gpu: str, blocks: Mapping[str, Mapping[str, Any]]) -> bool:
    return gpu in blocks and functional(blocks[gpu])
