"""The verdict as a person reads it at the end of a run: a table of what has figures or is amiss, a line for each GPU on
the rest, a line per failure, and where to look further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from .subject import PassCase
from .verdict import why_no_figure

_LITTLE = {
    "functional": "ok in the interpreter, which says nothing of speed",
    "compiled": "compiled; nothing ran there",
}
_ELSE_RAN = "compiled, not run there as others were"
"""Of kernels that were only compiled for a GPU on which others ran."""
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
_NAMED = 6
"""So many kernels are named in a line, of more the number is said."""


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


def says_little(row: Mapping[str, Any]) -> bool:
    """Whether all there is to say is that the kernel works in the interpreter, or compiles for a GPU elsewhere."""
    return row["status"] == "ok" and row["kind"] in _LITTLE and not row["stale"]


def in_short(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each GPU and kind on those of all ``rows`` that say little."""
    rows = list(rows)
    ran = {row["gpu"] for row in rows if row["kind"] != "compiled"}
    groups: dict[tuple[str, str], list[str]] = {}
    for row in filter(says_little, rows):
        said = _ELSE_RAN if row["kind"] == "compiled" and row["gpu"] in ran else _LITTLE[row["kind"]]
        groups.setdefault((row["gpu"], said), []).append(row["kernel"])
    return [
        f"{gpu}: {', '.join(kernels) if len(kernels) <= _NAMED else f'{len(kernels)} kernels'} {said}"
        for (gpu, said), kernels in sorted(groups.items())
    ]


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
        str(PassCase.of(row | {"sizes": row["headline_case"]})),
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
    return why_no_figure(row["stages"])
