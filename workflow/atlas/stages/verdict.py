"""verdict: print what the run amounts to, and exit non-zero where a kernel is wrong, failed or suspect."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .. import catalog
from ..host import gpus
from ..reading.config import GPUS_FILE, load_gpus
from ..results import changes, collection
from ..results.summary import failures, in_short, places, says_little, table
from ..results.verdict import verdicts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The selection, as the config has it: names apart by commas or spaces, or ``all``."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--kernels", nargs="+", default=["all"], help="kernels to judge (default: all)")
    parser.add_argument("--gpus", nargs="+", default=["all"], help="GPUs to judge (default: all)")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary; 1 if a selected kernel is wrong, failed or suspect, or nothing is there to judge, else 0."""
    kernels, names = _names(arguments.kernels), _names(arguments.gpus)
    for kernel in kernels or ():
        catalog.check_name(kernel)
    if names is not None:
        gpus.names_of(names, load_gpus(arguments.gpus_file), "--gpus", "command line")
    rows = verdicts(collection.collect(arguments.results, kernels, names))
    width = os.get_terminal_size().columns if Console().is_terminal else 140
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    if not rows:
        console.print(f"No documents under {arguments.results} for this selection: nothing to judge.", soft_wrap=True)
        return 1
    if telling := [row for row in rows if not says_little(row)]:
        console.print(table(telling, width))
    for line in in_short(rows):
        console.print(line, soft_wrap=True)
    compared = changes.against_record(collection.measured_and_recorded(arguments.results, kernels, names))
    for line in changes.sentences(compared):
        console.print(line, soft_wrap=True)
    console.print(f"\n{places(arguments.results)}", soft_wrap=True)
    wrong = failures(rows)
    for line in wrong:
        console.print(line, style="bold red", soft_wrap=True)
    return 1 if wrong else 0


def _names(words: Sequence[str]) -> list[str] | None:
    """The names in words apart by commas or spaces; None for all."""
    names = [name for word in words for name in word.split(",") if name]
    return None if names == ["all"] else names
