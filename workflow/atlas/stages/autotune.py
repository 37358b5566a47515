"""Time a kernel's tuning space on a GPU and find each case's best config."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from . import called, frame, searching

if TYPE_CHECKING:
    from ..declaration import GPU, Declaration
    from ..host.leases import Lease
    from ..tuning.candidates import Problem, Ruling
    from ..tuning.search import Way
    from ..tuning.strategies.strategy import Strategy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas autotune``."""
    searching.add_arguments(parser, "no limit")
    parser.add_argument("--strategy", default="halving", help="halving (default), exhaustive or guided")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/autotune.json``; its journal lies beside it and outlives a failed run."""
    from ..tuning.summary import EMPTY

    job = frame.job("autotune", arguments)
    searching.check(arguments)
    empty = EMPTY | {"strategy": _strategy(job).name, "budget_seconds": arguments.budget_seconds}
    before = searching.process_seconds()
    with frame.leased(job) as lease:
        began = time.perf_counter() - before  # waiting for a device is not the stage's time
        with called.settled(job, lease) as used:
            document = frame.write_document(job, empty | used, lambda job: _autotune(job, lease, used, began) | used)
            frame.print_outcome(job, document)


def _strategy(job: frame.Job) -> Strategy:
    from ..tuning.strategies import strategy
    from ..tuning.strategies.strategy import FUNCTIONAL

    asked = strategy(job.arguments.strategy)
    return FUNCTIONAL if job.functional else asked


def _autotune(job: frame.Job, lease: Lease | None, used: dict[str, Any], began: float) -> dict[str, Any]:
    frame.require_ok(job, "validate")
    if searching.build(job) is not None:
        frame.require_ok(job, "build")
    return searching.search(job, lease, used, began, lambda *known: _asked(job, *known))


def _asked(job: frame.Job, declaration: Declaration, gpu: GPU, ruling: Ruling) -> tuple[list[Problem], Way]:
    from ..tuning import candidates
    from ..tuning.search import ByStrategy

    problems = candidates.problems(declaration, gpu, ruling)
    if not problems:
        raise frame.Stop("unsupported", candidates.unsupported(declaration, gpu))
    return problems, ByStrategy(_strategy(job))
