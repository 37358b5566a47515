"""Where autotune's wall time goes."""

import pytest
from atlas.errors import AtlasError
from atlas.results import documents
from atlas.tuning.summary import EMPTY
from proof_doubles import document, job, validated

from proofs.measuring import overhead
from proofs.measuring.overhead import Spent, evidence


def tuned(results, kernel, **fields):
    """Puts an autotune document there."""
    path = results / "measured" / "h200" / kernel / "autotune.json"
    documents.write(path, document("autotune", kernel, EMPTY | {"protocol": "p", "strategy": "s"} | fields))


def test_the_share_is_of_the_suite_and_the_rest_is_named():
    found = evidence([
        Spent("matmul", "measured", 40.0, {"time": 30.0, "check": 2.0, "compile": 4.0, "start": 3.0, "other": 1.0}),
        Spent("softmax", "measured", 10.0, {"time": 4.0, "start": 4.0, "message": 2.0}),
    ])  # fmt: skip
    assert found.holds and found.claims[0].found == pytest.approx(40 / 50)
    assert [row["share"] for row in found.rows] == pytest.approx([0.9, 0.4])
    assert found.rows[0].keys() == found.rows[1].keys()
    assert found.rows[1]["compile"] == 0
    assert [row["timing"] for row in found.rows] == pytest.approx([0.85, 0.4])
    assert found.notes[0] == (
        "Of 50.0 s of wall time 10.0 s went elsewhere: start 7.00 s, message 2.00 s, other 1.00 s."
    )


def test_each_device_has_a_wall_time_of_its_own():
    found = evidence([Spent("matmul", "measured", 10.0, {"time": 16.0, "idle": 4.0}, devices=2)])
    assert found.rows[0]["share"] == pytest.approx(0.8) and found.holds


def test_too_much_elsewhere_breaks_the_claim():
    found = evidence([Spent("matmul", "measured", 10.0, {"time": 7.9})])
    assert [claim.found for claim in found.broken] == [pytest.approx(0.79)]


def test_a_document_of_the_old_form_is_said_to_lack_what_is_needed():
    found = evidence([Spent("matmul", "recorded", None, {"time": 30.0})])
    assert not found.holds
    assert found.rows[0]["wall s"] is None and found.rows[0]["share"] is None
    assert found.notes == [
        "matmul: the recorded document has no wall_seconds, it is of an earlier release; tune it again, or give --run"
    ]


def test_the_interpreter_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(AtlasError, match="is the interpreter, which has no device to keep busy"):
        overhead.run(job(overhead, tmp_path, gpu="cpu"))


def test_a_fresh_run_is_built_first_and_starts_without_a_journal(tmp_path, monkeypatch):
    results, scratch = tmp_path / "results", tmp_path / "scratch"
    validated(results, "matmul")
    folder = scratch / "measured/h200/matmul"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("old\n")
    stages = []

    def run(module, words, environment, log):
        stages.append(words[0])
        assert words[1] == "matmul" and (folder / "validate.json").exists()
        if words[0] == "autotune":
            assert not (folder / "journal.jsonl").exists()
            tuned(scratch, "matmul", seconds_by_phase={"time": 9.0})
        return 12.0

    monkeypatch.setattr(overhead.scratch, "run", run)
    found = overhead.run(job(overhead, results, "--kernels", "matmul", "--run", "--scratch", scratch))
    assert stages == ["build", "autotune"]
    assert found.rows[0]["source"] == "run" and found.rows[0]["time"] == 9
