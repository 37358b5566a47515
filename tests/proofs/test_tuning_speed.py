"""The race against triton.autotune: who is run how, and what comes of the figures."""

import json

import pytest
from atlas.errors import AtlasError
from proof_doubles import Machine, job, race

from proofs.tuning import speed
from proofs.tuning.speed import Problem, Race, evidence

ONE = ("--kernels", "matmul")


def timed(median):
    return {"median_us": median, "low_us": median, "high_us": median}


def test_both_sides_start_cold_in_processes_of_their_own_with_one_gpu(monkeypatch, tmp_path):
    machine = Machine()
    race(monkeypatch, tmp_path, machine, *ONE)
    modules = [module for module, _, _ in machine.commands]
    assert modules == ["atlas", "atlas", "proofs.tuning.triton_side", "proofs.tuning.finals", "atlas"]
    ours, whole, triton, finals, few = machine.commands
    assert "--budget-seconds" not in ours[1]
    assert ours[1][ours[1].index("--jobs") + 1] == "16"
    assert few[1][few[1].index("--jobs") + 1] == "2"
    assert whole[1][whole[1].index("--strategy") + 1] == "exhaustive"
    assert not {"--certify-seeds", "--strategy"} & {*ours[1], *few[1]}  # as a user would
    assert all(environment["KERNEL_ATLAS_GPUS"] == "1" for _, _, environment in (ours, few))
    caches = [environment["TRITON_CACHE_DIR"] for _, _, environment in (ours, triton, few)]
    assert len(set(caches)) == 3  # nobody finds what another compiled
    assert finals[2]["TRITON_CACHE_DIR"] == whole[2]["TRITON_CACHE_DIR"] == caches[0]


def test_the_row_has_every_wall_time_and_the_regret_of_each_side(monkeypatch, tmp_path):
    found = race(monkeypatch, tmp_path, Machine(), *ONE)
    (row,) = found.rows
    assert (row["problems"], row["configs"], row["cores"], row["few cores"]) == (2, 16, 16, 2)
    assert (row["triton s"], row["tuner s"], row["ratio"], row["ratio, few"]) == (50, 5, 0.1, 0.8)
    assert [row[f"regret {which} %"] for which in ("median", "p95", "worst")] == pytest.approx([0, 2, 2])
    assert row["triton's regret worst %"] == pytest.approx(4)
    assert row["default's regret median %"] == pytest.approx(14)
    assert row["alike"] == 1
    assert [claim.holds for claim in found.claims] == [True, False, True]  # 2 % of regret is too much
    assert any("blocks BLOCK=2 for forward n=2 fp32, behind blocks BLOCK=1: 102.000 against" in n for n in found.notes)


def test_the_fastest_six_of_the_whole_space_and_both_picks_are_compared(monkeypatch, tmp_path):
    machine = Machine()
    race(monkeypatch, tmp_path, machine, *ONE)
    for problem, ours in zip(json.loads(machine.asked), (1, 2), strict=True):
        blocks = [one["config"]["BLOCK"] for one in problem["candidates"]]
        assert blocks == [ours, 3, 1, 2, 3, 4, 5, 6]


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(monkeypatch, tmp_path):
    words = (*ONE, "--scratch", tmp_path / "scratch")
    machine = Machine()
    machine.broken = "proofs.tuning.finals"
    with pytest.raises(RuntimeError, match="cut off"):
        race(monkeypatch, tmp_path, machine, *words)
    again = Machine(seconds={"all": 99.0, "2": 40.0, "triton": 99.0})
    found = race(monkeypatch, tmp_path, again, *words)
    assert found.rows[0]["tuner s"] == 5 and found.rows[0]["triton s"] == 50
    # triton_side is asked again, and finds all of its problems done.
    assert [module for module, _, _ in again.commands] == ["proofs.tuning.triton_side", "proofs.tuning.finals", "atlas"]


def test_kernels_raced_one_by_one_into_one_folder_make_one_proof(monkeypatch, tmp_path):
    scratch = ("--scratch", tmp_path / "scratch", "--few-jobs", "0")
    for kernel in ("matmul", "layer_norm"):
        race(monkeypatch, tmp_path, Machine(), "--kernels", kernel, *scratch)
    together = Machine()
    found = race(monkeypatch, tmp_path, together, *scratch)
    assert [row["kernel"] for row in found.rows] == ["matmul", "layer_norm"]
    assert "atlas" not in [module for module, _, _ in together.commands]
    assert all(row["tuner s, few"] is None for row in found.rows)


def test_the_journals_of_the_whole_space_are_kept_where_asked(monkeypatch, tmp_path):
    race(monkeypatch, tmp_path, Machine(), *ONE, "--keep", tmp_path / "kept")
    assert (tmp_path / "kept" / "matmul" / "journal.jsonl").read_text() == "{}\n"


def test_a_slow_tuner_breaks_the_claim_of_its_kernel_alone():
    problems = [Problem("p", "a", "b", "b", {"a": timed(10.0), "b": timed(12.0)})]
    fast = Race("matmul", 16, 10.0, 2, 40.0, 100.0, 8, problems)
    slow = Race("layer_norm", 16, 30.0, 2, 40.0, 100.0, 8, problems)
    found = evidence([fast, slow])
    assert [claim.text for claim in found.broken] == [
        "layer_norm: the tuner's wall time on 16 cores over triton.autotune's"
    ]


def test_a_problem_without_a_comparison_is_no_silent_success():
    problems = [
        Problem("good", "a", "a", "a", {"a": timed(10.0)}),
        Problem("bad", "a", None, "a", {}, "AcceleratorError: illegal memory access"),
    ]
    found = evidence([Race("matmul", 16, 10.0, 0, None, 100.0, 8, problems)])
    assert [claim.text for claim in found.broken] == ["problems whose pick could not be compared"]
    assert "matmul, bad: AcceleratorError: illegal memory access" in found.notes


def test_the_interpreter_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(AtlasError, match="is the interpreter, whose times are not speeds"):
        speed.run(job(speed, tmp_path, gpu="cpu"))
