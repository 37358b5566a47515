"""Have compiled what calls beyond the tuned cases will run: as :mod:`.ahead`, for other cases."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..declaration import GPU, Case, Declaration
from ..host import gpus, runtime
from ..validation.device import obstacle
from ..workers.protocol import Do, Done, Listed, Opened
from . import beyond
from .ahead import keeping_no_winner
from .measurement import PREPARE_SECONDS, deadline, precision

_COPIES = 8
"""Times its traffic is what a case may take of the device: a step keeps what its gradient needs."""


@dataclass(frozen=True)
class Setting:
    """Which kernel, where, and at which cases."""

    load: Callable[[], Declaration]
    gpu_name: str
    block: Mapping[str, Any]
    cases: tuple[Case, ...]


class CallingTasks:
    """The modes of every case, whose providers are called once each; what goes wrong is met again, and said then."""

    def __init__(self, setting: Setting):
        torch.set_num_threads(1)
        self._declaration, self._gpu = setting.load(), gpus.gpu(setting.gpu_name, setting.block)
        self._device = runtime.device_of(setting.gpu_name, setting.block)
        self._tasks = [(case, mode) for case in setting.cases for mode in beyond.modes(self._declaration)]
        self.opened = Opened(tuple(self._listed(number, *task) for number, task in enumerate(self._tasks)))

    def _listed(self, number: int, case: Case, mode: str) -> Listed:
        return Listed(f"{mode} {case}", str(number), memory_bytes=memory_of(self._declaration, case))

    def do(self, asked: Do) -> Iterator[Done]:
        """Call each provider of the case once; finds nothing."""
        yield Done(lost=call_once(self._declaration, self._gpu, *self._tasks[asked.index], self._device))


def memory_of(declaration: Declaration, case: Case) -> float:
    """Bytes of the device that a call at the case may take, all modes and providers considered."""
    return _COPIES * sum(declaration.forward.bytes(case).values())


def call_once(declaration: Declaration, gpu: GPU, case: Case, mode: str, device: torch.device) -> str:
    """Call each provider once; what goes wrong is not said.  What took the device, or ``""``."""
    with contextlib.suppress(Exception), precision(case.dtype), keeping_no_winner():
        for entry in beyond.entries(declaration, gpu, case, mode, device):
            with contextlib.suppress(Exception), deadline(PREPARE_SECONDS, f"preparing {entry.name}"):
                entry.prepare()()
    gc.collect()
    lost = obstacle(device)
    if not lost and device.type == "cuda":
        torch.cuda.empty_cache()
    return lost
