"""What the clock returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PROTOCOL = "timing/2"
"""Name and version of the method; a change that moves figures raises the version."""

Thunk = Callable[[], Any]
"""One call of the work to be timed; its result is dropped."""


@dataclass(frozen=True)
class Timing:
    """One measurement, times in microseconds.

    ``samples_us`` are all samples in the order taken.  Clock, temperature and power are None where the board does not
    tell them.  ``throttled_by``: why the board lowered its clock meanwhile, in words; empty if it did not.  ``queued``
    is False where launch latency could not be kept out of the samples.
    """

    median_us: float
    q1_us: float
    q3_us: float
    samples_us: tuple[float, ...]
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: tuple[str, ...] = ()
    queued: bool = True

    @property
    def throttled(self) -> bool:
        """The board lowered its clock meanwhile."""
        return bool(self.throttled_by)
