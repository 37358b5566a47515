"""What two runs of a benchmark differ by, and which rows count."""

import argparse
import json
from pathlib import Path

import pytest
from atlas import catalog, timing
from atlas.host import environment
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import documents
from atlas.stages import frame

from proofs import scratch
from proofs.__main__ import main
from proofs.measuring import repeatability


def row(median_us, provider="one_pass", kind="variant", dtype="bf16", config=None, status="ok", **sizes):
    return {
        "provider": provider, "provider_kind": kind, "direction": "forward", "dtype": dtype,
        "sizes": sizes or {"n": 1024}, "config": config, "status": status, "reason": "", "bytes": 1, "flops": 1,
        **({} if median_us is None else {"median_us": median_us}),
    }  # fmt: skip


def benchmark(*rows):
    return {"rows": list(rows)}


def found(*runs):
    """The evidence of runs of one kernel, each a list of rows."""
    return repeatability.evidence([{"softmax": benchmark(*rows)} for rows in runs])


def test_two_runs_that_agree_hold_every_claim():
    proof = found([row(100.0, n=1), row(50.0, n=2)], [row(100.5, n=1), row(50.0, n=2)])
    assert proof.holds
    assert proof.claims[0].found == pytest.approx(0.25, abs=0.01)  # half way between 0 and 0.5 %


def test_the_median_and_the_95th_percentile_are_over_the_rows():
    # Of 21 rows, 20 differ by 0.4 % and one by 8 %: the 95th percentile is still the last of the 20.
    first = [row(1000.0, n=n) for n in range(21)]
    second = [row(1004.0, n=n) for n in range(20)] + [row(1083.3, n=20)]
    proof = found(first, second)
    assert proof.holds
    assert [claim.found for claim in proof.claims[:2]] == pytest.approx([0.4, 0.4], abs=0.01)
    second[19] = row(1083.3, n=19)
    broken = found(first, second).broken
    assert [claim.limit for claim in broken] == [2.0]


def test_short_rows_are_shown_and_not_claimed():
    proof = found([row(100.0, n=1), row(5.0, n=2)], [row(100.0, n=1), row(6.0, n=2)])
    assert proof.holds
    assert proof.rows[0]["over 20 us"] == proof.rows[0]["up to 20 us"] == 1
    assert proof.rows[0]["their median %"] == pytest.approx(100 / 5.5)


def test_without_a_row_over_the_limit_nothing_is_proved():
    assert not found([row(5.0)], [row(5.0)]).holds


def test_of_three_runs_the_largest_and_the_smallest_count():
    proof = found([row(100.0)], [row(103.0)], [row(101.0)])
    assert proof.claims[0].found == pytest.approx(100 * 3 / 101)


def test_the_worst_row_is_named_with_its_medians():
    proof = found([row(100.0, n=1), row(200.0, n=2)], [row(100.0, n=1), row(206.0, n=2)])
    assert proof.rows[0]["worst row"] == "one_pass (variant) forward n=2 bf16: 200.0 / 206.0 us"
    assert proof.rows[-1]["kernel"] == "all"


def test_a_default_that_is_the_tuned_config_counts_once():
    config = {"BLOCK": 64}
    rows = [row(100.0, config=config), row(100.0, kind="default", config=config), row(90.0, "torch", "peer")]
    assert found(rows, rows).rows[0]["over 20 us"] == 2
    other = [row(100.0, config=config), row(100.0, kind="default", config={"BLOCK": 32}), row(90.0, "torch", "peer")]
    assert found(other, other).rows[0]["over 20 us"] == 3


def test_a_row_timed_in_one_run_alone_breaks_the_proof_and_is_named():
    proof = found(
        [row(100.0, n=1), row(50.0, "liger", "peer", n=1)], [row(100.0, n=1), row(None, "liger", "peer", n=1)]
    )
    assert [claim.found for claim in proof.broken] == [1]
    assert any("softmax liger (peer) forward n=1 bf16" in note for note in proof.notes)


def test_kernels_have_rows_of_their_own():
    runs = [{"softmax": benchmark(row(100.0)), "matmul": benchmark(row(us, n=7))} for us in (50.0, 51.0)]
    rows = repeatability.evidence(runs).rows
    assert [each["kernel"] for each in rows] == ["softmax", "matmul", "all"]
    assert rows[0]["worst %"] == 0.0
    assert rows[2]["over 20 us"] == 2


GPU = "h200"


def document(stage, kernel, **fields):
    return {
        "stage": stage, "schema_version": documents.VERSIONS[stage], "kernel": kernel or None, "gpu": GPU,
        "kind": "measured", "status": "ok", "reason": "", "software": {}, "device": {}, "seconds": 0.0,
        "kernel_digest": catalog.digest(kernel) if kernel else None,
    } | fields  # fmt: skip


@pytest.fixture
def job(tmp_path):
    """A job on a GPU whose survey, validation and tuning are at hand."""
    results = tmp_path / "results" / "measured" / GPU
    documents.write(results / "survey.json", document("survey", "", protocol="timing/2", roofs=[], properties={}))
    documents.write(
        results / "softmax" / "validate.json",
        document("validate", "softmax", protocol="validation/1", seeds=[0], checks=[]),
    )
    documents.write(
        results / "softmax" / "autotune.json",
        document("autotune", "softmax", protocol="timing/2", strategy="halving", budget_seconds=None,
                 seconds_by_phase={}, trials_by_status={}, best=[], trials=[]),
    )  # fmt: skip
    arguments = argparse.Namespace(
        gpu=GPU, gpus_file=GPUS_FILE, results=tmp_path / "results", kernels="softmax", scratch=tmp_path / "kept", runs=2
    )
    return frame.Job("prove", None, GPU, load_gpus(GPUS_FILE)[GPU], tmp_path / "results", arguments)


@pytest.fixture
def ran(monkeypatch):
    """The benchmark stage made cheap: each run is 0.3 % slower than the last; a list of what was run."""
    commands = []

    def fake(module, words, variables, log, cwd=None):
        results = Path(words[words.index("--results") + 1])
        folder = results / "measured" / GPU
        assert json.loads((folder / "survey.json").read_text())["stage"] == "survey"
        assert {path.name for path in (folder / "softmax").iterdir()} >= {"validate.json", "autotune.json"}
        commands.append([module, *words[:2]])
        made = document(
            "benchmark", "softmax", protocol=timing.PROTOCOL, rows=[row(100.0 + 0.3 * len(commands))],
            software=environment.software(),
        )  # fmt: skip
        documents.write(folder / "softmax" / "benchmark.json", made)
        return 1.0

    monkeypatch.setattr(scratch, "run", fake)
    return commands


def test_every_run_benchmarks_on_copies_of_what_is_at_hand(job, ran):
    proof = repeatability.run(job)
    assert ran == [["atlas", "benchmark", "softmax"]] * 2
    assert proof.holds
    assert proof.claims[0].found == pytest.approx(0.3, abs=0.01)
    assert not (job.results / "measured" / GPU / "softmax" / "benchmark.json").exists()


def test_a_proof_cut_off_goes_on_in_its_folder(job, ran):
    repeatability.run(job)
    second = job.arguments.scratch / "run-2" / "measured" / GPU / "softmax" / "benchmark.json"
    second.unlink()
    repeatability.run(job)
    assert len(ran) == 3, "the first run's benchmark is not made again"


def test_what_another_torch_measured_is_measured_again(job, ran, monkeypatch):
    repeatability.run(job)
    other = environment.software() | {"torch": "9.9.9"}
    monkeypatch.setattr(environment, "software", lambda: other)
    repeatability.run(job)
    assert len(ran) == 4


def test_the_interpreter_s_times_are_no_proof(tmp_path, capsys):
    assert main(["repeatability", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert "not speeds" in capsys.readouterr().err


def test_one_run_is_not_enough(job):
    job.arguments.runs = 1
    with pytest.raises(repeatability.AtlasError, match="--runs is 1"):
        repeatability.run(job)
