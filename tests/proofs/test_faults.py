"""The proof of faults: its comparisons tell what they should, and some scenarios hold for real, on the interpreter."""

import argparse
import json
import random

import pytest
from atlas.compilation.compiled import compile_with_requests
from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.reading.config import GPUS_FILE, load_gpus

from proofs.faults import kernel, laboratory, scenarios
from proofs.faults import proof as faults
from proofs.faults.laboratory import Laboratory, Run
from proofs.faults.scenarios import Result, Trials

LINES = [
    {"key": str(number), "direction": "forward", "dtype": "fp32", "sizes": {"n": 64}, "variant": "sound",
     "config": {"passes": passes}, "method": method, "status": "ok", "reason": ""}
    for number, (passes, method) in enumerate(
        [(4, "screen 1"), (10, "screen 1"), (4, "check v"), (10, "check v"), (4, "final against"),
         (10, "final against"), (4, "certify v")]
    )
]  # fmt: skip


def completed(folder, lines=LINES, statuses=("ok", "ok")):
    """A run that ended well, with this journal."""
    folder.mkdir(parents=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "journal.jsonl").write_text(text)
    rows = [line | {"status": status} for line, status in zip(LINES, statuses, strict=False)]
    return Run(folder, fields={"trials": rows, "best": [LINES[0] | {"median_us": 10.0}]})


def test_a_run_that_measured_the_same_is_the_same_whichever_config_was_certified(tmp_path):
    whole = completed(tmp_path / "whole")
    other = completed(tmp_path / "other", [*reversed(LINES[:-1]), LINES[-1] | {"config": {"passes": 10}}])
    assert laboratory.difference(other, whole) == ""


def test_what_is_missing_or_ended_otherwise_is_a_difference(tmp_path):
    whole = completed(tmp_path / "whole")
    assert "1 measurements are missing" in laboratory.difference(completed(tmp_path / "a", LINES[1:]), whole)
    assert "1 trials ended otherwise" in laboratory.difference(
        completed(tmp_path / "b", statuses=("ok", "crashed")), whole
    )
    assert "ended with 1: oops" in laboratory.difference(Run(tmp_path, 1, "oops"), whole)


def test_a_second_measurement_is_told_unless_the_first_did_not_count_or_belongs_to_others():
    screen, joint = LINES[0], LINES[4]
    assert len(laboratory.again([screen, joint, screen])) == 1
    assert laboratory.again([joint, screen, joint]) == []
    killed = screen | {"status": "crashed", "reason": "the process ended by SIGKILL"}
    crashed = screen | {"status": "crashed", "reason": "the process ended by SIGSEGV"}
    assert laboratory.again([killed, screen]) == []
    assert len(laboratory.again([crashed, screen])) == 1


@pytest.mark.parametrize("seed", range(20))
def test_damage_costs_one_line_wherever_it_falls(tmp_path, seed):
    whole = (completed(tmp_path / "whole").folder / "journal.jsonl").read_bytes()
    for name, damage in (("cut", scenarios._cut_off), ("garbled", scenarios._garbled)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(damage(whole, random.Random(seed)))
        assert damage(whole, random.Random(seed)) != whole
        kept = [entry["key"] for entry in laboratory.finished(folder)]
        assert len(set(kept) & {line["key"] for line in LINES}) >= len(LINES) - 1


def test_a_claim_breaks_where_a_trial_was_lost_or_measured_twice():
    held = [Result("config-stray", "", lost=0), Result("run-killed", "", resumed=True)]
    assert all(claim.holds for claim in faults._claims(held))
    broken = [Result("config-stray", "", lost=1), Result("run-killed", "", resumed=True, again=1, holds=False)]
    assert [claim.text for claim in faults._claims(broken) if not claim.holds] == [
        "scenarios that did not end as expected",
        "trials that a bad config costs besides its own",
        "finished measurements that were taken again",
    ]


def test_an_unknown_scenario_is_named_with_the_nearest_there_is():
    with pytest.raises(AtlasError, match="unknown scenario 'run-kiled'; did you mean 'run-killed'"):
        faults._chosen("run-kiled", ["worker-killed", "run-killed"])


def test_every_scenario_has_arguments_and_a_name():
    parser = argparse.ArgumentParser()
    faults.add_arguments(parser)
    assert parser.parse_args([]).trial_timeout_seconds == 3
    names = list(Trials(None, functional=False).scenarios())
    assert {f"config-{fault}" for fault in kernel.FAULTS} <= set(names)
    assert "config-shared" not in Trials(None, functional=True).scenarios()


def test_the_faults_compile_for_a_gpu_and_are_there_in_what_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    gpu = gpus.gpu("h200", load_gpus(GPUS_FILE)["h200"])
    declaration = kernel.declare(kernel.FAULTS)
    found = {}
    for variant in declaration.forward.variants:
        (case,) = declaration.cases(gpu)
        config = variant.default(case, gpu)
        compiled, requests = compile_with_requests(declaration, "forward", variant.name, case, config, gpu)
        found[variant.name] = compiled.status
        if variant.name == "endless":
            assert "ld.volatile" in requests[0].kernel.asm["ptx"], "or the compiler may end the loop"
    assert found == dict.fromkeys(("sound", "endless", "stray", "memory", "killed"), "ok") | {"shared": "pruned"}


@pytest.mark.slow
def test_two_runs_at_once_are_told_apart_on_the_interpreter(tmp_path):
    # The real thing from end to end: processes that are watched, stopped, compared with an undisturbed run.
    result = Trials(Laboratory("cpu", GPUS_FILE, tmp_path, timeout_seconds=120.0), functional=True).run("two-runs")
    assert result.holds, result.found
    assert (result.vanished, result.again, result.left, result.lost) == (0, 0, 0, 0)
