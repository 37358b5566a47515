"""log: what each step of each kernel's optimisation brought, as Markdown: the kernel log."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

from ..collection import collect
from ..documents import write_text
from ..tables import rows, store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which GPU's, and where to."""
    parser.add_argument("--gpu", help="a block of gpus.yaml (default: every GPU that was benchmarked)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--output", type=Path, help="a file to write (default: print)")


def run(arguments: argparse.Namespace) -> None:
    """Print or write the log; :class:`~atlas.documents.DocumentError` for a broken document."""
    table = store.frame("ladder", rows.ladder(collect(arguments.results, gpus=arguments.gpu and [arguments.gpu])))
    text = "\n".join(_lines([row._asdict() for row in table.astype(object).where(table.notna(), None).itertuples()]))
    if arguments.output:
        write_text(arguments.output, text + "\n")
    else:
        print(text)


def _lines(ladder: list[dict[str, Any]]) -> list[str]:
    lines = [
        "# Kernel log",
        "",
        "What each step of each kernel's optimisation brought, out of the benchmarks: made by `python -m atlas log`.",
        "*Step*: time of the variant it was made from over its own, geometric mean (least to most) over the cases both",
        "were timed on, each with its tuned config. *Fastest*: cases at which it beats the kernel's other variants.",
        "*Figure*: on its case with the most traffic. Reasons and dead ends: `docs/kernels/`.",
    ]
    for kernel, of_kernel in itertools.groupby(sorted(ladder, key=lambda row: row["kernel"]), lambda r: r["kernel"]):
        lines += ["", f"## {kernel}"]
        for (gpu, direction), rungs in itertools.groupby(of_kernel, lambda row: (row["gpu"], row["direction"])):
            lines += ["", f"**{direction}, {gpu}**", "", "| variant | what it does | over | step | fastest | figure |"]
            lines += ["|---|---|---|---|---|---|", *map(_line, rungs)]
    return lines


def _line(row: dict[str, Any]) -> str:
    step = ""
    if row["compared"]:
        step = f"{row['step_geomean']:.2f} ({row['step_least']:.2f} to {row['step_most']:.2f})"
    value = row["figure"]
    figure = f"{value:,.0f} {row['unit']} ({row['dtype']} {row['case']})" if value is not None else "not timed"
    name = f"`{row['variant']}`{' (stale)' if row['stale'] else ''}"
    cells = (name, row["summary"], row["follows"], step, f"{row['fastest']} of {row['cases']}", figure)
    return f"| {' | '.join(cells)} |"
