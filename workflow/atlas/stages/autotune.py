"""Time a kernel's tuning space on a GPU and find each case's best config."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any

from ..errors import AtlasError
from . import frame

if TYPE_CHECKING:
    from ..tuning.strategy import Strategy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas autotune``."""
    frame.add_common_arguments(parser)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cores to compile on (default: 1)")
    parser.add_argument("--strategy", default="halving", help="halving (default) or exhaustive")
    parser.add_argument("--budget-seconds", type=float, metavar="B", help="device time in all; compiling and the "
                        "worker's start are not counted (default: no limit)")  # fmt: skip
    parser.add_argument("--trial-timeout-seconds", type=float, default=20, metavar="T", help="default: 20")


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/autotune.json``; its journal lies beside it and outlives a failed run."""
    from ..tuning.summary import EMPTY

    job = frame.job("autotune", arguments)
    for option in ("jobs", "budget_seconds", "trial_timeout_seconds"):
        value = getattr(arguments, option)
        if value is not None and value <= 0:
            raise AtlasError(f"command line: --{option.replace('_', '-')} is {value:g}; give more than 0")
    empty = EMPTY | {"strategy": _strategy(job).name, "budget_seconds": arguments.budget_seconds}
    frame.write_document(job, empty, _autotune)


def _strategy(job: frame.Job) -> Strategy:
    from ..tuning.functional import FUNCTIONAL
    from ..tuning.strategies import strategy

    asked = strategy(job.arguments.strategy)
    return FUNCTIONAL if job.functional else asked


def _autotune(job: frame.Job) -> dict[str, Any]:
    from .. import catalog, environment, runtime
    from ..timing import Clock
    from ..tuning import candidates, tuner
    from ..tuning.journal import Journal
    from ..tuning.worker import Setting

    frame.require_ok(job, "validate")
    if _build(job) is not None:
        frame.require_ok(job, "build")
    arguments, gpu, digest = job.arguments, job.gpu(), catalog.digest(job.kernel)
    declaration = job.declaration()
    ruling = candidates.Ruling(_build(job), digest)
    problems = candidates.problems(declaration, gpu, ruling)
    if not problems:
        raise frame.Stop("unsupported", candidates.unsupported(declaration, gpu))
    setting = Setting(
        load=functools.partial(catalog.load, job.kernel, interpret=job.functional),
        device=functools.partial(runtime.device_of, job.gpu_name, job.block),
        clock=Clock,
    )
    options = tuner.Options(
        strategy=_strategy(job),
        budget_seconds=arguments.budget_seconds,
        trial_timeout_seconds=arguments.trial_timeout_seconds,
        # One core is the worker's: launches that come late would show in the figures.
        jobs=0 if job.functional else max(1, arguments.jobs - 1),
    )
    context = tuner.context(digest, gpu, {} if job.functional else environment.device())
    with Journal(job.folder / "journal.jsonl", context, arguments.trial_timeout_seconds) as journal:
        return tuner.tune(problems, gpu, setting, journal, options, f"autotune {job.kernel} on {job.gpu_name}")


def _build(job: frame.Job) -> dict[str, Any] | None:
    """The build document of this kernel and GPU, where there is one: the interpreter has none."""
    return job.earlier("build") if (job.folder / "build.json").exists() else None
