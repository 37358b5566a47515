"""``python -m atlas tables``: all documents as tidy tables under ``results/tables/``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..reading.config import load_gpus
from ..reading.published import PUBLISHED_FILE, Point, load_published
from ..results.collection import Entry, collect, measured_and_recorded, predictions
from ..results.stacks import told_apart
from ..tables import rows, store
from . import selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--published-file", type=Path, default=PUBLISHED_FILE, help="default: config/published.yaml")
    selection.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write every table; :class:`~atlas.errors.AtlasError` for a broken document or an unknown name."""
    kernels, names = selection.selected(arguments)
    blocks = load_gpus(arguments.gpus_file)
    points = [
        point
        for point in load_published(arguments.published_file)
        if (kernels is None or point.kernel in kernels) and (names is None or point.gpu in names)
    ]
    entries, pairs = (find(arguments.results, kernels, names) for find in (collect, measured_and_recorded))
    entries = told_apart(entries)
    for name, table in frames(entries, pairs, blocks, points, predictions(arguments.results, kernels, names)).items():
        store.write(arguments.results / "tables", name, table)
    print(f"{len(entries)} documents as tables in {arguments.results / 'tables'}")


def frames(
    entries: Sequence[Entry],
    pairs: Sequence[tuple[Entry, Entry]],
    blocks: Mapping[str, Mapping[str, Any]],
    points: Sequence[Point] = (),
    predicted: Sequence[Entry] = (),
) -> dict[str, pd.DataFrame]:
    """Every table by name: of documents, benchmarks beside their records, gpus.yaml, published.yaml, predictions."""
    made = {
        "benchmark": rows.benchmark(entries),
        "ladder": rows.ladder(entries),
        "changes": rows.changes(pairs),
        "build": rows.build(entries),
        "profile": rows.profile(entries),
        "energy": rows.energy(entries, blocks),
        "beyond": rows.beyond(entries),
        "validation": rows.validation(entries),
        "trials": rows.trials(entries),
        "survey": rows.survey(entries, blocks),
        "predictions": rows.predictions(predicted),
        "published": rows.published(points),
        "coverage": rows.coverage(entries, blocks),
        "verdicts": rows.verdict_rows(entries),
    }
    return {name: store.frame(name, table) for name, table in made.items()}
