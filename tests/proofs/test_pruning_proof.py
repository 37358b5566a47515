"""What is drawn from outside a space, and what a winner from there means."""

import dataclasses

import pytest
from atlas import catalog, cli
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.tuning.candidates import Candidate

from proofs.tuning import outside, pruning

H200 = gpus.gpu("h200", load_gpus()["h200"])


@pytest.fixture(scope="module")
def problems():
    return outside.wide(catalog.load("softmax"), H200, configs=4, cases=1, seed=1)


def test_configs_from_outside_are_of_the_lists_and_refused_by_fits(problems):
    declaration = catalog.load("softmax")
    assert len({(problem.direction, problem.case.dtype) for problem in problems}) == len(problems) > 1
    for problem in problems:
        variants = {one.name: one for one in declaration.passes[problem.direction].variants}
        out = problem.candidates[-4:]
        assert all(variants[one.variant].fits(one.config, problem.case, H200) for one in out)
        assert all(one.config[name] in variants[one.variant].space[name] for one in out for name in one.config)
        assert len(set(problem.candidates)) == len(problem.candidates)
    again = outside.wide(declaration, H200, configs=4, cases=1, seed=1)
    assert [problem.candidates for problem in again] == [problem.candidates for problem in problems]


def test_those_are_tried_that_compile_for_the_gpu(tmp_path, monkeypatch):
    """A block of 512 rows of 65536 elements has more than Triton allows; the third that compiles is one too many."""
    problem = outside.wide(catalog.load("softmax"), H200, 0, 1, 1)[0]
    rows = Candidate.of("one_pass", {"BLOCK_M": 512, "num_warps": 32})
    parts = [Candidate.of("online", {"BLOCK_N": 1024, "num_warps": warps}) for warps in (4, 8, 16)]
    assert problem.case["n"] > 2**15
    choice = outside.that_compile("softmax", H200, 1, tmp_path)
    assert choice(problem, [rows, *parts], 2) == parts[:2]
    monkeypatch.setattr("atlas.compilation.pool.compile_all", None)  # what was found is not compiled for again
    assert outside.that_compile("softmax", H200, 1, tmp_path)(problem, [rows, *parts], 2) == parts[:2]


def test_what_compiles_is_found_ahead_of_the_proof_for_a_gpu_that_is_not_there(tmp_path, capsys):
    words = ["--gpu", "h200", "--kernels", "vector_add", "--configs", "1", "--cases", "1", "--cores", "1"]
    command = "proofs.tuning.outside", "proofs.tuning.outside", ""
    assert cli.run(*command, words) == 2 and "--scratch is missing" in capsys.readouterr().err
    assert cli.run(*command, [*words, "--scratch", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said and len((tmp_path / "vector_add-compiled.jsonl").read_text().splitlines()) == len(said)


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
