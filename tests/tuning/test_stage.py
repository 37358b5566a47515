"""``python -m atlas autotune`` as it is called: on the interpreter, and what compiles ahead for a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from atlas import ROOT, catalog
from atlas.cli import main
from atlas.results import documents
from atlas.tuning.journal import Journal

AHEAD, CACHED = (Path(__file__).with_name(f"{name}_script.py") for name in ("ahead", "cached"))


def python(*words, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}"} | variables
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def validated(results, status="ok"):
    """Puts a validate document there, as the stage before would have."""
    document = {
        "stage": "validate", "schema_version": documents.VERSIONS["validate"], "kernel": "vector_add", "gpu": "cpu",
        "kind": "functional", "status": status, "reason": "" if status == "ok" else "out[0] is 0, expected 1",
        "kernel_digest": catalog.digest("vector_add"), "software": {}, "device": {}, "seconds": 1.0,
        "protocol": "validation/1", "seeds": [0], "checks": [],
    }  # fmt: skip
    documents.write(results / "measured" / "cpu" / "vector_add" / "validate.json", document)


def words(results, *more):
    return ["autotune", "vector_add", "--gpu", "cpu", "--results", str(results), *more]


def written(results):
    return results / "measured" / "cpu" / "vector_add" / "autotune.json"


def test_the_interpreter_runs_a_few_configs_of_every_case_and_says_so(tmp_path):
    validated(tmp_path)
    done = python("-m", "atlas", *words(tmp_path))
    assert done.returncode == 0, done.stderr
    document = documents.read(written(tmp_path), "autotune")
    assert document["kind"] == "functional" and document["status"] == "ok"
    assert document["trials_by_status"] == {"ok": len(document["trials"])}  # its times stop nobody
    assert {row["dtype"] for row in document["best"]} == {"fp32", "fp16", "bf16"}
    assert all(row["trials"] == 3 < row["space"] for row in document["best"])
    assert all(row["regret"] is None for row in document["best"])
    assert "the interpreter runs the default and 2 configs" in document["method"]
    assert all(row["certificate"] is None for row in document["best"])  # what the interpreter ran is not exported
    phases = document["seconds_by_phase"]
    assert sum(phases.values()) == pytest.approx(document["wall_seconds"], abs=0.05)
    assert document["trial_seconds"] == pytest.approx(phases["prepare"] + phases["time"] + phases["check"], abs=0.01)
    assert document["wall_seconds"] > document["seconds"] - 0.5, "the process's own start counts"
    assert document["devices"] == {"count": 1, "names": ["cpu"], "notes": []}
    done = python("-m", "atlas", "sample", *words(tmp_path)[1:], "--cases", "2", "--seed", "11")
    assert done.returncode == 0, done.stderr
    sample = documents.read(written(tmp_path).with_name("sample.json"), "sample")
    assert (sample["status"], sample["seed"], sample["strategy"]) == ("ok", 11, "sample")
    assert "Gaussian" in sample["method"]
    sizes = {str(row["sizes"]) for row in sample["best"]}
    assert len(sizes) == 2 and not sizes & {str(row["sizes"]) for row in document["best"]}, "drawn, and not tuned"


def test_a_kernel_that_did_not_validate_is_not_tuned(tmp_path):
    validated(tmp_path, status="wrong")
    assert main(words(tmp_path)) == 0
    document = documents.read(written(tmp_path), "autotune")
    assert document["status"] == "skipped"
    assert "validate ended wrong: out[0] is 0, expected 1" in document["reason"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--strategy", "exhaustiv"), "--strategy: unknown strategy 'exhaustiv'; did you mean 'exhaustive'?"),
        (("--budget-seconds", "0"), "--budget-seconds is 0; give more than 0"),
        (("--certify-seeds", "-1"), "--certify-seeds is -1; give 0 or more"),
    ],
    ids=["strategy", "budget", "seeds"],
)
def test_a_wrong_option_is_refused_in_one_sentence(tmp_path, capsys, option, said):
    assert main(words(tmp_path, *option)) == 2
    assert capsys.readouterr().err == f"atlas autotune: command line: {said}\n"
    assert not written(tmp_path).exists()


def test_configs_are_compiled_ahead_once_for_all_cases_that_share_them(tmp_path):
    done = python(AHEAD, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Two cases of three configs; their sizes are both divisible by 16, so Triton makes the same of them.
    assert found["tasks"] == 3
    assert found["statuses"] == ["ok", "ok", "failed"] * 2
    assert "power of 2" in found["reason"]
    assert found["waited"] and found["ready"]
    assert found["unknown"] is None  # what was not asked for is the worker's to compile
    assert found["prepared"] and found["cases"] == 4, "a winner's edge cases, once for the two problems of its dtype"


def test_what_the_build_has_compiled_is_ready_and_starts_no_compiler(tmp_path):
    done = python(CACHED, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Two configs of two cases that share their binaries, built one after the other.
    assert found["tasks"] == [2, 1, 0] and found["cached"] == [0, 1, 2]
    assert found["ready"] == [True, False, True]
    assert found["result"] is None  # it is launched, and that says the rest
    assert found["children"] == 0


def test_the_worker_is_started_before_its_parent_imports_torch():
    code = "import sys, atlas.stages.autotune, atlas.tuning.session; sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_a_second_run_on_one_results_folder_is_refused_and_touches_nothing(tmp_path):
    validated(tmp_path)
    folder = written(tmp_path).parent
    with Journal(folder / "journal.jsonl", {"of": "another run"}, 20.0):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        done = python("-m", "atlas", *words(tmp_path))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert "journal.jsonl: another autotune run is writing this journal; wait for it to end" in said
