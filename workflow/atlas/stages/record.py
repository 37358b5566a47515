"""record: copy a GPU's measured documents to ``results/recorded/<gpu>/``, where they are committed and travel."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..host import gpus
from ..reading.config import GPUS_FILE, load_gpus
from ..results import records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The GPU, and whether to record what is refused."""
    parser.add_argument("--gpu", required=True, help="a block of gpus.yaml")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--force", action="store_true", help="record also what is not ok or of an older kernel")


def run(arguments: argparse.Namespace) -> int:
    """Copy, and say of each file what became of it; 1 where a document was refused."""
    gpus.names_of([arguments.gpu], load_gpus(arguments.gpus_file), "--gpu", "command line")
    outcome = records.record(arguments.results, arguments.gpu, arguments.force)
    for path, size in outcome.written.items():
        print(f"recorded  {path} ({size / 1024:.0f} KiB)")
    for path in outcome.unchanged:
        print(f"unchanged {path}")
    for path, reason in outcome.refused.items():
        print(f"refused   {path}: {reason}")
    if outcome.refused:
        print("A kernel is recorded whole or not at all; --force records it as it is.")
    return 1 if outcome.refused else 0
