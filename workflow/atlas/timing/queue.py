"""Samples taken on a device that runs behind the host: queued ahead, so that launching does not enter the figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .types import Thunk

_FIRST_BLOCK_US = 100.0
"""First guess of what the host needs to queue one sample: flush, two events, one launch through Triton or torch."""
_LONGEST_BLOCK_US = 200_000.0
_ATTEMPTS = 6
_MARGIN = 2.0
"""A block lasts this many times as long as queueing took, because the host's pace varies."""


class Event(Protocol):
    """A point on the device's timeline."""

    def record(self) -> None: ...
    def query(self) -> bool:
        """True once the device has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``; both must have passed."""


class Device(Protocol):
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


@dataclass(frozen=True)
class Batch:
    """Samples in microseconds, in the order of the calls; ``queued`` is False if launching could not be kept out."""

    samples_us: list[float]
    queued: bool


class Sampler:
    """Takes batches of cold samples; remembers how long a wait the calls needed."""

    def __init__(self, device: Device):
        self._device = device
        self._per_sample_us = _FIRST_BLOCK_US
        self._events: list[tuple[Event, Event]] = []

    def take(self, calls: Sequence[Thunk], meanwhile: Callable[[], None] = lambda: None) -> Batch:
        """One sample of each call, in order; ``meanwhile`` is called once while the device works.

        Raises whatever a call raises.
        """
        for _ in range(_ATTEMPTS):
            block_us = min(self._per_sample_us * len(calls), _LONGEST_BLOCK_US)
            batch, host_us = self._attempt(calls, block_us, meanwhile)
            if batch.queued or block_us == _LONGEST_BLOCK_US:
                return batch
            self._per_sample_us = max(2 * self._per_sample_us, _MARGIN * host_us / len(calls))
        return batch

    def forget(self) -> None:
        """Start from the first guess again: the next calls are other work."""
        self._per_sample_us = _FIRST_BLOCK_US

    def synchronize(self) -> None:
        """Wait for the device."""
        self._device.synchronize()

    def _attempt(self, calls: Sequence[Thunk], block_us: float, meanwhile: Callable[[], None]) -> tuple[Batch, float]:
        device = self._device
        while len(self._events) < len(calls):
            self._events.append((device.event(), device.event()))
        exposed = False
        began = device.now_us()
        device.block(block_us)
        for call, (start, end) in zip(calls, self._events, strict=False):
            device.flush()
            start.record()
            call()
            end.record()
            # The device has reached the sample before all of it was queued: it may have waited for the host.
            exposed |= start.query()
        host_us = device.now_us() - began
        meanwhile()
        device.synchronize()
        pairs = self._events[: len(calls)]
        return Batch([1000 * start.elapsed_time(end) for start, end in pairs], not exposed), host_us
