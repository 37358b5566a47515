"""The verdict as a person reads it at the end of a run: a table, a line per failure, and where to look further."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from .verdict import case_label

_STYLES = {"ok": "green", "wrong": "bold red", "failed": "bold red", "suspect": "bold red"}


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """A row per kernel and GPU: status, kind, headline figure, against the fastest peer, share of the roof."""
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("kernel", "GPU", "status", "kind"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("headline case", overflow="fold")
    for column in ("figure", "% of roof", "against peer", "all cases"):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        status = Text(row["status"], style=_STYLES.get(row["status"], "yellow"))
        kind = row["kind"] + (" (stale)" if row["stale"] else "")
        shown.add_row(row["kernel"], row["gpu"], status, kind, *_figures(row))
    return shown


def failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each kernel and GPU that makes the run fail."""
    return [
        f"{row['status'].upper()}: {row['kernel']} on {row['gpu']}: {row['reason']}" for row in rows if row["failing"]
    ]


def places(results: Path) -> str:
    """Where the report, tables, figures and runs are, of those that are there, and how to open the runs."""
    known = {
        "report": (results / "report.html", ""),
        "tables": (results / "tables", ""),
        "figures": (results / "figures", ""),
        "mlflow": (results / "mlflow", ", open with `make ui`"),
    }
    return "\n".join(f"{name:<8} {path}{how}" for name, (path, how) in known.items() if path.exists())


def _figures(row: Mapping[str, Any]) -> Sequence[str]:
    if row["figure"] is None:
        return (_why_none(row), "-", "-", "-", "-")
    roof, peer = row["roof_fraction"], "no peer"
    if row["speedup"]:
        peer = f"{row['speedup']:.2f}x {row['peer']}"
        if row["verdict"] in ("same", "undecided"):
            peer += f" ({row['verdict']})"
    spread = "-"
    if row["speedup_geomean"]:
        spread = f"{row['speedup_geomean']:.2f}x, worst {row['speedup_worst']:.2f}x"
    return (
        f"{row['direction']} {row['dtype']} {case_label(row['headline_case'])}",
        f"{row['figure']:.0f} {row['unit']}" if row["figure"] >= 100 else f"{row['figure']:.3g} {row['unit']}",
        "-" if roof is None else f"{100 * roof:.0f}",
        peer,
        spread,
    )


def _why_none(row: Mapping[str, Any]) -> str:
    """Why a row has no figure."""
    if row["status"] != "ok":
        return row["reason"]
    if row["kind"] == "functional":
        return "interpreter: no figures"
    if row["kind"] == "compiled":
        return "compiled only: nothing ran"
    return "no forward case was timed"
