"""What runs say of a document, before they are in any store: ranks, curves, rates and times."""

import math

import pytest
import sample_documents as sample
from atlas.results import collection
from atlas.tracking import described, runs, views


def described_runs(results, *documents, trial_runs=3):
    """All runs of the one tree that these documents become, by level or stage."""
    for document in documents:
        sample.put(results, document)
    (tree,) = described.trees(collection.collect(results), trial_runs, results)
    return list(tree.root.walk())


def trial(block, median_us, **more):
    found = {"direction": "forward", "dtype": "bf16", "sizes": sample.SIZES[-1], "variant": "blocks"}
    found |= {"config": {"BLOCK": block}, "status": "ok", "reason": "", "median_us": median_us, "rung": 0}
    return found | {"q1_us": median_us, "q3_us": median_us, "at_seconds": 0.0, "samples": 5} | more


def tuned(results, *trials, best=None):
    """The stage's run and those of its trials, in order; the first trial won unless ``best`` did."""
    document = sample.autotune("softmax", "h200")
    kept = ("direction", "dtype", "sizes", "variant", "config", "median_us", "q1_us", "q3_us")
    best = {key: (best or trials[0])[key] for key in kept}
    best |= {"runner_up": None, "default_us": 40.0, "trials": 24, "space": 24, "regret": 0.0}
    document |= {"trials": list(trials), "best": [best]}
    found = described_runs(results, document, sample.benchmark("softmax", "h200"))
    (stage,) = [run for run in found if run.tags.get("stage") == "autotune" and run.tags["level"] == "stage"]
    return stage, stage.children


def test_a_trial_that_was_measured_longer_ranks_before_a_faster_first_look(tmp_path):
    lucky = trial(1, 5.0, rung=0)
    _, ranked = tuned(tmp_path, trial(2, 11.0, rung=2), lucky, trial(4, 10.0, rung=2), trial(8, 9.0, rung=1))
    assert [run.params["BLOCK"] for run in ranked] == ["4", "2", "8"], "three runs, the furthest first"
    assert [run.tags["rank"] for run in ranked] == ["1", "2", "3"]


def test_the_parallel_axes_are_parameters_that_all_trials_have_and_that_differ(tmp_path):
    # The interface draws no line for a run that lacks one: of two variants with other names it would draw none at all.
    other = trial(4, 11.0, variant="rows", config={"BLOCK": 4, "ROWS": 2})
    stage, _ = tuned(tmp_path, trial(2, 10.0), other)
    columns = views.Columns.of(stage)
    assert columns == views.Columns.read(columns.text)
    (chart,) = [view for view in views.views([columns]).values() if view.parallel]
    assert chart.parallel == ("variant", "BLOCK")


def test_a_recorded_trial_says_so_in_as_few_letters_as_an_axis_shows(tmp_path):
    for document in (sample.autotune("softmax", "h200"), sample.benchmark("softmax", "h200")):
        sample.put(tmp_path, document, "recorded")
    (tree,) = described.trees(collection.collect(tmp_path), 3, tmp_path)
    assert {run.params["gpu"] for run in tree.root.walk() if run.tags["level"] == "trial"} == {"h200 rec."}


def test_trials_of_other_cases_and_such_that_did_not_end_are_no_runs(tmp_path):
    other = trial(1, 1.0, rung=2, sizes=sample.SIZES[0])
    stopped = trial(2, 1.0, rung=2, status="stopped")
    failed = trial(3, None, status="compile_error", q1_us=None, q3_us=None)
    _, ranked = tuned(tmp_path, other, stopped, failed, trial(4, 10.0), best=trial(4, 10.0))
    assert [run.params["BLOCK"] for run in ranked] == ["4"]


def test_the_tuning_curve_is_in_the_order_of_time_and_falls(tmp_path):
    # A document lists trials by candidate; the second found the best before the first was tried.
    trials = [trial(1, 10.0, at_seconds=3.0), trial(2, 12.0, at_seconds=1.0), trial(4, 11.0, at_seconds=2.0)]
    stage, _ = tuned(tmp_path, *trials)
    points = stage.curves["best_so_far_us"]
    assert [(point.value, point.step) for point in points] == [(12.0, 0), (11.0, 1), (10.0, 2)]
    assert [point.milliseconds - stage.span[0] for point in points] == [1000, 2000, 3000]


def test_gain_over_the_default_is_above_1_where_tuning_made_it_faster(tmp_path):
    stage, _ = tuned(tmp_path, trial(1, 10.0))
    assert (stage.metrics["gain_over_default"], stage.metrics["default_us"]) == (4.0, 40.0)


def test_a_trial_s_rates_are_of_the_headline_case_in_gb_and_tflop_per_second(tmp_path):
    _, (run,) = tuned(tmp_path, trial(1, 1000.0))
    rows = sample.benchmark("softmax", "h200")["rows"]
    headline = next(row for row in rows if row["dtype"] == "bf16" and row["sizes"] == sample.SIZES[-1])
    assert run.metrics["gb_per_s"] == pytest.approx(headline["bytes"] / 1e-3 / 1e9, rel=1e-4)
    assert run.metrics["tflop_per_s"] == pytest.approx(headline["flops"] / 1e-3 / 1e12, rel=1e-4)


def test_a_validation_shows_the_worst_of_its_checks(tmp_path):
    document = sample.validate("softmax", "h200")
    for check, used, over in zip(document["checks"], (0.2, 0.9, 0.5), (1.5, 0.1, None), strict=True):
        check |= {"tolerance_used": used, "error_over_torch": over}
    (run,) = [run for run in described_runs(tmp_path, document) if run.tags["level"] == "stage"]
    assert (run.metrics["worst_tolerance_used"], run.metrics["worst_error_over_torch"]) == (0.9, 1.5)


def test_versions_and_share_of_the_roof_stand_under_their_own_names(tmp_path):
    document = sample.benchmark("softmax", "h200")
    document["software"] |= {"torch": "9.1", "triton": "8.2", "commit": "c0ffee", "cuda": "7.3"}
    rows = [row for row in document["rows"] if row["dtype"] == "bf16" and row["sizes"] == sample.SIZES[-1]]
    for row in rows:
        row["roof_fraction"] = 0.5
    root = described_runs(tmp_path, document)[0]
    wanted = {"torch": "9.1", "triton": "8.2", "cuda": "7.3", "mlflow.source.git.commit": "c0ffee"}
    assert {key: root.tags[key] for key in wanted} == wanted
    assert root.metrics["percent_of_roof"] == 50.0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None, True, "12"])
def test_what_is_no_finite_number_is_no_metric(value):
    assert runs.numbers({"good": 2, "bad": value}) == {"good": 2.0}


def test_a_stage_ends_at_its_date_and_began_as_many_seconds_before():
    document = {"software": {"date": "1970-01-01T00:01:00+00:00"}, "seconds": 42.5}
    assert runs.span_of(document) == (17_500, 60_000)


def test_trees_are_written_again_when_runs_are_described_in_another_way(monkeypatch):
    before = runs.digest_of({"a": 1, "b": 2}, "x")
    assert runs.digest_of({"b": 2, "a": 1}, "x") == before
    assert runs.digest_of({"a": 1, "b": 3}, "x") != before
    monkeypatch.setattr(runs, "FORM", 10**6)
    assert runs.digest_of({"a": 1, "b": 2}, "x") != before
