"""Benchmark: tuned variants, their default configs and all peers on every case, checked and then timed in turns.

Most of its time would go into compiling, on one core with the GPU idle: worker processes do that before the first case,
and are gone when the clock starts.  A run that is cut off keeps its finished cases, and the next one goes on from them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import hashlib
import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..host.progress import progress
from ..host.stopwatch import Stopwatch
from ..identity import today
from ..identity.needs import needed
from ..results.subject import PassCase
from ..workers import protocol
from . import called, compiling, frame

if TYPE_CHECKING:
    from ..benchmarking.helpers import Setting
    from ..benchmarking.kept import Kept
    from ..benchmarking.measurement import Benchmark
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
        frame.print_outcome(job, frame.write_document(job, empty, lambda job: _body(lease, job, used) | used))


def _compile_ahead(job: frame.Job, lease: Lease | None) -> None:
    asked = frame.setting(job) | {"tuned": job.earlier("autotune"), "folder": job.folder}
    compiling.ahead(job, lease, _serve, asked)


def _serve(connection: Connection, asked: dict[str, Any]) -> None:
    """In a worker."""
    from ..benchmarking import ahead

    protocol.serve(connection, lambda: ahead.PreparingTasks(ahead.Setting(**asked)))


def _body(lease: Lease | None, job: frame.Job, used: Mapping[str, Any]) -> dict[str, Any]:
    from .. import timing
    from ..benchmarking.helpers import Helpers, Shared
    from ..benchmarking.judging import outcome
    from ..benchmarking.measurement import timed_cases
    from ..benchmarking.providers import steps
    from ..validation.device import DeviceLost

    frame.require_ok(job, "validate", "autotune")
    watch = Stopwatch()
    watch.enter("compile")
    if job.arguments.jobs > 1 and not job.functional:
        _compile_ahead(job, lease)
    setting = _setting(job)
    bench = dataclasses.replace(setting.benchmark(), watch=watch)
    work = timed_cases(bench.declaration, bench.gpu)
    kept = _kept(lease, job, bench, used, [PassCase.at(*one) for one in work])
    shared = Shared(work, kept.found, kept.add)
    fields = {"protocol": timing.PROTOCOL, "steps": steps(bench.declaration)} | bench.programs.facts()
    lost = ""
    with progress() as shown:
        title = f"benchmark {job.kernel} on {job.gpu_name}"
        task = shown.add_task(title, total=len(work), completed=len(kept.found), note="warming up")
        watch.enter("warm_up")
        bench.clock.warm_up()
        watch.enter("")
        gc.freeze()  # what is imported by now is not to be looked through after every case
        devices, advance = frame.devices(job, lease), functools.partial(shown.advance, task)
        with Helpers(shared, work, setting, devices, advance) as helpers:
            while not lost and (case := shared.first()) is not None:
                at = PassCase.at(*work[case])
                shown.update(task, note=str(at))
                try:
                    shared.done(case, bench.rows(*work[case]))
                except DeviceLost as error:
                    lost = f"the device was lost in {at}, {error}; cases from there on were not timed"
                shown.advance(task)
    if not lost:
        kept.clear()
    fields |= {"rows": shared.rows, "seconds_by_phase": watch.rounded()} | helpers.facts()
    fields |= {"resumed": len(kept.found)} if kept.found else {}
    return fields | ({"status": "failed", "reason": lost} if lost else outcome(shared.rows))


def _kept(
    lease: Lease | None, job: frame.Job, bench: Benchmark, used: Mapping[str, Any], cases: list[PassCase]
) -> Kept:
    """The rows of earlier runs of the same code, configs, GPU, driver and versions."""
    from .. import timing
    from ..benchmarking.kept import Kept
    from ..host import environment

    versions = environment.software()
    context = {
        "protocol": timing.PROTOCOL,
        "identities": needed("benchmark", catalog.identities(job.kernel)),
        "code": today.of_stage("benchmark", job.functional),
        "software": {name: versions[name] for name in ("torch", "triton", "python", "cuda", "hip")},
        "device": environment.device(lease.uuid) if lease else {},
        "tuned": _digest(job.earlier("autotune")),
        "survey": None if job.functional else _digest(job.earlier("survey")),
        "calls": called.digests(used),
        "cuda": bench.programs.facts(),
        "samples": [bench.min_seconds, bench.max_samples],
    }
    return Kept(job.folder / "benchmark.jsonl", context, cases)


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _setting(job: frame.Job) -> Setting:
    from ..benchmarking.helpers import Setting

    arguments = job.arguments
    return Setting(
        load=functools.partial(catalog.load, job.kernel, interpret=job.functional),
        kernel=job.kernel,
        gpu_name=job.gpu_name,
        block=job.block,
        folder=job.folder,
        tuned=job.earlier("autotune"),
        survey=None if job.functional else job.earlier("survey"),
        min_seconds=arguments.min_seconds,
        max_samples=arguments.max_samples,
    )
