"""Joules of a call: what a counter that moves in steps says between two of them, and the stage that asks it."""

import argparse
import contextlib
import sys
import types

import pytest
import torch
from atlas.benchmarking import energy
from atlas.benchmarking.energy import EnergyCounter, Reading, SampledPower, Unmeasured
from atlas.cli import main
from atlas.host import runtime
from atlas.profiling import launches
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import documents
from atlas.stages import energy as stage
from atlas.stages import frame
from atlas.timing import device as timing_device


class Board:
    """Time and energy of a device that takes ``watts``; its counter moves every ``step`` seconds."""

    def __init__(self, watts=500.0, step=0.1):
        self.watts, self.step, self.seconds = watts, step, 0.0

    def now(self):
        return self.seconds

    def millijoules(self):
        return round(1e3 * self.watts * (self.seconds // self.step * self.step)) + 7_000_000

    def milliwatts(self):
        return round(1e3 * self.watts)


class Loop:
    """Chunks of 100 calls of 0.1 ms, of which the first waits for nothing."""

    calls = 100

    def __init__(self, board):
        self.board = board

    def advance(self):
        self.board.seconds += 0.01003


def test_the_counter_s_steps_do_not_blur_the_ends_of_a_repeat():
    board = Board()
    found = energy.measure(Loop(board), EnergyCounter(board.millijoules), 1.0, 3, board.now)
    for one in found:  # 500 W for 100.3 us; a chunk in ninety may fall to the wrong side of a step
        assert one.joules == pytest.approx(500 * 100.3e-6, rel=0.012)
        assert one.call_us == pytest.approx(100.3) and one.watts == pytest.approx(500, rel=0.012)
    figures = energy.figures(found)
    assert figures["joules_least"] <= figures["joules"] <= figures["joules_most"] and figures["repeats"] == 3
    assert figures["calls"] > 3 * 8000, "of three times ten thousand calls"


def test_power_at_each_reading_stands_in_where_there_is_no_counter():
    board = Board()
    (found,) = energy.measure(Loop(board), SampledPower(board.milliwatts, board.now), 1.0, 1, board.now)
    assert found.joules == pytest.approx(500 * 100.3e-6) and found.watts == pytest.approx(500)


def test_a_counter_that_stands_still_is_no_figure():
    with pytest.raises(Unmeasured, match="moved less than twice in a repeat: give more --seconds"):
        energy.between_steps([Reading(k, k / 10, 5.0 + (k > 3)) for k in range(9)])


def test_the_board_at_rest_is_read_while_nothing_is_asked_of_it(monkeypatch):
    board = Board(watts=118.0)
    clock = types.SimpleNamespace(perf_counter=board.now, sleep=lambda s: setattr(board, "seconds", board.seconds + s))
    monkeypatch.setattr(energy, "time", clock)
    assert energy.at_rest(EnergyCounter(board.millijoules)) == pytest.approx(118, rel=0.03)


@pytest.fixture
def queue(monkeypatch):
    """What a loop does with a device of which a call takes a millisecond, in order."""
    seen, seconds = [], [0.0]

    class Event:
        def __init__(self, blocking):
            assert blocking, "a host that spins takes the core that launches"
            self.number = sum(one[0] == "record" for one in seen)

        def record(self):
            seen.append(("record", self.number))

        def synchronize(self):
            seen.append(("wait", self.number))

    def run():
        seen.append(("run", None))
        seconds[0] += 0.001

    monkeypatch.setattr(energy, "time", types.SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    graph = types.SimpleNamespace(replay=run, reset=lambda: seen.append(("reset", None)))
    return types.SimpleNamespace(seen=seen, run=run, graph=graph, monkeypatch=monkeypatch)


def test_a_chunk_is_always_queued_before_the_one_ahead_of_it_has_ended(queue):
    loop = energy.DeviceLoop(queue.run, capture=False)
    queue.seen.clear()
    for _ in range(3):
        loop.advance()
    runs = [("run", None)] * 10  # ten milliseconds
    assert queue.seen == [*runs, ("record", 0), *runs, ("record", 1), ("wait", 0), *runs, ("record", 2), ("wait", 1)]
    assert (loop.calls, loop.captured) == (10, False)


def test_calls_are_repeated_by_a_graph_or_where_they_cannot_be_captured_one_by_one(queue):
    queue.monkeypatch.setattr(energy, "captured", lambda thunk: queue.graph)
    loop = energy.DeviceLoop(lambda: pytest.fail("the graph runs"), capture=True)
    assert (loop.captured, loop.calls) == (True, 10 * energy.CALLS)
    loop.close()
    assert queue.seen[-1] == ("reset", None)

    def refuse_it(thunk):
        raise RuntimeError("operation not permitted when stream is capturing")

    queue.monkeypatch.setattr(energy, "captured", refuse_it)
    assert not energy.DeviceLoop(queue.run, capture=True).captured


class NVMLError(Exception):
    """As pynvml's."""


def refuse(handle):
    raise NVMLError("Not Supported")


@pytest.fixture
def nvml(monkeypatch):
    """A fake NVML whose functions a test gives."""

    def put(total=refuse, power=refuse):
        fake = types.SimpleNamespace(
            NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
            nvmlDeviceGetTotalEnergyConsumption=total, nvmlDeviceGetPowerUsage=power,
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="4c-2"))

    return put


def test_the_board_s_own_count_is_asked_for_first(nvml):
    nvml(total=lambda handle: {"GPU-4c-2": 1500}[handle], power=lambda handle: 90_000)
    meter = energy.meter_of("cuda:0")
    assert (meter.how, meter.joules()) == ("energy counter", 1.5)


def test_a_board_without_a_count_is_sampled_and_one_without_either_says_so(nvml):
    nvml(power=lambda handle: 90_000)
    assert energy.meter_of("cuda:0").how == "sampled power"
    nvml()
    with pytest.raises(Unmeasured, match="neither its energy nor its power"):
        energy.meter_of("cuda:0")


def row(provider, kind, us, direction="forward", n=4096, **changes):
    return {
        "provider": provider, "provider_kind": kind, "direction": direction, "dtype": "fp32", "sizes": {"n": n},
        "config": None if kind == "peer" else {"BLOCK": 512, "num_warps": 4}, "status": "ok", "reason": "",
        "bytes": 12.0 * n, "flops": 1.0 * n, "median_us": us,
    } | changes  # fmt: skip


ROWS = [
    row("blocks", "variant", 10.0), row("slow", "variant", 30.0), row("torch", "peer", 12.0),
    row("torch.compile", "peer", 11.0), row("quick", "peer", 1.0, status="wrong"),
    row("blocks", "variant", 2.0, n=64), row("torch", "peer", 3.0, n=64),
]  # fmt: skip


def test_the_fastest_variant_and_the_fastest_peer_of_the_busiest_case_are_measured():
    assert [one["provider"] for one in stage.choose(ROWS, 1)] == ["blocks", "torch.compile"]
    assert [one["sizes"]["n"] for one in stage.choose(ROWS, 2)] == [4096, 4096, 64, 64]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job whose device is the CPU, with a board and loops of :class:`Board`."""
    board = Board()

    class OnCpu(Loop):
        captured = False

        def __init__(self, thunk, capture):
            super().__init__(board)
            assert thunk().shape == (4096,)
            self.captured = capture

        def close(self):
            pass

    monkeypatch.setattr(frame, "leased", lambda job: contextlib.nullcontext())
    monkeypatch.setattr(runtime, "device_of", lambda name, block: torch.device("cpu"))
    clocked = types.SimpleNamespace(index=0, soak=lambda board: None)
    monkeypatch.setattr(timing_device, "CudaDevice", lambda device: clocked)
    told = types.SimpleNamespace(sm_clock_mhz=1830.0, throttled=("power cap",))
    monkeypatch.setattr(timing_device, "board_of", lambda index: types.SimpleNamespace(read=lambda: told))
    monkeypatch.setattr(energy, "meter_of", lambda device: EnergyCounter(board.millijoules))
    monkeypatch.setattr(energy, "at_rest", lambda meter: 118.0)
    monkeypatch.setattr(energy, "DeviceLoop", OnCpu)
    usual = energy.measure
    monkeypatch.setattr(energy, "measure", lambda *asked: usual(*asked, now=board.now))
    arguments = argparse.Namespace(
        gpu="h200", gpus_file=GPUS_FILE, results=tmp_path, cases=1, seconds=1.0, repeats=3, kernel="vector_add"
    )
    made = frame.Job("energy", "vector_add", "h200", load_gpus(GPUS_FILE)["h200"], tmp_path, arguments)
    rows = [one for one in ROWS if one["provider"] != "torch.compile"]  # which takes ten seconds
    document = frame.envelope(made, "measured", "ok", "", 1.0) | {"protocol": "timing/2", "rows": rows}
    document |= {"stage": "benchmark", "schema_version": documents.VERSIONS["benchmark"], "device": {}}
    documents.write(made.folder / "benchmark.json", document)
    return made


def measured(job, monkeypatch, variant=lambda: torch.zeros(4096)):
    """The document, where the variant does what is given and the peer what it does."""
    usual = launches.thunk
    monkeypatch.setattr(launches, "thunk", lambda asked, on: variant if "variant" in asked else usual(asked, on))
    stage.run(job.arguments)
    return documents.read(job.output, "energy")


def test_the_document_holds_joules_of_ours_and_of_the_peer(job, monkeypatch):
    document = measured(job, monkeypatch)
    assert (document["status"], document["how"], document["rest_w"]) == ("ok", "energy counter", 118.0)
    ours, peer = document["rows"]
    assert (ours["provider"], peer["provider"]) == ("blocks", "torch")
    for one in (ours, peer):
        assert one["joules"] == pytest.approx(0.05, rel=0.02) and one["watts"] == pytest.approx(500, rel=0.02)
        assert one["captured"] and one["throttled_by"] == ["power cap"]


def test_a_variant_that_fails_fails_the_stage_and_costs_the_peer_nothing(job, monkeypatch):
    def broken():
        raise RuntimeError("out of luck")

    document = measured(job, monkeypatch, variant=broken)
    assert document["status"] == "failed" and "out of luck" in document["reason"]
    assert document["rows"][0]["status"] == "failed" and "joules" not in document["rows"][0]


def test_a_board_that_tells_nothing_skips_the_stage(job, monkeypatch):
    def silent(device):
        raise Unmeasured("this board tells neither its energy nor its power")

    monkeypatch.setattr(energy, "meter_of", silent)
    document = measured(job, monkeypatch)
    assert (document["status"], document["rows"]) == ("skipped", [])
    assert "neither its energy nor its power" in document["reason"]


def test_the_interpreter_s_energy_says_nothing(tmp_path, capsys):
    assert main(["energy", "vector_add", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert "whose energy says nothing" in capsys.readouterr().err
