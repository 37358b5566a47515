"""``python -m atlas figures``: draw the tables as SVG and PNG under ``results/figures/``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..figures.draw import draw
from ..tables.store import read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Draw every figure; :class:`~atlas.errors.AtlasError` where a table is missing."""
    draw(read(arguments.results / "tables"), arguments.results / "figures")
