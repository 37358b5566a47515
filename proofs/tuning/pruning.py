"""What pruning costs: the best of each case's space against configs drawn at random from what the kernels leave out.

A variant declares lists of values, and ``fits`` leaves of their product what its author thinks worth a trial.  Here
configs that it leaves out are tried beside those that it keeps, by the tuner.  They are drawn until so many compile for
the GPU without spilling much, as a build judges, in a time that a tuner would wait (:mod:`.outside`).  Where one of
them wins a case, it and the fastest of the space are timed in turns.  What lies outside the declared values altogether
is not tried.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.declaration import GPU, Declaration
from atlas.errors import AtlasError
from atlas.results.pieces import Pieces
from atlas.stages import called, frame, searching
from atlas.tuning.candidates import Candidate, Problem, Ruling
from atlas.tuning.search import ByStrategy, Way
from atlas.tuning.strategies import strategy

from .. import scratch
from ..evidence import Evidence, at_most
from .finals import compare, named
from .outside import COMPILE_SECONDS, add_drawing, that_compile, wide
from .regret import share

LIMIT = 0.01
"""Most regret of the pruned spaces at the 95th percentile of the problems."""

TOP = 3
"""Of the space, timed in turns with what won from outside."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of :mod:`.outside`."""
    add_drawing(parser)


def run(job: frame.Job) -> Evidence:
    """Search, and time in turns; AtlasError on a GPU that only the interpreter stands for."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU of this host")
    rows: list[dict[str, Any]] = []
    with scratch.folder(job) as folder, frame.leased(job) as lease:
        for kernel in scratch.kernels_of(job.arguments):
            context = scratch.context(job, kernel) | _asked(job.arguments)
            found = functools.partial(_of_kernel, _tuning(job, kernel, folder), lease, job.arguments)
            rows += Pieces(folder / f"{kernel}.jsonl", context).once(kernel, found)
    return evidence(rows)


def _asked(arguments: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(arguments, name) for name in ("configs", "cases", "seed")}


def _tuning(job: frame.Job, kernel: str, folder: Path) -> frame.Job:
    """The job of a search that is kept apart from the kernel's own."""
    arguments = argparse.Namespace(
        jobs=scratch.cores_of(job.arguments), budget_seconds=None, trial_timeout_seconds=20.0, certify_seeds=0
    )
    return dataclasses.replace(job, stage="autotune", kernel=kernel, results=folder, arguments=arguments)


def _of_kernel(job: frame.Job, lease: Any, asked: argparse.Namespace) -> list[dict[str, Any]]:
    widened: list[Problem] = []

    def question(declaration: Declaration, gpu: GPU, ruling: Ruling) -> tuple[list[Problem], Way]:
        compiling = that_compile(job.kernel, gpu, job.arguments.jobs, job.results)
        widened.extend(wide(declaration, gpu, asked.configs, asked.cases, asked.seed, compiling))
        return widened, ByStrategy(strategy("halving"))

    with called.settled(job, lease) as used:
        document = searching.search(job, lease, used, time.perf_counter(), question)
    from atlas.host import runtime
    from atlas.timing import Clock

    device = runtime.device_of(job.gpu_name, job.block)
    clock = Clock(device)
    clock.warm_up()
    return [_row(job, problem, document, clock, device) for problem in widened]


def _row(job: frame.Job, problem: Problem, document: Mapping[str, Any], clock: Any, device: Any) -> dict[str, Any]:
    """What a problem came to; its regret is 0 where the space has the winner."""
    declaration, gpu = job.declaration(), job.gpu()
    trials = [row for row in document["trials"] if named(row) == str(problem)]
    winner = next((row for row in document["best"] if named(row) == str(problem)), None)
    kept, out = [], []
    for row in trials:
        variant = declaration.passes[problem.direction].variant(row["variant"])
        (out if variant.fits(row["config"], problem.case, gpu) else kept).append(row)
    timed: Mapping[str, Any] = {}
    reason = "" if winner else "nothing works"
    if winner is not None and any(_candidate(row) == _candidate(winner) for row in out):
        space = sorted((row for row in kept if row["status"] == "ok"), key=lambda row: row["median_us"])[:TOP]
        found = compare(declaration, problem, [_candidate(winner), *map(_candidate, space)], clock, device)
        timed, reason = found["timed"], found["reason"]
    return row_of(job.kernel or "", problem, kept, out, winner and str(_candidate(winner)), timed, reason)


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate.of(row["variant"], row["config"])


def row_of(
    kernel: str, problem: Problem, kept: Sequence[Mapping[str, Any]], out: Sequence[Mapping[str, Any]],
    winner: str | None, timed: Mapping[str, Any], reason: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A row of the evidence.  ``timed`` are the winner from outside and the space's fastest in turns; else empty."""
    regret = None if reason else 0.0
    if timed and winner is not None:
        best = min(one["median_us"] for name, one in timed.items() if name != winner)
        regret = max(0.0, best / timed[winner]["median_us"] - 1)
    return {
        "kernel": kernel,
        "problem": str(problem),
        "space": len(kept),
        "outside": len(out),
        "of them ran": sum(row["status"] in ("ok", "stopped") for row in out),
        "wrong": sum(row["status"] == "wrong" for row in out),
        "winner from outside": winner if timed else "",
        "regret %": None if regret is None else round(100 * regret, 2),
        "reason": reason,
    }


def evidence(rows: Sequence[Mapping[str, Any]]) -> Evidence:
    """The claim of all problems together."""
    known = [row["regret %"] for row in rows if row["regret %"] is not None]
    text = f"regret of the pruned space at the 95th percentile of {len(known)} problems, %"
    notes = [
        f"outside: configs of the declared lists that `fits` refuses, drawn at random, of those that compile within "
        f"{COMPILE_SECONDS:.0f} s without spilling much; ran: launched",
        "a winner from outside is checked against the reference; it and the space's fastest are timed in turns",
    ]
    return Evidence([at_most(text, share(known, 0.95), 100 * LIMIT)], rows, notes)
