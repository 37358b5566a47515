"""Have compiled what calls beyond the tuned cases will run: as :mod:`.ahead`, for other cases."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..declaration import Case, Declaration
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
        traffic = sum(self._declaration.forward.bytes(case).values())
        return Listed(f"{mode} {case}", str(number), memory_bytes=_COPIES * traffic)

    def do(self, asked: Do) -> Iterator[Done]:
        """Call each provider of the case once; finds nothing."""
        case, mode = self._tasks[asked.index]
        with contextlib.suppress(Exception), precision(case.dtype), keeping_no_winner():
            for entry in beyond.entries(self._declaration, self._gpu, case, mode, self._device):
                with contextlib.suppress(Exception), deadline(PREPARE_SECONDS, f"preparing {entry.name}"):
                    entry.prepare()()
        gc.collect()
        lost = obstacle(self._device)
        if not lost and self._device.type == "cuda":
            torch.cuda.empty_cache()
        yield Done(lost=lost)
