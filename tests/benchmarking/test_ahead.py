"""What workers run before the clock: each provider once; nothing that goes wrong there ends the benchmark."""

import argparse
import json

import pytest
import torch
from atlas import ROOT
from atlas.benchmarking import ahead
from atlas.declaration import Peer
from atlas.reading.config import load_gpus
from atlas.results import documents, files
from atlas.stages import benchmark as stage
from atlas.stages.frame import Job
from atlas.validation import device
from atlas.workers.pool import Pool
from atlas.workers.protocol import Do, Done

from .small_kernel import Stage, trial, tuned


@pytest.fixture
def prepared(tmp_path):
    """Has the case of a kernel with these providers prepared: the last message, and who ran."""

    def prepare(variants, peers, document):
        log = []

        def logged(name, launch):
            def run(x, config=None):
                log.append(name if config is None else f"{name} {config['BLOCK']}")
                return launch(x)

            return run

        small = Stage(
            {},
            variants={name: logged(name, launch) for name, launch in variants.items()},
            peers={name: logged(name, peer) if callable(peer) else peer for name, peer in peers.items()},
        )
        block = load_gpus()["cpu"]
        tasks = ahead.PreparingTasks(ahead.Setting(lambda: small.declaration, "cpu", block, document, tmp_path))
        assert [task.label for task in tasks.opened.tasks] == ["forward n=1000 fp32"]
        (message,) = tasks.do(Do(0, 0.0))
        return message, log

    return prepare


def double(x):
    return 2 * x


def test_torch_keeps_no_winner_that_was_found_beside_other_workers(prepared):
    kept = []

    def looks(x):
        kept.append(torch._inductor.config.autotune_local_cache)
        return 2 * x

    prepared({"good": double}, {"torch.compile": looks}, tuned())
    assert kept == [False] and torch._inductor.config.autotune_local_cache


def refuses(x):
    raise NotImplementedError("rows longer than 65536")


def test_each_provider_runs_once_but_those_that_want_the_device_to_themselves(prepared):
    def searches(**inputs):
        raise AssertionError("it would time its candidates beside other workers")

    document = tuned(trial({"BLOCK": 2}), best={"BLOCK": 2})
    peers = {"other": double, "max-autotune": Peer(searches, searches=True)}
    message, log = prepared({"good": double}, peers, document)
    assert message == Done()
    assert sorted(log) == ["good 1", "good 2", "other"]


def test_the_same_config_runs_once(prepared):
    _, log = prepared({"good": double}, {}, tuned(best={"BLOCK": 1}))
    assert log == ["good 1"]


def test_who_fails_is_passed_over(prepared):
    message, log = prepared({"bad": refuses, "good": double}, {}, tuned())
    assert message == Done()
    assert log == ["bad 1", "good 1"]


def test_a_device_that_is_lost_ends_the_worker_and_the_task(prepared, monkeypatch):
    def gone(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might …")

    monkeypatch.setattr(device, "synchronize", gone)
    message, log = prepared({"bad": refuses, "good": double}, {}, tuned())
    assert message.lost == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert log == ["bad 1"]


def test_workers_take_all_cases_and_are_gone_before_the_clock_starts(tmp_path, monkeypatch):
    found = []

    def recorded(self, tell, work=Pool.work):
        found.extend(work(self, tell))

    monkeypatch.setattr(Pool, "work", recorded)
    arguments = argparse.Namespace(jobs=2)
    job = Job("benchmark", "vector_add", "cpu", load_gpus()["cpu"], tmp_path, arguments)
    job.folder.mkdir(parents=True)
    recorded_h200 = files.found(ROOT / "results" / "recorded" / "h200" / "vector_add", "autotune")
    (job.folder / "autotune.json").write_text(json.dumps(documents.load(recorded_h200)))
    before = torch.multiprocessing.active_children()
    stage._compile_ahead(job, None)
    assert found and all(outcome is not None and not outcome.ended for outcome in found)
    assert torch.multiprocessing.active_children() == before
