"""A CUDA or HIP device as the clock needs it: a waiting kernel, an L2 flush, events, a soak."""

from __future__ import annotations

import statistics
import time

import torch

from .board import Board

_CALIBRATION_CYCLES = 2_000_000
_SOAK_SECONDS = (0.5, 5.0)
"""At least and at most."""
_STEADY = 0.01
"""Clocks are steady when the last readings lie within this fraction of each other."""

_soaked: set[int] = set()


class CudaDevice:
    """``torch.cuda`` on one device, always on its current stream; makes it the process's current device."""

    def __init__(self, device: torch.device):
        self.index = device.index if device.index is not None else torch.cuda.current_device()
        self._device = torch.device("cuda", self.index)
        torch.cuda.set_device(self._device)  # the waiting kernel and Triton's launches go to the current device
        properties = torch.cuda.get_device_properties(self.index)
        # Twice the cache: with once its size, a replacement policy that is not strictly LRU keeps some old lines.
        self._flush = torch.empty(2 * properties.L2_cache_size // 4, dtype=torch.int32, device=self._device)
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
        """Queue a write of twice the L2."""
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

    def soak(self, board: Board) -> None:
        """Keep the device busy until its SM clock is steady; once per process and device."""
        if self.index in _soaked:
            return
        a = torch.randn(4096, 4096, device=self._device, dtype=torch.float16)
        least, most = _SOAK_SECONDS
        began, clocks = time.perf_counter(), []
        while (spent := time.perf_counter() - began) < most:
            for _ in range(20):
                torch.mm(a, a)
                self.flush()
            clocks.append(board.read().sm_clock_mhz)
            self.synchronize()
            if spent >= least and steady(clocks):
                break
        _soaked.add(self.index)
        self._cycles_per_us = self._calibrate()  # an idle device counted slower


def steady(clocks: list[float | None], last: int = 5) -> bool:
    """True if the last readings agree, or if the board tells no clock."""
    recent = [clock for clock in clocks[-last:] if clock is not None]
    if not recent:
        return True
    return len(recent) == last and max(recent) - min(recent) <= _STEADY * max(recent)
