"""``python -m atlas tables``: all documents as tidy tables under ``results/tables/``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..collection import collect, measured_and_recorded
from ..config import GPUS_FILE, load_gpus
from ..tables import cells, rows, store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")


def run(arguments: argparse.Namespace) -> None:
    """Write every table; raises :class:`~atlas.documents.DocumentError` for a broken document."""
    blocks = load_gpus(arguments.gpus_file)
    entries = collect(arguments.results)
    made = {
        "benchmark": rows.benchmark(entries),
        "ladder": rows.ladder(entries),
        "changes": rows.changes(measured_and_recorded(arguments.results)),
        "build": rows.build(entries),
        "profile": rows.profile(entries),
        "validation": rows.validation(entries),
        "trials": rows.trials(entries),
        "survey": rows.survey(entries, blocks),
        "coverage": cells.coverage(entries, blocks),
        "verdicts": cells.verdict_rows(entries),
    }
    for name, table in made.items():
        store.write(arguments.results / "tables", name, store.frame(name, table))
