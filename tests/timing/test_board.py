"""What NVML says, and which of its reasons mean that a figure was throttled."""

import pynvml
import pytest
from atlas.timing.device import NvmlBoard, SilentBoard, board_of, flush_bytes, steady


@pytest.fixture
def nvml(monkeypatch):
    """NVML that answers for one board; a test changes an answer, or makes it refuse with None."""
    answers = {"Clock": 1980, "Temperature": 51, "Power": 650_000, "Reasons": 0}

    def answer(name):
        def ask(*_):
            if answers[name] is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answers[name]

        return ask

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", answer("Clock"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", answer("Temperature"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", answer("Power"))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", answer("Reasons"))
    return answers


def test_a_reading_has_megahertz_degrees_and_watts(nvml):
    reading = NvmlBoard("GPU-1").read()
    assert (reading.sm_clock_mhz, reading.temperature_c, reading.power_w) == (1980.0, 51.0, 650.0)
    assert reading.throttled == ()


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x04, ("power cap",)),
        (0x08, ("hardware slowdown",)),
        (0x20, ("thermal slowdown by the driver",)),
        (0x80, ("power brake",)),
        (0x40, ("thermal slowdown by the hardware",)),
        (0x01, ()),  # idle
        (0x02, ()),  # clocks that an administrator set
        (0x10, ()),  # boost clocks kept in step with other boards
        (0x24, ("power cap", "thermal slowdown by the driver")),
    ],
)
def test_a_lowered_clock_is_throttling_unless_somebody_chose_it_or_the_board_is_idle(nvml, bits, words):
    nvml["Reasons"] = bits
    assert NvmlBoard("GPU-1").read().throttled == words


def test_what_a_board_does_not_report_is_none(nvml):
    nvml.update(Power=None, Reasons=None)
    reading = NvmlBoard("GPU-1").read()
    assert reading.power_w is None
    assert reading.throttled == ()
    assert reading.sm_clock_mhz == 1980.0


@pytest.mark.parametrize("uuid", ["0000-11", "GPU-0000-11"])  # with and without NVML's prefix, by torch's version
def test_the_board_is_found_by_its_uuid(nvml, monkeypatch, uuid):
    asked = []
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", asked.append)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: type("P", (), {"uuid": uuid}))
    board_of(0)
    assert asked == ["GPU-0000-11"]


def test_without_nvml_the_board_is_silent(nvml, monkeypatch):
    def no_library():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: type("P", (), {"uuid": "1"}))
    assert isinstance(board_of(0), SilentBoard)


def test_clocks_are_steady_when_the_last_readings_agree():
    assert not steady([345.0, 900.0, 1500.0, 1980.0, 1980.0])
    assert steady([345.0, 1980.0, 1975.0, 1980.0, 1980.0, 1980.0])
    assert not steady([1980.0] * 3)  # too few to tell
    assert steady([None, None])  # a silent board: time alone decides


@pytest.mark.parametrize(("lowest", "agree"), [(1962.0, True), (1958.0, False)])  # 0.9 and 1.1 % below the highest
def test_clocks_agree_within_one_per_cent(lowest, agree):
    assert steady([1980.0, lowest, 1980.0, 1970.0, 1980.0]) is agree


@pytest.mark.parametrize(
    ("l2_mib", "hip", "flush_mib"),
    [
        (60, False, 120),  # H200
        (126, False, 252),  # B200
        (4, False, 64),  # T4; the least flush is also what a device gets that tells no size
        (0, False, 64),
        (4, True, 512),  # MI300X: behind its L2 lies a cache of 256 MiB that HIP does not tell of
    ],
)
def test_the_flush_is_twice_the_last_cache_before_memory(l2_mib, hip, flush_mib):
    assert flush_bytes(l2_mib * 2**20, hip) == flush_mib * 2**20
