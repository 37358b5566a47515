"""mutants: faults planted in the project's own kernels, one at a time; validation catches each, and no true kernel.

Faults made by hand (:mod:`.handmade`) must all be caught.  Of those that mutation operators make (:mod:`.generated`)
some change nothing that can be observed: the share that is caught is claimed, and what was not is named.

Every fault made by hand, and for comparison every kernel as it is, is a copy of the kernels, in a process of its own.
The check that should find a fault is made first, the whole inspection after it, up to the first failure.  A launch that
merely raises an error is not held to have been caught: the fault is to be seen for what it is.
"""

from __future__ import annotations

import argparse
import difflib
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.errors import AtlasError
from atlas.host.progress import progress
from atlas.stages import frame
from atlas.workers.process import Died, Process, TimedOut

from .. import inspecting, scratch
from ..evidence import Claim, Evidence, at_least, none_of
from ..inspecting import DEVICE_LOST, Outcome, Request, Wrong
from . import attempts, equivalent, generated, planting
from .handmade import MUTANTS
from .planting import Mutant

CAUGHT, MISSED, NOT_HERE, CLEAN, FLAGGED, FAILED = "caught", "missed", "not here", "clean", "flagged", "failed"
EQUIVALENT = "equivalent"
"""A generated fault that nothing caught, and of which :mod:`.equivalent` says why nothing can."""

_SILENCE_GPU, _SILENCE_INTERPRETER = 120.0, 600.0
"""Seconds of one task of an inspection: the largest takes a GPU a few seconds, the interpreter a minute under load."""

_READY_AHEAD = 3
"""On a GPU one process works at a time; as many more start meanwhile, since a start takes longer than most work."""

LEAST_CAUGHT = 0.9
"""Of the generated faults that are run here and not known to change nothing."""

_HUGE_GIB = 48
"""What the largest case beyond 2^31 elements takes (``validation.huge.needed_bytes``), and some for the rest."""

_REASON_LENGTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the proof's arguments."""
    parser.add_argument("--kernels", default="", metavar="A,B", help="default: all")
    parser.add_argument("--only", metavar="NAME", help="mutants of this name, and no kernel as it is")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds per case (default: 5)")
    parser.add_argument("--generated", default="8", metavar="N", help="faults of each kernel that mutation operators "
                        "make, or all: thousands (default: 8)")  # fmt: skip
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="keep what came of generated faults here, and "
                        "go on from it where an earlier run was cut off (default: a temporary folder)")  # fmt: skip
    parser.add_argument("--jobs", type=int, metavar="N", help="inspections at once on the interpreter (default: one a "
                        "core); a GPU makes one at a time")  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One copy of one kernel to inspect: with a fault, or as it is."""

    kernel: str
    mutant: Mutant | None


def run(job: frame.Job) -> Evidence:
    """Plant, inspect, compare."""
    arguments = job.arguments
    if arguments.seeds < 2:
        raise AtlasError(f"--seeds {arguments.seeds}: give at least 2; some faults show in the second call alone")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise AtlasError(f"--jobs {arguments.jobs}: give at least 1")
    chosen = select(MUTANTS, scratch.kernels_of(arguments), arguments.only)
    absent = {mutant.name: reason for mutant in chosen if (reason := why_not_here(mutant, job))}
    trials = [Trial(mutant.kernel, mutant) for mutant in chosen if mutant.name not in absent]
    if not arguments.only:
        # The longest first: each true kernel's inspection is complete.
        trials = [*(Trial(kernel, None) for kernel in scratch.kernels_of(arguments)), *trials]
    with frame.leased(job), tempfile.TemporaryDirectory(prefix="atlas-mutants.") as folder:
        outcomes = _all(job, trials, chosen, Path(folder))
        rows = [_row(trial, outcome) for trial, outcome in zip(trials, outcomes, strict=True)]
        made = [] if arguments.only else _generated(job)
    rows += [_not_here(mutant, absent[mutant.name]) for mutant in chosen if mutant.name in absent]
    return Evidence([*claims(rows), *claims_of_generated(made)], [*rows, *made], notes(job, [*rows, *made]))


def _generated(job: frame.Job) -> list[dict[str, Any]]:
    """A row for each generated fault that is tried."""
    kernels = scratch.kernels_of(job.arguments)
    made = generated.mutants(kernels)
    asked = job.arguments.generated
    if asked != "all":
        if not asked.isdigit():
            raise AtlasError(f"command line: --generated {asked}: give a number, or all")
        made = generated.sample(made, int(asked))
    here = {mutant.name: mutant for mutant in made if not why_not_here(mutant, job)}
    names = {kernel: [name for name, one in here.items() if one.kernel == kernel] for kernel in kernels}
    at_once = (job.arguments.jobs or os.cpu_count() or 1) if job.functional else 1
    with scratch.folder(job) as folder, ThreadPoolExecutor(at_once) as pool:
        tried = {
            kernel: pool.submit(attempts.outcomes, job, kernel, own, folder, job.arguments.seeds)
            for kernel, own in names.items()
            if own
        }
        found = {name: piece for future in tried.values() for name, piece in future.result().items()}
    return [_row_of_generated(here[name], piece) for name, piece in found.items()]


def _row_of_generated(mutant: Mutant, piece: dict[str, Any]) -> dict[str, Any]:
    status, reason = piece["status"], piece["reason"]
    if status == attempts.SURVIVED and (why := equivalent.reason(mutant.name)):
        status, reason = EQUIVALENT, why
    return _fields(mutant.kernel, mutant, status) | {
        "caught_by": piece["by"],
        "checks": piece["checks"],
        "seconds": piece["seconds"],
        "reason": shortened(reason),
    }


def claims_of_generated(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """What generated faults must come to; nothing is claimed where none was tried."""
    if not rows:
        return []
    caught = sum(row["status"] == CAUGHT for row in rows)
    survived = sum(row["status"] == attempts.SURVIVED for row in rows)
    text = f"share of {caught + survived} generated faults that run here and change something which a check caught"
    return [at_least(text, caught / (caught + survived) if caught + survived else None, LEAST_CAUGHT)]


def select(mutants: Sequence[Mutant], kernels: Sequence[str], only: str | None) -> list[Mutant]:
    """The mutants of some kernels, or those of that name; :class:`AtlasError` for an unknown name."""
    found = [mutant for mutant in mutants if mutant.kernel in kernels and only in (None, mutant.name)]
    if only is not None and not found:
        names = [mutant.name for mutant in mutants if mutant.kernel in kernels]
        near = difflib.get_close_matches(only, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise AtlasError(f"--only {only!r}: no such mutant; {hint}")
    return found


def why_not_here(mutant: Mutant, job: frame.Job) -> str:
    """Why a mutant cannot show on this job's GPU, or ``""``."""
    if not mutant.shows(job.functional):
        return mutant.gpu_only
    if mutant.huge and job.block["memory_gib"] < _HUGE_GIB:
        return f"{mutant.gpu_only}, for which {job.block['memory_gib']} GiB of memory are too few"
    if not mutant.needs <= job.gpu().capabilities:
        return f"{', '.join(mutant.needs - job.gpu().capabilities)}: {mutant.gpu_only}"
    return ""


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """What the rows must come to."""
    by = {status: [row for row in rows if row["status"] == status] for status in (CAUGHT, MISSED, FLAGGED, FAILED)}
    true = [row for row in rows if row["mutant"] == "" and row["status"] != FAILED]
    found = [
        at_least("mutants caught", len(by[CAUGHT]), 1),
        none_of("mutants that show here and that no check caught", by[MISSED]),
        none_of("copies that could not be inspected", by[FAILED]),
    ]
    if true:
        found.append(none_of("true kernels with a finding of fail or error", by[FLAGGED]))
    return found


def notes(job: frame.Job, rows: Sequence[dict[str, Any]]) -> list[str]:
    """How the rows came about."""
    arguments = job.arguments
    found = [
        f"A copy of the kernels for each row; of those made by hand each in a process of its own; "
        f"{arguments.seeds} seeds; seconds without "
        "the process's start. The check that is expected to catch a fault is made first, then the whole inspection.",
        f"`{DEVICE_LOST}`: the process crashed, hung or lost its device; validation then reports failure.",
    ]
    by_hand = {"", *(mutant.name for mutant in MUTANTS)}
    counts = Counter(row["status"] for row in rows if row["mutant"] not in by_hand)
    if counts:
        said = ", ".join(f"{count} {status}" for status, count in counts.items())
        found.append(
            f"Of the generated faults: {said}. 'not run': no check here runs what was changed; 'invalid': it raises "
            "where it runs; 'undecided': not found in time; 'equivalent': listed with the reason in "
            "proofs/mutants/equivalent.py."
        )
    absent = [row for row in rows if row["status"] == NOT_HERE]
    if absent:
        found.append(f"{len(absent)} mutants cannot show here, for the reason in their row.")
    expected = {(mutant.kernel, mutant.name): mutant.caught_by for mutant in MUTANTS}
    caught = {(row["kernel"], row["mutant"]): row["caught_by"] for row in rows if row["status"] == CAUGHT}
    other = [f"{name[1]} ({expected[name]})" for name, check in caught.items() if check != expected.get(name, check)]
    if other:
        found.append(f"Caught by another check than the expected one: {', '.join(other)}.")
    return found


def _all(job: frame.Job, trials: list[Trial], mutants: list[Mutant], folder: Path) -> list[Outcome]:
    """The outcome of every trial, in their order."""
    at_once = (job.arguments.jobs or os.cpu_count() or 1) if job.functional else 1
    started = min(len(trials), at_once if job.functional else at_once + _READY_AHEAD)
    gate = threading.Semaphore(at_once)
    requests = [_request(trial, mutants, folder, job) for trial in trials]
    if not requests:
        return []
    processes = [inspecting.worker(job, "atlas-mutant") for _ in requests]
    silence = _SILENCE_INTERPRETER if job.functional else _SILENCE_GPU
    with progress() as shown, ThreadPoolExecutor(started) as pool:
        bar = shown.add_task("mutants", total=len(requests), note="")
        pairs = zip(processes, requests, strict=True)
        futures: list[Future[Outcome]] = [pool.submit(_one, *pair, gate, silence) for pair in pairs]
        try:
            for future in as_completed(futures):
                trial = trials[futures.index(future)]
                shown.update(
                    bar, advance=1, note=f"{trial.kernel}: {trial.mutant.name if trial.mutant else 'as it is'}"
                )
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.interrupt()
            raise


def _request(trial: Trial, mutants: list[Mutant], folder: Path, job: frame.Job) -> Request:
    seeds = (tuple(range(job.arguments.seeds)),)
    path = planting.plant(folder, trial.kernel, trial.mutant)
    if trial.mutant is not None:
        return Request(trial.kernel, path, (trial.mutant,), seeds, stop=True)
    # A certificate that is refused to a mutant must be granted to the kernel as it is.
    certified = tuple(mutant for mutant in mutants if mutant.kernel == trial.kernel and mutant.config is not None)
    return Request(trial.kernel, path, certified, seeds, stop=False)


def _one(process: Process, request: Request, gate: threading.Semaphore, silence_seconds: float) -> Outcome:
    """Start a worker, wait for its turn, follow it to its end."""
    with process:
        try:
            process.start()
            inspecting.ready(process)
        except (Died, TimedOut) as error:
            return Outcome(failed=f"the process did not start: {error or 'no answer'}")
        with gate:
            outcome = inspecting.follow(process, request, silence_seconds)
            process.kill()  # the next finds the device's memory free
            return outcome


def _row(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    mutant = trial.mutant
    failed = [wrong for wrong in outcome.wrong if wrong.status == "fail"]
    caught = failed[0] if failed else None
    reason = outcome.failed or (_said(caught) if caught else "")
    if mutant is None:
        status = FAILED if outcome.failed else FLAGGED if outcome.wrong else CLEAN
        reason = reason or "; ".join(wrong.reason for wrong in outcome.wrong[:1])
    else:
        status = FAILED if outcome.failed else CAUGHT if caught else MISSED
        if status == MISSED and outcome.wrong:
            reason = f"errors only: {outcome.wrong[0].reason}"
    return _fields(trial.kernel, mutant, status) | {
        "caught_by": caught.check if caught else "",
        "checks": outcome.checks,
        "seconds": round(outcome.seconds, 2),
        "reason": shortened(reason),
    }


def _said(wrong: Wrong) -> str:
    """The case and what was found there, without the rest of the subject."""
    said = wrong.reason.partition(f": {wrong.status}: ")[2] or wrong.reason
    return said if wrong.subject is None else f"{wrong.subject.case}: {said}"


def _not_here(mutant: Mutant, reason: str) -> dict[str, Any]:
    return _fields(mutant.kernel, mutant, NOT_HERE) | {
        "caught_by": "", "checks": 0, "seconds": 0.0, "reason": reason,
    }  # fmt: skip


def _fields(kernel: str, mutant: Mutant | None, status: str) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "mutant": mutant.name if mutant else "",
        "kind": mutant.kind if mutant else "the kernel as it is",
        "status": status,
    }


def shortened(reason: str) -> str:
    """A reason on one line of a table."""
    words = " ".join(reason.split())
    return words if len(words) <= _REASON_LENGTH else f"{words[: _REASON_LENGTH - 1]}…"
