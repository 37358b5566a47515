"""Documents are found where the stages and the records put them, and broken ones are named."""

import json

import pytest
import synthetic
from atlas.declaration import Case
from atlas.identity.needs import needed
from atlas.results import beyond, collection, documents
from atlas.results.collection import collect, proofs
from atlas.results.documents import DocumentError


def test_a_measured_document_wins_over_a_recorded_one_stage_by_stage(kernels, tmp_path):
    softmax = kernels[0]
    for document in (synthetic.benchmark(softmax, "h200"), synthetic.validate(softmax, "h200")):
        synthetic.write(tmp_path, "recorded", document)
    synthetic.write(tmp_path, "measured", synthetic.validate(softmax, "h200"))
    kinds = {entry.stage: entry.kind for entry in collect(tmp_path)}
    assert kinds == {"validate": "measured", "benchmark": "recorded"}


def test_a_build_stays_compiled_and_the_interpreter_functional_wherever_they_lie(kernels, tmp_path):
    synthetic.write(tmp_path, "recorded", synthetic.build(kernels[0], "h200"))
    synthetic.write(tmp_path, "recorded", synthetic.validate(kernels[0], "cpu"))
    assert {entry.kind for entry in collect(tmp_path)} == {"compiled", "functional"}


def test_a_document_is_stale_once_the_kernels_file_changes_or_is_gone(kernels, tmp_path):
    synthetic.write_everything(tmp_path / "results", kernels, measured=["h200"], functional=False)
    assert not any(entry.stale for entry in collect(tmp_path / "results"))
    (tmp_path / "kernels" / "softmax.py").write_text("changed = True\n")
    (tmp_path / "kernels" / "matmul.py").unlink()
    stale = {(entry.kernel, entry.stale) for entry in collect(tmp_path / "results")}
    assert stale == {("softmax", True), ("matmul", True), (None, False)}, "a survey is of no kernel"


def test_of_a_variant_that_changed_its_own_rows_are_stale_alone(kernels, tmp_path, monkeypatch):
    stated = {"forward.blocks": "b", "forward.rows": "r", "inputs": "i", "peers": "p", "public": "f", "references": "v"}
    monkeypatch.setattr(collection, "_today", lambda name: now)
    rows = {
        "blocks": {"direction": "forward", "provider": "blocks", "provider_kind": "variant"},
        "its default": {"direction": "forward", "provider": "blocks", "provider_kind": "default"},
        "rows": {"direction": "forward", "provider": "rows", "provider_kind": "variant"},
        "torch": {"direction": "forward", "provider": "torch", "provider_kind": "peer"},
        "public": {"direction": "forward", "variant": ""},
    }

    def stale(stage, **changed):
        nonlocal now
        now = stated | {name.replace("_", "."): one for name, one in changed.items()}
        document = {"benchmark": synthetic.benchmark, "validate": synthetic.validate}[stage](kernels[0], "h200")
        synthetic.write(tmp_path, "recorded", document | {"identities": needed(stage, stated)})
        (entry,) = (entry for entry in collect(tmp_path) if entry.stage == stage)
        return entry.stale, {name for name, row in rows.items() if entry.stale_row(row)}

    now = stated
    assert stale("benchmark") == (False, set())
    assert stale("benchmark", forward_blocks="other") == (True, {"blocks", "its default"})
    assert stale("benchmark", peers="other") == (True, {"torch"})
    assert stale("benchmark", inputs="other") == (True, set(rows))
    assert stale("benchmark", public="other") == (False, set())
    assert stale("validate", public="other") == (False, {"public"}), "its figures stand"
    assert stale("validate", references="other")[1] == set(rows)


def test_names_select_and_other_files_are_left_alone(kernels, tmp_path):
    synthetic.write_everything(tmp_path, kernels, measured=["h200", "a100"])
    (tmp_path / "measured/h200/softmax/trials.jsonl").write_text("{}\n")
    (tmp_path / "measured/h200/softmax/listing.json").write_text("not a document")
    chosen = collect(tmp_path, kernels=["softmax"], gpus=["h200"])
    assert {(entry.gpu, entry.kernel) for entry in chosen} == {("h200", None), ("h200", "softmax")}
    stages = ["survey", "build", "validate", "autotune", "benchmark", "beyond", "profile", "energy"]
    assert [entry.stage for entry in chosen] == stages


def test_a_document_cut_off_is_named(kernels, tmp_path):
    path = synthetic.write(tmp_path, "recorded", synthetic.benchmark(kernels[0], "h200"))
    path.write_text(path.read_text()[:500])
    with pytest.raises(DocumentError, match=r"recorded/h200/softmax/benchmark\.json: cut off"):
        collect(tmp_path)


def test_a_document_in_another_gpus_folder_is_named(kernels, tmp_path):
    path = synthetic.write(tmp_path, "measured", synthetic.validate(kernels[0], "h200"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpu": "a100"}))
    with pytest.raises(DocumentError, match="key 'gpu' is 'a100', but the folder says 'h200'"):
        collect(tmp_path)


def test_a_measured_proof_wins_over_a_recorded_one_and_is_no_kernels_document(tmp_path):
    for folder, name in (("recorded", "repeatability"), ("recorded", "mutants"), ("measured", "mutants")):
        documents.write(tmp_path / folder / "h200" / "proof" / f"{name}.json", synthetic.proof("h200", name))
    assert [(entry.document["proof"], entry.kind) for entry in proofs(tmp_path)] == [
        ("mutants", "measured"),
        ("repeatability", "recorded"),
    ]
    assert collect(tmp_path) == [] and proofs(tmp_path, gpus=["t4"]) == []


def test_what_a_tuner_sampled_is_told_from_measured_and_recorded_documents(kernels, tmp_path):
    """So that the stage beyond and the proof of unseen calls leave out the same cases."""
    tuned = synthetic.autotune(kernels[0], "h200")
    sample = tuned | {"stage": "sample", "seed": 0, "cases": len(tuned["best"])}
    assert beyond.sampled(tmp_path, kernels[0].name, "h200") == []
    path = tmp_path / "recorded" / "h200" / kernels[0].name / "sample.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(sample))
    expected = {Case.from_json(trial) for trial in tuned["trials"]}
    assert expected and set(beyond.sampled(tmp_path, kernels[0].name, "h200")) == expected
    assert beyond.sampled(tmp_path, kernels[0].name, "h100") == []
