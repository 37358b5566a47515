"""Finished cases of a benchmark, kept for the run after one that was cut off."""

import pytest
from atlas.benchmarking.kept import Kept
from atlas.errors import AtlasError
from atlas.results.subject import PassCase

CASES = [PassCase("forward", "bf16", (("n", n),)) for n in (1, 2, 3)]
ROWS = [{"provider": "torch", "status": "ok", "samples_us": [1.5, 2.0]}]


def kept(folder, context="a", cases=CASES):
    return Kept(folder / "benchmark.jsonl", {"code": context}, cases)


def test_cases_come_back_at_the_place_that_they_have_now(tmp_path):
    kept(tmp_path).add(1, ROWS)
    assert kept(tmp_path).found == {1: ROWS}
    assert kept(tmp_path, cases=CASES[1:]).found == {0: ROWS}
    assert kept(tmp_path, cases=CASES[:1]).found == {}, "no case of the sweep any more"


def test_rows_of_other_code_are_not_taken_and_go_with_the_first_new_one(tmp_path):
    kept(tmp_path).add(0, ROWS)
    other = kept(tmp_path, "b")
    assert other.found == {}
    other.add(2, ROWS)
    assert kept(tmp_path).found == {} and kept(tmp_path, "b").found == {2: ROWS}


def test_a_line_that_was_cut_off_costs_itself(tmp_path):
    kept(tmp_path).add(0, ROWS)
    with (tmp_path / "benchmark.jsonl").open("a") as file:
        file.write('{"context": "')
    kept(tmp_path).add(2, ROWS)
    assert kept(tmp_path).found == {0: ROWS, 2: ROWS}


@pytest.mark.parametrize("status", ["failed", "wrong", "suspect"])
def test_a_case_that_did_not_end_well_is_timed_again(tmp_path, status):
    kept(tmp_path).add(0, [*ROWS, {"provider": "liger", "status": status}])
    assert kept(tmp_path).found == {}


def test_what_cannot_be_written_is_said_with_the_file_and_what_to_do(tmp_path):
    one = Kept(tmp_path / "none" / "benchmark.jsonl", {}, CASES)
    (tmp_path / "none").write_text("a file where the folder should be")
    with pytest.raises(AtlasError, match=r"benchmark\.jsonl: cannot be written.*the next run goes on"):
        one.add(0, ROWS)
