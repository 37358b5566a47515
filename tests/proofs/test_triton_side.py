"""Triton's own Autotuner over our launchers, with a benchmark that believes what configs say of themselves."""

import pytest
import race_kernel as race
import torch
from atlas.errors import AtlasError
from triton.runtime.errors import OutOfResources

from proofs.tuning import finals, triton_side
from proofs.tuning.finals import compare
from proofs.tuning.triton_side import tune

CPU = torch.device("cpu")


def test_tritons_autotuner_tries_every_config_of_every_variant_and_picks_the_fastest():
    made = race.declaration()
    found = [tune(made, problem, CPU, race.do_bench) for problem in race.problems(made)]
    assert [one["sizes"] for one in found] == [{"n": 100}, {"n": 200}]
    for one in found:
        assert one["configs"] == 3 and one["reason"] == ""
        assert one["pick"] == {"variant": "other", "config": {"cost_us": 20, "num_warps": 4}}
        assert one["seconds"] > 0
    tried = {config["cost_us"] for config in race.launched}
    assert tried == {40, 20, 30}


def test_a_config_that_asks_for_too_much_costs_triton_only_itself():
    made = race.declaration(failures={20: OutOfResources(300000, 232448, "shared memory")})
    found = tune(made, race.problems(made)[0], CPU, race.do_bench)
    assert found["pick"]["config"]["cost_us"] == 30 and found["reason"] == ""


def test_an_error_that_triton_passes_on_ends_the_problem_with_its_reason():
    made = race.declaration(failures={30: RuntimeError("PassManager::run failed")})
    found = tune(made, race.problems(made)[0], CPU, race.do_bench)
    assert found["pick"] is None
    assert found["reason"] == "RuntimeError: PassManager::run failed"
    assert found["seconds"] > 0  # what it cost until then counts


def test_tritons_own_benchmark_is_used_unless_one_is_given(monkeypatch):
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", type("Driver", (), {"get_benchmarker": lambda self: "default"})())
    tuner = triton_side.autotuner([lambda: None, lambda: None])
    assert tuner.do_bench == "default"
    assert (tuner.num_warmups, tuner.num_reps) == (None, None)


def test_the_default_is_compared_with_what_is_asked_for():
    made = race.declaration()
    problem = race.problems(made)[0]
    fastest = next(one for one in problem.candidates if one.config["cost_us"] == 20)
    found = compare(made, problem, [fastest], race.StubClock(), CPU)
    assert found["default"] == "one cost_us=40 num_warps=4"
    assert {name: one["median_us"] for name, one in found["timed"].items()} == {
        "other cost_us=20 num_warps=4": 20,
        "one cost_us=40 num_warps=4": 40,
    }
    assert all(one["low_us"] <= one["median_us"] <= one["high_us"] for one in found["timed"].values())


def test_a_finalist_that_fails_is_a_reason_and_no_figure():
    made = race.declaration(failures={20: RuntimeError("an illegal memory access was encountered")})
    problem = race.problems(made)[0]
    found = compare(made, problem, problem.candidates, race.StubClock(), CPU)
    assert found["timed"] == {} and "illegal memory access" in found["reason"]


@pytest.mark.parametrize("side", [triton_side, finals])
def test_each_side_is_a_command_that_says_what_it_lacks(side, tmp_path):
    (tmp_path / "asked.json").write_text("[]")
    words = ["nosuch", "--gpu", "h200", "--pieces", str(tmp_path / "pieces.jsonl")]
    words += ["--asked", str(tmp_path / "asked.json")] if side is finals else []
    with pytest.raises(AtlasError, match="unknown kernel 'nosuch'"):
        side.main(words)
