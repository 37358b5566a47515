"""``python -m atlas tables``: all documents as tidy tables under ``results/tables/``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..reading.config import GPUS_FILE, load_gpus
from ..results.collection import Entry, collect, measured_and_recorded
from ..tables import rows, store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")


def run(arguments: argparse.Namespace) -> None:
    """Write every table; raises :class:`~atlas.results.documents.DocumentError` for a broken document."""
    blocks = load_gpus(arguments.gpus_file)
    entries, pairs = collect(arguments.results), measured_and_recorded(arguments.results)
    for name, table in frames(entries, pairs, blocks).items():
        store.write(arguments.results / "tables", name, table)


def frames(
    entries: Sequence[Entry], pairs: Sequence[tuple[Entry, Entry]], blocks: Mapping[str, Mapping[str, Any]]
) -> dict[str, pd.DataFrame]:
    """Every table by name, of these documents, of benchmarks beside their records, and of the blocks of gpus.yaml."""
    made = {
        "benchmark": rows.benchmark(entries),
        "ladder": rows.ladder(entries),
        "changes": rows.changes(pairs),
        "build": rows.build(entries),
        "profile": rows.profile(entries),
        "beyond": rows.beyond(entries),
        "validation": rows.validation(entries),
        "trials": rows.trials(entries),
        "survey": rows.survey(entries, blocks),
        "coverage": rows.coverage(entries, blocks),
        "verdicts": rows.verdict_rows(entries),
    }
    return {name: store.frame(name, table) for name, table in made.items()}
