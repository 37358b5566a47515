"""Have compiled what a benchmark will run, by processes beside each other: into the caches on disk, before the clock.

Triton's cache and torch.compile's take what a worker makes, so that the process that times finds it there.  Nothing is
chosen here by its time, since others run on the device meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..cuda.programs import Programs
from ..declaration import Case, Declaration
from ..host import gpus, runtime
from ..validation.device import obstacle
from ..validation.problems import Problem
from ..workers.protocol import Do, Done, Listed, Opened
from .measurement import PREPARE_SECONDS, SEED, deadline, precision, timed_cases
from .providers import Tuned, providers

_COPIES = 4
"""Times its traffic is what a case may take of the device: inputs and outputs, and what peers keep between steps."""


def keeping_no_winner() -> contextlib.AbstractContextManager[None]:
    """Inside, what torch.compile makes writes nowhere which of a kernel's configs was the fastest.

    The process that times takes the code that was made and finds that out by itself.
    """
    import torch._inductor.config  # with torch's compiler, seconds that tests and other commands need not spend

    return torch._inductor.config.patch(autotune_local_cache=False)


@dataclass(frozen=True)
class Setting:
    """Which benchmark, and where; ``tuned`` is the autotune document, ``folder`` where its CUDA programs lie."""

    load: Callable[[], Declaration]
    gpu_name: str
    block: Mapping[str, Any]
    tuned: Mapping[str, Any]
    folder: Path


class PreparingTasks:
    """The passes and cases of a benchmark, whose providers run once each.

    What goes wrong here is not said: the benchmark meets it again and says it in a row.
    """

    def __init__(self, setting: Setting):
        torch.set_num_threads(1)
        self._declaration, self._gpu = setting.load(), gpus.gpu(setting.gpu_name, setting.block)
        self._device = runtime.device_of(setting.gpu_name, setting.block)
        self._tuned = Tuned(setting.tuned)
        self._programs = Programs(self._declaration.name, setting.gpu_name, setting.folder, self._device)
        self._tasks = timed_cases(self._declaration, self._gpu)
        self.opened = Opened(tuple(self._listed(number, *task) for number, task in enumerate(self._tasks)))

    def _listed(self, number: int, direction: str, case: Case) -> Listed:
        traffic = sum(self._declaration.passes[direction].bytes(case).values())
        return Listed(f"{direction} {case}", str(number), memory_bytes=_COPIES * traffic)

    def do(self, asked: Do) -> Iterator[Done]:
        """Run each provider of the case once; finds nothing."""
        lost = self._prepare(*self._tasks[asked.index])
        gc.collect()  # autograd graphs of peers hold their tensors in cycles
        if not lost and self._device.type == "cuda":
            torch.cuda.empty_cache()
        yield Done(lost=lost)

    def _prepare(self, direction: str, case: Case) -> str:
        """What took the device, or ``""``."""
        work = self._declaration.passes[direction]
        wanted = [
            provider
            for provider in providers(work, direction, case, self._gpu, self._tuned, self._programs)
            if provider.prepare is not None and not provider.same_as and not provider.searches
        ]
        try:
            problem = Problem(self._declaration, direction, case, self._device, SEED)
        except Exception:
            return obstacle(self._device)
        with precision(case.dtype), keeping_no_winner():
            for provider in wanted:
                with contextlib.suppress(Exception), deadline(PREPARE_SECONDS, f"preparing {provider.key}"):
                    provider.prepare(problem.inputs)()
                if lost := obstacle(self._device):
                    return lost
        return ""
