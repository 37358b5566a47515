"""Compile a kernel's tuning space for a GPU's architecture, on any host, and say what came out."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from ..errors import AtlasError
from ..host.progress import progress
from ..workers.process import Snapshot
from . import frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas build``."""
    frame.add_common_arguments(parser)
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile at a time (default: 1)")
    parser.add_argument(
        "--sample",
        type=int,
        metavar="S",
        help="compile each variant's default in each dtype "
        "and S other configs of each pass, at the largest cases (default: the whole space)",
    )
    parser.add_argument("--timeout-seconds", type=float, default=120, help="for one config (default: 120)")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/build.json`` and the listings beside it."""
    job = frame.job("build", arguments)
    if job.functional:
        raise AtlasError(f"GPU {job.gpu_name!r} is the interpreter, which compiles nothing; build for another GPU")
    for option in ("jobs", "sample"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise AtlasError(f"command line: --{option} is {value}; give 1 or more")
    empty = {"target": _target(job), "scope": {"mode": _mode(job), "total": 0, "compiled": 0}, "configs": []}
    frame.print_outcome(job, frame.write_document(job, empty, _build, kind="compiled"))


def _mode(job: frame.Job) -> str:
    return "all" if job.arguments.sample is None else "sample"


def _target(job: frame.Job) -> dict[str, Any]:
    ((backend, arch),) = job.block["target"].items()
    return {"backend": backend, "arch": arch}


def _build(job: frame.Job) -> dict[str, Any]:
    from ..compilation import space
    from ..compilation.pool import compile_all
    from ..host import runtime

    listings = job.folder / "listings"
    shutil.rmtree(listings, ignore_errors=True)
    declaration, gpu = job.declaration(), job.gpu()
    further = job.arguments.sample
    every = space.enumerate_space(declaration, gpu, runtime.sweep(declaration, gpu), largest=further is not None)
    chosen = list(every.compilations)
    if further is not None:  # GPUs draw different configs, so that together they show more of the space
        chosen = space.sample(every, further, seed=f"{job.kernel} {job.gpu_name}")
    # Of a sample the PTX alone is kept: disassembling would take a third of its time.
    tasks = space.tasks_of(job.kernel, declaration, chosen, gpu, listings, sass=further is None)
    results = {}
    # Compilers are forked from here: else each would import the kernel again, and read its source for Triton's keys.
    with Snapshot() as loaded, progress() as display:
        bar = display.add_task(f"build {job.kernel} for {job.gpu_name}", total=len(tasks), note="")
        identities = list(tasks)
        jobs, timeout = job.arguments.jobs, job.arguments.timeout_seconds
        for index, result in compile_all(list(tasks.values()), jobs, timeout, loaded):
            results[identities[index]] = result
            display.update(bar, advance=1, note=result.reason[:60])
    rows = [space.row(compilation, results[space.identity(compilation)]) for compilation in chosen]
    rows += [space.refused_row(refusal) for refusal in every.refusals]
    scope = {"mode": _mode(job), "total": len(every.compilations), "compiled": len(chosen)}
    return {"target": _target(job), "scope": scope, "configs": rows} | space.status(rows)
