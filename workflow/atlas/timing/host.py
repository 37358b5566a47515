"""Samples of wall time on the CPU, where Triton's interpreter runs a kernel: they tell that it works, not how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .queue import Batch
from .types import Thunk


class HostSampler:
    """Calls one after the other by the host's clock; there is no queue and no cache to flush."""

    def take(self, calls: Sequence[Thunk], meanwhile: Callable[[], None] | None = None) -> Batch:
        """One sample of each call, in order."""
        samples = []
        for call in calls:
            began = time.perf_counter()
            call()
            samples.append(1e6 * (time.perf_counter() - began))
        if meanwhile is not None:
            meanwhile()
        return Batch(samples, queued=True)

    def forget(self) -> None:
        """Nothing is remembered."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""
