"""What pruning costs: the best of each case's space against configs drawn at random from what the kernels leave out.

A variant declares lists of values, and ``fits`` leaves of their product what its author thinks worth a trial.  Here
configs that it leaves out are tried beside those that it keeps, by the tuner.  They are drawn until so many compile for
the GPU without spilling much, as a build judges, in a time that a tuner would wait: most do not, and a compiler works
at those for minutes.  Where one of them wins a case, it and the fastest of the space are timed in turns.  What lies
outside the declared values altogether is not tried.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.declaration import GPU, Case, Declaration, Variant
from atlas.errors import AtlasError
from atlas.results.pieces import Pieces
from atlas.stages import called, frame, searching
from atlas.tuning import candidates
from atlas.tuning.candidates import Candidate, Problem, Ruling
from atlas.tuning.search import ByStrategy, Way
from atlas.tuning.strategies import strategy

from .. import scratch
from ..evidence import Evidence, at_most
from .finals import compare, named
from .regret import share

LIMIT = 0.01
"""Most regret of the pruned spaces at the 95th percentile of the problems."""

CONFIGS, CASES = 300, 2
TOP = 3
"""Of the space, timed in turns with what won from outside."""

COMPILE_SECONDS = 20.0
"""What a config from outside may take to compile; the slowest that are of use take some 10."""
MOST_DRAWN = 6
"""How many times as many configs as are wanted are drawn at most."""

Choice = Callable[[Problem, Sequence[Candidate], int], Sequence[Candidate]]
"""Which of those drawn for a problem, so many of them, are tried."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, ``--scratch``, ``--cores``, how many configs and cases, and the seed."""
    scratch.add_arguments(parser, kernels="matmul,attention,softmax,layer_norm")
    scratch.add_cores(parser)
    parser.add_argument("--configs", type=int, default=CONFIGS, metavar="N", help=f"a case (default: {CONFIGS})")
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"a kernel and dtype (default: {CASES})")
    parser.add_argument("--seed", type=int, default=0, help="of configs and cases (default: 0)")


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
        compiling = functools.partial(that_compile, job.kernel, gpu, job.arguments.jobs)
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


def first(problem: Problem, drawn: Sequence[Candidate], count: int) -> Sequence[Candidate]:
    """So many of those drawn, whatever becomes of them."""
    return drawn[:count]


def that_compile(
    kernel: str, gpu: GPU, jobs: int, problem: Problem, drawn: Sequence[Candidate], count: int
) -> Sequence[Candidate]:
    """The first so many of those drawn that compile; the tuner finds what was compiled in Triton's cache."""
    from atlas import catalog
    from atlas.compilation.pool import Task, compile_all

    load = functools.partial(catalog.load, kernel)
    drawn = drawn[: MOST_DRAWN * count]
    tasks = (Task(load, problem.direction, one.variant, problem.case, one.config, gpu) for one in drawn)
    found: list[int] = []
    with contextlib.closing(compile_all(tasks, jobs, COMPILE_SECONDS)) as compiled:
        for index, result in compiled:
            if result.status == "ok":
                found.append(index)
            if len(found) == count:
                break
    print(f"{kernel} {problem}: {len(found)} configs from outside compile", flush=True)
    return [drawn[index] for index in sorted(found)]


def wide(
    declaration: Declaration, gpu: GPU, configs: int, cases: int, seed: int, choice: Choice = first
) -> list[Problem]:
    """Problems of some cases of each dtype, with ``configs`` candidates more from outside the space of each.

    They are drawn at random; ``choice`` says which are tried.
    """
    drawing = random.Random(f"{seed} {declaration.name}")
    by_dtype: dict[str, list[Case]] = {}
    for case in declaration.cases(gpu):
        by_dtype.setdefault(case.dtype, []).append(case)
    chosen = [case for own in by_dtype.values() for case in drawing.sample(own, min(cases, len(own)))]
    found = []
    for problem in candidates.problems(declaration, gpu, Ruling(), chosen):
        variants = declaration.passes[problem.direction].variants
        out = [one for v in variants if not v.unsupported(problem.case, gpu) for one in outside(v, problem.case, gpu)]
        more = choice(problem, drawing.sample(out, len(out)), configs)
        found.append(dataclasses.replace(problem, candidates=(*problem.candidates, *more)))
    return found


def outside(variant: Variant, case: Case, gpu: GPU) -> list[Candidate]:
    """What a variant's lists give and its ``fits`` refuses."""
    product = itertools.product(*variant.space.values())
    every = (dict(zip(variant.space, values, strict=True)) for values in product)
    return [Candidate.of(variant.name, config) for config in every if variant.fits(config, case, gpu)]


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
