"""``python -m atlas figures``: draw the tables as SVG and PNG under ``results/figures/``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from ..figures import drawn
from ..figures.names import CAPTIONS, OVERVIEWS, PER_KERNEL
from ..figures.overviews import roof_fraction, rooflines, speedup, transfer
from ..figures.sheet import RC, save
from ..figures.sizes import overlay, throughput
from ..figures.work import build, seconds, tuning
from ..host.progress import progress
from ..tables.store import read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Draw the figures whose rows changed; :class:`~atlas.errors.AtlasError` where a table is missing."""
    names, anew = draw(read(arguments.results / "tables"), arguments.results / "figures")
    others = "; the others are of the same rows" if len(anew) < len(names) else ""
    print(f"{len(anew)} of {len(names)} figures drawn{others}")


Tables = dict[str, pd.DataFrame]

_OVERVIEWS: dict[str, Callable[[Tables], Figure]] = {
    "speedup": speedup,
    "roof-fraction": roof_fraction,
    "rooflines": rooflines,
    "transfer": transfer,
    "seconds": seconds,
}
_PER_KERNEL: dict[str, Callable[[Tables, str], Figure]] = {
    "throughput": throughput,
    "overlay": overlay,
    "tuning": tuning,
    "build": build,
}


def draw(tables: Tables, folder: Path) -> tuple[list[str], list[str]]:
    """Draw figures into ``folder``, as SVG and PNG; returns the names of all, and of those that were drawn anew.

    A kernel has figures if the coverage table knows it.  A figure without data says in a sentence why it is empty.
    """
    kernels = sorted(tables["coverage"].kernel.dropna().unique())
    rows = drawn.Rows(tables)
    jobs = [(name, OVERVIEWS[name], name, "", lambda tables, name=name: _OVERVIEWS[name](tables)) for name in OVERVIEWS]
    jobs += [
        (f"{name}-{kernel}", f"{PER_KERNEL[name]}: {kernel}", name, kernel,
         lambda tables, name=name, kernel=kernel: _PER_KERNEL[name](tables, kernel))
        for kernel in kernels
        for name in PER_KERNEL
    ]  # fmt: skip
    digests = {kernel: rows.digest(kernel) for kernel in ("", *kernels)}
    anew = []
    with matplotlib.rc_context(RC), progress() as shown:
        task = shown.add_task("figures", total=len(jobs), note="")
        for file, title, kind, kernel, figure in jobs:
            if not drawn.keep(folder, file, digests[kernel]):
                shown.update(task, note=file)
                save(figure(tables), folder, file, title, CAPTIONS[kind])
                drawn.mark(folder, file, digests[kernel])
                anew.append(file)
            shown.advance(task)
    return [file for file, *_ in jobs], anew
