"""An inspection whose tasks are done by number: here, or in a process of a :mod:`~atlas.workers.pool`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..declaration import Declaration
from ..host import gpus, runtime
from ..workers.protocol import Do, Done, Listed, Opened, Part
from .device import DeviceLost
from .findings import ERROR, PROCESS, Finding
from .inspection import Inspection


@dataclass(frozen=True)
class Setting:
    """What to inspect and where; ``neighbours`` is how many processes share the device, this one among them."""

    load: Callable[[], Declaration]
    gpu_name: str
    block: Mapping[str, Any]
    seeds: Sequence[int]
    neighbours: int = 1


class InspectionTasks:
    """The inspection of one kernel, task by task."""

    def __init__(self, setting: Setting):
        if gpus.functional(setting.block) or setting.neighbours > 1:
            torch.set_num_threads(1)  # the interpreter's tensors are small: threads cost more than they bring
        declaration, gpu = setting.load(), gpus.gpu(setting.gpu_name, setting.block)
        self._device = runtime.device_of(setting.gpu_name, setting.block)
        self._inspection = Inspection(declaration, gpu, self._device, setting.seeds, neighbours=setting.neighbours)
        self._tasks = self._inspection.tasks()
        listed = [
            # The interpreter compiles nothing, so nothing is gained by keeping tasks together.
            Listed(task.label, f"{index}" if gpu.functional else task.group, task.about, task.memory_bytes, task.alone)
            for index, task in enumerate(self._tasks)
        ]
        self.opened = Opened(tuple(listed), tuple(self._inspection.left_out))

    def do(self, asked: Do) -> Iterator[Part | Done]:
        """What a task finds, as it finds it, and its end.  What is noted are the cases left out."""
        task, inspection = self._tasks[asked.index], self._inspection
        inspection.left_out, inspection.spent_seconds = [], asked.spent_seconds
        lost, short, refused = "", False, self._refused_allocations()
        try:
            for finding in inspection.each(task):
                short = short or (finding.status == ERROR and "out of memory" in finding.reason)
                yield Part(finding)
        except DeviceLost as error:
            lost = str(error)
            yield Part(error.finding or Finding(PROCESS, task.about, ERROR, lost))
        short = not lost and (short or self._refused_allocations() > refused)
        yield Done(tuple(inspection.left_out), inspection.spent_seconds - asked.spent_seconds, short, lost)

    def _refused_allocations(self) -> int:
        """How often torch found no memory: much of what meets that makes do without, and says nothing."""
        return torch.cuda.memory_stats(self._device).get("num_ooms", 0) if self._device.type == "cuda" else 0
