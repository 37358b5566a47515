"""Every cell of a table is the value of its name in the document, told apart from its neighbours."""

import json

import pytest
import synthetic
from atlas.results.collection import Entry
from atlas.tables import rows

SOFTMAX, MATMUL = synthetic.KERNELS[1], synthetic.KERNELS[2]


def entry(document, kind="measured", stale=False):
    return Entry(document["gpu"], document["kernel"], document["stage"], document, kind, None, stale)


def test_what_a_figure_was_made_with_stands_under_its_own_name():
    document = synthetic.benchmark(SOFTMAX, "h200")
    software = {"torch": "2.11", "triton": "3.6", "commit": "c0ffee", "date": "2026-11-20", "cuda": "13.0"}
    device = {"device_name": "NVIDIA H200", "driver": "580.95", "power_cap_w": 650.0, "power_w": 1.0}
    (row, *_) = rows.benchmark([entry(document | {"software": software, "device": device})])
    wanted = {"torch": "2.11", "triton": "3.6", "commit": "c0ffee", "date": "2026-11-20"}
    wanted |= {"device_name": "NVIDIA H200", "driver": "580.95", "power_cap_w": 650.0}
    assert {key: row[key] for key in wanted} == wanted


def test_a_build_s_scope_says_of_how_many_configs_how_many_were_compiled():
    document = synthetic.build(SOFTMAX, "h200")
    (row, *_) = rows.build([entry(document | {"scope": {"mode": "sample", "total": 700, "compiled": 3}}, "compiled")])
    assert (row["scope"], row["scope_total"], row["scope_compiled"]) == ("sample", 700, 3)


def test_a_trial_is_the_best_of_its_own_case_alone():
    # One config, tried on two cases, of which it won the second.
    document = synthetic.autotune(SOFTMAX, "h200")
    tried = {"direction": "forward", "dtype": "bf16", "variant": "tiled", "config": {"BLOCK": 64}, "status": "ok"}
    trials = [tried | {"sizes": {"n": n}, "median_us": 1.0} for n in (10, 20)]
    found = list(rows.trials([entry(document | {"trials": trials, "best": [trials[1]]})]))
    assert [(json.loads(row["sizes"])["n"], row["best"]) for row in found] == [(10, False), (20, True)]


@pytest.mark.parametrize("changed", [{"dtype": "fp32"}, {"direction": "backward"}, {"variant": "other"}])
def test_a_trial_of_another_dtype_pass_or_variant_is_not_the_best(changed):
    document = synthetic.autotune(SOFTMAX, "h200")
    won = {"direction": "forward", "dtype": "bf16", "variant": "tiled", "config": {"BLOCK": 64}, "status": "ok"}
    won |= {"sizes": {"n": 10}, "median_us": 1.0}
    (row,) = rows.trials([entry(document | {"trials": [won | changed], "best": [won]})])
    assert row["best"] is False


def timed(dtype, n, **more):
    row = {"direction": "forward", "dtype": dtype, "sizes": {"n": n}, "provider": "tiled", "provider_kind": "variant"}
    row |= {"config": {"BLOCK": 64}, "status": "ok", "median_us": 10.0, "bytes": 2.0 * n, "gb_per_s": float(n)}
    return row | more


def test_a_rung_shows_its_largest_case_in_bf16_though_one_in_fp32_moves_more():
    document = synthetic.benchmark(SOFTMAX, "h200")
    step = {"direction": "forward", "variant": "tiled", "follows": "", "summary": ""}
    found = [timed("bf16", 100), timed("bf16", 300), timed("bf16", 200), timed("fp32", 300, bytes=1200.0)]
    (row,) = rows.ladder([entry(document | {"rows": found, "steps": [step]})])
    assert (row["dtype"], row["case"], row["figure"], row["unit"]) == ("bf16", "n=300", 300.0, "GB/s")


def test_a_rung_without_bf16_shows_its_largest_case():
    document = synthetic.benchmark(SOFTMAX, "h200")
    step = {"direction": "forward", "variant": "tiled", "follows": "", "summary": ""}
    found = [timed("fp16", 100), timed("fp32", 300), timed("fp16", 200)]
    (row,) = rows.ladder([entry(document | {"rows": found, "steps": [step]})])
    assert (row["dtype"], row["case"]) == ("fp32", "n=300")


def test_a_datasheet_s_peaks_are_published_and_a_survey_s_roofs_measured():
    sheet = {"source": "a sheet", "bandwidth_gb_per_s": 4800, "tflop_per_s": {"bf16": 989}}
    found = list(rows.survey([entry(synthetic.survey("h200"))], {"h200": {"datasheet": sheet}, "cpu": {}}))
    published = {(row["roof"], row["value"], row["unit"]) for row in found if row["kind"] == "published"}
    assert published == {
        ("bandwidth", 4800, "GB/s"), ("matmul_bf16", 989, "TFLOP/s"), ("matmul_bf16x6", 164.8, "TFLOP/s")
    }  # fmt: skip
    assert {row["kind"] for row in found} == {"published", "measured"}


def test_energy_by_bytes_by_operations_and_its_cost_where_a_gpu_has_a_price():
    document = synthetic.energy(SOFTMAX, "h200")
    document["rows"][0] |= {"bytes": 2e9, "flops": 3e12}
    ours, failed = rows.energy([entry(document)], {})
    assert (ours["joules_per_gb"], ours["joules_per_tflop"], ours["rest_w"]) == (0.3, pytest.approx(0.2), 118.0)
    assert (failed["status"], failed["joules_per_gb"], ours["usd_per_1e9_calls"]) == ("failed", None, None)
    priced, _ = rows.energy([entry(document)], {"h200": {"usd_per_hour": 3.6}})
    assert priced["usd_per_1e9_calls"] == pytest.approx(1000), "1e9 calls of a millisecond are 277.8 hours"
