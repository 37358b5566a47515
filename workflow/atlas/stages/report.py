"""``python -m atlas report``: one self-contained HTML page out of documents, tables and figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..figures.names import OVERVIEWS
from ..reporting.render import of_kernels, page, picture
from ..results.collection import collect, proofs
from ..results.documents import write_text
from ..tables.store import read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/report.html``; :class:`~atlas.errors.AtlasError` for a broken document or a missing view."""
    entries = collect(arguments.results)
    tables = read(arguments.results / "tables")
    folder = arguments.results / "figures"
    overviews = {name: picture(folder, name) for name in OVERVIEWS}
    kernels = of_kernels(folder, sorted(tables["coverage"].kernel.dropna().unique()))
    write_text(arguments.results / "report.html", page(tables, entries, proofs(arguments.results), overviews, kernels))
