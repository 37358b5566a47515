"""Benchmark: tuned variants, their default configs and all peers on every case, checked and then timed in turns.

Most of its time would go into compiling, on one core with the GPU idle: worker processes do that before the first case,
and are gone when the clock starts.
"""

from __future__ import annotations

import argparse
import gc
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ..host.progress import progress
from ..host.stopwatch import Stopwatch
from ..results.subject import PassCase
from ..workers import protocol
from . import called, compiling, frame

if TYPE_CHECKING:
    from ..host.leases import Lease


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--min-seconds", type=float, default=0.2, help="of samples a provider and case (default: 0.2)")
    parser.add_argument("--max-samples", type=int, default=200, help="samples a provider and case (default: 200)")
    frame.add_jobs_argument(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/benchmark.json``."""
    from .. import timing

    job = frame.job("benchmark", arguments)
    frame.at_least(arguments, jobs=1)
    with frame.leased(job) as lease, called.settled(job, lease) as used:
        empty = {"protocol": timing.PROTOCOL, "rows": []} | used
        frame.print_outcome(job, frame.write_document(job, empty, lambda job: _body(lease, job) | used))


def _compile_ahead(job: frame.Job, lease: Lease | None) -> None:
    asked = frame.setting(job) | {"tuned": job.earlier("autotune"), "folder": job.folder}
    compiling.ahead(job, lease, _serve, asked)


def _serve(connection: Connection, asked: dict[str, Any]) -> None:
    """In a worker."""
    from ..benchmarking import ahead

    protocol.serve(connection, lambda: ahead.PreparingTasks(ahead.Setting(**asked)))


def _body(lease: Lease | None, job: frame.Job) -> dict[str, Any]:
    from .. import timing
    from ..benchmarking.judging import outcome
    from ..benchmarking.measurement import Benchmark, timed_cases
    from ..benchmarking.providers import Tuned, steps
    from ..benchmarking.roofs import Survey
    from ..cuda.programs import Programs
    from ..host import runtime
    from ..validation.device import DeviceLost

    frame.require_ok(job, "validate", "autotune")
    watch = Stopwatch()
    watch.enter("compile")
    if job.arguments.jobs > 1 and not job.functional:
        _compile_ahead(job, lease)
    survey = None if job.functional else Survey.of(job.earlier("survey"))
    declaration, gpu = job.declaration(), job.gpu()
    device = runtime.device_of(job.gpu_name, job.block)
    bench = Benchmark(
        declaration=declaration,
        gpu=gpu,
        device=device,
        clock=timing.Clock(device),
        tuned=Tuned(job.earlier("autotune")),
        survey=survey,
        min_seconds=job.arguments.min_seconds,
        max_samples=job.arguments.max_samples,
        programs=Programs(job.kernel, job.gpu_name, job.folder, device),
        watch=watch,
    )
    rows: list[dict[str, Any]] = []
    fields = {"protocol": timing.PROTOCOL, "steps": steps(declaration), "rows": rows} | bench.programs.facts()
    work = timed_cases(declaration, gpu)
    with progress() as shown:
        task = shown.add_task(f"benchmark {job.kernel} on {job.gpu_name}", total=len(work), note="warming up")
        watch.enter("warm_up")
        bench.clock.warm_up()
        watch.enter("")
        gc.freeze()  # what is imported by now is not to be looked through after every case
        for direction, case in work:
            at = PassCase.at(direction, case)
            shown.update(task, note=str(at))
            try:
                rows += bench.rows(direction, case)
            except DeviceLost as lost:
                reason = f"the device was lost in {at}, {lost}; cases from there on were not timed"
                return fields | {"seconds_by_phase": watch.rounded(), "status": "failed", "reason": reason}
            shown.advance(task)
    return fields | {"seconds_by_phase": watch.rounded()} | outcome(rows)
