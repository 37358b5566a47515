"""What misbehaving configs cost: themselves, and nothing else.  Real processes; the kernel and the clock are fakes."""

import dataclasses
import functools
import os
import signal

import pytest
import torch
import tuning_fakes as fakes
from atlas.compilation.compiled import Compiled
from atlas.declaration import case
from atlas.errors import AtlasError
from atlas.tuning import tuner
from atlas.tuning.candidates import Candidate
from atlas.tuning.journal import Journal
from atlas.tuning.outcome import Outcome
from atlas.tuning.session import Session
from atlas.tuning.strategies import STRATEGIES
from atlas.tuning.worker import Bench, Certify, Prepare, Setting, _certified
from atlas.validation import Certificate

OK = Outcome("ok", "", 10.0, 9.0, 11.0, 5)


def tune(folder, timeout=120.0, budget=None, strategy="halving", setting=None, **declared):
    options = tuner.Options(STRATEGIES[strategy], budget, timeout, jobs=0)
    with Journal(folder / "journal.jsonl", {"protocol": "test"}, timeout) as journal:
        setting = setting or fakes.setting(**declared)
        return tuner.tune(fakes.problems(**declared), fakes.DEVICE, setting, journal, options, "test")


def rows(document):
    return {(row["config"]["tile"], row["config"]["warps"]): row for row in document["trials"]}


def test_faults_cost_their_own_trials_and_the_search_still_finds_the_optimum(tmp_path):
    faults = (
        ((32, 1), "exits"),
        ((128, 1), "raises"),
        ((128, 2), "needs too much memory"),
        ((128, 4), "is wrong"),
    )
    document = tune(tmp_path, faults=faults)
    tried = rows(document)
    assert {key: tried[key]["status"] for key, _ in faults} == {
        (32, 1): "crashed",
        (128, 1): "launch_error",
        (128, 2): "out_of_memory",
        (128, 4): "wrong",
    }
    assert "exit status 3" in tried[32, 1]["reason"]
    assert "invalid argument" in tried[128, 1]["reason"]
    assert "expected" in tried[128, 4]["reason"]
    (best,) = document["best"]
    assert best["config"] == fakes.OPTIMUM
    assert best["default_us"] > best["runner_up"]["median_us"] > best["median_us"]
    assert document.get("status", "ok") == "ok"


def test_a_hang_costs_one_time_out(tmp_path, monkeypatch):
    hangs, waited = Candidate.of("plain", {"tile": 32, "warps": 1}), []

    def exchange(self, request, seconds, exchange=Session._exchange):
        if getattr(request, "candidate", None) == hangs:  # the others are given all the time that a busy host takes
            seconds = 1.0
            waited.append(seconds)
        return exchange(self, request, seconds)

    monkeypatch.setattr(Session, "_exchange", exchange)
    document = tune(tmp_path, timeout=120.0, faults=(((32, 1), "hangs"),), tiles=(16, 32, 64))
    assert sum(document["seconds_by_phase"].values()) == pytest.approx(document["wall_seconds"], abs=0.05)
    assert rows(document)[32, 1]["status"] == "timeout"
    assert document["trials_by_status"]["timeout"] == 1
    assert waited == [1.0] and document["seconds_by_phase"]["lost"] >= 1.0
    assert document["best"][0]["config"] == fakes.OPTIMUM


def test_results_left_in_memory_by_another_config_do_not_pass_for_a_configs_own():
    # A launcher that allocates its output and writes nothing; the allocator may well give it the right bytes.
    from atlas.tuning.checking import Checker

    problem = fakes.problems()[0]
    inputs = {"x": torch.rand(1000) + 1}
    checker = Checker(fakes.declare(), "forward", problem.case, torch.device("cpu"), inputs)
    assert checker.wrong(lambda: inputs["x"] * 2) == ""
    assert "NaN" in checker.wrong(lambda: torch.empty_like(inputs["x"]))


def no_device():
    raise AtlasError("GPU 'h200' is not here")


def test_a_device_that_is_not_here_is_the_users_mistake(tmp_path):
    setting = Setting(load=fakes.declare, device=no_device, clock=fakes.SurfaceClock)
    with pytest.raises(AtlasError, match="is not here"):
        tune(tmp_path, setting=setting)


def broken_load():
    raise ValueError("no such layout")


def test_a_worker_that_cannot_start_quotes_the_reason(tmp_path):
    setting = Setting(load=broken_load, device=fakes.cpu, clock=fakes.SurfaceClock)
    with pytest.raises(RuntimeError, match="no such layout"):
        tune(tmp_path, setting=setting)


class Compiler:
    """Compiles what is waited for, and finds it unfit."""

    def __init__(self, status):
        self.status = status
        self.done = False

    def ready(self, problem, candidate):
        return self.done

    def wait_for_look_up(self, problem):
        return 0.0

    def wait_for_any(self, problem, candidates):
        self.done = True
        return 0.5

    def result(self, problem, candidate):
        return Compiled(self.status, "spills 200 bytes a thread")


def test_what_the_compiler_found_unfit_is_not_launched_unless_an_untuned_call_would(tmp_path, monkeypatch):
    launched = []
    monkeypatch.setattr(Session, "_ask", lambda self, problem, request, seconds: launched.append(request) or (OK,))
    (problem,) = fakes.problems()
    default, other, *_ = problem.candidates
    with Journal(tmp_path / "journal.jsonl", {}, 30) as journal, Session(fakes.setting(), journal, 30) as session:
        for status, candidate, expected in (
            ("pruned", other, "out_of_resources"),
            ("pruned", default, "ok"),
            ("failed", default, "compile_error"),
        ):
            session.ahead = Compiler(status)
            outcome = session.screen(problem, candidate, 5 + len(expected), None)
            assert outcome.status == expected
            assert outcome.reason == ("" if expected == "ok" else "spills 200 bytes a thread")
    assert [request.candidate for request in launched] == [default]
    assert session.seconds["compile"] == 3 * 0.5


def test_a_worker_killed_from_outside_is_replaced_and_costs_no_trial(tmp_path):
    with (
        Journal(tmp_path / "journal.jsonl", {}, 30) as journal,
        Session(fakes.setting(), journal, 30) as session,
    ):
        (problem,) = fakes.problems()
        first, second, *_ = problem.candidates
        session.screen(problem, first, 5, None)
        os.kill(session.worker_pid, signal.SIGKILL)
        outcomes = [
            session.screen(problem, second, 5, None),
            session.screen(problem, Candidate.of("plain", fakes.OPTIMUM), 5, None),
        ]
        assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
        assert session.seconds["restart"] > 0


def bench(**declared):
    """The worker's inside, in this process, with the real certification."""
    declaration = fakes.declare(**declared)
    edges = (case("fp32", "a tail", n=7), case("fp32", "whole tiles", n=64), case("bf16", "another dtype", n=64))
    load = functools.partial(dataclasses.replace, declaration, edge_cases=edges)
    return Bench(Setting(load=load, device=fakes.cpu, clock=fakes.SurfaceClock))


def certified(bench, dtype="fp32", **config):
    answer = bench.answer(Certify(Candidate.of("plain", config), "forward", dtype, (0, 1)))
    (outcome,) = answer.outcomes
    assert outcome.seconds.keys() == {"certify"}
    return outcome


def test_a_winner_is_certified_on_every_edge_case_of_its_dtype_and_on_no_other():
    outcome = certified(bench(), tile=64, warps=4)
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert outcome.certificate["cases"] == 2 and outcome.certificate["seeds"] == 2
    assert outcome.certificate["checks"] >= 4


def test_a_config_that_is_wrong_on_an_edge_case_is_not_certified():
    outcome = certified(bench(faults=(((64, 4), "is wrong"),)), tile=64, warps=4)
    assert outcome.status == "wrong" and outcome.reason


def test_a_config_that_no_edge_case_can_vouch_for_is_not_certified_and_not_called_wrong():
    outcome = certified(bench(), dtype="fp16", tile=64, warps=4)
    assert outcome.status == "unsupported" and "fp16" in outcome.reason


def test_a_config_of_which_no_case_ran_for_want_of_shared_memory_says_so():
    found = Certificate("OutOfResources: 300000 bytes", 0, 0, 0, "error")
    assert _certified(found) == "out_of_resources"


def test_the_inputs_of_the_problem_are_dropped_before_a_certification():
    worker = bench()
    worker.answer(Prepare("forward", case("fp32", n=1000)))
    assert worker._inputs
    certified(worker, tile=64, warps=4)
    assert not worker._inputs
