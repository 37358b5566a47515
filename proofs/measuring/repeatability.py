"""Two full benchmarks of the same kernels, in separate processes, agree row by row."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from atlas import catalog
from atlas.errors import AtlasError
from atlas.host import environment
from atlas.results import documents
from atlas.stages import frame

from .. import scratch
from ..evidence import Evidence, at_most, none_of

LONG_US = 20.0
"""The claims are of medians over this; below it the figures are shown, and nothing is claimed of them."""
MEDIAN_LIMIT, P95_LIMIT = 1.0, 2.0
"""Per cent."""

Documents = Mapping[str, Mapping[str, Any]]
"""The benchmark documents of one run by kernel."""


@dataclass(frozen=True)
class Compared:
    """One row of the benchmark in every run: the medians in microseconds, in the order of the runs."""

    kernel: str
    name: str
    medians_us: tuple[float, ...]
    throttled: bool

    @property
    def long(self) -> bool:
        """Whether the claims are of this row."""
        return statistics.median(self.medians_us) > LONG_US

    @property
    def disagreement(self) -> float:
        """Largest less smallest median, as per cent of the median of them (of two: of their mean)."""
        return 100 * (max(self.medians_us) - min(self.medians_us)) / statistics.median(self.medians_us)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, ``--scratch`` and how many runs."""
    scratch.add_arguments(parser)
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="full benchmarks to compare (default: 2)")


def run(job: frame.Job) -> Evidence:
    """Benchmark every kernel in every run, each in a process of its own, and compare."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: repeatability is of times, and the interpreter's are not speeds; "
                         "name a GPU of this host")  # fmt: skip
    if job.arguments.runs < 2:
        raise AtlasError(f"command line: --runs is {job.arguments.runs}; give at least 2, to be compared")
    kernels = scratch.kernels_of(job.arguments)
    with scratch.folder(job) as folder:
        runs = [
            {kernel: benchmark(job, kernel, folder / f"run-{number}") for kernel in kernels}
            for number in range(1, job.arguments.runs + 1)
        ]
    return evidence(runs)


def benchmark(job: frame.Job, kernel: str, results: Path) -> dict[str, Any]:
    """The document of one benchmark, made on copies of what was surveyed, validated and tuned before."""
    output = results / "measured" / job.gpu_name / kernel / "benchmark.json"
    known = documents.read(output, "benchmark") if output.exists() else None
    if known and _still_holds(known):
        return known  # of a proof in the same folder that was cut off
    scratch.put(job, "", ["survey"], results)  # which lies in the GPU's own folder
    scratch.put(job, kernel, ["validate", "autotune"], results)
    words = ["benchmark", kernel, *scratch.common(job), "--results", results]
    scratch.run("atlas", words, {}, results / "logs" / f"{kernel}.log")
    document = documents.read(output, "benchmark")
    if not document["rows"]:
        raise RuntimeError(f"the benchmark of {kernel} ended {document['status']}: {document['reason']}")
    return document


def _still_holds(document: Mapping[str, Any]) -> bool:
    from atlas import timing

    software = environment.software()
    return (
        document["status"] == "ok"
        and document["kernel_digest"] == catalog.digest(document["kernel"])
        and document["protocol"] == timing.PROTOCOL
        and all(document["software"].get(name) == software[name] for name in ("torch", "triton"))
    )


def evidence(runs: Sequence[Documents]) -> Evidence:
    """The claims, and a row for each kernel and one for all."""
    compared, alone = compare(runs)
    long = [each.disagreement for each in compared if each.long]
    over = f"medians over {LONG_US:g} us"
    kernels = list(dict.fromkeys(each.kernel for each in compared))
    groups = {kernel: [each for each in compared if each.kernel == kernel] for kernel in kernels}
    throttled = sum(each.throttled for each in compared if each.long)
    return Evidence(
        claims=[
            at_most(f"{over}: median of their disagreement, %", _quantile(long, 0.5), MEDIAN_LIMIT),
            at_most(f"{over}: 95th percentile of their disagreement, %", _quantile(long, 0.95), P95_LIMIT),
            none_of("rows that were timed in one run and not in another", alone),
        ],
        rows=[_row(name, group) for name, group in {**groups, "all": compared}.items()],
        notes=[
            "A row is a provider, direction, dtype and case; a default config that is also the tuned one counts once. "
            "Disagreement is the largest less the smallest median of the runs, over the median of them.",
            f"{throttled} of the rows over {LONG_US:g} us were throttled in a run: they are counted like the others.",
            "The runs follow each other on one board, with the same software, the same tuned configs and the same "
            "random order of providers. This shows what a new process changes (where buffers and code lie, the host's "
            "pace, the board's temperature), and nothing of another day, board, driver or of a busy host.",
            *([f"In one run only: {'; '.join(alone[:5])}"] if alone else []),
        ],
    )


def compare(runs: Sequence[Documents]) -> tuple[list[Compared], list[str]]:
    """The rows that every run timed, and the names of those that some run did not."""
    timed = [_timed(run) for run in runs]
    keys = list(dict.fromkeys(key for rows in timed for key in rows))
    everywhere = [key for key in keys if all(key in rows for rows in timed)]
    compared = []
    for key in everywhere:
        rows = [run[key] for run in timed]
        medians = tuple(row["median_us"] for row in rows)
        compared.append(Compared(key[0], _name(rows[0]), medians, any(row.get("throttled") for row in rows)))
    missing = [key for key in keys if key not in everywhere]
    return compared, [f"{key[0]} {_name(next(rows[key] for rows in timed if key in rows))}" for key in missing]


def _timed(run: Documents) -> dict[tuple[str, ...], Mapping[str, Any]]:
    rows = {}
    for kernel, document in run.items():
        for row in document["rows"]:
            if row.get("median_us") is None:
                continue
            work = [row["direction"], row["dtype"], row["sizes"]]
            # A default config that is the tuned one shares its figures: the same key, whichever comes first.
            kind = "peer" if row["provider_kind"] == "peer" else "variant"
            key = (kernel, kind, row["provider"], json.dumps([*work, row["config"]], sort_keys=True))
            rows.setdefault(key, row)
    return rows


def _name(row: Mapping[str, Any]) -> str:
    sizes = " ".join(f"{key}={value}" for key, value in row["sizes"].items())
    return f"{row['provider']} ({row['provider_kind']}) {row['direction']} {sizes} {row['dtype']}"


def _quantile(values: Sequence[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if values else None


def _row(name: str, group: Sequence[Compared]) -> dict[str, Any]:
    long = [each for each in group if each.long]
    worst = max(long, key=lambda each: each.disagreement, default=None)
    short = [each.disagreement for each in group if not each.long]
    return {
        "kernel": name,
        f"over {LONG_US:g} us": len(long),
        "median %": _quantile([each.disagreement for each in long], 0.5),
        "p95 %": _quantile([each.disagreement for each in long], 0.95),
        "worst %": worst and worst.disagreement,
        "worst row": worst and f"{worst.name}: {' / '.join(f'{median:.1f}' for median in worst.medians_us)} us",
        f"up to {LONG_US:g} us": len(short),
        "their median %": _quantile(short, 0.5),
        "their p95 %": _quantile(short, 0.95),
    }
