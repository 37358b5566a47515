"""Which config each variant is timed with, and who is left out for which reason."""

import dataclasses

import pytest
from atlas.benchmarking.providers import Tuned, providers
from atlas.declaration import GPU, Peer, Variant, case, max_autotuned

from .small_kernel import CASE, GPU_HERE, Stage, trial, tuned


def chosen(document, variants=None, gpu=GPU_HERE, peers=None):
    stage = Stage({}, variants=variants, peers=peers)
    work = stage.declaration.forward
    return {p.key: p for p in providers(work, "forward", CASE, gpu, Tuned(document))}


def test_the_best_config_of_the_document_is_the_tuned_one():
    found = chosen(tuned(trial({"BLOCK": 4}, median_us=1.0), best={"BLOCK": 2}))
    assert found["variant good"].config == {"BLOCK": 2}
    assert found["default good"].config == {"BLOCK": 1}


def test_a_variant_that_did_not_win_gets_its_own_best_trial():
    others = [trial({"BLOCK": 2}, median_us=9.0), trial({"BLOCK": 4}, median_us=8.0)]
    found = chosen(tuned(*others, best={"BLOCK": 1}, variant="other"))
    assert found["variant good"].config == {"BLOCK": 4}


def test_of_the_trials_the_one_that_came_furthest_counts_before_the_fastest():
    lucky = trial({"BLOCK": 2}, median_us=1.0, rung=0)
    found = chosen(tuned(lucky, trial({"BLOCK": 4}, median_us=8.0, rung=2)))
    assert found["variant good"].config == {"BLOCK": 4}


def test_a_trial_stopped_for_being_slow_still_gives_a_config():
    found = chosen(tuned(trial({"BLOCK": 2}, status="stopped")))
    assert found["variant good"].config == {"BLOCK": 2}


def test_a_trial_that_was_stopped_gives_way_to_one_that_ran_to_its_end():
    given_up = trial({"BLOCK": 2}, status="stopped") | {"median_us": 1.0}  # one sample, and luckier than it is fast
    assert chosen(tuned(given_up, trial({"BLOCK": 4}, median_us=8.0)))["variant good"].config == {"BLOCK": 4}


@pytest.mark.parametrize("which", [0, 1])
def test_each_case_has_the_config_that_was_tuned_for_it(which):
    sizes = ({"m": 1, "n": 64}, {"m": 64, "n": 1})
    best = [
        {"direction": "forward", "dtype": "fp32", "sizes": size, "variant": "good", "config": {"BLOCK": block}}
        for size, block in zip(sizes, (2, 4), strict=True)
    ]
    found = Tuned({"best": best, "trials": []}).config("forward", case("fp32", **sizes[which]), "good")
    assert found == {"BLOCK": (2, 4)[which]}


@pytest.mark.parametrize("changed", [{"direction": "backward"}, {"dtype": "bf16"}, {"variant": "other"}])
def test_what_was_tuned_for_another_pass_dtype_or_variant_is_not_taken(changed):
    best = {"direction": "forward", **CASE.to_json(), "variant": "good", "config": {"BLOCK": 2}} | changed
    assert Tuned({"best": [best], "trials": []}).config("forward", CASE, "good") is None


def test_equal_tuned_and_default_configs_share_one_measurement():
    assert chosen(tuned(best={"BLOCK": 1}))["default good"].same_as == "variant good"
    assert chosen(tuned(best={"BLOCK": 2}))["default good"].same_as == ""


def test_a_variant_whose_trials_all_failed_is_not_run_and_says_why():
    crashed = trial({"BLOCK": 1}, status="crashed", reason="illegal memory access")
    found = chosen(tuned(crashed, trial({"BLOCK": 2}, status="crashed")))
    assert found["variant good"].status == "failed"
    assert found["variant good"].reason == "in autotune: 2 crashed: illegal memory access"
    assert found["default good"].prepare is None  # it would take the benchmark's process down


def test_a_case_too_large_for_a_variant_is_a_limit_and_no_failure():
    found = chosen(tuned(trial({"BLOCK": 1}, status="timeout"), trial({"BLOCK": 2}, status="out_of_memory")))
    assert found["variant good"].status == "unsupported"
    assert "1 timeout, 1 out_of_memory" in found["variant good"].reason


def test_a_case_on_which_a_config_crashed_is_a_failure_whatever_the_others_did():
    ended = [trial({"BLOCK": 1}, status="timeout"), trial({"BLOCK": 2}, status="crashed", reason="illegal access")]
    found = chosen(tuned(*ended))["variant good"]
    assert (found.status, found.reason) == ("failed", "in autotune: 1 timeout, 1 crashed: illegal access")


def test_a_variant_this_gpu_lacks_something_for_is_unsupported():
    lacking = Variant(
        "good", lambda **_: None, {"BLOCK": (1,)}, lambda problem, gpu: {"BLOCK": 1}, needs=frozenset({"wgmma"})
    )
    t4 = GPU("t4", "cuda", 75, 40, 65536, 2**34, 2**22)
    found = chosen(tuned(), {"good": lacking}, gpu=t4)
    assert found["variant good"].status == found["default good"].status == "unsupported"
    assert "t4 has no wgmma" in found["variant good"].reason


def test_a_default_that_does_not_fit_is_unsupported_with_the_reason():
    greedy = Variant(
        "good", lambda **_: None, {"BLOCK": (1,)}, lambda problem, gpu: {"BLOCK": 1}, fits=lambda *_: "too much memory"
    )
    found = chosen(tuned(), {"good": greedy})
    assert (found["default good"].status, found["default good"].reason) == ("unsupported", "too much memory")


def test_an_optional_peer_that_is_not_installed_is_missing():
    peer = Peer(lambda **_: None, requires="no_such_module_anywhere")
    found = chosen(tuned(), peers={"liger": peer})
    assert found["peer liger"].status == "missing"
    assert "no_such_module_anywhere" in found["peer liger"].reason


def test_a_peer_that_tunes_for_long_is_left_out_of_the_other_cases():
    peers = {"some": max_autotuned(abs, cases=lambda c: c == CASE), "none": max_autotuned(abs, cases=lambda c: False)}
    found = chosen(tuned(), peers=peers)
    assert found["peer some"].status == ""
    assert (found["peer none"].status, found["peer none"].prepare) == ("unsupported", None)
    assert "few cases" in found["peer none"].reason


def test_peers_that_compile_are_left_out_of_functional_runs_only():
    peer = Peer(lambda **_: None, compiles=True)
    functional = dataclasses.replace(GPU_HERE, backend="cpu", arch="interpreter")
    assert chosen(tuned(), peers={"torch.compile": peer})["peer torch.compile"].status == ""
    assert chosen(tuned(), peers={"torch.compile": peer}, gpu=functional)["peer torch.compile"].status == "unsupported"
