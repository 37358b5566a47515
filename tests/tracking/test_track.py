"""Documents become MLflow runs once, can be found by what they are, and are replaced when they change."""

import base64
import json
import os
import shutil
import subprocess
import sys
import zlib

import pytest
import sample_documents as sample
from atlas import ROOT, cli
from atlas.results import collection
from atlas.tracking import described
from sample_documents import artifact


def test_tracking_twice_adds_nothing(small):
    first = small.track()
    ids = {run.info.run_id for run in small.runs()}
    assert first["added"] == ["softmax/h200", "softmax/t4", "survey/h200"]
    assert first["runs_written"] == len(ids)
    second = small.track()
    assert (second["added"], second["replaced"], second["unchanged"]) == ([], [], 3)
    assert small.track("--gpus", "t4")["unchanged"] == 1, "a selection's"
    assert {run.info.run_id for run in small.runs()} == ids


def test_a_changed_document_replaces_the_runs_of_its_kernel_and_gpu_alone(small):
    small.track()
    before = {run.info.run_id: run.data.tags for run in small.runs()}
    sample.put(small.results, sample.validate("softmax", "h200", status="wrong", reason="row 3: nan"))
    outcome = small.track()
    assert (outcome["added"], outcome["replaced"], outcome["unchanged"]) == ([], ["softmax/h200"], 2)
    after = {run.info.run_id for run in small.runs()}
    gone = [before[run_id] for run_id in before.keys() - after]
    assert {(tags["kernel"], tags["gpu"]) for tags in gone} == {("softmax", "h200")}
    assert len(after) == len(before), "the old tree is gone, and its children with it"
    root = small.run("softmax · h200")
    assert root.info.status == "FAILED"
    assert root.data.tags["reason"] == "validate: row 3: nan"


def test_a_kernel_that_went_stale_is_tracked_again_and_says_so(small, monkeypatch):
    small.track()
    monkeypatch.setattr(collection, "_today", lambda kernel: {"*": "another"})
    assert small.track()["replaced"] == ["softmax/h200", "softmax/t4"]
    assert "**Stale**" in small.run("softmax · h200").data.tags["mlflow.note.content"]


def test_a_tree_that_was_cut_off_is_written_again(small):
    small.track()
    small.client.delete_tag(small.run("softmax · h200").info.run_id, "atlas.digest")
    assert small.track()["replaced"] == ["softmax/h200"]


def test_a_rebuild_makes_the_runs_again_from_the_documents(small):
    small.track()
    (small.results / "mlflow" / "mlflow.db").write_bytes(b"not a database" * 100)
    command = [sys.executable, "-m", "atlas", "track", "--results", str(small.results), "--experiment", "kernels"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'workflow'}:{ROOT}"}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and "not an SQLite database" in refused.stderr and "--rebuild" in refused.stderr
    subprocess.run([*command, "--rebuild"], env=environment, check=True)
    assert len(small.summary()["added"]) == 3


def test_a_moved_results_folder_is_tracked_anew_since_mlflow_keeps_absolute_places(small, tmp_path):
    small.track()
    moved = tmp_path / "elsewhere"
    shutil.move(small.results, moved)
    assert cli.main(["track", "--results", str(moved), "--experiment", "kernels"]) == 0
    assert len(json.loads((moved / "mlflow" / "tracked.json").read_text())["added"]) == 3


def test_a_deleted_experiment_is_named_with_the_way_back(small, capsys):
    small.track()
    small.client.delete_experiment(small.experiment().experiment_id)
    assert cli.main(["track", "--results", str(small.results), "--experiment", "kernels"]) == 2
    assert "mlflow experiments restore" in capsys.readouterr().err


def test_a_broken_document_is_named_and_nothing_is_tracked(small, capsys):
    path = small.results / "measured" / "h200" / "softmax" / "benchmark.json"
    path.write_text(path.read_text()[:200])
    assert cli.main(["track", "--results", str(small.results)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (small.results / "mlflow" / "tracked.json").exists()


def test_no_documents_make_an_empty_experiment(small):
    shutil.rmtree(small.results / "measured")
    assert small.track()["trees"] == 0
    assert small.runs() == []


def test_the_fastest_config_of_a_kernel_on_a_gpu_is_on_its_run(atlas):
    run = atlas.run("softmax · h200")
    best = sample.autotune("softmax", "h200")["best"][-1]
    assert {key: run.data.params[key] for key in best["config"]} == {k: str(v) for k, v in best["config"].items()}
    assert run.data.params["case"] == "m=4096 n=32768", "the case with the largest traffic"
    assert run.data.params["dtype"] == "bf16"
    assert run.data.metrics["median_us"] == float(f"{best['median_us']:.5g}")
    first_line = run.data.tags["mlflow.note.content"].splitlines()[0]
    assert (
        f"BLOCK={best['config']['BLOCK']}" in first_line
        and "fastest config of forward m=4096 n=32768 bf16" in first_line
    )


def test_every_run_says_its_kernel_gpu_stage_kind_versions_and_commit(atlas):
    wanted = {"gpu", "stage", "kind", "status", "torch", "triton", "commit", "level"}
    for run in atlas.runs():
        of_kernel = set() if run.data.tags["level"] == "survey" else {"kernel"}
        assert not (wanted | of_kernel) - run.data.tags.keys(), run.info.run_name


def test_the_best_trials_are_runs_in_order_and_all_trials_a_table(atlas):
    trials = atlas.runs("tags.level = 'trial' AND tags.kernel = 'softmax' AND tags.gpu = 'h200'")
    medians = [run.data.metrics["median_us"] for run in sorted(trials, key=lambda run: int(run.data.tags["rank"]))]
    assert len(medians) == 3 and medians == sorted(medians)
    best, *_ = sorted(trials, key=lambda run: run.data.tags["atlas.order"])
    headline = atlas.run("softmax · h200").data.metrics
    speedup = headline["speedup"] * headline["median_us"] / medians[0]
    assert best.data.metrics["speedup"] == pytest.approx(speedup, rel=1e-3), "over the peer that the benchmark timed"
    stage = atlas.run("softmax · h200 · autotune")
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {stage.info.run_id}
    table = json.loads(artifact(stage, "trials.json").read_text())
    assert len(table["data"]) == 72, "24 configs on 3 cases, the one that did not compile among them"
    assert {"path": "trials.json", "type": "table"} in json.loads(stage.data.tags["mlflow.loggedArtifacts"])
    assert artifact(stage, "autotune.json").exists(), "the document itself"


def test_the_tuning_curve_only_falls(atlas):
    history = atlas.client.get_metric_history(atlas.run("softmax · h200 · autotune").info.run_id, "best_so_far_us")
    values = [point.value for point in sorted(history, key=lambda point: point.step)]
    assert len(values) > 1 and values == sorted(values, reverse=True)


def test_providers_can_be_sorted_by_time_and_compared_over_size(atlas):
    providers = atlas.runs("tags.level = 'provider' AND tags.kernel = 'matmul' AND tags.gpu = 'h200'")
    by_time = sorted(providers, key=lambda run: run.data.metrics["median_us"])
    assert [run.data.tags["atlas.order"] for run in by_time] == [f"matmul h200 00{rank}" for rank in (1, 2, 3)]
    assert [run.data.tags["provider"] for run in by_time] == ["cublas", "blocks", "blocks"]
    assert [run.data.tags["provider_kind"] for run in by_time] == ["peer", "variant", "default"]
    curve = atlas.client.get_metric_history(by_time[0].info.run_id, "forward bf16/tflop_per_s")
    assert len({point.step for point in curve}) == 3, "a point for each case, at its bytes"


def test_a_stage_of_a_kernel_that_calls_another_has_its_configs_as_a_param(small):
    calls = {"matmul": {"configs": "kernels/tuned/t4.json", "sha256": "0123456789ab" + 52 * "0"}}
    sample.put(small.results, sample.benchmark("softmax", "t4") | {"calls": calls})
    small.track()
    run = small.run("softmax · t4 · benchmark")
    assert run.data.params["configs_of_matmul"] == "kernels/tuned/t4.json (0123456789ab)"


def test_a_record_says_so_in_its_name(atlas):
    recorded = atlas.run("softmax · h100 (recorded)")
    assert recorded.data.tags["kind"] == "recorded" and "median_us" in recorded.data.metrics


@pytest.mark.parametrize(("gpu", "kind"), [("cpu", "functional"), ("t4", "compiled")])
def test_what_no_gpu_ran_has_no_times(atlas, gpu, kind):
    runs = atlas.runs(f"tags.gpu = '{gpu}'")
    assert {run.data.tags["kind"] for run in runs} == {kind}
    assert {run.data.tags["level"] for run in runs} == {"kernel", "stage"}
    for run in runs:
        assert not {"median_us", "gb_per_s", "speedup"} & run.data.metrics.keys(), run.info.run_name


def test_a_later_build_of_a_record_does_not_sign_its_figures(tmp_path):
    record = sample.benchmark("softmax", "h100")
    later = sample.build("softmax", "h100")
    later["software"] = later["software"] | {"torch": "9.9+cpu", "date": "2027-01-01T00:00:00+00:00"}
    sample.put(tmp_path, record, "recorded")
    sample.put(tmp_path, later)
    (tree,) = described.trees(collection.collect(tmp_path), 0, tmp_path)
    assert tree.root.tags["torch"] == record["software"]["torch"]
    took = record["seconds"] + later["seconds"]
    assert tree.root.span[1] - tree.root.span[0] == pytest.approx(1000 * took, abs=1), "not the months between"


def test_what_was_measured_here_does_not_bear_the_figures_of_a_record(tmp_path):
    sample.put(tmp_path, sample.benchmark("softmax", "h100"), "recorded")
    sample.put(tmp_path, sample.validate("softmax", "h100"))
    (tree,) = described.trees(collection.collect(tmp_path), 0, tmp_path)
    assert tree.root.tags["kind"] == "measured"
    assert "median_us" not in tree.root.metrics and "fastest config" not in tree.root.note
    (benchmark,) = [run for run in tree.root.children if run.tags["stage"] == "benchmark"]
    assert benchmark.tags["kind"] == "recorded" and benchmark.metrics["median_us"] > 0


def test_listings_and_figures_are_artifacts(atlas):
    assert artifact(atlas.run("softmax · h200 · build"), "listings", "blocks.ptx").exists()
    assert artifact(atlas.run("softmax · h200"), "figures", "throughput-softmax.svg").exists()
    assert not artifact(atlas.run("softmax · h200"), "figures", "throughput-matmul_softmax.svg").exists()
    assert not artifact(atlas.run("matmul · h200"), "figures").exists(), "another kernel's figure"


def test_a_failed_stage_without_rows_is_tracked_with_its_reason(atlas):
    run = atlas.run("softmax · a100 · benchmark")
    assert run.info.status == "FAILED" and run.data.tags["reason"] == "RuntimeError: no memory"


def state_of(atlas, view):
    """What the interface is told of a saved view."""
    saved = json.loads(atlas.experiment().tags[f"mlflow.sharedViewState.{view}"])
    return json.loads(zlib.decompress(base64.b64decode(saved["state"].removeprefix("deflate;"))))


def test_saved_views_show_the_configs_of_todays_kernels(atlas):
    state = state_of(atlas, "atlas-kernels")
    assert {"params.`BLOCK`", "params.`num_warps`", "metrics.`median_us`"} <= set(state["selectedColumns"])
    assert atlas.runs(state["searchFilter"]), "its filter is one that MLflow takes"
    chart = state_of(atlas, "atlas-trials-softmax")
    values = [{run.data.params.get(name) for run in atlas.runs(chart["searchFilter"])}
              for name in chart["compareRunCharts"][0]["selectedParams"]]  # fmt: skip
    assert values and all(len(found) > 1 for found in values), "an axis with one value says nothing"
    rung, metric = chart["compareRunCharts"][0]["selectedMetrics"]
    assert rung == "rung", "a first time is of few samples, and may be less than that of the fastest config"
    assert metric != "median_us", "two GPUs are compared"
    assert "viewStateShareKey=atlas-kernels" in atlas.summary()["open"]
