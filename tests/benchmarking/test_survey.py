"""A roof is the best of what ran; what cannot run is a row with a reason."""

import dataclasses

import pytest
import torch
from atlas.declaration import GPU
from atlas.results import documents
from atlas.survey import bandwidth, multiplication
from atlas.survey.ways import Way, best
from atlas.timing import Clock
from atlas.timing.device import SilentBoard
from atlas.timing.samplers import Batch

from .small_kernel import GPU_HERE, Sampler


@pytest.fixture
def sampler():
    return Sampler({})


@pytest.fixture
def clock(sampler):
    return Clock.of_parts(sampler, SilentBoard())


def way(sampler, how, microseconds, amount=1e6):
    def run():
        sampler.last = how

    sampler.times[how] = microseconds
    return Way(how, run, amount)


def fails(how="broken"):
    def run():
        raise RuntimeError("no kernel image\nmore")

    return Way(how, run, 1.0)


def test_the_best_rate_wins_over_sizes_and_ways(sampler, clock):
    groups = [
        lambda: [way(sampler, "small, torch", 10.0), way(sampler, "small, Triton", 8.0)],
        lambda: [way(sampler, "large, torch", 18.0, 4e6), way(sampler, "large, Triton", 20.0, 4e6)],
    ]
    row = best(clock, "copy", "GB/s", groups)
    assert row["value"] == pytest.approx(4e6 / 18e-6 / 1e9)
    assert row["how"].startswith("large, torch")
    assert row["median_us"] == 18.0


def test_the_three_fastest_of_many_ways_are_measured_and_no_other(sampler, clock):
    ways = [way(sampler, f"way {us}", float(us)) for us in (30, 12, 50, 10, 11, 40)]
    row = best(clock, "copy", "GB/s", [lambda: ways])
    assert row["how"] == "way 10; the best of 3 measured"
    assert sampler.order.count("way 10") > 5 == sampler.order.count("way 30") == sampler.order.count("way 50")


def test_a_way_that_was_lucky_while_it_was_screened_is_not_the_roof(sampler, clock):
    lucky = way(sampler, "lucky", 5.0)

    def run():
        lucky.thunk()
        sampler.times["lucky"] = 5.0 if sampler.order.count("lucky") < 5 else 20.0

    ways = [dataclasses.replace(lucky, thunk=run), way(sampler, "steady", 10.0)]
    row = best(clock, "copy", "GB/s", [lambda: ways])
    assert row["how"].startswith("steady") and row["value"] == pytest.approx(1e6 / 10e-6 / 1e9)


class TenMicroseconds(Sampler):
    """Whatever is called takes 10 us."""

    def take(self, calls, meanwhile=None):
        for call in calls:
            call()
        return Batch([10.0] * len(calls), queued=True)


def test_bytes_of_a_memory_roof_are_those_of_all_its_buffers(monkeypatch):
    monkeypatch.setattr(bandwidth, "SIZES", (2**16,))
    clock = Clock.of_parts(TenMicroseconds({}), SilentBoard())
    rows = {row["name"]: row["value"] for row in bandwidth.roofs(clock, GPU_HERE, torch.device("cpu"))}
    one_buffer = 2**16 / 10e-6 / 1e9
    del rows["l2_read"]  # Triton's alone, and there is no GPU
    assert rows == pytest.approx(
        {"copy": 2 * one_buffer, "read": one_buffer, "write": one_buffer, "elementwise": 3 * one_buffer}
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_matmul_of_m_n_k_is_two_m_n_k_operations(monkeypatch, dtype):
    monkeypatch.setattr(multiplication, "SHAPES", ((64, 32, 16),))
    monkeypatch.setattr(multiplication, "RATES", {dtype: multiplication.RATES[dtype]})
    clock = Clock.of_parts(TenMicroseconds({}), SilentBoard())
    rows = {row["name"]: row for row in multiplication.roofs(clock, GPU_HERE, torch.device("cpu"), {})}
    assert rows[f"cublas_{dtype}"]["value"] == pytest.approx(2 * 64 * 32 * 16 / 10e-6 / 1e12)


def test_operations_are_counted_in_tflop_per_second(sampler, clock):
    row = best(clock, "matmul_bf16", "TFLOP/s", [lambda: [way(sampler, "mm", 1000.0, 8e11)]])
    assert row["value"] == pytest.approx(800.0)


def test_a_way_that_fails_is_left_out(sampler, clock):
    row = best(clock, "copy", "GB/s", [lambda: [fails(), way(sampler, "torch", 10.0)]])
    assert row["status"] == "ok"
    assert row["how"].startswith("torch")


def test_where_every_way_fails_the_row_says_why(clock):
    row = best(clock, "matmul_int8", "TFLOP/s", [lambda: [fails()]])
    assert (row["value"], row["status"]) == (None, "failed")
    assert row["reason"] == "broken: RuntimeError: no kernel image"


def test_buffers_that_do_not_fit_leave_their_size_out(sampler, clock):
    def too_large():
        raise torch.OutOfMemoryError("tried to allocate 4 GiB")

    row = best(clock, "copy", "GB/s", [too_large, lambda: [way(sampler, "small", 10.0)]])
    assert row["how"].startswith("small")


def test_what_the_architecture_lacks_is_unsupported_and_not_tried(clock):
    t4 = GPU("t4", "cuda", 75, 40, 65536, 2**34, 2**22)
    nothing = dataclasses.replace(t4, memory_bytes=0)  # no shape fits: nothing is multiplied here
    rows = {row["name"]: row for row in multiplication.roofs(clock, nothing, torch.device("cpu"), {})}
    assert rows["matmul_bf16"]["status"] == "unsupported"
    assert "t4 has no native bf16" in rows["matmul_bf16"]["reason"]
    assert set(rows) == {f"{kind}_{dtype}" for kind in ("matmul", "cublas") for dtype in multiplication.RATES}


def test_precision_of_fp32_is_put_back_after_the_survey_of_tf32(clock):
    before = torch.get_float32_matmul_precision()
    nothing = dataclasses.replace(GPU_HERE, memory_bytes=0, arch=75)
    list(multiplication.roofs(clock, nothing, torch.device("cpu"), {}))
    assert torch.get_float32_matmul_precision() == before


def test_rows_fit_the_schema_of_a_survey(sampler, clock):
    roofs = [best(clock, "copy", "GB/s", [lambda: [way(sampler, "torch", 10.0)]]), best(clock, "read", "GB/s", [])]
    document = {
        "stage": "survey", "schema_version": 1, "kernel": None, "gpu": "h200", "kind": "measured", "status": "ok",
        "reason": "", "kernel_digest": None, "software": {}, "device": {}, "seconds": 0.0,
        "protocol": "timing/1", "roofs": roofs, "properties": {},
    }  # fmt: skip
    documents.check(document, "survey", "test")
