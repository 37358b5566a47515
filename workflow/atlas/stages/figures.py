"""``python -m atlas figures``: draw the tables as SVG under ``results/figures/``."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from ..errors import AtlasError
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
    """Draw every figure; :class:`~atlas.errors.AtlasError` where a table is missing."""
    draw(arguments.results / "tables", arguments.results / "figures", arguments.png, arguments.jobs)


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
    "providers": against_peers,
    "tuning": tuning,
    "build": build,
}

_FEW = 20
"""So many figures are drawn in less time than it takes to start processes that draw them."""
_TIMEOUT_SECONDS = 600.0


def draw(tables: Path, folder: Path, png: bool = False, jobs: int = 1) -> list[str]:
    """Draw the tables in a folder as figures in another, with so many processes; returns the figures' names.

    A kernel has figures if the coverage table knows it.  A figure without data says in a sentence why it is empty.
    """
    kernels = sorted(read(tables, COLUMNS)["coverage"].kernel.dropna().unique())
    tasks: list[tuple[str, str]] = [(name, "") for name in OVERVIEWS] + [("", kernel) for kernel in kernels]
    total = len(OVERVIEWS) + len(PER_KERNEL) * len(kernels)
    if total <= _FEW:
        jobs = 1
    calls = [functools.partial(_drawn, tables, folder, png, *task) for task in tasks]
    found = (
        ((i, call()) for i, call in enumerate(calls)) if jobs < 2 else run_jobs(calls, jobs, _TIMEOUT_SECONDS, _worker)
    )
    done: dict[int, list[str]] = {}
    with progress() as shown:
        task = shown.add_task("figures", total=total, note="")
        for index, files in found:
            if isinstance(files, Exception):
                raise AtlasError(f"the figures of {tasks[index][1] or tasks[index][0]} were not drawn: {files}")
            done[index] = files
            shown.update(task, advance=len(files), note=files[-1])
    return [file for index in sorted(done) for file in done[index]]


def _worker() -> Process:
    return Process(serve_jobs, name="atlas-figures")


def _drawn(tables: Path, folder: Path, png: bool, overview: str, kernel: str) -> list[str]:
    """One overview, or all figures of a kernel; their names."""
    every, of_kernel = _split(tables)
    with matplotlib.rc_context(RC):
        if overview:
            save(_OVERVIEWS[overview](every), folder, overview, OVERVIEWS[overview], CAPTIONS[overview], png)
            return [overview]
        own = every | {name: parts.get(kernel, every[name].iloc[:0]) for name, parts in of_kernel.items()}
        for name, make in _PER_KERNEL.items():
            title = f"{PER_KERNEL[name]}: {kernel}"
            save(make(own, kernel), folder, f"{name}-{kernel}", title, CAPTIONS[name], png)
    return [f"{name}-{kernel}" for name in _PER_KERNEL]


@functools.lru_cache(maxsize=1)
def _split(folder: Path) -> tuple[Tables, dict[str, Tables]]:
    """All tables, and the large ones by kernel, so that no figure searches what is not its own."""
    tables = read(folder, COLUMNS)
    return tables, {name: dict(list(tables[name].groupby("kernel"))) for name in ("benchmark", "trials", "build")}
