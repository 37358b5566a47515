"""The clock: how many samples to take, in which order, and when to stop."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch

from .board import Board, Reading, SilentBoard, board_of, summary
from .cuda import CudaDevice
from .host import HostSampler
from .queue import Batch, Sampler
from .spread import quartiles, settled
from .types import Thunk, Timing

_STRETCH = 5
"""An unsettled measurement ends at this many times ``min_seconds`` of samples."""
_BATCH = 64
"""Most samples queued at once: with a few launches each, a device's launch queue (about 1000 entries) holds them."""
_BATCH_SECONDS = 0.1
"""Most seconds of samples queued at once, so that slow work is not over-sampled."""
_PAUSE_SECONDS = 1.0
"""What a throttled board is given before the measurement is repeated."""
_ROWS, _CALLS = 11, 50
"""Rows of calls, and calls in a row, whose host time is taken."""
_HOST_SAMPLES = 3
"""Samples on the CPU: they only show that the work runs more than once."""


class Samples(Protocol):
    """Who takes batches of samples."""

    def take(self, calls: list[Thunk], meanwhile: Callable[[], None]) -> Batch:
        """One sample of each call, in order."""

    def forget(self) -> None:
        """The next calls are other work."""

    def synchronize(self) -> None:
        """Wait for the device."""


class Clock:
    """Times work on one device by protocol ``timing/1``; see :mod:`atlas.timing`.

    A thunk does the work once.  Each method first calls each thunk once untimed, so that nothing is compiled or loaded
    in a sample.  Whatever a thunk raises passes through.
    """

    def __init__(self, device: torch.device | str):
        device = torch.device(device)
        self.functional = device.type == "cpu"
        self._pause: Callable[[float], None] = time.sleep
        self._board: Board = SilentBoard()
        self._device: CudaDevice | None = None
        self._sampler: Samples
        if self.functional:
            self._sampler = HostSampler()
        else:
            self._device = CudaDevice(device)
            self._board = board_of(self._device.index)
            self._sampler = Sampler(self._device)

    @classmethod
    def of_parts(cls, sampler: Samples, board: Board, pause: Callable[[float], None] = time.sleep) -> Clock:
        """A clock over another sampler and board, with the GPU's protocol."""
        clock = cls.__new__(cls)
        clock.functional, clock._pause = False, pause
        clock._device, clock._sampler, clock._board = None, sampler, board
        return clock

    def warm_up(self) -> None:
        """Bring the device to steady clocks; does nothing the second time in a process, and nothing on the CPU."""
        if self._device is not None:
            self._device.soak(self._board)

    def floor_us(self, samples: int = 50) -> float:
        """What the events measure around nothing, in microseconds: the resolution of every figure."""
        return self.screen(lambda: None, samples).median_us

    def call_us(self, thunk: Thunk) -> float:
        """Microseconds of the host for one call that waits for nothing: the median of rows of calls.

        A row is short enough for the device's launch queue, so a slow device does not hold the host up.
        """
        thunk()
        found = []
        for _ in range(_ROWS):
            self._sampler.synchronize()
            began = time.perf_counter()
            for _ in range(_CALLS):
                thunk()
            found.append(1e6 * (time.perf_counter() - began) / _CALLS)
        self._sampler.synchronize()
        return quartiles(found)[1]

    def screen(self, thunk: Thunk, samples: int = 5) -> Timing:
        """A brief measurement, for sorting many configs; the board is not asked."""
        self.warm_up()
        self._sampler.forget()
        thunk()
        batch = self._sampler.take([thunk] * samples, lambda: None)
        return _timing(batch.samples_us, Reading(), batch.queued)

    def measure(self, thunk: Thunk, min_seconds: float = 0.2, max_samples: int = 200, min_samples: int = 10) -> Timing:
        """A measurement by the full protocol."""
        return self.interleave({"": thunk}, min_seconds, max_samples, min_samples)[""]

    def interleave(
        self, thunks: Mapping[str, Thunk], min_seconds: float = 0.2, max_samples: int = 200, min_samples: int = 10
    ) -> dict[str, Timing]:
        """Measurements of several thunks by the full protocol, sampled in turns so that drift hits all alike.

        Every round takes one sample of each; from round to round the order rotates, and after a full turn it is
        mirrored, so that neither place nor predecessor stays the same.  Rounds go on until each thunk's rule is met.
        The board's state is one for all: power and throttling cannot be told apart by thunk.
        """
        if not thunks:
            return {}
        self.warm_up()
        if self.functional:
            min_seconds, max_samples, min_samples = 0.0, _HOST_SAMPLES, _HOST_SAMPLES
        self._sampler.forget()
        for thunk in thunks.values():
            thunk()
        timings = self._rounds(thunks, min_seconds, max_samples, min_samples)
        if any(timing.throttled for timing in timings.values()):
            self._pause(_PAUSE_SECONDS)
            for thunk in thunks.values():
                thunk()
            timings = self._rounds(thunks, min_seconds, max_samples, min_samples)
        return timings

    def _rounds(
        self, thunks: Mapping[str, Thunk], min_seconds: float, max_samples: int, min_samples: int
    ) -> dict[str, Timing]:
        samples: dict[str, list[float]] = {name: [] for name in thunks}
        queued = dict.fromkeys(thunks, True)
        readings: list[Reading] = []
        orders = rotation(list(thunks))
        rounds = min(min_samples, max_samples)
        while rounds:
            for size in _split(rounds, max(1, _BATCH // len(thunks))):
                names = [name for order in itertools.islice(orders, size) for name in order]
                batch = self._sampler.take(
                    [thunks[name] for name in names], lambda: readings.append(self._board.read())
                )
                for name, sample in zip(names, batch.samples_us, strict=True):
                    samples[name].append(sample)
                    queued[name] &= batch.queued
            rounds = max(rounds_left(taken, min_seconds, max_samples) for taken in samples.values())
            if rounds:
                per_round = sum(sum(taken) / len(taken) for taken in samples.values()) / 1e6
                rounds = max(1, min(rounds, int(_BATCH_SECONDS / per_round)))
        state = summary(readings)
        return {name: _timing(taken, state, queued[name]) for name, taken in samples.items()}


def rounds_left(samples: list[float], min_seconds: float, max_samples: int) -> int:
    """How many more samples (microseconds) the rule wants before it is asked again; 0 to stop."""
    seconds = sum(samples) / 1e6
    room = max_samples - len(samples)
    if room <= 0 or seconds >= _STRETCH * min_seconds:
        return 0
    missing = math.ceil((min_seconds - seconds) / (seconds / len(samples))) if seconds else room
    if missing > 0:
        return min(missing, room)
    return 0 if settled(samples) else min(len(samples), room)


def rotation(names: list[str]) -> Iterator[list[str]]:
    """Orders without end: a full turn of rotations, then a full turn of their mirror images."""
    for turn in itertools.cycle((False, True)):
        for shift in range(len(names)):
            order = names[shift:] + names[:shift]
            yield order[::-1] if turn else order


def _split(total: int, most: int) -> Iterator[int]:
    while total > 0:
        yield min(total, most)
        total -= most


def _timing(samples: list[float], state: Reading, queued: bool) -> Timing:
    q1, median, q3 = quartiles(samples)
    return Timing(
        median_us=median,
        q1_us=q1,
        q3_us=q3,
        samples_us=tuple(samples),
        sm_clock_mhz=state.sm_clock_mhz,
        temperature_c=state.temperature_c,
        power_w=state.power_w,
        throttled=bool(state.throttled),
        queued=queued,
    )
