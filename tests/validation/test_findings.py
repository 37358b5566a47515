"""What becomes of single findings: the worst over all seeds, and a row of its own for every subject."""

import itertools

import pytest
from atlas.declaration import case
from atlas.validation.findings import ERROR, FAIL, PASS, UNSUPPORTED, Finding, Subject, judged, worst
from atlas.validation.judging import Judgement

CASE = case("fp32", n=8)
SUBJECT = Subject("tiled", "forward", CASE, {"BLOCK": 64})


def finding(status=PASS, seed=0, subject=SUBJECT, check="values", **judgement):
    return Finding(check, subject, status, "why" if status == FAIL else "", seed, Judgement(**judgement))


@pytest.mark.parametrize(
    "statuses", list(itertools.permutations([PASS, UNSUPPORTED, ERROR, FAIL], 2)), ids=lambda pair: " then ".join(pair)
)
def test_the_worst_seed_speaks_for_all_in_whichever_order_they_came(statuses):
    (found,) = worst(finding(status, seed) for seed, status in enumerate(statuses))
    order = (PASS, UNSUPPORTED, ERROR, FAIL)
    assert found.status == max(statuses, key=order.index)
    assert found.seed == statuses.index(found.status) and found.seeds == 2


@pytest.mark.parametrize("used", [(0.1, 0.9, 0.5), (0.9, 0.1, 0.5)])
def test_of_seeds_that_pass_the_figures_are_of_the_one_that_used_most(used):
    (found,) = worst(finding(seed=seed, tolerance_used=share) for seed, share in enumerate(used))
    assert (found.judgement.tolerance_used, found.seeds) == (0.9, 3)


@pytest.mark.parametrize(
    "other",
    [
        Subject("other", "forward", CASE, {"BLOCK": 64}),
        Subject("tiled", "backward", CASE, {"BLOCK": 64}),
        Subject("tiled", "forward", case("bf16", n=8), {"BLOCK": 64}),
        Subject("tiled", "forward", case("fp32", n=9), {"BLOCK": 64}),
        Subject("tiled", "forward", CASE, {"BLOCK": 128}),
        Subject("tiled", "forward", CASE),
        Subject("", "forward", CASE, {"BLOCK": 64}),
    ],
    ids=["variant", "pass", "dtype", "sizes", "config", "no config", "the public function"],
)
def test_another_subject_has_a_row_of_its_own(other):
    assert len(worst([finding(), finding(subject=other)])) == 2
    assert len(worst([finding(), finding(check="repeatable")])) == 2
    assert len(worst([finding(), finding(seed=1)])) == 1


def test_a_comparison_with_a_reason_fails_and_one_without_passes():
    assert judged("values", SUBJECT, Judgement("too far"), 0, prefix="with NaN: ").reason == "with NaN: too far"
    assert judged("values", SUBJECT, Judgement("too far"), 0).status == FAIL
    assert judged("values", SUBJECT, Judgement(tolerance_used=0.99), 0).status == PASS
