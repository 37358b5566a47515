"""Records: what a GPU measured, copied to be committed."""

import json
import random

import pytest
import sample_documents as sample
from atlas import cli
from atlas.results import collection, documents, records


def record(folder, *options, gpu="h200"):
    return cli.main(["record", "--results", str(folder), "--gpu", gpu, *options])


def recorded(folder):
    return {str(path.relative_to(folder / "recorded")) for path in (folder / "recorded").rglob("*") if path.is_file()}


def test_a_record_is_read_back_as_what_was_measured(tmp_path):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    (measured,) = [e.document for e in collection.collect(tmp_path) if e.stage == "benchmark"]
    assert record(tmp_path) == 0
    assert recorded(tmp_path) == {"h200/survey.json.xz"} | {
        f"h200/softmax/{stage}.json.xz" for stage in ("build", "validate", "autotune", "benchmark")
    }
    for path in (tmp_path / "measured").rglob("*.json"):
        path.unlink()
    entries = {entry.stage: entry for entry in collection.collect(tmp_path)}
    assert {stage: entry.kind for stage, entry in entries.items()} == {
        "survey": "recorded",
        "build": "compiled",
        "validate": "recorded",
        "autotune": "recorded",
        "benchmark": "recorded",
    }
    for before, after in zip(measured["rows"], entries["benchmark"].document["rows"], strict=True):
        assert after["median_us"] == pytest.approx(before["median_us"], rel=1e-6)
        assert after["samples_us"] == pytest.approx(before["samples_us"], rel=1e-3)
        assert after["bytes"] == before["bytes"], "whole numbers are exact"
        assert after["config"] == before["config"]


def test_recording_twice_writes_nothing(tmp_path, capsys):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    record(tmp_path)
    texts = {name: (tmp_path / "recorded" / name).read_bytes() for name in recorded(tmp_path)}
    capsys.readouterr()
    record(tmp_path)
    assert capsys.readouterr().out.count("unchanged") == 5
    assert {name: (tmp_path / "recorded" / name).read_bytes() for name in recorded(tmp_path)} == texts


def test_a_sample_of_a_large_benchmark_takes_less_than_a_byte(tmp_path):
    document, draws = sample.benchmark("softmax", "h200"), random.Random(0)
    document["rows"] = [
        row | {"samples_us": [round(draws.gauss(12, 0.1), 3) for _ in range(200)]} for row in document["rows"] * 18
    ]
    sample.put(tmp_path, document)
    assert record(tmp_path) == 0
    assert (tmp_path / "recorded" / "h200" / "softmax" / "benchmark.json.xz").stat().st_size < 108_000, "540 rows"


def test_a_kernel_that_is_not_ok_is_not_recorded_and_others_are(tmp_path, capsys):
    sample.put_gpu(tmp_path, "h200", ("softmax", "matmul"))
    sample.put(tmp_path, sample.validate("matmul", "h200", status="wrong", reason="row 3: nan"))
    assert record(tmp_path) == 1
    assert "measured/h200/matmul/validate.json: ended wrong: row 3: nan" in capsys.readouterr().out
    assert not any("matmul" in name for name in recorded(tmp_path)), "whole or not at all"
    assert "h200/softmax/benchmark.json.xz" in recorded(tmp_path)
    assert record(tmp_path, "--force") == 0
    assert "h200/matmul/validate.json.xz" in recorded(tmp_path)


def test_documents_of_an_older_kernel_are_not_recorded(tmp_path, capsys):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    sample.put(tmp_path, sample.validate("softmax", "h200", identities={"*": "another"}))
    assert record(tmp_path) == 1
    assert "another version of softmax than today's (its code)" in capsys.readouterr().out
    assert recorded(tmp_path) == {"h200/survey.json.xz"}


def test_a_new_record_drops_what_is_no_longer_measured(tmp_path):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    record(tmp_path)
    (tmp_path / "measured" / "h200" / "softmax" / "autotune.json").unlink()
    record(tmp_path)
    assert "h200/softmax/autotune.json.xz" not in recorded(tmp_path)


def test_what_a_gpu_did_not_run_is_no_record(tmp_path, capsys):
    sample.put_interpreted(tmp_path, ("softmax",))
    sample.put(tmp_path, sample.build("softmax", "t4"))
    for gpu in ("cpu", "t4"):
        assert record(tmp_path, gpu=gpu) == 2
        assert f"measured/{gpu}: no measured documents" in capsys.readouterr().err
    sample.put(tmp_path, sample.survey("t4"))
    assert record(tmp_path, gpu="t4") == 1
    assert "is a build alone" in capsys.readouterr().out
    assert recorded(tmp_path) == {"t4/survey.json.xz"}


def test_an_unknown_gpu_is_named_with_the_nearest(tmp_path, capsys):
    assert record(tmp_path, gpu="h20") == 2
    assert "did you mean 'h200'?" in capsys.readouterr().err


def test_identities_and_date_stand_in_the_first_lines_of_a_record(tmp_path):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    record(tmp_path)
    path = tmp_path / "recorded" / "h200" / "softmax" / "benchmark.json.xz"
    stated = documents.read_envelope(path)
    assert (stated.stage, stated.status, stated.date) == ("benchmark", "ok", "2026-11-21T10:25:00+00:00")
    assert stated.identities == sample.IDENTITIES


def test_rows_stand_on_lines_of_their_own_so_that_a_diff_shows_which_changed():
    document = sample.benchmark("softmax", "h200")
    text = records.text_of(records.slim(document))
    assert json.loads(text).keys() == document.keys()
    assert len(text.splitlines()) == len(document) + len(document["rows"]) + 3


@pytest.mark.parametrize(("status", "recorded_too"), [("skipped", True), ("failed", False)])
def test_counters_that_nobody_may_read_keep_no_kernel_from_its_record(tmp_path, status, recorded_too):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    document = sample.envelope("profile", "softmax", "h200", status=status, reason="ncu is not here") | {"rows": []}
    sample.put(tmp_path, document)
    record(tmp_path)
    assert any(name.startswith("h200/softmax/benchmark.") for name in recorded(tmp_path)) == recorded_too
    assert not any(name.startswith("h200/softmax/profile.") for name in recorded(tmp_path))


@pytest.mark.parametrize("kernels", [("softmax",), ()], ids=["beside a kernel", "alone"])
def test_proofs_are_recorded_whatever_they_came_to(tmp_path, kernels):
    for kernel in kernels:
        sample.put_gpu(tmp_path, "h200", (kernel,))
    claim = {"text": "disagreement", "found": 0.05, "limit": 0.01, "holds": False}
    broken = sample.envelope("prove", None, "h200", status="failed", reason="the runs disagree")
    broken |= {"proof": "repeatability", "claims": [claim], "rows": [], "notes": []}
    documents.write(tmp_path / "measured/h200/proof/repeatability.json", broken)
    assert record(tmp_path) == 0
    assert "h200/proof/repeatability.json.xz" in recorded(tmp_path), (
        "a figure that is not as good as hoped is evidence too"
    )
