"""``python -m atlas report``: HTML pages out of documents, tables and figures."""

from __future__ import annotations

import argparse
import io
import re
import zipfile
from pathlib import Path

from ..errors import AtlasError
from ..figures.names import figure_names
from ..reporting.names import FIRST
from ..reporting.pages import pages
from ..results.collection import collect, proofs
from ..results.documents import write_bytes, write_text
from ..results.stacks import told_apart
from ..results.summary import counted
from ..tables.store import read
from ..workload.current import current
from . import selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    selection.add_arguments(parser)
    parser.add_argument("--zip", type=Path, metavar="FILE", help="put pages and figures into one file as well, to send")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/report.html`` and ``results/report/``.

    Raises :class:`~atlas.errors.AtlasError` for a broken document or a missing view.
    """
    results, chosen = arguments.results, selection.selected(arguments)
    entries, tables = told_apart(collect(results, *chosen)), read(results / "tables")
    figures = [f"figures/{name}.svg" for name in figure_names(sorted(tables["coverage"].kernel.dropna().unique()))]
    for figure in figures:
        if not (results / figure).exists():
            raise AtlasError(f"{results / figure}: no such figure; run `python -m atlas figures` first")
    sizes = {Path(figure).stem: _size(results / figure) for figure in figures}
    made = []
    for path, text in pages(tables, entries, proofs(results, chosen[1]), current(), sizes):
        write_text(results / path, text)
        made.append(path)
    for old in sorted((results / "report").glob("*.html")):
        if f"report/{old.name}" not in made:
            old.unlink()
    if arguments.zip is not None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in [*made, *figures]:
                archive.write(results / path, path)
        write_bytes(arguments.zip, packed.getvalue())
    print(f"{results / FIRST} and {counted(len(made) - 1, 'page')} behind it", end="")
    print(f"; all of it in {arguments.zip}" if arguments.zip is not None else "")


def _size(figure: Path) -> tuple[int, int]:
    """Width and height in pixels, of which four are three points."""
    with figure.open(encoding="utf-8") as file:
        found = re.search(r'<svg [^>]*width="([\d.]+)pt" height="([\d.]+)pt"', file.read(2000))
    if found is None:
        raise AtlasError(f"{figure}: says no size; run `python -m atlas figures` again")
    return round(float(found[1]) * 4 / 3), round(float(found[2]) * 4 / 3)
