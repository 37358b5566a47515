"""What autotune and sample share: problems, a worker on a device, the journal, and a search between them."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
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

    from ..declaration import GPU, Declaration
    from ..host.leases import Lease
    from ..timing import Clock
    from ..tuning.candidates import Problem, Ruling
    from ..tuning.search import Way

Question = Callable[["Declaration", "GPU", "Ruling"], tuple[list["Problem"], "Way"]]
"""Of a kernel's declaration, a GPU and what the build ruled out: the problems, and how to search them."""


def add_arguments(parser: argparse.ArgumentParser, budget: str) -> None:
    """The arguments of a stage that times configs; ``budget`` says what it has without one."""
    frame.add_common_arguments(parser)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cores to compile on (default: 1)")
    parser.add_argument("--budget-seconds", type=float, metavar="B", help="device time in all; compiling and the "
                        f"worker's start are not counted (default: {budget})")  # fmt: skip
    parser.add_argument("--trial-timeout-seconds", type=float, default=20, metavar="T", help="default: 20")
    parser.add_argument("--certify-seeds", type=int, default=5, metavar="N", help="seeds that each winner is validated "
                        "with; 0 certifies nothing, and nothing can be exported (default: 5)")  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    """Raise :class:`AtlasError` for a number that these stages have no use for."""
    for option in ("jobs", "budget_seconds", "trial_timeout_seconds"):
        value = getattr(arguments, option)
        if value is not None and value <= 0:
            raise AtlasError(f"command line: --{option.replace('_', '-')} is {value:g}; give more than 0")
    if arguments.certify_seeds < 0:
        raise AtlasError(f"command line: --certify-seeds is {arguments.certify_seeds}; give 0 or more")


def process_seconds() -> float:
    """Seconds since this process began, imports included; 0 where it runs other things, too."""
    main = sys.modules["__main__"]
    if not sys.platform.startswith("linux") or getattr(main.__spec__, "name", "") != "atlas.workers.__main__":
        return 0.0
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # proc(5): starttime
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def search(job: frame.Job, lease: Lease | None, used: dict[str, Any], began: float, asked: Question) -> dict[str, Any]:
    """The document's fields; ``used`` are the configs of called kernels, ``began`` is when the stage's time began."""
    setting = Setting(
        load=functools.partial(catalog.load, job.kernel, interpret=job.functional),
        device=functools.partial(_device, job.gpu_name, job.block),
        clock=_clock,
        imported=TRITON,
    )
    with worker(setting, frame.environment(job, lease)) as process:
        # Before all else: it takes longer to warm the device up than this process needs to find out what to do.
        process.start()
        return _search(job, lease, setting, process, used, began, asked)


def _search(
    job: frame.Job,
    lease: Lease | None,
    setting: Setting,
    process: Process,
    used: dict[str, Any],
    began: float,
    asked: Question,
) -> dict[str, Any]:
    from ..host import environment
    from ..tuning import candidates, tuner
    from ..tuning.journal import Journal

    arguments, gpu, identities = job.arguments, job.gpu(), catalog.identities(job.kernel)
    problems, way = asked(job.declaration(), gpu, candidates.Ruling(build(job), identities))
    options = tuner.Options(
        strategy=way,
        budget_seconds=arguments.budget_seconds,
        trial_timeout_seconds=arguments.trial_timeout_seconds,
        # One core is the worker's: launches that come late would show in the figures.
        jobs=0 if job.functional else max(1, arguments.jobs - 1),
        # What the interpreter ran is not exported, and it takes seconds a case.
        certify_seeds=0 if job.functional else arguments.certify_seeds,
    )
    device = environment.device(lease.uuid) if lease else {}
    context = tuner.context(catalog.digest(job.kernel), gpu, device, called.digests(used))
    title = f"{job.stage} {job.kernel} on {job.gpu_name}"
    path, timeout = job.folder / "journal.jsonl", arguments.trial_timeout_seconds
    with Journal(path, context, timeout, identities) as journal:
        return tuner.tune(
            problems,
            gpu,
            setting,
            journal,
            options,
            title,
            devices=frame.devices(job, lease),
            process=process,
            began=began,
        )


def _device(name: str, block: Mapping[str, Any]) -> torch.device:
    """Called in the worker, as is :func:`_clock`."""
    from ..host import runtime

    return runtime.device_of(name, block)


def _clock(device: torch.device) -> Clock:
    from ..timing import Clock

    return Clock(device)


def build(job: frame.Job) -> dict[str, Any] | None:
    """The build document of this kernel and GPU, where there is one: the interpreter has none."""
    return job.earlier("build") if (job.folder / "build.json").exists() else None
