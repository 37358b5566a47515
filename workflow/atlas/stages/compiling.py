"""Workers that compile what a stage will time, into the caches on disk; they are gone when the clock starts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..host.progress import progress
from ..workers.pool import Pool
from ..workers.process import NoWorker
from . import frame

if TYPE_CHECKING:
    from ..host.leases import Lease

_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Of the workers: there is one for each core, and torch.compile would start as many again in each."""


def ahead(job: frame.Job, lease: Lease | None, serve: Callable[..., None], asked: dict[str, Any]) -> None:
    """Have ``serve`` do its tasks on the job's workers; where none starts, the stage compiles for itself."""
    worker = functools.partial(frame.worker, job, lease, serve, asked, **_ENVIRONMENT)
    with Pool(worker, *frame.pool_size(job)) as pool, progress() as shown:
        bar = shown.add_task("compile", total=None, note="starting workers")
        try:
            shown.update(bar, total=len(pool.plan().tasks))
            pool.work(lambda label, done: shown.update(bar, note=label, completed=done))
        except NoWorker:
            shown.update(bar, note="no worker starts")
