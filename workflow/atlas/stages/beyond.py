"""Time public functions beyond the tuned cases, as a user calls them, beside the peers, at cases of a fresh seed."""

from __future__ import annotations

import argparse
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ..host.progress import progress
from ..results.beyond import outcome, sampled
from ..workers import protocol
from . import called, compiling, frame

if TYPE_CHECKING:
    from ..host.leases import Lease

_SEEDS = 10**6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas beyond``."""
    frame.add_common_arguments(parser)
    parser.add_argument("--cases", type=int, default=4, metavar="N", help="cases to draw (default: 4)")
    parser.add_argument("--seed", type=int, help="of the cases (default: another one each time)")
    frame.add_jobs_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/beyond.json``."""
    from .. import timing

    job = frame.job("beyond", arguments)
    frame.at_least(arguments, jobs=1)
    seed = time.time_ns() % _SEEDS if arguments.seed is None else arguments.seed
    with frame.leased(job) as lease, called.settled(job, lease) as used:
        empty = {"protocol": timing.PROTOCOL, "seed": seed, "rows": []} | used
        frame.print_outcome(job, frame.write_document(job, empty, lambda job: _body(lease, job, seed) | used))


def _serve(connection: Connection, asked: dict[str, Any]) -> None:
    """In a worker."""
    from ..benchmarking import beyond_ahead

    protocol.serve(connection, lambda: beyond_ahead.CallingTasks(beyond_ahead.Setting(**asked)))


def _body(lease: Lease | None, job: frame.Job, seed: int) -> dict[str, Any]:
    from .. import timing
    from ..benchmarking import beyond
    from ..host import runtime
    from ..validation.device import DeviceLost

    frame.require_ok(job, "validate")
    declaration, gpu = job.declaration(), job.gpu()
    cases = beyond.cases(declaration, gpu, seed, job.arguments.cases, sampled(job.results, job.kernel, job.gpu_name))
    if not cases:
        raise frame.Stop("unsupported", f"no case of its domain that runs on {gpu.name} could be drawn")
    if job.arguments.jobs > 1 and not job.functional:
        compiling.ahead(job, lease, _serve, frame.setting(job) | {"cases": tuple(cases)})
    device = runtime.device_of(job.gpu_name, job.block)
    bench = beyond.Bench(declaration, gpu, device, timing.Clock(device))
    rows: list[dict[str, Any]] = []
    fields = {"protocol": timing.PROTOCOL, "seed": seed, "rows": rows}
    work = [(case, mode) for case in cases for mode in beyond.modes(declaration)]
    with progress() as shown:
        task = shown.add_task(f"beyond {job.kernel} on {job.gpu_name}", total=len(work), note="warming up")
        bench.clock.warm_up()
        for case, mode in work:
            shown.update(task, note=f"{mode} {case}")
            try:
                rows += bench.rows(case, mode)
            except DeviceLost as lost:
                reason = f"the device was lost in {mode} {case}, {lost}; cases from there on were not timed"
                return fields | {"status": "failed", "reason": reason}
            shown.advance(task)
    return fields | outcome(rows)
