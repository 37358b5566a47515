"""What may be tried, and what a build document rules out."""

import pytest
import tuning_fakes as fakes
from atlas.tuning.candidates import Candidate, Ruling, spread

NOW = {"forward.plain": "d", "forward.tiled": "t", "backward.plain": "b", "cases": "c"}


def entry(status, tile, warps, n=1000, **more):
    row = {"direction": "forward", "variant": "plain", "dtype": "fp32", "sizes": {"n": n}, "status": status,
           "config": {"tile": tile, "warps": warps}, "reason": "too many registers"}  # fmt: skip
    return row | more


def ruling(*configs, plain="d"):
    return Ruling({"identities": NOW | {"forward.plain": plain}, "configs": list(configs)}, NOW)


def remaining(*configs, **document):
    (problem,) = fakes.problems(ruling(*configs, **document))
    return problem


WHOLE = len(fakes.TILES) * len(fakes.WARPS)


def test_every_config_is_a_candidate_once_and_the_default_comes_first():
    problem = remaining()
    assert len(set(problem.candidates)) == len(problem.candidates) == problem.space == WHOLE
    assert problem.candidates[0] == problem.default == Candidate.of("plain", {"tile": 16, "warps": 2})


@pytest.mark.parametrize("status", ["pruned", "failed"])
def test_what_the_build_found_unfit_is_no_candidate(status):
    problem = remaining(entry(status, 512, 8))
    assert Candidate.of("plain", {"tile": 512, "warps": 8}) not in problem.candidates
    assert problem.ruled_out == 1 and problem.space == WHOLE


@pytest.mark.parametrize(
    "other",
    [{"direction": "backward"}, {"variant": "tiled"}, {"dtype": "bf16"}, {"status": "ok"}],
    ids=lambda other: next(iter(other)),
)
def test_a_build_entry_rules_out_its_own_pass_variant_and_dtype_alone(other):
    assert remaining(entry("pruned", 512, 8) | other).ruled_out == 0


def test_the_default_is_tried_even_if_the_build_ruled_it_out():
    # An untuned call would run it: that it fails has to show.
    assert remaining(entry("pruned", 16, 2)).default is not None


def test_a_build_of_another_version_of_the_variant_rules_nothing_out():
    assert remaining(entry("pruned", 512, 8), plain="another").ruled_out == 0
    before = {"configs": [entry("pruned", 512, 8)]}  # of a time when documents stated no identities
    assert fakes.problems(Ruling(before, NOW))[0].ruled_out == 0


def test_an_entry_for_the_case_itself_decides():
    # The same config has another binary for other sizes.
    assert remaining(entry("ok", 512, 8), entry("pruned", 512, 8, n=4096)).ruled_out == 0
    assert remaining(entry("pruned", 512, 8), entry("ok", 512, 8, n=4096)).ruled_out == 1


def test_a_case_the_build_did_not_compile_loses_what_no_case_can_run():
    assert remaining(entry("pruned", 512, 8, n=1), entry("pruned", 512, 8, n=2)).ruled_out == 1
    assert remaining(entry("pruned", 512, 8, n=1), entry("ok", 512, 8, n=2)).ruled_out == 0


def test_without_a_build_document_nothing_is_ruled_out():
    (problem,) = fakes.problems(Ruling())
    assert problem.ruled_out == 0


def test_a_spread_takes_both_ends_and_keeps_the_order():
    numbers = [Candidate("v", (("i", i),)) for i in range(10)]
    assert [c.config["i"] for c in spread(numbers, 4)] == [0, 3, 6, 9]
    assert spread(numbers[:2], 4) == numbers[:2]
    assert [c.config["i"] for c in spread(numbers, 1)] == [0]
