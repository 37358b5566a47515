"""How many worker processes a stage may start on its device, and the option that asks for them."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..errors import AtlasError
from ..workers.child import Child
from . import frame

if TYPE_CHECKING:
    from ..host.leases import Lease

MOST_WORKERS = 16
"""Processes on one GPU: more would wait for it, and for the host's memory, of which each takes a gigabyte or more."""

_WORKER_GIB = 2.0
"""Of the GPU's memory for each worker: its context, and what it may keep."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """``--jobs``."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes (default: 1)")


def at_least(arguments: argparse.Namespace, **least: int) -> None:
    """Raise :class:`AtlasError` for an option below what is given for it."""
    for option, smallest in least.items():
        value = getattr(arguments, option)
        if value < smallest:
            raise AtlasError(f"--{option.replace('_', '-')} {value}: give at least {smallest}")


def size(job: frame.Job) -> tuple[int, float]:
    """How many workers, and the memory of the device in bytes that they share."""
    jobs = min(job.arguments.jobs, MOST_WORKERS)
    if job.functional:
        return jobs, 0.0
    return max(1, min(jobs, int(job.block["memory_gib"] / _WORKER_GIB))), job.block["memory_gib"] * 2**30


def about(job: frame.Job) -> dict[str, Any]:
    """What every worker is told, without an import of torch here: its kernel, and the GPU."""
    load = functools.partial(catalog.load, job.kernel, interpret=job.functional)
    return {"load": load, "gpu_name": job.gpu_name, "block": job.block}


def child(
    job: frame.Job, lease: Lease | None, serve: Callable[..., None], asked: dict[str, Any], **environment: str
) -> Child:
    """A worker that is not started: ``serve(connection, asked)`` on the lease's device."""
    given = (lease.environment if lease else {}) | environment
    return Child(serve, asked, name=f"atlas-{job.stage}", environment=given)
