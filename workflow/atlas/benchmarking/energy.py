"""What a call takes of the board's energy: calls back to back, and the board's own counter at either end.

The counter moves in steps, some ten a second, so the two ends are readings at which it just had: what it says between
them is divided by the calls that ended between them.  The device never waits in between: a chunk of calls is always
queued before the one ahead of it has ended.  Nothing is flushed and nothing subtracted: what the board takes at rest
stands beside it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..timing.device import nvml_handle
from ..timing.samples import Thunk
from .measurement import CALLS, captured

PROTOCOL = "energy/1"

_CHUNK_SECONDS = 0.01
"""Of calls between two readings: a hundredth of a second's loop."""
_SETTLE_SECONDS = {"energy counter": 0.5, "sampled power": 1.5}
"""Of calls before the first repeat: the power rises for a while, and some boards tell the mean of a second."""
_PAUSE_SECONDS = 0.02


class Unmeasured(Exception):
    """Nothing on this board tells what is asked; the message says so in a sentence."""


class Meter(Protocol):
    """Somebody who knows what the board has taken; ``how`` names the way."""

    how: str

    def joules(self) -> float:
        """Since some moment in the past."""


class EnergyCounter:
    """The board's own count of millijoules, which NVIDIA's have since Volta."""

    how = "energy counter"

    def __init__(self, ask: Callable[[], int]):
        self._ask = ask
        ask()  # raises where the board has none

    def joules(self) -> float:
        """Since the driver was loaded."""
        return self._ask() / 1e3


class SampledPower:
    """For boards without a counter: power at each reading, taken to have been as much since the one before."""

    how = "sampled power"

    def __init__(self, ask: Callable[[], int], now: Callable[[], float] = time.perf_counter):
        self._ask, self._now = ask, now
        ask()
        self._total, self._at = 0.0, now()

    def joules(self) -> float:
        """Since this object was made."""
        now = self._now()
        self._total += self._ask() / 1e3 * (now - self._at)
        self._at = now
        return self._total


def meter_of(device: torch.device) -> Meter:
    """The best meter of a CUDA device; :class:`Unmeasured` where NVML knows neither energy nor power of it."""
    import pynvml

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    try:
        handle = nvml_handle(uuid)
    except pynvml.NVMLError as error:
        raise Unmeasured(f"NVML does not know this device: {error}") from None
    ways: tuple[tuple[Callable[..., Meter], Callable[[Any], int]], ...] = (
        (EnergyCounter, pynvml.nvmlDeviceGetTotalEnergyConsumption),
        (SampledPower, pynvml.nvmlDeviceGetPowerUsage),
    )
    for made, function in ways:
        try:
            return made(lambda function=function: function(handle))
        except pynvml.NVMLError:
            continue
    raise Unmeasured("this board tells neither its energy nor its power, as a part of a GPU does not")


@dataclass(frozen=True)
class Reading:
    """After so many calls, at a moment in seconds."""

    calls: int
    seconds: float
    joules: float


@dataclass(frozen=True)
class Consumption:
    """Of one repeat: joules and microseconds of a call, and the calls between the two readings they are of."""

    joules: float
    call_us: float
    calls: int

    @property
    def watts(self) -> float:
        """The board's mean power."""
        return 1e6 * self.joules / self.call_us


def between_steps(readings: Sequence[Reading]) -> Consumption:
    """From the first reading at which the counter had moved to the last one; :class:`Unmeasured` unless it moved on."""
    moved = [now for before, now in itertools.pairwise(readings) if now.joules != before.joules]
    if len(moved) < 2:
        raise Unmeasured("the board's energy counter moved less than twice in a repeat: give more --seconds")
    first, last = moved[0], moved[-1]
    calls = last.calls - first.calls
    return Consumption((last.joules - first.joules) / calls, 1e6 * (last.seconds - first.seconds) / calls, calls)


class Loop(Protocol):
    """Calls in chunks; ``calls`` in each."""

    calls: int

    def advance(self) -> None:
        """Queue a chunk, and return when the one before it has ended."""


class DeviceLoop:
    """A thunk's calls on the current stream: by CUDA graph where they can be captured, else one after another."""

    def __init__(self, thunk: Thunk, capture: bool):
        self._graph = None
        if capture:
            try:
                self._graph = captured(thunk)
            except Exception:  # whatever the work does that a graph cannot hold
                torch.cuda.synchronize()  # raises where the device was lost
        self._run, once = (self._graph.replay, CALLS) if self._graph else (thunk, 1)
        self._runs = max(1, round(_CHUNK_SECONDS / self._seconds()))
        self.calls = once * self._runs
        self._ended: list[torch.cuda.Event] = []

    @property
    def captured(self) -> bool:
        """Whether a graph repeats them, without the host."""
        return self._graph is not None

    def advance(self) -> None:
        """Queue a chunk, and return when the one before it has ended."""
        for _ in range(self._runs):
            self._run()
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._ended.append(event)
        if len(self._ended) > 1:
            self._ended.pop(0).synchronize()

    def close(self) -> None:
        """Wait for what is queued, and free the graph."""
        torch.cuda.synchronize()
        if self._graph is not None:
            self._graph.reset()

    def _seconds(self) -> float:
        """Of one run, launched as often as a chunk may want."""
        self._run()
        torch.cuda.synchronize()
        began, runs = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < _CHUNK_SECONDS:
            self._run()
            torch.cuda.synchronize()
            runs += 1
        return spent / runs


def measure(
    loop: Loop, meter: Meter, seconds: float, repeats: int, now: Callable[[], float] = time.perf_counter
) -> list[Consumption]:
    """Repeats of a loop of at least ``seconds`` each, one right after another, after the power has settled."""
    _readings(loop, meter, _SETTLE_SECONDS[meter.how], now)
    return [between_steps(_readings(loop, meter, seconds, now)) for _ in range(repeats)]


def _readings(loop: Loop, meter: Meter, seconds: float, now: Callable[[], float]) -> list[Reading]:
    found: list[Reading] = []
    began, calls = now(), 0
    while not found or found[-1].seconds - began < seconds:
        loop.advance()
        calls += loop.calls
        found.append(Reading(calls, now(), meter.joules()))
    return found


class _Rest:
    """A loop of nothing."""

    calls = 1

    def advance(self) -> None:
        """Wait."""
        time.sleep(_PAUSE_SECONDS)


def at_rest(meter: Meter, seconds: float = 1.0) -> float:
    """Watts of the board while this process waits, its context made and its clocks as the last work left them."""
    _readings(_Rest(), meter, _SETTLE_SECONDS[meter.how], time.perf_counter)
    return between_steps(_readings(_Rest(), meter, seconds, time.perf_counter)).watts


def figures(found: Sequence[Consumption]) -> dict[str, float]:
    """What a document's row holds of the repeats: the medians, and the least and the most joules of a call."""
    joules = [one.joules for one in found]
    return {
        "joules": statistics.median(joules),
        "joules_least": min(joules),
        "joules_most": max(joules),
        "loop_us": statistics.median(one.call_us for one in found),
        "watts": statistics.median(one.watts for one in found),
        "calls": sum(one.calls for one in found),
        "repeats": len(found),
    }
