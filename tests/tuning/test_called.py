"""A kernel that calls another is timed with the configs that this run tuned for that, and its documents say so."""

import argparse
import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import called_worker
import pytest
from atlas import catalog
from atlas.declaration import choice
from atlas.identity.needs import needed
from atlas.profiling import ncu
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import collection, documents
from atlas.stages import autotune, benchmark, called, energy, frame, profile
from atlas.tuning import summary
from atlas.tuning.export import text, tuned
from atlas.workers.process import Process

SIZES = {"m": 2048, "n": 2048, "k": 2048}
CONFIG = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 5}
CERTIFICATE = {"protocol": "validation/3", "cases": 9, "checks": 60, "seeds": 5}
LEASES = {"h200": SimpleNamespace(device_name="NVIDIA H200"), "a100": SimpleNamespace(device_name="NVIDIA A100-SXM4")}


def job(results, stage="benchmark", kernel="matmul_epilogue", gpu="h200"):
    arguments = argparse.Namespace(
        kernel=kernel, gpu=gpu, gpus_file=GPUS_FILE, results=results, jobs=1, cases=1, min_seconds=0.1, max_samples=9,
        strategy="halving", budget_seconds=None, trial_timeout_seconds=20, certify_seeds=5,
    )  # fmt: skip
    return frame.Job(stage, kernel, gpu, load_gpus(GPUS_FILE)[gpu], results, arguments)


def put(results, gpu="h200", certificate=CERTIFICATE, **changes):
    """matmul's autotune document."""
    best = {"direction": "forward", "dtype": "bf16", "sizes": SIZES, "variant": "tiled", "median_us": 5.0,
            "config": CONFIG, "certificate": certificate}  # fmt: skip
    document = {
        "stage": "autotune", "schema_version": documents.VERSIONS["autotune"], "kernel": "matmul", "gpu": gpu,
        "kind": "measured", "status": "ok", "reason": "", "kernel_digest": catalog.digest("matmul"), "device": {},
        "software": {"torch": "2.11.0"}, "seconds": 1.0, "protocol": "timing/2 tuning/1", "strategy": "halving",
        "budget_seconds": None, "seconds_by_phase": {}, "trials_by_status": {}, "best": [best], "trials": [],
        "identities": needed("autotune", catalog.identities("matmul")),
    } | changes  # fmt: skip
    documents.write(results / "measured" / gpu / "matmul" / "autotune.json", document)
    return document


def test_a_worker_runs_the_configs_that_this_run_tuned(tmp_path):
    put(tmp_path)
    with called.settled(job(tmp_path), LEASES["h200"]), Process(called_worker.serve, SIZES) as worker:
        worker.start()
        assert worker.receive(400) == ("tiled", CONFIG)
        path = Path(os.environ[called.VARIABLE])
    assert called.VARIABLE not in os.environ and not path.exists()


def test_the_variable_is_the_one_that_a_choice_reads():
    assert called.VARIABLE == choice.VARIABLE


def test_a_variable_of_the_user_s_is_there_again_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv(called.VARIABLE, "own.json")
    with called.settled(job(tmp_path), LEASES["h200"]):
        assert handed()["entries"] == []
    assert os.environ[called.VARIABLE] == "own.json"


def handed():
    return json.loads(Path(os.environ[called.VARIABLE]).read_text())


def used(results, gpu="h200"):
    with called.settled(job(results, gpu=gpu), LEASES[gpu]) as field:
        return field["calls"]["matmul"]


def test_equal_configs_have_one_digest_whether_they_were_exported_or_not(tmp_path, monkeypatch):
    document = put(tmp_path)
    here = used(tmp_path)
    assert here["configs"] == "autotune of this run" and len(here["sha256"]) == 64
    monkeypatch.setattr(choice, "TUNED", tmp_path / "tuned")
    choice.TUNED.mkdir()
    (choice.TUNED / "h200.json").write_text(text(tuned("h200", "NVIDIA H200$", [document])))
    assert used(tmp_path / "elsewhere") == {"configs": "kernels/tuned/h200.json", "sha256": here["sha256"]}
    put(tmp_path, software={"torch": "2.12.0"})
    assert used(tmp_path)["sha256"] == here["sha256"]
    put(tmp_path, certificate=CERTIFICATE | {"seeds": 6})
    assert used(tmp_path)["sha256"] != here["sha256"]


@pytest.mark.parametrize(
    "changes",
    [
        {"identities": {"*": "another"}},
        {"status": "failed", "reason": "no config works"},
        {"certificate": None},
    ],
    ids=["of another file", "failed", "not certified"],
)
def test_a_document_that_is_not_ok_or_of_another_file_gives_way_to_what_was_exported(tmp_path, changes):
    put(tmp_path, **changes)
    assert used(tmp_path)["configs"] == "kernels/tuned/h200.json"


def test_without_either_the_defaults_run(tmp_path):
    assert used(tmp_path, "a100") == {"configs": "defaults"}
    put(tmp_path, "a100")
    assert used(tmp_path, "a100")["configs"] == "autotune of this run"


def test_the_interpreter_runs_the_defaults(tmp_path):
    with called.settled(job(tmp_path, gpu="cpu"), None) as field:
        assert field == {"calls": {"matmul": {"configs": "defaults"}}}


def test_a_kernel_that_calls_none_is_handed_nothing(tmp_path):
    put(tmp_path)
    with called.settled(job(tmp_path, kernel="softmax"), LEASES["h200"]) as field:
        assert field == {} and called.VARIABLE not in os.environ


def test_a_broken_document_is_named(tmp_path):
    put(tmp_path)
    (tmp_path / "measured" / "h200" / "matmul" / "autotune.json").write_text("{")
    with pytest.raises(documents.DocumentError, match="matmul/autotune.json: cut off"):
        used(tmp_path)


ENDS = {
    "autotune": (autotune, "_autotune", summary.EMPTY),
    "benchmark": (benchmark, "_body", {"protocol": "timing/2", "rows": []}),
    "profile": (profile, "_body", {"rows": []}),
    "energy": (energy, "_body", {"protocol": "energy/1", "rows": []}),
}  # fmt: skip


@pytest.mark.parametrize("fails", [False, True], ids=["ok", "failed"])
@pytest.mark.parametrize("stage", ENDS)
def test_each_stage_that_times_hands_them_on_and_says_so(tmp_path, monkeypatch, stage, fails):
    module, name, fields = ENDS[stage]
    seen = []

    def body(*_):
        seen.append(handed())
        if fails:
            raise RuntimeError("the device is gone")
        return fields

    put(tmp_path)
    monkeypatch.setattr(frame, "leased", lambda job: contextlib.nullcontext(LEASES["h200"]))
    monkeypatch.setattr(module, name, body)
    monkeypatch.setattr(ncu, "find", lambda: "ncu")
    made = job(tmp_path, stage)
    module.run(made.arguments)
    document = documents.read(made.output, stage)
    assert document["status"] == ("failed" if fails else "ok")
    (entry,) = seen[0]["entries"]
    assert (entry["kernel"], entry["config"], seen[0]["match"]) == ("matmul", CONFIG, made.block["match"])
    digest = document["calls"]["matmul"]["sha256"]
    assert collection.calls(document) == {"matmul": f"autotune of this run ({digest[:12]})"}


def test_digests_tell_configs_apart_and_say_nothing_where_none_is_called():
    assert called.digests({}) == {}
    field = {"calls": {"a": {"configs": "defaults"}, "b": {"configs": "autotune of this run", "sha256": "12"}}}
    assert called.digests(field) == {"a": None, "b": "12"}
