"""Have compiled what calls will run: calls of all kernels on one set of workers, that are gone when the clock starts.

A worker calls every provider of a call once, so that the caches on disk hold what is compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from atlas.stages import frame
from atlas.workers import protocol
from atlas.workers.pool import run_jobs

from .. import scratch
from .calls import Call

if TYPE_CHECKING:
    from atlas.host.leases import Lease

_MEMORY_SHARE = 0.6
"""Of the device's memory that calls side by side may take: estimates are rough, contexts cost, too."""
_TASK_SECONDS = 600.0
"""What a worker may take for one call before it counts as hung."""
_NAP_SECONDS = 0.5
"""What a worker waits that has no memory for any call."""

Job = Callable[[], Any]


class Queue:
    """Jobs for workers, each the first call that there is memory for beside those at work; else a nap.

    ``job_of(call)`` is what is sent; ``memory_of(call)`` is in bytes, as is ``budget``.  A call that is larger than the
    budget goes when no other is at work.
    """

    def __init__(
        self, calls: Sequence[Call], job_of: Callable[[Call], Job], memory_of: Callable[[Call], float], budget: float
    ):
        self._waiting = list(calls)
        self._job_of, self._memory_of, self._budget = job_of, memory_of, budget
        self._drawn: list[Call | None] = []
        self._at_work: dict[int, float] = {}

    def __iter__(self) -> Iterator[Job]:
        while self._waiting:
            taken = sum(self._at_work.values())
            fitting = (c for c in self._waiting if not taken or taken + self._memory_of(c) <= self._budget)
            call = next(fitting, None)
            if call is not None:
                self._waiting.remove(call)
                self._at_work[len(self._drawn)] = self._memory_of(call)
            self._drawn.append(call)
            yield functools.partial(time.sleep, _NAP_SECONDS) if call is None else self._job_of(call)

    def ended(self, number: int) -> Call | None:
        """The call that the job of this number was, which takes no memory any more; None for a nap."""
        self._at_work.pop(number, None)
        return self._drawn[number]


def prepared(
    events: Iterator[tuple[int, Any]],
    queue: Queue,
    wanted: Sequence[Call],
    left: Callable[[int], float],
    tell: Callable[[Call, int], None] = lambda call, done: None,
) -> list[Call]:
    """The calls that workers are done with, well or not, when all ``wanted`` are, or no time is left.

    ``events`` are those of :func:`~atlas.workers.pool.run_jobs` over the queue; they are closed, which ends the
    workers.  ``left(done)`` is in seconds, with so many calls done; ``tell`` is told each that is, and how many.
    """
    from atlas.benchmarking.measurement import deadline

    done: list[Call] = []
    missing = set(wanted)
    with contextlib.closing(events):
        while missing and (seconds := left(len(done))) > 0:
            try:
                with deadline(seconds, "preparing calls"):
                    number, _ = next(events)
            except (TimeoutError, StopIteration):
                break
            call = queue.ended(number)
            if call is not None:
                done.append(call)
                missing.discard(call)
                tell(call, len(done))
    return done


class Workers:
    """Who prepares calls on the job's device, as many at a time as ``--cores`` and the device's memory allow."""

    def __init__(self, job: frame.Job, lease: Lease | None, declarations: Mapping[str, Any]):
        arguments = argparse.Namespace(**vars(job.arguments) | {"jobs": scratch.cores_of(job.arguments)})
        self.count, memory = frame.pool_size(dataclasses.replace(job, arguments=arguments))
        self._budget = _MEMORY_SHARE * memory or math.inf
        self._job, self._lease, self._declarations = job, lease, declarations

    def prepare(self, calls: Sequence[Call], wanted: int, left: Callable[[int], float], tell: Callable) -> list[Call]:
        """Those that are prepared when the first ``wanted`` are; the others keep workers busy that have none of these.

        See :func:`prepared`.
        """
        queue = Queue(calls, self._job_of, self._memory_of, self._budget)
        events = run_jobs(queue, self.count, _TASK_SECONDS, self._worker)
        return prepared(events, queue, calls[:wanted], left, tell)

    def _worker(self) -> Any:
        # One worker for each core: torch.compile would start as many again in each.
        return frame.worker(self._job, self._lease, _serve, {}, TORCHINDUCTOR_COMPILE_THREADS="1")

    def _job_of(self, call: Call) -> Job:
        return functools.partial(prepare, call, self._job.gpu_name, self._job.block)

    def _memory_of(self, call: Call) -> float:
        from atlas.benchmarking.beyond_ahead import memory_of

        return memory_of(self._declarations[call.kernel], call.case)


def _serve(connection: Connection, asked: dict[str, Any]) -> None:
    """In a worker."""
    import torch

    torch.set_num_threads(1)
    protocol.serve_jobs(connection)


def prepare(call: Call, gpu_name: str, block: Mapping[str, Any]) -> None:
    """In a worker, call each provider once.  What goes wrong is not said: whoever times it meets it again.

    Raises RuntimeError where the device is lost, which ends the worker.
    """
    from atlas import catalog
    from atlas.benchmarking.beyond_ahead import call_once
    from atlas.host import gpus, runtime

    declaration = catalog.load(call.kernel, interpret=gpus.functional(block))
    gpu, device = gpus.gpu(gpu_name, block), runtime.device_of(gpu_name, block)
    if lost := call_once(declaration, gpu, call.case, call.mode, device):
        raise RuntimeError(lost)
