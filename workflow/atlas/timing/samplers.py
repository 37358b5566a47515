"""Taking samples: on a device that runs behind the host, queued ahead, so that launching does not enter the figure;
and on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .samples import Thunk

_FIRST_BLOCK_US = 100.0
"""First guess of what the host needs to queue one sample: flush, two events, one launch through Triton or torch."""
_LEAST_BLOCK_US = 30.0
"""Least wait for one sample, whatever the last batch took: the host's pace varies most where it is fast."""
_LONGEST_BLOCK_US = 200_000.0
_ATTEMPTS = 6
_MARGIN = 2.0
"""A block lasts this many times as long as queueing took, because the host's pace varies."""

_EDGE = 8
"""Samples of nothing before and after each batch, which are dropped.

A launch costs the device less where little lies before or behind it in its queue.  Of the samples of kernels between 4
and 200 us on an H200 (driver 580), queued 60 to 64 at a time, the first 3 read 0.13 us less than those between and the
last 5 read 0.55 us less, which is 11 % of the shortest kernels."""
_EDGE_US = 40.0
"""What the host needs to queue one sample of nothing."""

_POLL_US = 100.0
"""Between two looks at whether the device has come to the samples."""
_WATCH_US = 20_000.0
"""Between two calls of ``meanwhile``, which takes milliseconds itself."""


class Event(Protocol):
    """A point on the device's timeline."""

    def record(self) -> None: ...
    def query(self) -> bool:
        """True once the device has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``; both must have passed."""


class QueuedDevice(Protocol):
    """What the sampling needs of a device whose work is queued."""

    def block(self, microseconds: float) -> None:
        """Queue a kernel that only waits."""

    def flush(self) -> None:
        """Queue the eviction of L2."""

    def event(self) -> Event:
        """An event that can be timed."""

    def synchronize(self) -> None:
        """Wait until all that is queued has run."""

    def now_us(self) -> float:
        """The host's clock in microseconds."""

    def idle(self, microseconds: float) -> None:
        """Let the host do nothing for so long."""


@dataclass(frozen=True)
class Batch:
    """Samples in microseconds, in the order of the calls; ``queued`` is False if launching could not be kept out."""

    samples_us: list[float]
    queued: bool


class Sampler:
    """Takes batches of cold samples; remembers how long a wait the calls needed."""

    def __init__(self, device: QueuedDevice):
        self._device = device
        self._per_sample_us = _FIRST_BLOCK_US
        self._events: list[tuple[Event, Event]] = []

    def take(self, calls: Sequence[Thunk], meanwhile: Callable[[], None] | None = None) -> Batch:
        """One sample of each call, in order; raises whatever a call raises.

        ``meanwhile`` is called once the device has come to the first sample, and again as long as it works on them.
        """
        for _ in range(_ATTEMPTS):
            block_us = min(self._per_sample_us * len(calls) + 2 * _EDGE * _EDGE_US, _LONGEST_BLOCK_US)
            batch, host_us = self._attempt(calls, block_us, meanwhile)
            needed = _MARGIN * host_us / len(calls)
            if batch.queued:
                self._per_sample_us = max(_LEAST_BLOCK_US, min(self._per_sample_us, needed))
            if batch.queued or block_us == _LONGEST_BLOCK_US:
                return batch
            self._per_sample_us = max(2 * self._per_sample_us, needed)
        return batch

    def forget(self) -> None:
        """Start from the first guess again: the next calls are other work."""
        self._per_sample_us = _FIRST_BLOCK_US

    def synchronize(self) -> None:
        """Wait for the device."""
        self._device.synchronize()

    def _attempt(
        self, calls: Sequence[Thunk], block_us: float, meanwhile: Callable[[], None] | None
    ) -> tuple[Batch, float]:
        device, edge = self._device, [_nothing] * _EDGE
        while len(self._events) < len(calls) + 2 * _EDGE:
            self._events.append((device.event(), device.event()))
        before, after = self._events[:_EDGE], self._events[_EDGE : 2 * _EDGE]
        pairs = self._events[2 * _EDGE : 2 * _EDGE + len(calls)]
        device.block(block_us)
        exposed = self._queue(edge, before)
        began = device.now_us()
        exposed |= self._queue(calls, pairs)
        host_us = device.now_us() - began
        exposed |= self._queue(edge, after)
        if meanwhile is not None:
            self._watch(pairs[0][0], pairs[-1][1], meanwhile)
        device.synchronize()
        return Batch([1000 * start.elapsed_time(end) for start, end in pairs], not exposed), host_us

    def _queue(self, calls: Sequence[Thunk], pairs: Sequence[tuple[Event, Event]]) -> bool:
        """Queue a sample of each call; True if the device may have waited for the host."""
        exposed = False
        for call, (start, end) in zip(calls, pairs, strict=True):
            self._device.flush()
            start.record()
            call()
            end.record()
            # The device has reached the sample before all of it was queued.
            exposed |= start.query()
        return exposed

    def _watch(self, start: Event, end: Event, meanwhile: Callable[[], None]) -> None:
        while not start.query():
            self._device.idle(_POLL_US)
        meanwhile()
        asked = self._device.now_us()
        while not end.query():
            self._device.idle(_POLL_US)
            if self._device.now_us() - asked >= _WATCH_US:
                meanwhile()
                asked = self._device.now_us()


def _nothing() -> None:
    pass


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
