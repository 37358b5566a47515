"""Verdicts between runs: one commit's cases are never called faster or slower, a kernel slowed by 3 % is called slower.

On a GPU the benchmark runs several times, each in a process of its own, and sides are drawn from these runs.  In the
interpreter, whose times are no speeds, runs are drawn anew from the samples of the records.
"""

from __future__ import annotations

import argparse
import copy
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from atlas import ROOT
from atlas.errors import AtlasError
from atlas.results import changes, documents, files
from atlas.results.differences import ENOUGH, SHORT_US
from atlas.stages import frame
from atlas.timing.samples import quartiles

from .. import scratch
from ..evidence import Evidence, at_least, at_most
from . import repeatability

REPEATS = 20
SLOWED = 1.03
MOST_FALSE, LEAST_FOUND = 0, 95.0
"""Cases of one commit that may be called faster or slower in all repeats; per cent of slowed ones to call slower."""

# What a process moves a median by: Student's t, so scaled that two runs of all records, samples drawn anew, differ by
# 0.18 % in the median and 1.3 % at the 95th percentile; the proof `repeatability` found 0.18 and 1.2 %.  It is three
# times as far where the board was throttled, as peers of records lay apart.
_FREEDOM, _SCALE, _THROTTLED = 1.6, 0.0007, 3.0
_MOST = 0.10
_BLOCK = 10
"""Samples next to each other are alike, so blocks of them are drawn."""

Run = Mapping[str, Any]
"""The benchmark document of one kernel."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, ``--scratch``, how many runs a side and in all, whose records."""
    scratch.add_arguments(parser)
    parser.add_argument("--side", type=int, default=ENOUGH, metavar="N", help=f"runs a side (default: {ENOUGH})")
    parser.add_argument("--runs", type=int, default=12, metavar="N", help="benchmarks on a GPU, to draw sides "
                        "from (default: 12)")  # fmt: skip
    parser.add_argument(
        "--records", default="h200", metavar="GPU", help="with --gpu cpu: whose records (default: h200)"
    )


def run(job: frame.Job) -> Evidence:
    """Measure, or draw, runs of every kernel, and judge them."""
    if job.arguments.runs < 2 * job.arguments.side:
        raise AtlasError(f"command line: --runs is {job.arguments.runs}; two sides of {job.arguments.side} need more")
    given, kernels = job.arguments.kernels, scratch.kernels_of(job.arguments)
    if job.functional:
        folder = ROOT / "results" / "recorded" / job.arguments.records
        kernels = [name for name in kernels if files.found(folder / name, "benchmark").exists()]
        if not kernels:
            raise AtlasError(f"{folder}: no benchmark of {given or 'any kernel'}; name a GPU with records")
        return evidence(_of_records(folder, kernels, job.arguments.side), job.arguments.side, _DRAWN)
    with scratch.folder(job) as folder:
        runs = {
            kernel: [
                repeatability.benchmark(job, kernel, folder / f"run-{number}") for number in range(job.arguments.runs)
            ]
            for kernel in kernels
        }
    return evidence(_of_runs(runs, job.arguments.side), job.arguments.side, _MEASURED)


_DRAWN = (
    "Runs are drawn: blocks of the recorded samples, moved as a new process moves them. The movement of a case is "
    "independent of its neighbours', and has the percentiles that were recorded, with a tail up to 10 %."
)
_MEASURED = "Runs are full benchmarks, each in a process of its own; a repeat draws its sides from them."

Sides = Callable[[int], Iterator[tuple[list[Run], list[Run]]]]
"""By a repeat's number, before and after of every kernel."""


def _of_records(folder: Path, kernels: Sequence[str], side: int) -> Sides:
    recorded = [documents.read(files.found(folder / kernel, "benchmark"), "benchmark") for kernel in kernels]

    def sides(repeat: int) -> Iterator[tuple[list[Run], list[Run]]]:
        draws = np.random.default_rng(repeat)
        for document in recorded:
            runs = [_drawn(document, draws) for _ in range(2 * side)]
            yield runs[:side], runs[side:]

    return sides


def _of_runs(runs: Mapping[str, Sequence[Run]], side: int) -> Sides:
    def sides(repeat: int) -> Iterator[tuple[list[Run], list[Run]]]:
        for kernel, own in runs.items():
            chosen = random.Random(f"{kernel} {repeat}").sample(list(own), 2 * side)
            yield chosen[:side], chosen[side:]

    return sides


def _drawn(document: Run, draws: np.random.Generator) -> Run:
    """A run as another process could have made it."""
    return dict(document) | {"rows": [redrawn(row, draws) for row in document["rows"] if row.get("samples_us")]}


def redrawn(row: Mapping[str, Any], draws: np.random.Generator) -> dict[str, Any]:
    samples = np.asarray(row["samples_us"])
    starts = draws.integers(0, max(1, len(samples) - _BLOCK + 1), -(-len(samples) // _BLOCK))
    drawn = np.concatenate([samples[start : start + _BLOCK] for start in starts])
    moved = draws.standard_t(_FREEDOM) * _SCALE * (_THROTTLED if row.get("throttled") else 1.0)
    q1, median, q3 = quartiles(drawn * np.exp(np.clip(moved, -_MOST, _MOST)))
    return dict(row) | {"q1_us": q1, "median_us": median, "q3_us": q3}


def slowed(document: Run, factor: float) -> Run:
    """The run as it were with variants that take ``factor`` times as long."""
    found = copy.copy(dict(document)) | {"rows": []}
    for row in document["rows"]:
        own = factor if row["provider_kind"] != "peer" and row.get("median_us") else 1.0
        times = {key: own * row[key] for key in ("q1_us", "median_us", "q3_us") if row.get(key)}
        found["rows"].append(dict(row) | times)
    return found


def judged(before: Sequence[Run], after: Sequence[Run]) -> list[dict[str, Any]]:
    """The verdicts on the cases over :data:`~atlas.results.differences.SHORT_US`."""
    entries = [[_entry(document) for document in side] for side in (before, after)]
    return [row for row in changes.compared(*entries) if row["before_median_us"] >= SHORT_US]


def _entry(document: Run) -> Any:
    return types.SimpleNamespace(
        document=document, kernel=document["kernel"], gpu=document["gpu"], identity=lambda direction, variant: ""
    )


def evidence(sides: Sides, side: int, note: str) -> Evidence:
    """The claims over all repeats, and a row a kernel."""
    counts: dict[str, dict[str, int]] = {}
    for repeat in range(REPEATS):
        for before, after in sides(repeat):
            own = counts.setdefault(before[0]["kernel"], dict.fromkeys(("cases", "false", "undecided", "found"), 0))
            for row in judged(before, after):
                own["cases"] += 1
                own["false"] += row["verdict"] in ("faster", "slower")
                own["undecided"] += row["verdict"] == "undecided"
            slower = judged(before, [slowed(document, SLOWED) for document in after])
            own["found"] += sum(row["verdict"] == "slower" for row in slower)
    total = {key: sum(own[key] for own in counts.values()) for key in ("cases", "false", "undecided", "found")}
    over = f"cases over {SHORT_US:g} us, {side} runs a side, {REPEATS} repeats"
    return Evidence(
        claims=[
            at_most(f"{over}: of one commit called faster or slower", total["false"], MOST_FALSE),
            at_least(f"{over}: slowed by {100 * (SLOWED - 1):.0f} % and called slower, %", _share(total), LEAST_FOUND),
        ],
        rows=[_row(name, own) for name, own in {**counts, "all": total}.items()],
        notes=[note, "A case counts once a repeat: its fastest variant on either side."],
    )


def _share(own: Mapping[str, int]) -> float | None:
    return 100 * own["found"] / own["cases"] if own["cases"] else None


def _row(name: str, own: Mapping[str, int]) -> dict[str, Any]:
    return {
        "kernel": name,
        "cases x repeats": own["cases"],
        "false": own["false"],
        "undecided": own["undecided"],
        "slowed, called slower %": _share(own),
    }
