"""Tuning throughput with several GPUs of one host: the suite's autotune jobs, as ``snakemake`` runs them.

In a copy of this checkout, where the documents of the earlier stages lie ready and nothing was tuned, Snakemake is
asked for every kernel's autotune document with four, two, one … GPUs.  The compile cache is warm for all alike.  What
default configs took in each run says whether neighbours move a figure, and the configs chosen whether they move a
choice.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import operator
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from atlas.errors import AtlasError
from atlas.host import devices, gpus
from atlas.results import documents
from atlas.results.pieces import Pieces
from atlas.results.subject import PassCase, label
from atlas.stages import frame
from atlas.tuning.strategies import strategy

from .. import scratch
from ..evidence import Evidence, at_least, at_most
from ..scratch import context

LIMITS = {2: 1.9, 4: 3.6, 8: 6.5}
"""The least ratio of trials per second to those with one GPU, by the count of GPUs."""

SHIFT_LIMIT = 2.0
"""Percent by which a figure may move while neighbours work: in 95 of 100 cases that take :data:`SHORT_US` or more."""

CHOICE_LIMIT = 1.0
"""Percent by which a config chosen while neighbours work may be behind the one chosen alone, in 95 of 100 cases."""

SHORT_US = 20.0
"""Shorter ones move by more than that from process to process, alone on their host."""

_NO_BUDGET = 86400.0
"""Seconds for one kernel: so many that every count of GPUs does the same trials."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m proofs throughput``."""
    scratch.add_arguments(parser)
    scratch.add_cores(parser)
    parser.add_argument("--devices", metavar="N,M", help="counts of GPUs, the first of which is 1 (default: those of "
                        "1, 2, 4 that this host has)")  # fmt: skip
    parser.add_argument("--strategies", default="halving", metavar="S,T", help="default: halving; exhaustive makes "
                        "longer jobs, in which start-up weighs less")  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run over the suite with ``devices`` GPUs and ``cores`` cores.

    ``seconds`` are from the start of the first autotune job to the end of the last, the start of Python in each job
    included; ``command_seconds`` those of the whole ``snakemake`` command.  ``jobs`` are each kernel's own.  By case:
    ``times`` are the medians (us) of default configs, ``chosen`` the best configs, ``timed`` the medians of all.
    """

    strategy: str
    devices: int
    cores: int
    seconds: float
    command_seconds: float
    trials: int
    jobs: Mapping[str, float]
    times: Mapping[str, float] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)
    timed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def run(job: frame.Job) -> Evidence:
    """Run the suite with every count; AtlasError on a GPU that only the interpreter stands for, or without two."""
    if job.functional:
        raise AtlasError(f"proofs throughput: GPU {job.gpu_name!r} is the interpreter, which has no devices to share; "
                         "name a GPU of this host")  # fmt: skip
    boards = boards_of(job.block)
    counts = counts_of(job.arguments.devices, len(boards))
    strategies = [strategy(name.strip()).name for name in job.arguments.strategies.split(",")]
    kernels = scratch.kernels_of(job.arguments)
    host_cores = scratch.cores_of(job.arguments)
    with scratch.folder(job) as folder:
        suite = Suite(job, kernels, folder / "checkout")
        kept = Pieces(folder / "pieces.jsonl", {name: context(job, name) for name in kernels})
        runs = []
        for name in strategies:
            suite.set_up(name)
            missing = [count for count in counts if f"{name} {count}" not in kept.all()]
            if missing:  # compiles what is not in the cache (certificates' cases), and fills the file system's
                suite.run(name, boards[: max(counts)], host_cores)
            for count in reversed(counts):  # whatever the first run finds cold counts against many GPUs
                cores = max(1, host_cores * count // max(counts))
                make = functools.partial(_piece, suite, name, boards[:count], cores)
                runs.append(Run(**kept.once(f"{name} {count}", make)))
    return evidence(sorted(runs, key=lambda one: (strategies.index(one.strategy), one.devices)))


def _piece(suite: Suite, *how: Any) -> dict[str, Any]:
    return asdict(suite.run(*how))


def boards_of(block: Mapping[str, Any]) -> list[str]:
    """The UUIDs of the visible devices of this host that match a block."""
    return [device.uuid for device in devices.visible() if gpus.matches(block, device.name)]


def counts_of(asked: str | None, there: int) -> list[int]:
    """The counts of GPUs to try, 1 first; :class:`AtlasError` where the host has too few or the list is none."""
    if there < 2:
        raise AtlasError(f"proofs throughput: this host shows {there} of these GPUs; run where there are two or more")
    if asked is None:
        return [count for count in (1, *LIMITS) if count <= there]
    try:
        counts = sorted({int(word) for word in asked.split(",")})
    except ValueError:
        raise AtlasError(f"command line: --devices {asked}: give counts such as 1,2,4") from None
    if counts[0] != 1 or len(counts) < 2 or counts[-1] > there:
        raise AtlasError(f"command line: --devices {asked}: give 1 and one or more counts up to {there}, such as 1,2")
    return counts


class Suite:
    """A copy of this checkout at ``root`` in which only autotune has something to do."""

    def __init__(self, job: frame.Job, kernels: Sequence[str], root: Path):
        self._job, self._kernels, self._root = job, kernels, root

    def set_up(self, strategy: str) -> None:
        """Make the copy anew, with the documents of the earlier stages, and with ``strategy`` in its config."""
        scratch.copy_checkout(self._job, self._root)
        config = yaml.safe_load((self._root / "config" / "config.yaml").read_text())
        config["autotune"] |= {"strategy": strategy, "budget_seconds": _NO_BUDGET}
        (self._root / "config" / "config.yaml").write_text(yaml.safe_dump(config))
        for kernel in self._kernels:  # last, so that they are younger than all that they are made from
            stages = ["validate"] if self._job.functional else ["build", "validate"]
            scratch.put(self._job, kernel, stages, self._root / "results")

    def words(self, devices: int, cores: int) -> list[str]:
        """What follows ``snakemake``: every kernel's autotune document, and nothing that is younger than its inputs."""
        targets = [str(path.relative_to(self._root)) for path in self._documents().values()]
        return [
            *targets, "--cores", str(cores), "--resources", f"gpu={devices}", "--rerun-triggers", "mtime",
            "--config", f"gpus={self._job.gpu_name}", f"kernels={','.join(self._kernels)}",
        ]  # fmt: skip

    def run(self, strategy: str, boards: Sequence[str], cores: int) -> Run:
        """Tune the suite from the beginning on these boards; RuntimeError where a kernel was not tuned.

        The documents stay beside the copy, in ``documents/<strategy>-<boards>``.
        """
        for path in self._documents().values():
            for made in (*path.parent.glob("journal.jsonl*"), path):
                made.unlink(missing_ok=True)
        seconds = scratch.run(
            "snakemake", self.words(len(boards), cores), {"CUDA_VISIBLE_DEVICES": ",".join(boards)},
            self._root / "snakemake.log", cwd=self._root,
        )  # fmt: skip
        found = {kernel: documents.read(path, "autotune") for kernel, path in self._documents().items()}
        trials = sum(len(scratch.require_ok(document)["trials"]) for document in found.values())
        spans = {kernel: self._span(kernel) for kernel in self._kernels}
        for kernel, path in self._documents().items():
            kept = self._root.parent / "documents" / f"{strategy}-{len(boards)}" / kernel / path.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, kept)
        return Run(
            strategy=strategy,
            devices=len(boards),
            cores=cores,
            seconds=max(end for _, end in spans.values()) - min(start for start, _ in spans.values()),
            command_seconds=seconds,
            trials=trials,
            jobs={kernel: end - start for kernel, (start, end) in spans.items()},
            times=dict(time for document in found.values() for time in defaults(document)),
            chosen=dict(choice for document in found.values() for choice in choices(document)),
            timed=functools.reduce(operator.or_, map(medians, found.values()), {}),
        )

    def _documents(self) -> dict[str, Path]:
        folder = self._root / "results" / "measured" / self._job.gpu_name
        return {kernel: folder / kernel / "autotune.json" for kernel in self._kernels}

    def _span(self, kernel: str) -> tuple[float, float]:
        """When a job began and ended: Snakemake writes this file when it ends, with the seconds it took."""
        path = self._root / "results" / "benchmarks" / self._job.gpu_name / kernel / "autotune.tsv"
        with path.open() as file:
            (row,) = csv.DictReader(file, delimiter="\t")
        end = path.stat().st_mtime
        return end - float(row["s"]), end


def defaults(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each case of an autotune document, and its default config's median in us; without those that did not run."""
    for row in document["best"]:
        if row.get("default_us"):
            yield f"{document['kernel']} {PassCase.of(row)}", row["default_us"]


def choices(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each case of an autotune document that has a best config, and that config."""
    for row in document["best"]:
        if row.get("config") is not None:
            yield f"{document['kernel']} {PassCase.of(row)}", _config(row)


def medians(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What each config of an autotune document took (median, us), by case; without those that did not end."""
    found: dict[str, dict[str, float]] = {}
    for row in document["trials"]:
        if row["status"] == "ok":
            found.setdefault(f"{document['kernel']} {PassCase.of(row)}", {})[_config(row)] = row["median_us"]
    return found


def _config(row: Mapping[str, Any]) -> str:
    return f"{row['variant']} {label(row['config'])}"


def behind(alone: Run, beside: Run) -> list[float]:
    """By how many percent the config that ``beside`` chose is behind that of ``alone``, by the clock of ``alone``.

    Sorted, of cases that are not short and were chosen for in both runs; infinite where ``alone`` gave the config up.
    """
    found = []
    for case, choice in beside.chosen.items():
        times = alone.timed.get(case, {})
        least = times.get(alone.chosen.get(case, ""), 0.0)
        if least >= SHORT_US:
            found.append(max(0.0, 100 * (times.get(choice, math.inf) / least - 1)))
    return sorted(found)


def shifts(alone: Mapping[str, float], beside: Mapping[str, float]) -> list[float]:
    """By how many percent each case that is not short moved, whichever way; sorted."""
    known = [(alone[case], time) for case, time in beside.items() if alone.get(case, 0.0) >= SHORT_US]
    return sorted(100 * abs(time / before - 1) for before, time in known)


def evidence(runs: Sequence[Run]) -> Evidence:
    """The claims, a row a run, and the notes."""
    alone = {one.strategy: one for one in runs if one.devices == 1}
    rows, claims = [], []
    for one in runs:
        rate = one.trials / one.seconds
        first = alone[one.strategy]
        ratio = rate / (first.trials / first.seconds)
        moved = shifts(first.times, one.times) if one.devices > 1 else []
        middle, most = (_quantile(moved, part) for part in (0.5, 0.95))
        lost = behind(first, one) if one.devices > 1 else []
        same = sum(choice == first.chosen.get(case) for case, choice in one.chosen.items()) if one.devices > 1 else None
        rows.append({
            "strategy": one.strategy, "GPUs": one.devices, "cores": one.cores, "seconds": one.seconds,
            "command s": one.command_seconds, "trials": one.trials, "trials/s": rate, "ratio": ratio,
            "cases": len(moved), "moved by %, median": middle, "moved by %, 95th": most,
            "same config": same, "of": len(one.chosen), "chosen behind by %, 95th": _quantile(lost, 0.95),
            **{f"{kernel} s": seconds for kernel, seconds in one.jobs.items()},
        })  # fmt: skip
        if one.devices in LIMITS:
            text = f"{one.strategy}: trials per second with {one.devices} GPUs over those with one"
            claims.append(at_least(text, ratio, LIMITS[one.devices]))
        if moved:
            text = f"{one.strategy}: with {one.devices} GPUs 95 of 100 cases over {SHORT_US:g} us moved by at most, %"
            claims.append(at_most(text, most, SHIFT_LIMIT))
        if lost:
            text = f"{one.strategy}: with {one.devices} GPUs 95 of 100 choices over {SHORT_US:g} us are behind by, %"
            claims.append(at_most(text, _quantile(lost, 0.95), CHOICE_LIMIT))
    return Evidence(claims, rows, [
        "Each row is one snakemake run over all kernels with empty journals, a warm compile cache, no budget, and only "
        "so many GPUs visible; cores grow with the GPUs.  A run with all GPUs goes before and is not counted: builds "
        "leave out what certificates launch, for which a first run waited 20 s.",
        "'seconds' are from the start of the first autotune job to the end of the last, start-up of each job included; "
        "'command s' is the whole command, with Snakemake's own start.  A trial is one config timed on one case, "
        "however many samples it took.",
        "A case moved by what its default config took in this run and with one GPU: other boards, another process and "
        "neighbours together.  A choice is behind by what its config took over the one chosen with one GPU, in the run "
        "with one GPU.",
    ])  # fmt: skip


def _quantile(values: Sequence[float], part: float) -> float | None:
    return values[min(len(values) - 1, int(part * len(values)))] if values else None
