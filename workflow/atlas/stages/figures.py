"""``python -m atlas figures``: draw the tables as SVG under ``results/figures/``."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from ..errors import AtlasError
from ..figures import drawn
from ..figures.beyond import beyond
from ..figures.facts import COLUMNS
from ..figures.names import CAPTIONS, OVERVIEWS, PER_KERNEL
from ..figures.overviews import roof_fraction, rooflines, speedup, transfer
from ..figures.sheet import RC, save
from ..figures.sizes import against_peers, throughput
from ..figures.work import build, seconds, tuning
from ..host.progress import progress
from ..tables.store import read
from ..workers.pool import run_jobs
from ..workers.process import Process
from ..workers.protocol import serve_jobs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--png", action="store_true", help="write each as PNG, too, on white, for slides")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")


def run(arguments: argparse.Namespace) -> None:
    """Draw the figures whose rows changed; :class:`~atlas.errors.AtlasError` where a table is missing."""
    folders = arguments.results / "tables", arguments.results / "figures"
    names, anew = draw(*folders, arguments.png, arguments.jobs)
    others = "; the others are of the same rows" if len(anew) < len(names) else ""
    print(f"{len(anew)} of {len(names)} figures drawn{others}")


Tables = dict[str, pd.DataFrame]
Parts = tuple[Tables, dict[str, Tables]]
"""All tables, and the large ones by kernel, so that no figure searches what is not its own."""

_OVERVIEWS: dict[str, Callable[[Tables], Figure]] = {
    "speedup": speedup,
    "roof-fraction": roof_fraction,
    "rooflines": rooflines,
    "transfer": transfer,
    "beyond": beyond,
    "seconds": seconds,
}
_PER_KERNEL: dict[str, Callable[[Tables, str], Figure]] = {
    "throughput": throughput,
    "providers": against_peers,
    "tuning": tuning,
    "build": build,
}

_FEW = 20
"""So many figures are drawn in less time than it takes to start processes that draw them."""
_TIMEOUT_SECONDS = 600.0


def draw(tables: Path, folder: Path, png: bool = False, jobs: int = 1) -> tuple[list[str], list[str]]:
    """Draw the tables in a folder as figures in another, with so many processes.

    Returns the names of all figures, and of those that were drawn anew.  A kernel has figures if the coverage table
    knows it.  A figure without data says in a sentence why it is empty.
    """
    read_once = read(tables, COLUMNS)
    kernels = sorted(read_once["coverage"].kernel.dropna().unique())
    rows = drawn.Rows(read_once)
    names = {"": list(OVERVIEWS)} | {kernel: [f"{name}-{kernel}" for name in PER_KERNEL] for kernel in kernels}
    digests = {kernel: rows.digest(kernel) for kernel in names}
    due = {
        kernel: [name for name in own if not drawn.keep(folder, name, digests[kernel], png)]
        for kernel, own in names.items()
    }
    tasks = [("", [name]) for name in due.pop("")] + [(kernel, own) for kernel, own in due.items() if own]
    total = sum(len(own) for _, own in tasks)
    asked = [(folder, png, kernel, own, digests[kernel]) for kernel, own in tasks]
    if jobs < 2 or total <= _FEW:
        parts = _split(read_once)
        found = ((index, _drawn(parts, *one)) for index, one in enumerate(asked))
    else:
        calls = [functools.partial(_drawn_by_worker, tables, *one) for one in asked]
        found = run_jobs(calls, jobs, _TIMEOUT_SECONDS, _worker)
    with progress() as shown:
        bar = shown.add_task("figures", total=total, note="")
        for index, failure in found:
            kernel, own = tasks[index]
            if isinstance(failure, Exception):
                raise AtlasError(f"the figures of {kernel or own[0]} were not drawn: {failure}")
            shown.update(bar, advance=len(own), note=own[-1])
    return [name for own in names.values() for name in own], [name for _, own in tasks for name in own]


def _worker() -> Process:
    return Process(serve_jobs, name="atlas-figures")


def _drawn_by_worker(tables: Path, *asked: Any) -> None:
    _drawn(_read_and_split(tables), *asked)


def _drawn(parts: Parts, folder: Path, png: bool, kernel: str, names: list[str], digest: str) -> None:
    """The figures of these names: overviews, or a kernel's own."""
    every, of_kernel = parts
    own = every | {name: parts.get(kernel, every[name].iloc[:0]) for name, parts in of_kernel.items()}
    with matplotlib.rc_context(RC):
        for file in names:
            if kernel:
                kind = file.removesuffix(f"-{kernel}")
                figure, title = _PER_KERNEL[kind](own, kernel), f"{PER_KERNEL[kind]}: {kernel}"
            else:
                kind, figure, title = file, _OVERVIEWS[file](every), OVERVIEWS[file]
            save(figure, folder, file, title, CAPTIONS[kind], png)
            drawn.mark(folder, file, digest)


@functools.lru_cache(maxsize=1)
def _read_and_split(folder: Path) -> Parts:
    return _split(read(folder, COLUMNS))


def _split(tables: Tables) -> Parts:
    return tables, {name: dict(list(tables[name].groupby("kernel"))) for name in ("benchmark", "trials", "build")}
