"""What the stages share: load the kernel, keep time, turn a failure into a document, write it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..errors import AtlasError, in_a_line
from ..host import gpus
from ..identity import today
from ..identity.needs import needed
from ..reading.config import GPUS_FILE, load_gpus
from ..results import documents
from ..workers.process import TRITON, Process

if TYPE_CHECKING:
    from ..declaration import GPU, Declaration
    from ..host.leases import Lease
    from ..host.neighbours import Neighbours
    from ..workers.devices import Devices

MOST_WORKERS = 16
"""Processes on one GPU: more would wait for it, and for the host's memory, of which each takes a gigabyte or more."""

_WORKER_GIB = 2.0
"""Of the GPU's memory for each worker: its context, and what it may keep."""

_current: Lease | None = None
_latest: dict[str, str] = {}
"""UUID of the device last leased for each GPU name: the one that a document describes."""


class Stop(Exception):
    """Raised by a stage's body to end it with a status other than ``failed``."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Job:
    """One (stage, kernel, GPU): what a stage's body gets."""

    stage: str
    kernel: str | None
    gpu_name: str
    block: dict[str, Any]
    results: Path
    arguments: argparse.Namespace

    @property
    def folder(self) -> Path:
        """``results/measured/<gpu>/<kernel>``, or ``results/measured/<gpu>`` for a survey."""
        base = self.results / "measured" / self.gpu_name
        return base / self.kernel if self.kernel else base

    @property
    def output(self) -> Path:
        """Where the stage's document goes."""
        return self.folder / f"{self.stage}.json"

    @property
    def functional(self) -> bool:
        """True where the interpreter runs it."""
        return gpus.functional(self.block)

    def gpu(self) -> GPU:
        """The GPU the block describes."""
        return gpus.gpu(self.gpu_name, self.block)

    def declaration(self) -> Declaration:
        """The kernel's declaration; imports its file."""
        return catalog.load(self.kernel, interpret=self.functional)

    def earlier(self, stage: str) -> dict[str, Any]:
        """The document an earlier stage wrote of the same kernel and GPU (for ``survey``, of the GPU)."""
        folder = self.folder.parent if stage == "survey" and self.kernel else self.folder
        return documents.read(folder / f"{stage}.json", stage)


def add_common_arguments(parser: argparse.ArgumentParser, kernel: bool = True) -> None:
    """The arguments of every stage that works on one kernel and one GPU."""
    if kernel:
        parser.add_argument("kernel", help="kernel to work on, a file's stem under kernels/")
    parser.add_argument("--gpu", required=True, help="a block of gpus.yaml")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")


def add_jobs_argument(parser: argparse.ArgumentParser) -> None:
    """``--jobs``, for a stage whose work a pool of workers does."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes (default: 1)")


def at_least(arguments: argparse.Namespace, **least: int) -> None:
    """Raise :class:`AtlasError` for an option below what is given for it."""
    for option, smallest in least.items():
        value = getattr(arguments, option)
        if value < smallest:
            raise AtlasError(f"--{option.replace('_', '-')} {value}: give at least {smallest}")


def job(stage: str, arguments: argparse.Namespace) -> Job:
    """The job that the arguments name; :class:`AtlasError` for an unknown kernel or GPU."""
    blocks = load_gpus(arguments.gpus_file)
    gpus.names_of([arguments.gpu], blocks, "--gpu", "command line")
    kernel = getattr(arguments, "kernel", None)
    if kernel is not None:
        catalog.check_name(kernel)
    return Job(stage, kernel, arguments.gpu, blocks[arguments.gpu], arguments.results, arguments)


@contextlib.contextmanager
def leased(job: Job) -> Iterator[Lease | None]:
    """A device for the body, waited for, and the only one this process sees; None where the interpreter runs the job.

    Enter it before anything asks torch what devices there are, and around :func:`write_document`, so that waiting does
    not count as the stage's time.  Inside another it yields the same lease, and a stage's command that is started
    inside works on the same device.  Raises :class:`AtlasError` where no device of this host matches.
    """
    global _current
    if job.functional:
        yield None
        return
    if _current is not None:
        if not gpus.matches(job.block, _current.device_name):
            raise RuntimeError(f"{job.gpu_name} inside a lease of {_current.device_name}: one process has one device")
        yield _current
        return
    from ..host import leases

    with leases.lease(job.gpu_name, job.block) as own, leases.adopted(own):
        _current, _latest[job.gpu_name] = own, own.uuid
        try:
            yield own
        finally:
            _current = None


def devices(job: Job, lease: Lease | None) -> Devices:
    """The job's own device, and how it gets further ones while nobody else wants them."""
    from ..host import leases
    from ..workers.devices import ALONE, Devices

    if lease is None:
        return ALONE
    named = (job.gpu_name, job.block)
    return Devices(lease, functools.partial(leases.spare, *named), functools.partial(leases.wanted, *named))


def pool_size(job: Job) -> tuple[int, float]:
    """How many workers on one device, and the memory of the device in bytes that they share."""
    jobs = min(job.arguments.jobs, MOST_WORKERS)
    if job.functional:
        return jobs, 0.0
    return max(1, min(jobs, int(job.block["memory_gib"] / _WORKER_GIB))), job.block["memory_gib"] * 2**30


def setting(job: Job) -> dict[str, Any]:
    """What every worker is told, without an import of torch here: its kernel, and the GPU."""
    load = functools.partial(catalog.load, job.kernel, interpret=job.functional)
    return {"load": load, "gpu_name": job.gpu_name, "block": job.block}


def environment(job: Job, lease: Lease | None) -> dict[str, str]:
    """What a worker has in its environment: which device it sees, and whether it interprets."""
    return (lease.environment if lease else {}) | ({"TRITON_INTERPRET": "1"} if job.functional else {})


def worker(
    job: Job, lease: Lease | None, serve: Callable[..., None], asked: dict[str, Any], **variables: str
) -> Process:
    """A worker that is not started: ``serve(connection, asked)`` on the lease's device."""
    given = environment(job, lease) | variables
    return Process(serve, asked, name=f"atlas-{job.stage}", environment=given, imported=TRITON)


def _device(job: Job) -> dict[str, Any]:
    """The device that the job ran on, or where it took no lease itself the first that matches."""
    from ..host import devices
    from ..host.environment import device as described

    uuid = _latest.get(job.gpu_name)
    if uuid is None:
        here = (device.uuid for device in devices.visible() if gpus.matches(job.block, device.name))
        uuid = next(here, "")
    return described(uuid)


def envelope(
    job: Job, kind: str, status: str, reason: str, seconds: float, neighbours: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The part of a document that is the same for every stage."""
    from ..host.environment import software

    return {
        "stage": job.stage,
        "schema_version": documents.VERSIONS[job.stage],
        "kernel": job.kernel,
        "gpu": job.gpu_name,
        "kind": kind,
        "status": status,
        "reason": reason,
        "kernel_digest": catalog.digest(job.kernel) if job.kernel else None,
        **({"identities": needed(job.stage, catalog.identities(job.kernel))} if job.kernel else {}),
        # Of a stage of this package: a proof's own code lies outside, and decides no figure of a kernel.
        **({} if job.stage == "prove" else {"code": today.of_stage(job.stage, job.functional)}),
        "software": software(),
        "device": _device(job) if kind == "measured" else {},
        **({"neighbours": dict(neighbours)} if neighbours is not None else {}),
        "seconds": round(seconds, 3),
    }


def _beside(kind: str) -> Neighbours | None:
    """Who looks for neighbours of what a GPU measures; None for other kinds."""
    if kind != "measured":
        return None
    from ..host import leases
    from ..host.neighbours import Neighbours

    return Neighbours(leases.counter_of_others())


def write_document(
    job: Job,
    empty: dict[str, Any],
    body: Callable[[Job], dict[str, Any]],
    kind: str = "",
    output: Path | None = None,
) -> dict[str, Any]:
    """Run ``body``, write its fields as the job's document (at ``output`` instead where given), and return that.

    ``empty`` are the fields where ``body`` could not give any.

    ``body`` returns the stage's fields, with ``status`` and ``reason`` where the status is not ``ok``.  Any exception
    but :class:`AtlasError` (the user's mistake: nothing is written) becomes a document of status ``failed``, or of the
    status that :class:`Stop` carries.
    """
    kind = kind or ("functional" if job.functional else "measured")
    start = time.perf_counter()
    fields: dict[str, Any] = {}
    beside = _beside(kind)
    try:
        with beside or contextlib.nullcontext():
            fields = dict(body(job))
        status, reason = fields.pop("status", "ok"), fields.pop("reason", "")
    except AtlasError:
        raise
    except Stop as stop:
        fields, status, reason = dict(empty), stop.status, str(stop)
    except Exception as error:
        fields = dict(empty) | {"traceback": traceback.format_exc()}
        status, reason = "failed", in_a_line(error)
    seconds = time.perf_counter() - start
    document = envelope(job, kind, status, reason, seconds, beside and beside.to_json()) | fields
    documents.write(output or job.output, document)
    return document


def print_outcome(job: Job, document: Mapping[str, Any]) -> None:
    """Say how the stage ended and where its document is: whoever types a stage's command sees its status alone.

    The exit status does not tell: in a run, a kernel that is wrong is the verdict's matter and stops no other job.
    """
    subject = " on ".join(name for name in (job.kernel, job.gpu_name) if name)
    status = f"{document['status']}: {document['reason']}" if document["reason"] else document["status"]
    print(f"atlas {job.stage}: {subject}: {status}")
    print(f"  {job.output}")


def require_ok(job: Job, *stages: str) -> None:
    """Raise :class:`Stop` ``skipped`` unless the named earlier stages ended ``ok``."""
    for stage in stages:
        document = job.earlier(stage)
        if document["status"] != "ok":
            raise Stop("skipped", f"{stage} ended {document['status']}: {document['reason']}")
