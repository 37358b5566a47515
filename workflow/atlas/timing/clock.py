"""The clock: how many samples to take, and when to stop."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch

from .device import Board, CudaDevice, Reading, SilentBoard, board_of, summary_of
from .samplers import Batch, HostSampler, Sampler
from .samples import Thunk, Timing, quartiles, rounds, settled

_STRETCH = 5
"""An unsettled measurement ends at this many times ``min_seconds`` of samples."""
_BATCH = 64
"""Most samples queued at once: with a few launches each, a device's launch queue (about 1000 entries) holds them."""
_BATCH_SECONDS = 0.1
"""Most seconds of samples queued at once, so that slow work is not over-sampled."""
_PAUSE_SECONDS = 1.0
"""What a throttled board is given before the measurement is repeated."""
_REST_SECONDS = 0.5
"""A device that was last sampled longer ago is made busy before the next sample."""
_ROWS, _CALLS = 11, 50
"""Rows of calls, and calls in a row, whose host time is taken."""
_HOST_SAMPLES = 3
"""Samples on the CPU: they only show that the work runs more than once."""


class Samples(Protocol):
    """Who takes batches of samples."""

    def take(self, calls: list[Thunk], meanwhile: Callable[[], None] | None = None) -> Batch:
        """One sample of each call, in order; ``meanwhile`` is called while the device works on them."""

    def forget(self) -> None:
        """The next calls are other work."""

    def synchronize(self) -> None:
        """Wait for the device."""


class Warming(Protocol):
    """Who brings a device to steady clocks."""

    def soak(self, board: Board) -> None:
        """Once in a process."""

    def warm_again(self, board: Board) -> None:
        """After a rest."""


class Clock:
    """Times work on one device by protocol ``timing/2``; see :mod:`atlas.timing`.

    A thunk does the work once.  Each method first calls each thunk once untimed, so that nothing is compiled or loaded
    in a sample.  Whatever a thunk raises passes through.
    """

    def __init__(self, device: torch.device | str):
        device = torch.device(device)
        self.functional = device.type == "cpu"
        self._pause: Callable[[float], None] = time.sleep
        self._board: Board = SilentBoard()
        self._device: Warming | None = None
        self._sampler: Samples
        self._rests_since = -math.inf
        if self.functional:
            self._sampler = HostSampler()
        else:
            self._device = gpu = CudaDevice(device)
            self._board = board_of(gpu.index)
            self._sampler = Sampler(gpu)

    @classmethod
    def of_parts(
        cls,
        sampler: Samples,
        board: Board,
        pause: Callable[[float], None] = time.sleep,
        device: Warming | None = None,
    ) -> Clock:
        """A clock over another sampler and board, with the GPU's protocol."""
        clock = cls.__new__(cls)
        clock.functional, clock._pause, clock._rests_since = False, pause, -math.inf
        clock._device, clock._sampler, clock._board = device, sampler, board
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

    def throttled_by(self) -> tuple[str, ...]:
        """Why the board's clock is lowered at this moment, in words; empty where it is not or nobody can tell."""
        return self._board.read().throttled

    def screen(
        self, thunk: Thunk, samples: int = 5, limit_us: float | None = None, most_seconds: float = math.inf
    ) -> Timing:
        """A brief measurement, for sorting many configs; the board is not asked.

        One sample is taken first.  It stays the only one if it is beyond ``limit_us``; otherwise there are ``samples``
        in all, or as many as fit in ``most_seconds`` if each takes as long as the first.
        """
        self._begin([thunk])
        first = self._take([thunk])
        taken, queued = list(first.samples_us), first.queued
        if limit_us is None or taken[0] <= limit_us:
            fitting = 1e6 * most_seconds / taken[0] if taken[0] > 0 else math.inf
            for size in _split(int(min(samples, fitting)) - 1, _BATCH):
                batch = self._take([thunk] * size)
                taken += batch.samples_us
                queued &= batch.queued
        return _timing(taken, Reading(), queued)

    def measure(self, thunk: Thunk, min_seconds: float = 0.2, max_samples: int = 200, min_samples: int = 10) -> Timing:
        """A measurement by the full protocol."""
        return self.interleave({"": thunk}, min_seconds, max_samples, min_samples)[""]

    def interleave(
        self,
        thunks: Mapping[str, Thunk],
        min_seconds: float = 0.2,
        max_samples: int = 200,
        min_samples: int = 10,
        again: bool = True,
    ) -> dict[str, Timing]:
        """Measurements of several thunks by the full protocol, sampled in turns so that drift hits all alike.

        Every round takes one sample of each, in an order of its own (:func:`atlas.timing.samples.rounds`).  Rounds go
        on until each thunk's rule is met.  The board's state is one for all: power and throttling cannot be told apart
        by thunk.  A throttled board is given a pause, and all are sampled ``again``; not so where they are compared
        with one another alone, for all were throttled alike.
        """
        if not thunks:
            return {}
        if self.functional:
            min_seconds, max_samples, min_samples = 0.0, _HOST_SAMPLES, _HOST_SAMPLES
        self._begin(thunks.values())
        timings = self._rounds(thunks, min_seconds, max_samples, min_samples)
        if again and any(timing.throttled for timing in timings.values()):
            self._pause(_PAUSE_SECONDS)
            self._begin(thunks.values())
            timings = self._rounds(thunks, min_seconds, max_samples, min_samples)
        return timings

    def _begin(self, thunks: Iterable[Thunk]) -> None:
        """The device awake, other work forgotten, and every thunk called once."""
        self.warm_up()
        self._sampler.forget()
        for thunk in thunks:
            thunk()
        if self._device is not None and time.monotonic() - self._rests_since > _REST_SECONDS:
            self._device.warm_again(self._board)

    def _take(self, calls: list[Thunk], meanwhile: Callable[[], None] | None = None) -> Batch:
        batch = self._sampler.take(calls, meanwhile)
        self._rests_since = time.monotonic()
        return batch

    def _rounds(
        self, thunks: Mapping[str, Thunk], min_seconds: float, max_samples: int, min_samples: int
    ) -> dict[str, Timing]:
        samples: dict[str, list[float]] = {name: [] for name in thunks}
        queued = dict.fromkeys(thunks, True)
        readings: list[Reading] = []
        orders = rounds(list(thunks))
        left = min(min_samples, max_samples)
        while left:
            for size in _split(left, max(1, _BATCH // len(thunks))):
                names = [name for order in itertools.islice(orders, size) for name in order]
                batch = self._take([thunks[name] for name in names], lambda: readings.append(self._board.read()))
                for name, sample in zip(names, batch.samples_us, strict=True):
                    samples[name].append(sample)
                    queued[name] &= batch.queued
            left = max(rounds_left(taken, min_seconds, max_samples) for taken in samples.values())
            if left:
                per_round = sum(sum(taken) / len(taken) for taken in samples.values()) / 1e6
                left = max(1, min(left, int(_BATCH_SECONDS / per_round)))
        state = summary_of(readings)
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
        throttled_by=state.throttled,
        queued=queued,
    )
