"""verdict: print what the run amounts to, and exit non-zero where a kernel is wrong, failed or suspect."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..results import changes, collection
from ..results.stacks import told_apart
from ..results.subject import PassCase
from ..results.summary import against_peer, all_cases, failures, in_short, rate, says_little
from ..results.verdict import verdicts
from ..tracking import summary as tracking
from . import selection

_STYLES = {"ok": "green", "wrong": "bold red", "failed": "bold red", "suspect": "bold red"}

_COLUMNS = (
    # header, width of the terminal from which on it is there, its own greatest width where it is wrapped
    ("kernel", 0, None),
    ("GPU", 0, None),
    ("status", 0, None),
    ("kind", 105, 18),
    ("headline case", 132, 40),
    ("figure", 0, None),
    ("% of roof", 116, None),
    ("against peer", 0, 16),
    ("all cases", 0, 12),
)
_FIGURES = ("figure", "% of roof", "against peer", "all cases")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    selection.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary; 1 if a selected kernel is wrong, failed or suspect, or nothing is there to judge, else 0."""
    kernels, names = selection.selected(arguments)
    rows = verdicts(told_apart(collection.collect(arguments.results, kernels, names)))
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
    console.print(f"\n{_places(arguments.results)}", soft_wrap=True)
    wrong = failures(rows)
    for line in wrong:
        console.print(line, style="bold red", soft_wrap=True)
    return 1 if wrong else 0


def table(rows: Iterable[Mapping[str, Any]], width: int) -> Table:
    """A row per kernel and GPU: status, kind, headline figure, against the fastest peer, share of the roof.

    Columns that a terminal of ``width`` characters has no room for are left out; the report has them all.
    """
    columns = [(header, most) for header, needed, most in _COLUMNS if width >= needed]
    shown = Table(box=None, padding=(0, 2 if width > 80 else 1, 0, 0), pad_edge=False, header_style="bold")
    for header, most in columns:
        justify = "right" if header in _FIGURES else "left"
        shown.add_column(header, justify=justify, no_wrap=most is None, max_width=most, overflow="fold")
    for row in rows:
        cells = {
            "kernel": row["kernel"],
            "GPU": row["gpu"],
            "status": Text(row["status"], style=_STYLES.get(row["status"], "yellow")),
            "kind": row["kind"] + (" (stale)" if row["stale"] else ""),
            **dict(zip(("headline case", *_FIGURES), _figures(row), strict=True)),
        }
        # As text, not as markup: a reason holds brackets, and is somebody else's words.
        shown.add_row(*(Text.assemble(cells[header]) for header, _ in columns))
    return shown


def _figures(row: Mapping[str, Any]) -> Sequence[str]:
    if row["figure"] is None:
        return (row["note"], "-", "-", "-", "-")
    case = PassCase.of({**row, "sizes": row["headline_case"]})
    roof = "-" if row["roof_fraction"] is None else f"{100 * row['roof_fraction']:.0f}"
    return str(case), rate(row["figure"], row["unit"]), roof, against_peer(row), all_cases(row)


def _places(results: Path) -> str:
    """Where the report, tables, figures and runs are, of those that are there, and how to open the runs."""
    known = {
        "report": (results / "report.html", ""),
        "tables": (results / "tables", ""),
        "figures": (results / "figures", ""),
        "mlflow": (results / "mlflow", _tracked(results)),
    }
    return "\n".join(f"{name:<8} {path}{how}" for name, (path, how) in known.items() if path.exists())


def _tracked(results: Path) -> str:
    """How to open the runs, or that their server was away."""
    away = tracking.away(results)
    if away:
        return f": nothing was tracked, since {away}. The next run or `python -m atlas track` does it."
    return ", open with `make ui`"
