"""The suite tuned with one, two, four GPUs: what Snakemake is asked for, and what comes of the figures."""

import dataclasses
import subprocess
import sys

import pytest
import yaml
from atlas.errors import AtlasError
from proof_doubles import job, validated

from proofs.measuring import throughput
from proofs.measuring.throughput import Run, Suite, counts_of, evidence

KERNELS = ["matmul", "softmax"]


@pytest.fixture
def suite(tmp_path, monkeypatch):
    def put(job, kernel, stages, results):  # their content is the stages' business
        for stage in stages:
            path = results / "measured" / job.gpu_name / kernel / f"{stage}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")

    monkeypatch.setattr(throughput.scratch, "put", put)
    made = Suite(job(throughput, tmp_path / "results"), KERNELS, tmp_path / "checkout")
    made.set_up("exhaustive")
    return made


def test_in_the_copy_only_autotune_has_something_to_do(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200;NVIDIA H200")
    monkeypatch.delenv("KERNEL_ATLAS_PLACES", raising=False)
    command = [sys.executable, "-m", "snakemake", *suite.words(devices=2, cores=4), "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path / "checkout", capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert {"autotune", "build", "validate", "survey"} & {line.partition(" ")[0] for line in said.splitlines()} == {
        "autotune"
    }
    for kernel in KERNELS:
        assert f"autotune {kernel} on h200" in said


def test_the_copy_has_the_strategy_and_no_budget_that_could_bind(suite, tmp_path):
    config = yaml.safe_load((tmp_path / "checkout/config/config.yaml").read_text())
    assert config["autotune"]["strategy"] == "exhaustive"
    assert config["autotune"]["budget_seconds"] >= 3600


def test_a_run_tunes_every_kernel_from_the_beginning_and_times_the_jobs(tmp_path):
    # The interpreter stands for the GPU: it shows the command and its files, and nothing of speed.
    results = tmp_path / "results"
    validated(results, "vector_add", "cpu", "functional")
    suite = Suite(job(throughput, results, gpu="cpu"), ["vector_add"], tmp_path / "checkout")
    suite.set_up("halving")
    folder = tmp_path / "checkout/results/measured/cpu/vector_add"
    for name in ("autotune.json", "journal.jsonl"):  # as an earlier count left them, younger than all else
        (folder / name).write_text("left over")
    found = suite.run("halving", [], 1)
    assert found.trials > 0 and found.cores == 1
    assert found.seconds == pytest.approx(found.jobs["vector_add"])
    assert 0 < found.seconds < found.command_seconds
    assert "left over" not in (folder / "journal.jsonl").read_text()
    kept = tmp_path / "documents/halving-0/vector_add/autotune.json"
    assert kept.read_text() == (folder / "autotune.json").read_text()
    assert found.chosen and all(choice in found.timed[case] for case, choice in found.chosen.items())


@pytest.mark.parametrize(
    ("asked", "there", "expected"),
    [(None, 4, [1, 2, 4]), (None, 3, [1, 2]), ("2,1", 4, [1, 2]), ("1,8", 8, [1, 8])],
)
def test_the_counts_are_those_the_host_has(asked, there, expected):
    assert counts_of(asked, there) == expected


@pytest.mark.parametrize(
    ("asked", "there", "said"),
    [
        (None, 1, "this host shows 1 of these GPUs"),
        ("1,4", 2, "--devices 1,4: give 1 and one or more counts up to 2"),
        ("2,4", 4, "--devices 2,4: give 1 and"),
        ("two", 4, "--devices two: give counts such as 1,2,4"),
    ],
)
def test_counts_that_cannot_be_are_refused_in_one_sentence(asked, there, said):
    with pytest.raises(AtlasError, match=said):
        counts_of(asked, there)


def test_the_ratio_is_of_trials_per_second_and_each_strategy_stands_for_itself():
    runs = [
        Run("halving", 1, 4, 100.0, 110.0, 1000, {"matmul": 100.0}),
        Run("halving", 2, 8, 55.0, 65.0, 1000, {"matmul": 55.0}),
        Run("halving", 4, 16, 30.0, 40.0, 1000, {"matmul": 30.0}),
        Run("exhaustive", 1, 4, 300.0, 310.0, 1000, {"matmul": 300.0}),
        Run("exhaustive", 4, 16, 80.0, 90.0, 1000, {"matmul": 80.0}),
    ]
    found = evidence(runs)
    assert [row["ratio"] for row in found.rows] == pytest.approx([1, 1.818, 3.333, 1, 3.75], abs=1e-3)
    assert found.rows[0]["trials/s"] == 10 and found.rows[0]["matmul s"] == 100
    assert [(claim.limit, claim.holds) for claim in found.claims] == [(1.9, False), (3.6, False), (3.6, True)]


def test_how_far_neighbours_move_a_case_is_told_of_those_that_are_not_short():
    best = [{"direction": "forward", "dtype": "bf16", "sizes": {"n": n}, "default_us": time} for n, time in
            [(1, 5.0), (2, 100.0), (3, 200.0), (4, None)]]  # fmt: skip
    alone = dict(throughput.defaults({"kernel": "softmax", "best": best}))
    assert list(alone.values()) == [5.0, 100.0, 200.0]
    beside = {case: time * factor for (case, time), factor in zip(alone.items(), [2.0, 1.01, 0.97], strict=True)}
    assert throughput.shifts(alone, beside) == pytest.approx([1.0, 3.0])
    found = evidence([
        Run("halving", 1, 4, 100.0, 110.0, 1000, {}, alone), Run("halving", 2, 8, 51.0, 60.0, 1000, {}, beside)
    ])  # fmt: skip
    assert [(claim.limit, claim.holds) for claim in found.claims] == [(1.9, True), (2.0, False)]
    assert found.rows[1]["cases"] == 2


def test_a_choice_made_beside_neighbours_is_judged_by_the_clock_of_the_run_alone():
    def tuned(choices, timed):
        names = {case: f"v {choice}" for case, choice in choices.items()}
        times = {case: {f"v {config}": us for config, us in known.items()} for case, known in timed.items()}
        return Run("halving", 1, 4, 100.0, 110.0, 1000, {}, {}, names, times)

    clock = {"a": {"x": 100.0, "y": 103.0}, "b": {"x": 50.0, "y": 50.2}, "c": {"x": 5.0, "y": 9.0}, "d": {"x": 40.0}}
    alone = tuned({"a": "x", "b": "x", "c": "x", "d": "x"}, clock)
    beside = tuned({"a": "y", "b": "y", "c": "y", "d": "y", "e": "x"}, {})
    # c is short, e was not tuned alone; d's config did not end there, which no figure excuses.
    assert throughput.behind(alone, beside) == pytest.approx([0.4, 3.0, float("inf")])
    assert throughput.behind(alone, alone) == [0.0, 0.0, 0.0]
    found = evidence([alone, dataclasses.replace(beside, devices=2, seconds=50.0)])
    claim = found.claims[-1]
    assert "choices" in claim.text and claim.limit == 1.0 and not claim.holds
    assert found.rows[1]["same config"] == 0 and found.rows[1]["of"] == 5


def test_each_count_sees_only_its_gpus_and_its_share_of_the_cores(tmp_path, monkeypatch):
    seen = []

    class Recorded(Suite):
        def set_up(self, strategy):
            seen.append(strategy)

        def run(self, strategy, boards, cores):
            seen.append((strategy, list(boards), cores))
            return Run(strategy, len(boards), cores, 10.0 / len(boards), 11.0, 100, {"matmul": 10.0})

    monkeypatch.setattr(throughput, "Suite", Recorded)
    monkeypatch.setattr(throughput, "boards_of", lambda block: ["GPU-a", "GPU-b"])
    words = ("--scratch", tmp_path / "scratch", "--kernels", "matmul", "--cores", "32")
    assert throughput.run(job(throughput, tmp_path, *words)).holds
    both = ("halving", ["GPU-a", "GPU-b"], 32)
    # The first fills the caches; what the next finds cold all the same counts against several GPUs.
    assert seen == ["halving", both, both, ("halving", ["GPU-a"], 16)]
    seen.clear()
    assert throughput.run(job(throughput, tmp_path, *words)).holds  # from what was kept
    assert seen == ["halving"]


def test_boards_are_those_of_the_block(monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200;Tesla T4;NVIDIA H200")
    assert len(throughput.boards_of({"match": "NVIDIA H200$"})) == 2


def test_the_interpreter_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(AtlasError, match="is the interpreter, which has no devices to share"):
        throughput.run(job(throughput, tmp_path, gpu="cpu"))
