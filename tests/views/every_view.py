"""Every view of a results folder, made without drawing and without MLflow: what must not stop at any document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from atlas.figures.beyond import beyond
from atlas.figures.overviews import roof_fraction, rooflines, speedup, transfer
from atlas.figures.sizes import against_peers, throughput
from atlas.figures.work import build, seconds, tuning
from atlas.reading.config import load_gpus
from atlas.reporting.pages import pages
from atlas.results import changes, summary
from atlas.results.collection import Entry
from atlas.results.verdict import verdicts
from atlas.stages import log, tables, verdict
from atlas.tracking import views
from atlas.tracking.described import trees
from rich.console import Console

BLOCKS = load_gpus()


def entry(document: dict[str, Any], path: Path, kind: str = "") -> Entry:
    """The document as a view gets it; ``path`` must hold it, since tracking keeps the file."""
    return Entry(document["gpu"], document["kernel"], document["stage"], document, kind or document["kind"], path)


def told(entries: Sequence[Entry], pairs: Sequence[tuple[Entry, Entry]] = (), proofs: Sequence[Entry] = ()) -> dict:
    """By view what it says: tables, verdict, log and report as text, runs as MLflow would be given them."""
    frames = tables.frames(entries, pairs, BLOCKS)
    rows = verdicts(entries)
    console = Console(width=140, highlight=False, markup=False)
    with console.capture() as screen:
        console.print(verdict.table(rows, 140))
        for line in (*summary.in_short(rows), *summary.failures(rows)):
            console.print(line)
        for line in changes.sentences(changes.against_record(pairs)):
            console.print(line)
    described = trees(entries, 3, Path("no figures"))
    views.tags(views.views(views.Columns.of(tree.root) for tree in described if "kernel" in tree.root.tags))
    return {
        "tables": frames,
        "verdict": screen.get(),
        "log": log.page(entries),
        "report": "".join(text for _, text in pages(frames, entries, proofs)),
        "runs": [run for tree in described for run in tree.root.walk()],
    }


def drawn(frames: dict[str, pd.DataFrame], kernel: str) -> None:
    """Lay out every figure; nothing is saved."""
    for overview in (speedup, roof_fraction, rooflines, transfer, beyond, seconds):
        overview(frames)
    for own in (throughput, against_peers, tuning, build):
        own(frames, kernel)
