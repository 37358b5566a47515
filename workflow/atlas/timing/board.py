"""What the board says of itself through NVML: SM clock, temperature, power, and why its clock is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


class NvmlBoard:
    """An NVIDIA board, found by the UUID that CUDA gives, so that CUDA_VISIBLE_DEVICES cannot misdirect it."""

    def __init__(self, uuid: str):
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

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
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        return NvmlBoard(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    except (pynvml.NVMLError, AttributeError):
        return SilentBoard()


def summary(readings: list[Reading]) -> Reading:
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
