"""The proof that verdicts between runs are neither false alarms nor blind, on runs made for it."""

import argparse

import pytest
from atlas.errors import AtlasError
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.stages import frame

from proofs.measuring import verdicts


def row(us, name="one_pass", kind="variant", **more):
    quartiles = {"q1_us": us, "median_us": us, "q3_us": us}
    return {
        "provider": name, "provider_kind": kind, "direction": "forward", "dtype": "bf16", "sizes": {"n": 1},
        "config": None, "status": "ok", **quartiles, "samples_us": [us] * 40,
    } | more  # fmt: skip


def run(us, kernel="softmax", peer=100.0):
    rows = [row(us), row(peer, "torch", "peer")]
    return {"kernel": kernel, "gpu": "h200", "protocol": "timing/2", "software": {}, "rows": rows}


def found(before, after):
    return verdicts.evidence(lambda repeat: iter([(before, after)]), 5, "made for a test")


def test_equal_runs_hold():
    proof = found([run(100.0)] * 5, [run(100.1)] * 5)
    assert proof.holds
    assert proof.rows[-1] == {
        "kernel": "all", "cases x repeats": 20, "false": 0, "undecided": 0, "slowed, called slower %": 100.0
    }  # fmt: skip


def test_runs_of_one_commit_that_differ_break_it():
    proof = found([run(100.0)] * 5, [run(104.0)] * 5)
    assert [claim.found for claim in proof.broken] == [20]


def test_runs_too_far_apart_to_see_3_per_cent_break_it():
    scattered = [run(us) for us in (90.0, 95.0, 100.0, 105.0, 110.0)]
    proof = found(scattered, scattered)
    assert [claim.limit for claim in proof.broken] == [verdicts.LEAST_FOUND]


def test_short_cases_are_not_counted():
    assert not found([run(10.0)] * 5, [run(10.0)] * 5).holds, "nothing was tried"


def test_a_slowed_run_has_slower_variants_and_the_same_peers():
    slowed = verdicts.slowed(run(100.0), 1.03)
    assert [one["median_us"] for one in slowed["rows"]] == [pytest.approx(103.0), 100.0]


@pytest.mark.parametrize("gpu", ["cpu", "h200"])
def test_runs_are_drawn_from_records_where_there_is_no_gpu_and_measured_where_there_is(monkeypatch, tmp_path, gpu):
    measured = []

    def benchmark(job, kernel, folder):
        measured.append(folder.name)
        return run(100.0 + 0.1 * len(measured))

    monkeypatch.setattr(verdicts.repeatability, "benchmark", benchmark)
    monkeypatch.setattr(verdicts, "REPEATS", 1)
    arguments = argparse.Namespace(kernels="softmax", scratch=tmp_path, side=5, runs=12, records="h200")
    job = frame.Job("prove", None, gpu, load_gpus(GPUS_FILE)[gpu], tmp_path, arguments)
    proof = verdicts.run(job)
    assert proof.holds
    assert len(measured) == (12 if gpu == "h200" else 0) and len(set(measured)) == len(measured)
    assert proof.rows[0]["cases x repeats"] == (1 if gpu == "h200" else 36)


def test_too_few_runs_for_two_sides_are_refused(tmp_path):
    arguments = argparse.Namespace(kernels="softmax", scratch=tmp_path, side=5, runs=9, records="h200")
    with pytest.raises(AtlasError, match="two sides of 5 need more"):
        verdicts.run(frame.Job("prove", None, "h200", load_gpus(GPUS_FILE)["h200"], tmp_path, arguments))


def test_runs_drawn_from_a_record_lie_as_far_apart_as_was_recorded(monkeypatch):
    import numpy as np

    draws = np.random.default_rng(0)
    medians = [verdicts.redrawn(row(100.0), draws)["median_us"] for _ in range(20_000)]
    apart = 100 * np.abs(np.log(np.asarray(medians[::2]) / np.asarray(medians[1::2])))
    middle, tail = np.quantile(apart, [0.5, 0.95])
    assert 0.08 < middle < 0.18 and 0.5 < tail < 1.2, "the samples' own spread comes on top of this"
