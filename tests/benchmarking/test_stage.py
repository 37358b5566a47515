"""The command as the workflow calls it, on the interpreter."""

import json
import os
import subprocess
import sys

import pytest
from atlas import ROOT, catalog
from atlas.cli import main
from atlas.results import documents

CASES = [{"dtype": "fp32", "sizes": {"n": n}} for n in (1, 7)]


def document(folder, stage, status="ok", **fields):
    """Put an earlier stage's document where the benchmark looks for it."""
    envelope = {
        "stage": stage, "schema_version": documents.VERSIONS[stage], "kernel": "vector_add", "gpu": "cpu",
        "kind": "functional", "status": status, "reason": "" if status == "ok" else "made so", "software": {},
        "kernel_digest": catalog.digest("vector_add"), "device": {}, "seconds": 0.0,
    }  # fmt: skip
    documents.write(folder / "measured" / "cpu" / "vector_add" / f"{stage}.json", envelope | fields)


@pytest.fixture
def results(tmp_path):
    document(tmp_path, "validate", protocol="validation/1", seeds=[0], checks=[])
    config = {"BLOCK": 512, "num_warps": 2}
    best = [{"direction": "forward", **c, "variant": "blocks", "config": config, "median_us": 1.0} for c in CASES]
    document(
        tmp_path, "autotune", protocol="timing/1", strategy="halving", budget_seconds=1, seconds_by_phase={},
        trials_by_status={}, best=best, trials=[],
    )  # fmt: skip
    return tmp_path


def benchmark(results, *program):
    """Run the command, or a program that gets its words, in a process of its own: the interpreter is chosen once."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}"}
    program = [sys.executable, *(program or ("-m", "atlas"))]
    words = [*program, "benchmark", "vector_add", "--gpu", "cpu", "--results", str(results)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    path = results / "measured" / "cpu" / "vector_add" / "benchmark.json"
    return done, json.loads(path.read_text()) if path.exists() else None


def test_a_functional_benchmark_runs_every_provider_and_compiles_nothing(results):
    done, found = benchmark(results)
    assert done.returncode == 0, done.stderr
    assert (found["status"], found["kind"]) == ("ok", "functional")
    rows = [row for row in found["rows"] if row["dtype"] == "fp32" and row["sizes"] == {"n": 7}]
    status = {(row["provider_kind"], row["provider"]): row["status"] for row in rows}
    assert status[("variant", "blocks")] == status[("default", "blocks")] == status[("peer", "torch")] == "ok"
    assert status[("peer", "torch.compile")] == "unsupported"
    assert next(row for row in rows if row["provider_kind"] == "variant")["config"] == {"BLOCK": 512, "num_warps": 2}
    assert all(row.get("roof") is None for row in rows)
    phases = found["seconds_by_phase"]
    assert {"compile", "inputs", "variants", "peers", "check", "time", "free"} <= set(phases)
    assert 0 < sum(phases.values()) <= found["seconds"], "no second counts twice"


CUT_OFF = """
import os, sys
from atlas.benchmarking.measurement import Benchmark
from atlas.cli import main
rows, done = Benchmark.rows, []
def timed(self, *case):
    if len(done) == 3:
        os._exit(9)
    done.append(case)
    return rows(self, *case)
Benchmark.rows = timed
main(sys.argv[1:])
"""


def test_a_run_that_is_cut_off_keeps_its_cases_and_the_next_one_times_the_others(results):
    _, whole = benchmark(results)
    folder = results / "measured" / "cpu" / "vector_add"
    (folder / "benchmark.json").unlink()
    killed, found = benchmark(results, "-c", CUT_OFF)
    assert killed.returncode == 9 and found is None
    _, found = benchmark(results)
    assert found["resumed"] == 3 and "resumed" not in whole
    assert [(row["provider"], row["dtype"], row["sizes"]) for row in found["rows"]] == [
        (row["provider"], row["dtype"], row["sizes"]) for row in whole["rows"]
    ]
    assert not (folder / "benchmark.jsonl").exists(), "the document has them all"


def test_a_kernel_that_is_wrong_is_not_benchmarked(results):
    document(results, "validate", "wrong", protocol="validation/1", seeds=[0], checks=[])
    done, found = benchmark(results)
    assert done.returncode == 0
    assert found["status"] == "skipped"
    assert "validate ended wrong" in found["reason"]
    assert found["rows"] == []


def test_the_interpreter_cannot_be_surveyed(tmp_path, capsys):
    assert main(["survey", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert "no roofs" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_not_here_is_the_user_s_mistake_and_leaves_no_document(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for words in (["survey"], ["benchmark", "vector_add"]):
        assert main([*words, "--gpu", "h200", "--results", str(tmp_path)]) == 2
        assert "not here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
