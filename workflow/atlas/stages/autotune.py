"""Time a kernel's tuning space on a GPU and find each case's best config."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..errors import AtlasError
from ..tuning.session import worker
from ..tuning.worker import Setting
from ..workers.process import TRITON, Process
from . import called, frame

if TYPE_CHECKING:
    import torch

    from ..host.leases import Lease
    from ..timing import Clock
    from ..tuning.strategies.strategy import Strategy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas autotune``."""
    frame.add_common_arguments(parser)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cores to compile on (default: 1)")
    parser.add_argument("--strategy", default="halving", help="halving (default), exhaustive or guided")
    parser.add_argument("--budget-seconds", type=float, metavar="B", help="device time in all; compiling and the "
                        "worker's start are not counted (default: no limit)")  # fmt: skip
    parser.add_argument("--trial-timeout-seconds", type=float, default=20, metavar="T", help="default: 20")
    parser.add_argument("--certify-seeds", type=int, default=5, metavar="N", help="seeds that each winner is validated "
                        "with; 0 certifies nothing, and nothing can be exported (default: 5)")  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/autotune.json``; its journal lies beside it and outlives a failed run."""
    from ..tuning.summary import EMPTY

    job = frame.job("autotune", arguments)
    for option in ("jobs", "budget_seconds", "trial_timeout_seconds"):
        value = getattr(arguments, option)
        if value is not None and value <= 0:
            raise AtlasError(f"command line: --{option.replace('_', '-')} is {value:g}; give more than 0")
    if arguments.certify_seeds < 0:
        raise AtlasError(f"command line: --certify-seeds is {arguments.certify_seeds}; give 0 or more")
    empty = EMPTY | {"strategy": _strategy(job).name, "budget_seconds": arguments.budget_seconds}
    before = _process_seconds()
    with frame.leased(job) as lease:
        began = time.perf_counter() - before  # waiting for a device is not the stage's time
        with called.settled(job, lease) as used:
            document = frame.write_document(job, empty | used, lambda job: _autotune(job, lease, used, began) | used)
            frame.print_outcome(job, document)


def _process_seconds() -> float:
    """Seconds since this process began, imports included; 0 where it runs other things, too."""
    main = sys.modules["__main__"]
    if not sys.platform.startswith("linux") or getattr(main.__spec__, "name", "") != "atlas.workers.__main__":
        return 0.0
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # proc(5): starttime
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def _strategy(job: frame.Job) -> Strategy:
    from ..tuning.strategies import strategy
    from ..tuning.strategies.strategy import FUNCTIONAL

    asked = strategy(job.arguments.strategy)
    return FUNCTIONAL if job.functional else asked


def _autotune(job: frame.Job, lease: Lease | None, used: dict[str, Any], began: float) -> dict[str, Any]:
    frame.require_ok(job, "validate")
    if _build(job) is not None:
        frame.require_ok(job, "build")
    setting = Setting(
        load=functools.partial(catalog.load, job.kernel, interpret=job.functional),
        device=functools.partial(_device, job.gpu_name, job.block),
        clock=_clock,
        imported=TRITON,
    )
    with worker(setting, frame.environment(job, lease)) as process:
        # Before all else: it takes longer to warm the device up than this process needs to find out what to do.
        process.start()
        return _tune(job, lease, setting, process, used, began)


def _tune(
    job: frame.Job, lease: Lease | None, setting: Setting, process: Process, used: dict[str, Any], began: float
) -> dict[str, Any]:
    from ..host import environment, leases
    from ..tuning import candidates, tuner
    from ..tuning.journal import Journal
    from ..workers import devices

    arguments, gpu, identities = job.arguments, job.gpu(), catalog.identities(job.kernel)
    declaration = job.declaration()
    problems = candidates.problems(declaration, gpu, candidates.Ruling(_build(job), identities))
    if not problems:
        raise frame.Stop("unsupported", candidates.unsupported(declaration, gpu))
    options = tuner.Options(
        strategy=_strategy(job),
        budget_seconds=arguments.budget_seconds,
        trial_timeout_seconds=arguments.trial_timeout_seconds,
        # One core is the worker's: launches that come late would show in the figures.
        jobs=0 if job.functional else max(1, arguments.jobs - 1),
        # What the interpreter ran is not exported, and it takes seconds a case.
        certify_seeds=0 if job.functional else arguments.certify_seeds,
    )
    at_hand = devices.ALONE
    if lease is not None:
        asked = (job.gpu_name, job.block)
        spare, wanted = functools.partial(leases.spare, *asked), functools.partial(leases.wanted, *asked)
        at_hand = devices.Devices(lease, spare, wanted)
    device = environment.device(lease.uuid) if lease else {}
    context = tuner.context(catalog.digest(job.kernel), gpu, device, called.digests(used))
    title = f"autotune {job.kernel} on {job.gpu_name}"
    path, timeout = job.folder / "journal.jsonl", arguments.trial_timeout_seconds
    with Journal(path, context, timeout, identities) as journal:
        return tuner.tune(
            problems, gpu, setting, journal, options, title, devices=at_hand, process=process, began=began
        )


def _device(name: str, block: Mapping[str, Any]) -> torch.device:
    """Called in the worker, as is :func:`_clock`."""
    from ..host import runtime

    return runtime.device_of(name, block)


def _clock(device: torch.device) -> Clock:
    from ..timing import Clock

    return Clock(device)


def _build(job: frame.Job) -> dict[str, Any] | None:
    """The build document of this kernel and GPU, where there is one: the interpreter has none."""
    return job.earlier("build") if (job.folder / "build.json").exists() else None
