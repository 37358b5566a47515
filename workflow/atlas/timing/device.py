"""A CUDA or HIP device as the clock needs it: a waiting kernel, an L2 flush, events, a soak; and its board."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

# nvml.h, nvmlClocksEventReason*.  Not among them: idle, application clocks, sync boost and display settings, which are
# states somebody chose or that pass with the first kernel.
_THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Reading:
    """One moment; None for what the board does not tell."""

    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    """Why the clock is lowered, in words; empty when it is not."""


class Board(Protocol):
    """Somebody who can be asked for a :class:`Reading`."""

    def read(self) -> Reading:
        """The board's state now."""


class SilentBoard:
    """A device of which nothing is known: the CPU, or a host without NVML."""

    def read(self) -> Reading:
        """A reading of nothing."""
        return Reading()


def nvml_handle(uuid: str) -> Any:
    """NVML's handle of a board, by the UUID that CUDA gives, with or without its kind; raises ``pynvml.NVMLError``."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


class NvmlBoard:
    """An NVIDIA board, found by the UUID that CUDA gives, so that CUDA_VISIBLE_DEVICES cannot misdirect it."""

    def __init__(self, uuid: str):
        import pynvml

        self._nvml = pynvml
        self._handle = nvml_handle(uuid)

    def read(self) -> Reading:
        """The board's state now; takes a few milliseconds at most."""
        nvml, handle = self._nvml, self._handle
        clock = self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        temperature = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return Reading(
            sm_clock_mhz=None if clock is None else float(clock),
            temperature_c=None if temperature is None else float(temperature),
            power_w=None if power is None else power / 1000,
            throttled=tuple(words for bit, words in _THROTTLING.items() if reasons & bit),
        )

    def _ask(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None  # a board that does not report this one


def board_of(index: int) -> Board:
    """The board of CUDA device ``index``; a silent one without NVML (HIP, some containers)."""
    import pynvml
    import torch

    try:
        return NvmlBoard(str(torch.cuda.get_device_properties(index).uuid))
    except (pynvml.NVMLError, AttributeError):
        return SilentBoard()


def summary_of(readings: list[Reading]) -> Reading:
    """Of several readings of one measurement: median clock, highest temperature and power, every reason."""
    import statistics

    def known(name: str) -> list[float]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    clocks, temperatures, powers = known("sm_clock_mhz"), known("temperature_c"), known("power_w")
    reasons = {words: None for reading in readings for words in reading.throttled}
    return Reading(
        sm_clock_mhz=statistics.median(clocks) if clocks else None,
        temperature_c=max(temperatures, default=None),
        power_w=max(powers, default=None),
        throttled=tuple(reasons),
    )


_CALIBRATION_CYCLES = 2_000_000
_SOAK_SECONDS = (0.5, 5.0)
"""At least and at most."""
_WARM_AGAIN_SECONDS = (0.03, 0.5)
"""At least and at most, after a rest."""
_STEADY = 0.01
"""Clocks are steady when the last readings lie within this fraction of each other."""
_TURNS = 20
"""Pieces of work queued between two readings: milliseconds, so that a reading sees the device at work."""

_LEAST_FLUSH = 64 * 2**20
_INFINITY_CACHE = 256 * 2**20
"""Bytes of the largest memory-side cache of AMD's Instinct (MI300X); HIP tells the size of its L2 alone."""

_soaked: set[int] = set()


class CudaDevice:
    """``torch.cuda`` on one device, always on its current stream; makes it the process's current device."""

    def __init__(self, device: torch.device):
        self.index = device.index if device.index is not None else torch.cuda.current_device()
        self._device = torch.device("cuda", self.index)
        torch.cuda.set_device(self._device)  # the waiting kernel and Triton's launches go to the current device
        properties = torch.cuda.get_device_properties(self.index)
        size = flush_bytes(properties.L2_cache_size, torch.version.hip is not None)
        self._flush = torch.empty(size // 4, dtype=torch.int32, device=self._device)
        self._cycles_per_us = self._calibrate()

    def _calibrate(self) -> float:
        """Cycles that the waiting kernel counts in a microsecond."""
        rates = []
        for _ in range(3):  # the first one loads the kernel
            start, end = self.event(), self.event()
            start.record()
            torch.cuda._sleep(_CALIBRATION_CYCLES)
            end.record()
            self.synchronize()
            rates.append(_CALIBRATION_CYCLES / (1000 * start.elapsed_time(end)))
        return statistics.median(rates)

    def block(self, microseconds: float) -> None:
        """Queue a kernel that counts cycles."""
        torch.cuda._sleep(int(microseconds * self._cycles_per_us))

    def flush(self) -> None:
        """Queue a write of :func:`flush_bytes`."""
        self._flush.zero_()

    def event(self) -> torch.cuda.Event:
        """An event with a time."""
        return torch.cuda.Event(enable_timing=True)

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.index)

    def now_us(self) -> float:
        """The host's monotonic clock."""
        return time.perf_counter() * 1e6

    def idle(self, microseconds: float) -> None:
        """Sleep."""
        time.sleep(microseconds / 1e6)

    def soak(self, board: Board) -> None:
        """Keep the device busy with matmuls and writes until its SM clock is steady; once per process and device."""
        if self.index in _soaked:
            return
        a = torch.randn(4096, 4096, device=self._device, dtype=torch.float16)

        def work() -> None:
            torch.mm(a, a)
            self.flush()

        self._until_steady(work, board, *_SOAK_SECONDS)
        _soaked.add(self.index)
        self._cycles_per_us = self._calibrate()  # an idle device counted slower

    def warm_again(self, board: Board) -> None:
        """Keep the device busy with writes until its SM clock is steady: it has rested, and may have lowered it."""
        self._until_steady(self.flush, board, *_WARM_AGAIN_SECONDS)

    def _until_steady(self, work: Callable[[], None], board: Board, least: float, most: float) -> None:
        began, clocks = time.perf_counter(), []
        while (spent := time.perf_counter() - began) < most:
            for _ in range(_TURNS):
                work()
            clocks.append(board.read().sm_clock_mhz)
            self.synchronize()
            if spent >= least and steady(clocks):
                break


def flush_bytes(l2_bytes: int, hip: bool) -> int:
    """What must be written to find no input in cache: twice the last cache before memory.

    With once its size, a replacement policy that is not strictly LRU keeps some old lines.  A device that tells no size
    gets the least flush.
    """
    return max(2 * max(l2_bytes, _INFINITY_CACHE if hip else 0), _LEAST_FLUSH)


def steady(clocks: list[float | None], last: int = 5) -> bool:
    """True if the last readings agree, or if the board tells no clock."""
    recent = [clock for clock in clocks[-last:] if clock is not None]
    if not recent:
        return True
    return len(recent) == last and max(recent) - min(recent) <= _STEADY * max(recent)
