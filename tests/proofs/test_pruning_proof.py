"""What is drawn from outside a space, and what a winner from there means."""

import dataclasses

import pytest
from atlas import catalog
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.tuning.candidates import Candidate

from proofs.tuning import pruning

H200 = gpus.gpu("h200", load_gpus()["h200"])


@pytest.fixture(scope="module")
def problems():
    return pruning.wide(catalog.load("softmax"), H200, configs=4, cases=1, seed=1)


def test_configs_from_outside_are_of_the_lists_and_refused_by_fits(problems):
    declaration = catalog.load("softmax")
    assert len({(problem.direction, problem.case.dtype) for problem in problems}) == len(problems) > 1
    for problem in problems:
        variants = {one.name: one for one in declaration.passes[problem.direction].variants}
        out = problem.candidates[-4:]
        assert all(variants[one.variant].fits(one.config, problem.case, H200) for one in out)
        assert all(one.config[name] in variants[one.variant].space[name] for one in out for name in one.config)
        assert len(set(problem.candidates)) == len(problem.candidates)
    again = pruning.wide(declaration, H200, configs=4, cases=1, seed=1)
    assert [problem.candidates for problem in again] == [problem.candidates for problem in problems]


def test_those_are_tried_that_compile_for_the_gpu():
    """A block of 512 rows of 65536 elements has more than Triton allows; the third that compiles is one too many."""
    problem = pruning.wide(catalog.load("softmax"), H200, 0, 1, 1)[0]
    rows = Candidate.of("one_pass", {"BLOCK_M": 512, "num_warps": 32})
    parts = [Candidate.of("online", {"BLOCK_N": 1024, "num_warps": warps}) for warps in (4, 8, 16)]
    assert problem.case["n"] > 2**15
    found = pruning.that_compile("softmax", H200, 1, problem, [rows, *parts], 2)
    assert found == parts[:2]


def test_a_winner_of_the_space_costs_nothing_and_one_from_outside_what_it_gains(problems):
    problem = problems[0]
    kept, out = ({"status": "ok", "median_us": us} for us in (5.0, 4.0))
    inside = pruning.row_of("softmax", problem, [kept], [out], str(problem.candidates[0]), {})
    assert inside["regret %"] == 0 and inside["of them ran"] == 1
    winner = str(Candidate.of("online", {"BLOCK": 999}))
    timed = {winner: {"median_us": 10.0}, "a": {"median_us": 12.0}, "b": {"median_us": 10.5}}
    row = pruning.row_of("softmax", problem, [kept], [out], winner, timed)
    assert row["regret %"] == 5.0 and row["winner from outside"] == winner
    assert not pruning.evidence([inside, row]).holds and pruning.evidence([inside]).holds
    failed = pruning.row_of("matmul", dataclasses.replace(problem), [], [], None, {}, "nothing works")
    assert failed["regret %"] is None
