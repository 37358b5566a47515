"""The command that says which config a call runs, and why."""

import json

import pytest
from atlas import cli
from atlas.declaration import choice

CASE = ["--dtype", "bf16", "--case"]


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """What the command says of softmax where h200's file holds these entries."""

    def ask(*words, entries=(), timed=None, status=0):
        document = {"gpu": "h200", "match": "NVIDIA H200$", "entries": list(entries)}
        (tmp_path / "h200.json").write_text(json.dumps(document))
        path = tmp_path / "timings" / "h200-softmax.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        board = timed.pop("board", "") if timed else ""
        path.write_text(json.dumps({"form": 1, "board": board, "passes": {"forward": timed} if timed else {}}))
        assert cli.main(["choose", "softmax", *words]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    monkeypatch.setattr(choice, "TUNED", tmp_path)
    return ask


def entry(n: int, **config) -> dict:
    return {"kernel": "softmax", "direction": "forward", "dtype": "bf16", "sizes": {"m": 4096, "n": n},
            "variant": "one_pass", "config": config, "certificate": {"cases": 5}, "median_us": 8.4}  # fmt: skip


def test_a_tuned_config_is_named_with_the_case_it_was_tuned_at(said):
    near = entry(1024, BLOCK_M=1, num_warps=2)
    text = said("--gpu", "h200", *CASE, "m=4096,n=1024", entries=[near])
    assert "one_pass BLOCK_M=1 num_warps=2" in text and "at this very case where it took 8.4 us" in text
    text = said("--gpu", "h200", *CASE, "n=1024,m=4096", entries=[near])
    assert "tuned at this very case" in text, "whatever the order of the sizes"


def timed(*us: float) -> dict:
    """One case at which the default, of 2 warps, and 1 warp took these times."""
    configs = [{"variant": "one_pass", "config": {"BLOCK_M": 1, "num_warps": warps}} for warps in (2, 1)]
    case = {"dtype": "bf16", "sizes": {"m": 4096, "n": 1024}, "default": 0, "us": list(us)}
    return {"configs": configs, "cases": [case]}


def test_an_expectation_is_told_with_its_spread_and_its_grounds(said):
    won = entry(1024, BLOCK_M=1, num_warps=1)
    text = said("--gpu", "h200", *CASE, "m=4096,n=1040", entries=[won], timed=timed(100.0, 90.0))
    assert "runs\n  one_pass BLOCK_M=1 num_warps=1\n" in text
    assert "expected to take 0.9" in text and "of the time of the default, one_pass BLOCK_M=1 num_warps=2" in text
    assert "told by m=4096 n=1024 bf16" in text


def test_a_default_is_told_with_what_was_considered(said):
    won = entry(1024, BLOCK_M=1, num_warps=1)
    text = said("--gpu", "h200", *CASE, "m=4096,n=1040", entries=[won], timed=timed(100.0, 99.9))
    assert "the default: of nothing that was tuned is it sure enough" in text
    assert "considered: one_pass BLOCK_M=1 num_warps=1: 0.9" in text and ") of the default's time, told by" in text


def test_what_another_gpu_of_the_board_timed_is_named(said):
    """The H100's own file is not there: it learns from the H200's."""
    known = timed(1000.0, 800.0) | {"board": "cuda 90, 132 sms"}
    known["configs"][1]["certified"] = ["bf16"]
    text = said("--gpu", "h100", *CASE, "m=4096,n=1024", timed=known)
    assert "runs\n  one_pass BLOCK_M=1 num_warps=1\n" in text and "told by m=4096 n=1024 bf16 on h200" in text


def test_timings_of_another_form_are_told(said):
    text = said(
        "--gpu", "h200", *CASE, "m=4096,n=1040", entries=[entry(1024, BLOCK_M=1, num_warps=1)], timed={"cases": 5}
    )
    assert "not used: h200.json, timings of softmax: key 'passes.forward.configs': None is no list" in text


def test_a_default_says_why_nothing_tuned_is_taken(said):
    assert "there is no kernels/tuned/h100.json" in said("--gpu", "h100", *CASE, "m=4096,n=1024")
    assert "h200.json has nothing of softmax" in said("--gpu", "h200", *CASE, "m=4096,n=1024")
    text = said("--gpu", "h200", *CASE, "m=4096,n=1024", entries=[entry(1024, OLD=1)])
    assert "the default: nothing else in" in text and "passed over: one_pass OLD=1: the entry is older" in text


def test_what_is_not_a_case_is_refused_with_what_would_be(said):
    assert "has no size 'n'" in said("--gpu", "h200", *CASE, "m=4096", status=2)
    assert "did you mean" in said("--gpu", "h20", *CASE, "m=4096,n=8", status=2)
    assert "softmax has fp32" in said("--gpu", "h200", "--dtype", "bf8", "--case", "m=8,n=8", status=2)


def test_what_is_said_twice_is_refused_rather_than_the_last_taken(said):
    """Asked of bf16 and, further on, of fp32, it answered of fp32."""
    case = "m=4096,n=1024"
    text = said("--gpu", "h200", "--dtype", "bf16", "--case", case, "--dtype", "fp32", status=2)
    assert "--dtype is given twice" in text
    assert "--dtype is given twice" in said("--gpu", "h200", "--dtype=bf16", "--case", case, "--dtype=fp32", status=2)
    assert "size 'n' is given twice" in said("--gpu", "h200", *CASE, f"{case},n=8", status=2)


@pytest.mark.parametrize("number", ["nan", "inf", "1e999", "9" * 30, "9" * 9000])
def test_a_size_that_is_no_number_is_refused_in_a_line(said, number):
    text = said("--gpu", "h200", *CASE, f"m={number},n=8", status=2)
    assert "atlas choose: --case" in text and text.count("\n") == 1 and len(text) < 300


def test_an_answer_is_of_the_dtype_and_never_of_an_entry_of_another(said):
    other = entry(1024, BLOCK_M=1, num_warps=2) | {"dtype": "fp32"}
    text = said("--gpu", "h200", *CASE, "m=4096,n=1024", entries=[other])
    assert "softmax forward m=4096 n=1024 bf16 on h200 runs" in text and "the default" in text


def test_what_is_wrong_with_the_file_is_told(said):
    text = said("--gpu", "h200", *CASE, "m=4096,n=1024", entries=[entry(1024, BLOCK_M=1, num_warps=2) | {"sizes": 5}])
    assert "nothing of softmax" in text
    assert "not used: h200.json, key 'entries.0.sizes': 5 is not a mapping" in text
