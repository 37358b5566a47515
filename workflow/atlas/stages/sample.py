"""Time a few configs of a kernel at cases drawn between the tuned ones, which calls at other shapes choose by."""

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

MOST_BYTES = 2**30
"""Of a drawn case's traffic: above, kernels run at the roofs, and trials take long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas sample``."""
    searching.add_arguments(parser, "no limit")
    parser.add_argument("--cases", type=int, default=16, metavar="N", help="cases to draw (default: 16)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/sample.json``; trials are kept in the tuner's journal."""
    from ..tuning.summary import EMPTY

    job = frame.job("sample", arguments)
    searching.check(arguments)
    facts = {"seed": arguments.seed, "cases": arguments.cases}
    empty = EMPTY | {"strategy": "sample", "budget_seconds": arguments.budget_seconds} | facts
    before = searching.process_seconds()
    with frame.leased(job) as lease:
        began = time.perf_counter() - before
        with called.settled(job, lease) as used:
            facts |= used
            document = frame.write_document(job, empty | used, lambda job: _sample(job, lease, used, began) | facts)
            frame.print_outcome(job, document)


def _sample(job: frame.Job, lease: Lease | None, used: dict[str, Any], began: float) -> dict[str, Any]:
    frame.require_ok(job, "validate", "autotune")
    found = searching.search(job, lease, used, began, lambda *known: asked(job, *known))
    if not found["best"] or "status" not in found:
        return found
    # A drawn case at which nothing works is a fact about that case, and no reason to forget the others.
    return {key: value for key, value in found.items() if key not in ("status", "reason")} | {
        "method": f"{found['method']}; {found['reason']}"
    }


def asked(job: frame.Job, declaration: Declaration, gpu: GPU, ruling: Ruling) -> tuple[list[Problem], Way]:
    """The problems of the drawn cases, and what the kernel's own cases tell of them."""
    from .. import catalog
    from ..host import runtime
    from ..sampling import drawing
    from ..tuning import candidates, grounds, probe

    arguments = job.arguments
    own = runtime.sweep(declaration, gpu)
    drawn = drawing.covering(declaration, gpu, arguments.seed, arguments.cases, own, MOST_BYTES)
    problems = candidates.problems(declaration, gpu, ruling, drawn)
    if not problems:
        raise frame.Stop("unsupported", f"no case of its domain that runs on {gpu.name} could be drawn")
    document = job.earlier("autotune")
    found = probe.Sample(
        grounds.models(declaration, gpu, document),
        grounds.certified(document, catalog.identities(job.kernel)),
        arguments.seed,
    )
    return problems, found
