"""A tracking that is cut off, by a full disk or a server that goes, costs no runs and is made good by the next."""

import json

import pytest
import sample_documents as sample
from atlas import cli
from atlas.tracking import artifacts, calls, roots
from atlas.tracking import store as stores
from atlas.tracking.store import Store


@pytest.fixture
def by_calls(monkeypatch):
    """Runs are made by MLflow's calls, as on a server."""
    monkeypatch.setattr(Store, "direct", False)
    monkeypatch.setattr(calls, "_PAUSE_SECONDS", 0.0)


def cut_off(monkeypatch, after):
    """The server goes after so many runs were created."""
    from mlflow import MlflowClient  # seconds, which every process that collects this file would pay

    created = []

    def until_then(call, counts):
        def called(self, *arguments, **named):
            if len(created) >= after:
                raise OSError("no space left on device")
            created.extend([1] if counts else [])
            return call(self, *arguments, **named)

        return called

    for name in ("create_run", "delete_run"):
        monkeypatch.setattr(MlflowClient, name, until_then(getattr(MlflowClient, name), name == "create_run"))


def wrong(small):
    sample.put(small.results, sample.validate("softmax", "h200", status="wrong", reason="row 3: nan"))


def mended(small, before):
    """The next tracking puts the new tree in the place of the old one, and of any half."""
    assert small.track()["replaced"] == ["softmax/h200"]
    assert len(small.runs("tags.gpu = 'h200'")) == len(before), "the half tree is gone, too"
    assert small.run("softmax · h200").data.tags["reason"] == "validate: row 3: nan"
    assert small.track()["replaced"] == []


@pytest.mark.parametrize("after", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_tree_that_is_cut_off_leaves_the_older_one_and_is_written_by_the_next_tracking(
    small, monkeypatch, by_calls, after
):
    small.track()
    before = {run.info.run_id for run in small.runs("tags.gpu = 'h200'")}
    wrong(small)
    with monkeypatch.context() as patch:
        cut_off(patch, after)
        assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels"]) != 0
    there = {run.info.run_id for run in small.runs("tags.gpu = 'h200'")}
    assert before <= there, "nothing is deleted before what replaces it is there"
    assert len(there - before) == after
    mended(small, before)


def test_a_first_tree_that_is_cut_off_is_no_tree(small, monkeypatch, by_calls):
    with monkeypatch.context() as patch:
        cut_off(patch, 2)
        assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels", "--gpus", "t4"]) != 0
    done = small.track("--gpus", "t4")
    assert done["unchanged"] == 0 and done["replaced"] == ["softmax/t4"]


def test_in_a_database_a_tree_that_is_cut_off_is_not_there_at_all(small, monkeypatch):
    small.track()
    before = {run.info.run_id for run in small.runs("tags.gpu = 'h200'")}
    wrong(small)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "_table", lambda rows: (_ for _ in ()).throw(OSError("no space left on device")))
        assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels"]) != 0
    assert {run.info.run_id for run in small.runs("tags.gpu = 'h200'")} == before
    mended(small, before)


def everything(tracked):
    """All that a store has of its runs, less ids and the time of writing."""
    names = {run.info.run_id: run.info.run_name for run in tracked.runs()}
    found = []
    for run in tracked.runs():
        tags = {key: value for key, value in run.data.tags.items() if key not in (roots.STAMP, roots.WRITER)}
        if "mlflow.parentRunId" in tags:
            tags["mlflow.parentRunId"] = names[tags["mlflow.parentRunId"]]
        points = {name: tracked.client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        history = {name: sorted((p.step, p.timestamp, p.value) for p in own) for name, own in points.items()}
        info = (run.info.status, run.info.start_time, run.info.end_time, run.info.user_id, run.info.lifecycle_stage)
        files = [file.path for file in tracked.client.list_artifacts(run.info.run_id)]
        found.append([run.info.run_name, info, tags, run.data.params, run.data.metrics, history, files])
    return json.loads(json.dumps(sorted(found, key=json.dumps)))


def test_the_rows_of_a_database_are_those_that_mlflows_calls_make(small, request):
    small.track()
    by_rows = everything(small)
    request.getfixturevalue("by_calls")
    assert len(small.track("--rebuild", "--gpus", "h200,t4")["replaced"]) == 3
    assert everything(small) == by_rows


def test_a_rebuild_of_a_selection_leaves_the_other_runs(small):
    small.track()
    before = {run.info.run_id: run.data.tags["gpu"] for run in small.runs()}
    (small.results / "measured" / "t4" / "softmax" / "benchmark.json").unlink()
    (small.results / "measured" / "t4" / "softmax" / "validate.json").unlink()
    done = small.track("--rebuild", "--kernels", "softmax", "--gpus", "h200")
    assert done["replaced"] == ["softmax/h200", "survey/h200"] and done["unchanged"] == 0
    after = {run.info.run_id for run in small.runs()}
    assert {gpu for run_id, gpu in before.items() if run_id in after} == {"t4"}
    assert len(after) == len(before)
    small.track("--rebuild", "--gpus", "t4")
    assert small.runs("tags.gpu = 't4'") == [], "what has no documents any more is not kept"


class Beats:
    """A half tree of a writer on another host, as one sees it while time goes by."""

    def __init__(self, monkeypatch):
        self.now, self.watch = 0.0, roots.Watch()
        monkeypatch.setattr(roots.time, "monotonic", lambda: self.now)

    def alive(self, now, beat):
        self.now = now
        tags = {roots.KEY: "softmax/h200", roots.WRITER: "elsewhere boot 1 2 3", roots.BEAT: beat}
        return self.watch.state([roots.Root("r", tags)]).busy


def test_a_writer_on_another_host_is_dead_once_its_beat_stood_still_for_half_a_minute(monkeypatch):
    seen = Beats(monkeypatch)
    assert seen.alive(0, "1") and seen.alive(25, "1") and seen.alive(29, "2") and seen.alive(58, "2")
    assert not seen.alive(60, "2")


def test_of_several_whole_trees_the_last_counts_and_all_agree_on_it():
    trees = [roots.Root(name, {roots.DIGEST: "d", roots.STAMP: stamp}) for name, stamp in (("b", "7"), ("c", "9"))]
    trees.append(roots.Root("a", {roots.DIGEST: "d", roots.STAMP: "9"}))
    for seen in (trees, trees[::-1]):
        state = roots.Watch().state(seen)
        assert state.current.run_id == "c" and set(state.surplus) == {"a", "b"} and not state.busy
        assert state.stamp > 9


def test_a_server_that_is_away_leaves_the_documents_to_the_next_tracking(small, monkeypatch, capsys):
    monkeypatch.setenv(stores.VARIABLE, "postgresql://me:secret@127.0.0.1:9/atlas")
    assert cli.main(["track", "--results", str(small.results), "--later"]) == 0
    assert (small.summary()["missed"], small.summary()["open"]) == (1, "")
    monkeypatch.setenv(stores.VARIABLE, "http://me:secret@127.0.0.1:9")
    assert cli.main(["track", "--results", str(small.results), "--later"]) == 0
    said = capsys.readouterr()
    assert "nothing answers there" in small.summary()["away"] and small.summary()["missed"] == 2
    assert "secret" not in said.out + said.err + json.dumps(small.summary())
    monkeypatch.delenv(stores.VARIABLE)
    done = small.track()
    assert len(done["added"]) == 3 and done["missed"] == 2 and "away" not in done
