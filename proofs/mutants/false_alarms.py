"""false-alarms: every true kernel validated again and again with fresh seeds; no finding may be fail or error.

A kernel's rounds run in one process, so that what they compile is compiled once.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

from atlas.errors import AtlasError
from atlas.results.pieces import Pieces
from atlas.stages import frame
from atlas.validation import PROTOCOL
from atlas.workers.process import Died, TimedOut

from .. import inspecting, scratch
from ..evidence import Evidence, at_least, none_of
from ..inspecting import Outcome, Request
from ..scratch import context
from .proof import shortened

_SILENCE_GPU, _SILENCE_INTERPRETER = 300.0, 1800.0
_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the proof's arguments."""
    scratch.add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="full validations of each (default: 20)")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds per case and round (default: 5)")


def run(job: frame.Job) -> Evidence:
    """Validate, round after round; a kernel that the scratch folder has finished is not validated again."""
    arguments = job.arguments
    for name in ("rounds", "seeds"):
        if getattr(arguments, name) < 1:
            raise AtlasError(f"--{name} {getattr(arguments, name)}: give at least 1")
    seeds = fresh_seeds(arguments.rounds, arguments.seeds)
    kernels = scratch.kernels_of(arguments)
    rows, found = [], []
    with frame.leased(job), scratch.folder(job) as folder:
        for kernel in kernels:
            # A file for each kernel: commands on several GPUs may share the folder.
            kept = Pieces(folder / f"{kernel}.jsonl", context(job, kernel) | {"protocol": PROTOCOL})
            make = functools.partial(_piece, job, kernel, seeds)
            piece = kept.once(f"{arguments.rounds} x {arguments.seeds}", make)
            rows.append(piece["row"])
            found += piece["found"]
    claims = [
        none_of(f"findings of fail or error in {arguments.rounds} full validations of each true kernel", found),
        at_least("checks of the kernel that was checked least", min(row["checks"] for row in rows), 1),
    ]
    notes = [
        f"Seeds {seeds[0][0]} to {seeds[-1][-1]}, each used in one round; `validate` itself uses those from 0 on.",
        "tolerance_used: the largest error over what is allowed there, limit 1, or twice what torch uses where torch "
        "itself misses the tolerance. error_over_torch: the largest error over torch's, limit 2.",
    ]
    return Evidence(claims, rows, [*notes, *map(shortened, found[:_SHOWN])])


def fresh_seeds(rounds: int, count: int) -> tuple[tuple[int, ...], ...]:
    """``count`` seeds for each round, none used twice, none of those that ``validate`` uses with as many."""
    return tuple(tuple(range(start, start + count)) for start in range(count, count * (rounds + 1), count))


def _piece(job: frame.Job, kernel: str, seeds: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """A kernel's row, and a sentence for everything that was flagged."""
    outcome = _validated(job, Request(kernel, None, (), seeds, stop=False))
    found = [f"{kernel}: {wrong.reason}" for wrong in outcome.wrong]
    found += [f"{kernel}: {outcome.failed}"] if outcome.failed else []
    return {"row": _row(kernel, len(seeds), seeds, outcome), "found": found}


def _validated(job: frame.Job, request: Request) -> Outcome:
    silence = _SILENCE_INTERPRETER if job.functional else _SILENCE_GPU
    with inspecting.worker(job, "atlas-false-alarms") as process:
        try:
            process.start()
            inspecting.ready(process)
        except (Died, TimedOut) as error:
            return Outcome(failed=f"the process did not start: {error or 'no answer'}")
        return inspecting.follow(process, request, silence)


def _row(kernel: str, rounds: int, seeds: tuple[tuple[int, ...], ...], outcome: Outcome) -> dict[str, Any]:
    used = max((step.used for step in outcome.steps if step.used), default=(None, ""))
    over = max((step.over_torch for step in outcome.steps if step.over_torch), default=(None, ""))
    return {
        "kernel": kernel,
        "rounds": rounds,
        "seeds": sum(map(len, seeds)),
        "checks": outcome.checks,
        "findings": len(outcome.wrong) + bool(outcome.failed),
        "tolerance_used": used[0],
        "tolerance_used_by": used[1],
        "error_over_torch": over[0],
        "error_over_torch_of": over[1],
        "seconds": round(outcome.seconds, 1),
    }
