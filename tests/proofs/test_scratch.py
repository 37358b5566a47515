"""What proofs share: earlier documents, and stages in processes of their own."""

import pytest
from atlas.errors import AtlasError
from atlas.results import documents
from proof_doubles import document, job, validated

from proofs import scratch
from proofs.measuring import overhead


def test_a_measured_document_wins_over_a_recorded_one_and_lies_where_a_stage_looks(tmp_path):
    results = tmp_path / "results"
    validated(results, "matmul")
    made = job(overhead, results)
    kind, found = scratch.earlier(made, "matmul", "validate")
    assert kind == "measured" and found["seeds"] == [0]
    scratch.put(made, "matmul", ["validate"], tmp_path / "copy")
    assert documents.read(tmp_path / "copy/measured/h200/matmul/validate.json", "validate") == found


def test_without_any_document_the_stage_to_run_is_named(tmp_path):
    with pytest.raises(AtlasError, match="run python -m atlas validate matmul --gpu t4 first"):
        scratch.earlier(job(overhead, tmp_path, gpu="t4"), "matmul", "validate")


def test_a_given_folder_stays_and_another_does_not(tmp_path):
    given = tmp_path / "deep" / "scratch"
    with scratch.folder(job(overhead, tmp_path, "--scratch", given)) as folder:
        assert folder == given.resolve()
    assert given.is_dir()
    with scratch.folder(job(overhead, tmp_path)) as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_a_command_runs_this_checkout_and_its_time_is_of_the_whole_process(tmp_path):
    log = tmp_path / "logs" / "help.txt"
    assert scratch.run("proofs", ["--help"], {}, log) > 0
    assert "tuning-speed" in log.read_text()


def test_a_command_that_fails_is_quoted(tmp_path):
    with pytest.raises(RuntimeError, match="python -m atlas export --nosuch ended with 2: .*unrecognized arguments"):
        scratch.run("atlas", ["export", "--nosuch"], {}, tmp_path / "log.txt")


def test_kernels_are_chosen_by_name(tmp_path):
    assert scratch.kernels_of(job(overhead, tmp_path, "--kernels", "softmax, matmul").arguments) == [
        "softmax",
        "matmul",
    ]
    assert "vector_add" in scratch.kernels_of(job(overhead, tmp_path).arguments)
    with pytest.raises(AtlasError, match="did you mean 'matmul'"):
        scratch.kernels_of(job(overhead, tmp_path, "--kernels", "matmull").arguments)


def test_a_stage_that_did_not_end_well_is_an_error():
    with pytest.raises(RuntimeError, match="autotune of matmul ended failed: as told"):
        scratch.require_ok(document("autotune", "matmul", {}, status="failed"))


def test_cores_are_those_asked_for_and_at_least_one(tmp_path):
    assert scratch.cores_of(job(overhead, tmp_path, "--cores", "3").arguments) == 3
    assert scratch.cores_of(job(overhead, tmp_path).arguments) >= 1
    with pytest.raises(AtlasError, match="--cores is 0; give 1 or more"):
        scratch.cores_of(job(overhead, tmp_path, "--cores", "0").arguments)
