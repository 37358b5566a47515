"""A tracking that is cut off, by a full disk or a server that goes, costs no runs and is made good by the next."""

import pytest
import sample_documents as sample
from atlas import cli


def cut_off(monkeypatch, after):
    """The server goes after so many runs were created."""
    from mlflow import MlflowClient  # seconds, which every process that collects this file would pay

    created, create = [], MlflowClient.create_run

    def fails(self, *arguments, **named):
        if len(created) >= after:
            raise OSError("no space left on device")
        created.append(1)
        return create(self, *arguments, **named)

    monkeypatch.setattr(MlflowClient, "create_run", fails)


@pytest.mark.parametrize("after", [1, 5])
def test_a_tree_that_is_cut_off_leaves_the_older_one_and_is_written_by_the_next_tracking(small, monkeypatch, after):
    small.track()
    before = {run.info.run_id for run in small.runs("tags.gpu = 'h200'")}
    sample.put(small.results, sample.validate("softmax", "h200", status="wrong", reason="row 3: nan"))
    with monkeypatch.context() as patch:
        cut_off(patch, after)
        assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels"]) != 0
    there = {run.info.run_id for run in small.runs("tags.gpu = 'h200'")}
    assert before <= there, "nothing is deleted before what replaces it is there"
    assert len(there - before) == after
    assert small.track()["replaced"] == ["softmax/h200"]
    after_all = small.runs("tags.gpu = 'h200'")
    assert len(after_all) == len(before), "the half tree is gone, too"
    assert small.run("softmax · h200").data.tags["reason"] == "validate: row 3: nan"
    assert small.track()["replaced"] == []
