"""The tree of runs that the documents of one kernel on one GPU become, and the run of a GPU's survey."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..figures.names import PER_KERNEL
from ..results.collection import Entry
from ..results.verdict import FAILING, JUDGING, PERFORMANCE, best_of_each_case, headline, verdicts
from . import views
from .of_stage import Context, add_row, describe, table_row, tags_of
from .runs import Run, Tree, digest_of, numbers, span_of, words

_UNITS = {"GB/s": "gb_per_s", "TFLOP/s": "tflop_per_s", "us": "us"}


def trees(entries: Iterable[Entry], trial_runs: int, figures: Path) -> list[Tree]:
    """A tree per (kernel, GPU) of which a document judges the kernel, and per surveyed GPU.

    ``trial_runs`` is how many of the best trials become runs of their own; ``figures`` is the folder of drawn figures,
    of which a kernel's run gets those that bear its name.
    """
    groups: dict[tuple[str, str | None], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.gpu, entry.kernel), []).append(entry)
    return [
        _kernel(kernel, gpu, group, trial_runs, figures) if kernel else _survey(gpu, group[0])
        for (gpu, kernel), group in groups.items()
        if kernel is None or any(entry.stage in JUDGING for entry in group)
    ]


def _survey(gpu: str, entry: Entry) -> Tree:
    document = entry.document
    run = Run(
        name=f"{gpu} · survey",
        tags=tags_of(entry) | {"level": "survey"},
        span=span_of(document),
        failed=document["status"] in FAILING,
        note=f"Roofs of {gpu}: what this hardware reaches at most, by the same clock as every figure.",
        params=words({"protocol": document["protocol"]} | document["properties"]),
        metrics=numbers({f"{roof['name']}_{_UNITS[roof['unit']]}": roof["value"] for roof in document["roofs"]}),
        tables={"roofs.json": [table_row(roof) for roof in document["roofs"]]},
        files={entry.path.name: entry.path},
    )
    return Tree(f"survey/{gpu}", digest_of(_sha256(entry.path), entry.kind), run)


def _kernel(kernel: str, gpu: str, entries: list[Entry], trial_runs: int, figures: Path) -> Tree:
    (verdict,) = verdicts(entries)
    benchmark = next((e for e in entries if e.stage == "benchmark" and e.kind in PERFORMANCE), None)
    best = best_of_each_case(benchmark.document["rows"]) if benchmark else []
    # No figure without its kind, and in a list of runs the name is what one reads.
    kind = "" if verdict["kind"] == "measured" else f" ({verdict['kind']})"
    context = Context(f"{kernel} · {gpu}{kind}", trial_runs, headline(best))
    hashes = {entry.stage: _sha256(entry.path) for entry in entries}
    stages = []
    for entry in entries:
        run = Run(
            name=f"{context.title} · {entry.stage}",
            tags=tags_of(entry) | {"level": "stage", "document_sha256": hashes[entry.stage]},
            span=span_of(entry.document),
            failed=entry.document["status"] in FAILING,
            note=entry.document["reason"],
            metrics={"seconds": float(entry.document["seconds"])},
            files={entry.path.name: entry.path},
        )
        describe(run, entry, context, timed=entry.kind in PERFORMANCE)
        stages.append(run)
    # As in the verdict: what was measured here has no figures of a record.  The stage's own run has them.
    root = _root(verdict, context, best if best and benchmark.kind == verdict["kind"] else [], entries, stages)
    drawn = sorted(path for name in PER_KERNEL for path in figures.glob(f"{name}-{kernel}.svg"))
    root.tags[views.COLUMNS] = views.Columns.of(root).text
    root.files = {f"figures/{path.name}": path for path in drawn}
    documents = [(stage, hashes[stage], entry.kind, entry.stale) for stage, entry in zip(hashes, entries, strict=True)]
    drawings = [(path.name, _sha256(path)) for path in drawn]
    return Tree(f"{kernel}/{gpu}", digest_of(documents, drawings, trial_runs), root)


def _root(
    verdict: Mapping[str, Any],
    context: Context,
    best: Sequence[Mapping[str, Any]],
    entries: list[Entry],
    stages: list[Run],
) -> Run:
    """The run of a (kernel, GPU): what its headline case came to, and what all cases did."""
    # The versions that stand on the run are those of the figures, not of a later build of the same source.
    own = [entry for entry in entries if entry.kind == verdict["kind"]]
    newest = max(own, key=lambda entry: (entry.stage == "benchmark", span_of(entry.document)[1]))
    began = min(run.span[0] for run in stages)
    top = headline(best)
    tags = words({"stage": "all", "level": "kernel", **{key: verdict[key] for key in ("kind", "status", "reason")}})
    summary = {key: verdict[key] for key in ("speedup_geomean", "speedup_worst")}
    run = Run(
        name=context.title,
        tags=tags_of(newest) | {"stale": str(verdict["stale"]).lower()} | tags,
        span=(began, began + round(1000 * sum(entry.document["seconds"] for entry in entries))),  # pauses left out
        failed=verdict["status"] in FAILING,
        note=views.kernel_note(verdict, best, top),
        metrics=numbers(summary | {"seconds": sum(entry.document["seconds"] for entry in entries)}),
        children=stages,
    )
    if top is not None:
        add_row(run, top)
        run.tags |= words({"peer": top["peer"], "roof": top.get("roof")})
        run.metrics["cases"] = float(len(best))
        run.tables["best_configs.json"] = [table_row(row) for row in best]
    return run


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
