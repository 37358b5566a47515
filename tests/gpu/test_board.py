"""The board's own words, through NVML: those of this GPU, and plausible."""

import time

import pytest
import torch
from atlas.host import devices, environment
from atlas.timing.device import NvmlBoard, board_of

pytestmark = pytest.mark.gpu

REASONS = {
    "power cap", "hardware slowdown", "thermal slowdown by the driver", "thermal slowdown by the hardware",
    "power brake",
}  # fmt: skip


def at_work(seconds):
    """Readings while the GPU multiplies."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    board, readings, began = board_of(torch.cuda.current_device()), [], time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            x @ x
        readings.append(board.read())
        torch.cuda.synchronize()
    return readings


def test_readings_are_plausible_and_the_reasons_known(figure):
    readings = at_work(0.5)
    last = readings[-1]
    assert 300 < last.sm_clock_mhz < 4000
    assert 15 < last.temperature_c < 105
    assert 20 < last.power_w < 2000
    assert all(set(reading.throttled) <= REASONS for reading in readings)
    figure(f"board: {last.sm_clock_mhz:.0f} MHz, {last.temperature_c:.0f} °C, {last.power_w:.0f} W, "
           f"lowered by: {', '.join(last.throttled) or 'nothing'}")  # fmt: skip


def test_work_shows_in_power(clock):
    board = board_of(torch.cuda.current_device())
    torch.cuda.synchronize()
    time.sleep(2.0)  # the board tells an average of the last second
    idle = board.read().power_w
    assert max(reading.power_w for reading in at_work(1.0)) > idle + 30


def test_the_board_is_that_of_the_device_that_torch_uses():
    index = torch.cuda.current_device()
    board = board_of(index)
    assert isinstance(board, NvmlBoard)
    told = [device.name for device in devices.visible()]
    assert torch.cuda.get_device_name(index) in told
    uuid = str(torch.cuda.get_device_properties(index).uuid).removeprefix("GPU-")
    assert f"GPU-{uuid}" in [device.uuid for device in devices.visible()]


def test_the_driver_s_words_have_what_documents_hold():
    index = torch.cuda.current_device()
    told = environment.device(f"GPU-{str(torch.cuda.get_device_properties(index).uuid).removeprefix('GPU-')}")
    assert told["device_name"] == torch.cuda.get_device_name(index)
    assert told["driver"] and told["power_cap_w"] > 50
