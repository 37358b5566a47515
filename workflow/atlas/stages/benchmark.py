"""Benchmark: tuned variants, their default configs and all peers on every case, checked and then timed in turns."""

from __future__ import annotations

import argparse
from typing import Any

from . import frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--min-seconds", type=float, default=0.2, help="of samples a provider and case (default: 0.2)")
    parser.add_argument("--max-samples", type=int, default=200, help="samples a provider and case (default: 200)")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/benchmark.json``."""
    from .. import timing

    job = frame.job("benchmark", arguments)
    with frame.leased(job):
        frame.write_document(job, {"protocol": timing.PROTOCOL, "rows": []}, _body)


def _body(job: frame.Job) -> dict[str, Any]:
    from .. import runtime, timing
    from ..benchmarking.contest import Bench, DeviceLost
    from ..benchmarking.ladder import steps
    from ..benchmarking.outcome import outcome
    from ..benchmarking.providers import Tuned
    from ..benchmarking.roofs import Survey
    from ..cuda.programs import Programs
    from ..progress import progress

    frame.require_ok(job, "validate", "autotune")
    survey = None if job.functional else Survey.of(job.earlier("survey"))
    declaration, gpu = job.declaration(), job.gpu()
    device = runtime.device_of(job.gpu_name, job.block)
    bench = Bench(
        declaration=declaration,
        gpu=gpu,
        device=device,
        clock=timing.Clock(device),
        tuned=Tuned(job.earlier("autotune")),
        survey=survey,
        min_seconds=job.arguments.min_seconds,
        max_samples=job.arguments.max_samples,
        programs=Programs(job.kernel, job.gpu_name, job.folder, device),
    )
    rows: list[dict[str, Any]] = []
    fields = {"protocol": timing.PROTOCOL, "steps": steps(declaration), "rows": rows} | bench.programs.facts()
    work = [(direction, case) for case in runtime.sweep(declaration, gpu) for direction in declaration.passes]
    with progress() as shown:
        task = shown.add_task(f"benchmark {job.kernel} on {job.gpu_name}", total=len(work), note="warming up")
        bench.clock.warm_up()
        for direction, case in work:
            shown.update(task, note=f"{direction} {case}")
            try:
                rows += bench.contest(direction, case)
            except DeviceLost as lost:
                reason = f"the GPU was lost at {direction} {case}, {lost}; cases from there on were not timed"
                return fields | {"status": "failed", "reason": reason}
            shown.advance(task)
    return fields | outcome(rows)
