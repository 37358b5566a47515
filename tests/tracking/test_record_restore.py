"""`atlas record restore`: a record comes back as measured, but for what a run of this host would make anew."""

import pytest
import sample_documents as sample
from atlas import catalog, cli
from atlas.errors import AtlasError
from atlas.identity import today
from atlas.identity.needs import needed
from atlas.results import collection, documents, files
from atlas.results.restoring import Here, restore

STAGES = ("build", "validate", "autotune", "benchmark")
HERE = Here({"torch": "2.11.0", "triton": "3.6.0"}, {"device_name": "H200", "driver": "580.95"})


def of_today(stage, **changes):
    """A softmax document of today's code."""
    found = getattr(sample, stage)("softmax", "h200")
    identities = needed(stage, catalog.identities("softmax")) | changes
    return found | {"identities": identities, "code": today.of_stage(stage)}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """The record of a survey and of softmax, all of today's code."""
    monkeypatch.setattr(collection, "_today", catalog.identities)  # other tests' kernels are made up
    sample.put(tmp_path, sample.survey("h200") | {"code": today.of_stage("survey")}, "recorded")
    for stage in STAGES:
        sample.put(tmp_path, of_today(stage), "recorded")
    return tmp_path


def measured(folder, stage="benchmark"):
    return folder / "measured" / "h200" / "softmax" / f"{stage}.json"


def test_all_that_is_of_today_comes_back_as_it_was_and_in_the_order_of_a_run(recorded):
    outcome = restore(recorded, "h200", HERE)
    assert outcome.written == {None: ["survey"], "softmax": list(STAGES)} and not outcome.left
    for stage in STAGES:
        record = files.found(recorded / "recorded/h200/softmax", stage)
        assert documents.load(measured(recorded, stage)) == documents.load(record)
    ages = [measured(recorded, stage).stat().st_mtime for stage in STAGES]
    assert ages == sorted(ages), "else Snakemake makes anew what seems older than what it was made from"
    assert len(set(ages)) == len(ages)


@pytest.mark.parametrize(
    ("here", "reason"),
    [
        (Here(HERE.software | {"torch": "2.13.0"}, HERE.device), "of torch 2.11.0, here 2.13.0"),
        (Here(HERE.software | {"triton": "3.7.1"}, HERE.device), "of triton 3.6.0, here 3.7.1"),
        (Here(HERE.software, HERE.device | {"driver": "590.1"}), "of driver 580.95, here 590.1"),
        (Here(HERE.software, HERE.device | {"device_name": "H200 NVL"}), "of device name H200, here H200 NVL"),
    ],
)
def test_what_ran_under_other_versions_or_on_another_device_stays_unless_forced(recorded, here, reason):
    outcome = restore(recorded, "h200", here)
    assert outcome.left["softmax"]["benchmark"] == reason and not measured(recorded).exists()
    assert "softmax" not in restore(recorded, "h200", here, force=True).left


def test_where_the_gpu_is_not_only_versions_are_compared(recorded):
    assert "softmax" not in restore(recorded, "h200", Here(HERE.software, {})).left, "a login node of a cluster"


def test_what_changed_since_stays_and_of_the_kernel_even_where_forced(recorded):
    sample.put(recorded, of_today("benchmark", **{"forward.one_pass": "older"}), "recorded")
    sample.put(recorded, of_today("autotune") | {"code": "older"}, "recorded")
    changed = {"benchmark": "forward `one_pass` changed"}
    left = restore(recorded, "h200", HERE).left["softmax"]
    assert left == changed | {"autotune": "the stage's own code changed"}
    assert restore(recorded, "h200", HERE, force=True).left["softmax"] == changed


def test_a_validation_that_alone_is_due_comes_back_with_word_that_it_is(recorded):
    sample.put(recorded, of_today("validate", public="older"), "recorded")
    outcome = restore(recorded, "h200", HERE)
    assert outcome.left == {"softmax": {"validate": "the public function changed"}}
    due = measured(recorded, "validate").with_suffix(files.DUE)
    assert due.stat().st_mtime > measured(recorded, "validate").stat().st_mtime, "that is why Snakemake makes it anew"
    sample.put(recorded, of_today("validate"))
    assert restore(recorded, "h200", HERE).there == {"softmax": ["validate"]}, "a run has made it anew"


def test_what_was_measured_here_is_kept(recorded):
    sample.put(recorded, of_today("benchmark") | {"seconds": 1.0})
    assert restore(recorded, "h200", HERE).there == {"softmax": ["benchmark"]}
    assert documents.load(measured(recorded))["seconds"] == 1.0


def test_what_was_restored_and_is_due_by_now_goes_again(recorded, monkeypatch):
    restore(recorded, "h200", HERE)
    monkeypatch.setattr(today, "of_stage", lambda stage, functional=False: "edited")
    assert "benchmark" in restore(recorded, "h200", HERE).left["softmax"]
    assert not measured(recorded).exists(), "Snakemake has no notes of it, and would take it for up to date"


def test_a_gpu_without_a_record_is_a_mistake(recorded):
    with pytest.raises(AtlasError, match="no record of h100"):
        restore(recorded, "h100", HERE)
    with pytest.raises(AtlasError, match="no record of h200"):
        restore(recorded, "h200", HERE, host="lab2")


def test_the_command_says_what_came_back_and_what_is_due(recorded, capsys, monkeypatch):
    sample.put(recorded, of_today("benchmark", **{"forward.one_pass": "older"}), "recorded")
    assert cli.main(["record", "restore", "--gpu", "h200", "--force", "--results", str(recorded)]) == 0
    said = capsys.readouterr().out
    assert "softmax: restored build, validate, autotune; due benchmark: forward `one_pass` changed" in said
    assert "4 documents restored, 1 are due" in said
    assert cli.main(["record", "restore", "--results", str(recorded)]) == 2
    assert "--gpu is missing" in capsys.readouterr().err
