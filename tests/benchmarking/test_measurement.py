"""One case from inputs to rows: what is wrong is not timed, what fails costs its own row alone."""

import dataclasses

import pytest
import torch
from atlas.benchmarking.judging import outcome
from atlas.results.surveyed import Survey
from atlas.validation import device

from .small_kernel import CASE, GPU_HERE, Stage, trial, tuned

TIMES = {"good 1": 30.0, "good 2": 20.0, "bad 1": 1.0, "torch": 25.0, "other": 40.0}
BEST = tuned(trial({"BLOCK": 2}), best={"BLOCK": 2})


def test_rows_tell_the_figures_of_tuned_default_and_peers():
    rows = Stage(TIMES, tuned=BEST).rows()
    assert {key: row["median_us"] for key, row in rows.items()} == {
        "variant good": 20.0, "default good": 30.0, "peer torch": 25.0,
    }  # fmt: skip
    assert rows["variant good"]["config"] == {"BLOCK": 2}
    assert rows["variant good"]["speedup"] == pytest.approx(1.25)
    assert rows["variant good"]["verdict"] == "faster"
    assert rows["default good"]["verdict"] == "slower"


def test_rows_tell_that_the_peers_are_weak_where_all_are():
    two = {"peers": {"other": lambda x: 2 * x}, "tuned": BEST}
    rows = Stage(TIMES, weak={"torch": "in bf16", "other": "slow"}, **two).rows()
    assert {key: row["weak"] for key, row in rows.items()} == {
        "variant good": "in bf16", "default good": "in bf16", "peer torch": "in bf16", "peer other": "slow",
    }  # fmt: skip
    rows = Stage(TIMES, weak={"torch": "in bf16"}, **two).rows()
    assert [key for key, row in rows.items() if "weak" in row] == ["peer torch"]


def test_rates_come_from_the_declared_cost():
    row = Stage(TIMES, tuned=BEST).rows()["variant good"]
    assert row["bytes"] == 8000
    assert row["gb_per_s"] == pytest.approx(8000 / 20e-6 / 1e9)
    assert row["tflop_per_s"] == pytest.approx(1000 / 20e-6 / 1e12)
    assert row["roof"] == "copy"
    assert row["roof_fraction"] == pytest.approx(row["gb_per_s"] / 4000)


def test_a_wrong_variant_is_not_timed_and_makes_the_document_wrong():
    stage = Stage(TIMES, variants={"bad": lambda x, config: 2 * x + 0.01})
    rows = stage.rows()
    assert rows["default bad"]["status"] == "wrong"
    assert "median_us" not in rows["default bad"]
    assert "bad 1" not in stage.sampler.order
    ended = outcome(rows.values())
    assert ended["status"] == "wrong"
    assert ended["reason"].startswith("untuned bad forward n=1000 fp32")


def test_a_wrong_peer_is_not_timed_and_concerns_only_its_row():
    rows = Stage(TIMES, peers={"other": lambda x: 3 * x}).rows()
    assert rows["peer other"]["status"] == "wrong"
    assert outcome(rows.values())["status"] == "ok"


def test_a_peer_less_exact_than_torch_but_within_the_tolerance_is_timed():
    rows = Stage(TIMES, peers={"other": lambda x: 2 * x * (1 + 5e-7)}).rows()
    assert rows["peer other"]["status"] == "ok"


def test_a_variant_within_the_tolerance_is_wrong_where_torch_does_much_better_and_a_peer_is_not():
    # 1.2e-6 of each element is less than fp32's 1.3e-6; of the largest it is over twice what torch's error counts as.
    def careless(x):
        return (2 * x.double() * (1 + 1.2e-6)).float()

    rows = Stage(TIMES, variants={"good": lambda x, config: careless(x)}, peers={"other": careless}).rows()
    assert rows["default good"]["status"] == "wrong" and "that of torch" in rows["default good"]["reason"]
    assert rows["peer other"]["status"] == "ok"


def test_a_peer_that_raises_fails_and_its_neighbours_go_on():
    def raises(x):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB\nand more words")

    rows = Stage(TIMES, peers={"other": raises}).rows()
    assert rows["peer other"]["status"] == "failed"
    assert rows["peer other"]["reason"] == "OutOfMemoryError: tried to allocate 80 GiB"
    assert rows["peer torch"]["status"] == "ok"


def test_a_peer_that_refuses_the_case_is_unsupported():
    def refuses(x):
        raise NotImplementedError("rows longer than 65536")

    assert Stage(TIMES, peers={"other": refuses}).rows()["peer other"]["status"] == "unsupported"


def test_a_provider_that_fails_while_it_is_timed_costs_its_own_row_alone():
    calls = []

    def fails_later(x):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("unspecified launch failure")
        return 2 * x

    rows = Stage(TIMES, peers={"other": fails_later}).rows()
    assert rows["peer other"]["status"] == "failed"
    assert rows["peer torch"]["status"] == "ok"
    assert rows["peer torch"]["median_us"] == 25.0


def test_a_provider_that_takes_the_device_with_it_is_named(monkeypatch):
    def breaks(x):
        monkeypatch.setattr(device, "synchronize", gone)
        raise RuntimeError("CUDA error: misaligned address\nCUDA kernel errors might …")

    def gone(_):
        raise RuntimeError("CUDA error: misaligned address")

    with pytest.raises(device.DeviceLost, match=r"^peer other: RuntimeError: CUDA error: misaligned address; the dev"):
        Stage(TIMES, peers={"other": breaks}).rows()


def test_a_provider_that_waits_for_the_device_puts_launch_latency_into_its_own_row_alone():
    stage = Stage({"good 1": 10.0, "torch": 20.0, "waiting": 500.0}, peers={"waiting": lambda x: 2 * x})
    rows = stage.rows()
    assert "launch latency" in rows["peer waiting"]["reason"] and not rows["peer waiting"]["queued"]
    assert rows["peer torch"]["queued"] and rows["default good"]["queued"]
    assert not rows["peer torch"]["reason"] and not rows["default good"]["reason"]


@pytest.mark.parametrize(
    ("kind", "status", "ends"),
    [
        ("peer", "suspect", "suspect"),  # faster than the hardware allows: then the yardstick is wrong
        ("peer", "wrong", "ok"),  # nobody's business but its own
        ("variant", "suspect", "suspect"),
        ("default", "failed", "failed"),  # what an untuned call runs
        ("variant", "unsupported", "ok"),
    ],
)
def test_a_row_that_is_amiss_makes_the_document_so_by_whose_it_is(kind, status, ends):
    fine = {"provider": "a", "provider_kind": "variant", "direction": "forward", "dtype": "fp32", "sizes": {"n": 1}}
    fine |= {"status": "ok", "reason": ""}
    amiss = fine | {"provider": "b", "provider_kind": kind, "status": status, "reason": "why"}
    assert outcome([fine, amiss])["status"] == ends
    assert outcome([amiss, fine])["status"] == ends


def test_same_config_is_measured_once_and_shown_twice():
    stage = Stage(TIMES, tuned=tuned(best={"BLOCK": 1}))
    rows = stage.rows()
    assert rows["variant good"]["samples_us"] == rows["default good"]["samples_us"]
    assert stage.sampler.order.count("good 1") == stage.sampler.order.count("torch")


def test_a_figure_above_the_roof_makes_row_and_document_suspect():
    slow_memory = Survey({"copy": 0.1})
    rows = Stage(TIMES, tuned=BEST, survey=slow_memory).rows()
    assert rows["variant good"]["status"] == "suspect"
    assert outcome(rows.values())["status"] == "suspect"
    assert rows["variant good"]["median_us"] == 20.0  # shown, not hidden


def test_a_functional_run_has_times_but_neither_rates_nor_verdicts():
    functional = dataclasses.replace(GPU_HERE, backend="cpu", arch="interpreter")
    row = Stage(TIMES, tuned=BEST, gpu=functional, survey=None).rows()["variant good"]
    assert row["median_us"] == 20.0
    assert not {"gb_per_s", "roof", "speedup", "verdict"} & set(row)


def test_host_time_is_taken_where_launching_matters_and_nowhere_else():
    short = Stage({key: us / 10 for key, us in TIMES.items()}, tuned=BEST).rows()
    assert short["variant good"]["call_us"] > 0
    long = Stage({key: us * 10 for key, us in TIMES.items()}, tuned=BEST).rows()
    assert "call_us" not in long["variant good"]


def test_host_time_is_taken_of_all_where_the_fastest_is_short():
    rows = Stage({"good 1": 3.0, "torch": 500.0}).rows()
    assert rows["default good"]["call_us"] > 0 and rows["peer torch"]["call_us"] > 0


def test_host_time_of_a_forward_variant_is_that_of_the_public_function_and_of_a_peer_its_own():
    stage, called = Stage({"good 1": 3.0, "torch": 4.0}), []

    def public(x):
        called.append(1)
        return 2 * x

    bench = dataclasses.replace(stage.bench, declaration=dataclasses.replace(stage.declaration, function=public))
    bench.rows("forward", CASE)
    assert len(called) == 1 + 11 * 50, "one call untimed, then eleven rows of fifty, for the one variant"


def test_inputs_that_cannot_be_made_fail_every_row_and_say_why():
    stage = Stage(TIMES, tuned=BEST)

    def no_memory(problem, device, generator):
        raise torch.OutOfMemoryError("tried to allocate 1 TiB")

    forward = dataclasses.replace(stage.declaration.forward, inputs=no_memory)
    bench = dataclasses.replace(stage.bench, declaration=dataclasses.replace(stage.declaration, forward=forward))
    rows = bench.rows("forward", CASE)
    assert {row["status"] for row in rows} == {"failed"}
    assert all("1 TiB" in row["reason"] for row in rows)


def test_tf32_products_are_allowed_in_tf32_cases_alone():
    seen = {}

    def spy(x):
        seen["precision"] = torch.get_float32_matmul_precision()
        return 2 * x

    before = torch.get_float32_matmul_precision()
    stage = Stage(TIMES, peers={"other": spy})
    stage.rows()
    assert seen["precision"] == "highest"
    from atlas.declaration import case

    stage.bench.rows("forward", case("tf32", n=100))
    assert seen["precision"] == "high"
    assert torch.get_float32_matmul_precision() == before
