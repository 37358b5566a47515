"""The document of a run: what it says of searches that found nothing, too little, or all."""

import dataclasses
import json

import tuning_fakes as fakes
from atlas.results import documents
from atlas.tuning import summary
from atlas.tuning.certificates import Certificates
from atlas.tuning.search import ByStrategy
from atlas.tuning.strategies import STRATEGIES
from tuning_tables import Table, find


class Book:
    """What the summary asks of a journal."""

    reused, damaged = 2, 1


def run(names=("NVIDIA H200",), **more):
    seconds = {"import": 2.0, "time": 1.5, "certify": 0.5, "compile": 0.25, "lost": 0.0}
    certificates = Certificates(Book(), "validation/2", (0, 1, 2))
    ran = summary.Run(
        ByStrategy(STRATEGIES["halving"]),
        "timing/1",
        60.0,
        5.0,
        seconds,
        7,
        Book(),
        certificates,
        names,
        (),
        lambda *_: None,
    )
    return dataclasses.replace(ran, **more)


def document(*found, **more):
    fields = summary.fields(found, run(**more))
    envelope = {
        "stage": "autotune", "schema_version": documents.VERSIONS["autotune"], "kernel": "double", "gpu": "fake",
        "kind": "measured", "status": "ok", "reason": "", "kernel_digest": "0" * 64, "software": {}, "device": {},
        "seconds": 1.0,
    }  # fmt: skip
    whole = envelope | fields
    documents.check(json.loads(json.dumps(whole)), "autotune", "test")
    return whole


def every_config():
    return [{"tile": tile, "warps": warps} for tile in fakes.TILES for warps in fakes.WARPS]


def test_best_runner_up_and_default_are_stated_with_their_times():
    (best,) = document(find(Table()))["best"]
    assert best["config"] == fakes.OPTIMUM
    assert best["median_us"] <= best["runner_up"]["median_us"] <= best["default_us"]
    assert best["space"] == best["trials"] == len(every_config())


def test_the_default_s_time_is_the_default_s_and_none_where_it_lost_its_final():
    found = find(Table())
    (best,) = document(found)["best"]
    assert best["default_us"] == fakes.cost_us({"tile": 16, "warps": 2}, 1000) > best["runner_up"]["median_us"]
    lost = find(Table(final_fails=[{"tile": 16, "warps": 2}]))
    (best,) = document(lost)["best"]
    assert best["default_us"] is None and best["runner_up"] is not None


def test_the_statuses_of_all_trials_are_counted_and_nothing_else_is():
    whole = document(find(Table(fails=[fakes.OPTIMUM])))
    assert whole["trials_by_status"]["launch_error"] == 1
    assert sum(whole["trials_by_status"].values()) == len(whole["trials"])


def test_a_case_without_a_working_config_fails_the_document_and_says_which():
    whole = document(find(Table()), find(Table(fails=every_config()), sizes=(77,)))
    assert whole["status"] == "failed"
    assert "forward n=77 fp32: launch_error" in whole["reason"]
    assert len(whole["best"]) == 1


def test_a_case_for_which_every_config_is_wrong_makes_the_document_wrong():
    whole = document(find(Table(wrong=every_config())))
    assert whole["status"] == "wrong"
    assert "expected 2" in whole["reason"]


def test_what_the_budget_left_out_is_counted_and_said():
    found = find(Table(), budget=5)
    whole = document(found)
    assert whole["untried"] == len(found.untried) > 0
    assert f"{len(found.untried)} candidates not tried" in whole["method"]
    assert whole["status"] == "ok"


def test_the_winners_certificate_is_stated_with_its_protocol():
    (best,) = document(find(Table()))["best"]
    assert best["certificate"] == {"protocol": "validation/2", "cases": 4, "checks": 20, "seeds": 5}


def test_one_devices_phases_add_up_to_the_wall_time_and_what_nothing_accounts_for_is_other():
    whole = document(find(Table()))
    assert sum(whole["seconds_by_phase"].values()) == whole["wall_seconds"] == 5.0
    assert whole["seconds_by_phase"]["other"] == 0.75
    assert whole["trial_seconds"] == 2.0
    assert "lost" not in whole["seconds_by_phase"]  # nothing was


def test_all_devices_that_took_part_are_named():
    whole = document(find(Table()), names=("NVIDIA H200", "NVIDIA H200"), notes=("NVIDIA H200 was not used",))
    assert whole["devices"] == {"count": 2, "names": ["NVIDIA H200"] * 2, "notes": ["NVIDIA H200 was not used"]}
    assert "other" not in whole["seconds_by_phase"]  # the seconds of two devices exceed the wall's
