"""Tables have the same columns and types full or empty, and rows that say only what a document says."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from atlas import catalog, cli
from atlas.errors import AtlasError
from atlas.results import collection
from atlas.tables import rows as made
from atlas.tables import store
from atlas.tables.store import TABLES


@pytest.mark.parametrize("scene", ["none", "one", "five"])
def test_every_table_has_its_columns_and_types(scenes, scene):
    for name, table in store.read(scenes[scene] / "tables").items():
        assert list(table.columns) == list(TABLES[name])
        assert [str(kind) for kind in table.dtypes] == list(TABLES[name].values()), name
        written = pd.read_csv(scenes[scene] / "tables" / f"{name}.csv")
        assert list(written.columns) == list(TABLES[name]) and len(written) == len(table)


def test_without_documents_only_the_datasheets_speak(scenes):
    tables = store.read(scenes["none"] / "tables")
    assert {*tables.pop("survey").kind, *tables.pop("published").kind} == {"published"}
    assert all(table.empty for table in tables.values())


def test_a_benchmark_row_carries_what_an_outside_script_needs(scenes):
    table = store.read(scenes["one"] / "tables")["benchmark"]
    row = table[(table.kernel == "matmul") & (table.gpu == "h200") & table.best].iloc[0]
    assert json.loads(row.sizes) == {"m": 512, "n": 512, "k": 512} and row.case == "m=512 n=512 k=512"
    assert json.loads(row.config)["num_warps"] == 8
    assert row.tflop_per_s == pytest.approx(row.flops / row.median_us / 1e6)
    assert (row.protocol, row.driver, row.samples) == ("timing/1", "580.95.05", 10)
    assert row.peer in ("torch", "torch.compile")


def test_the_best_of_a_case_is_its_fastest_variant_and_never_a_default_or_a_peer(scenes):
    table = store.read(scenes["five"] / "tables")["benchmark"]
    case = ["gpu", "kernel", "direction", "dtype", "sizes"]
    best = table[table.best]
    assert set(best.provider_kind) == {"variant"}
    assert best.groupby(case).size().eq(1).all()
    fastest = table[table.provider_kind == "variant"].groupby(case).median_us.min()
    assert (best.set_index(case).median_us.sort_index() == fastest.sort_index()).all()


def test_a_rung_of_the_ladder_says_what_its_step_brought(scenes):
    tables = store.read(scenes["one"] / "tables")
    ladder = tables["ladder"].set_index(["gpu", "kernel", "direction", "variant"]).sort_index()
    row = ladder.loc["h200", "matmul", "forward", "persistent"]
    assert (row.follows, row.summary, row.unit) == ("pointers", "what persistent changes", "TFLOP/s")
    rows = tables["benchmark"]
    rows = rows[(rows.gpu == "h200") & (rows.kernel == "matmul") & (rows.provider_kind == "variant")]
    times = rows.pivot_table(index=["dtype", "sizes"], columns="provider", values="median_us")
    gains = times.pointers / times.persistent
    fastest = (times.idxmin(axis=1) == "persistent").sum()
    assert row.compared == len(gains) and row.fastest == fastest
    assert (row.step_least, row.step_most) == (pytest.approx(gains.min()), pytest.approx(gains.max()))
    assert gains.min() < row.step_geomean < gains.max()
    first = ladder.loc["h200", "matmul", "forward", "pointers"]
    assert first.follows == "" and first.compared == 0 and pd.isna(first.step_geomean)


def test_a_rung_counts_with_its_default_config_where_the_tuned_one_is_slower(scenes):
    found = collection.collect(scenes["one"], kernels=["matmul"], gpus=["h200"])
    entry = next(entry for entry in found if entry.stage == "benchmark")
    before = {row["variant"]: row for row in made.ladder([entry])}["persistent"]
    for row in entry.document["rows"]:
        if (row["provider"], row["provider_kind"]) == ("persistent", "default") and row.get("median_us"):
            row["median_us"] /= 16  # far faster than what the tuner chose
    after = {row["variant"]: row for row in made.ladder([entry])}["persistent"]
    assert after["step_geomean"] > 4 * before["step_geomean"]


def test_the_interpreter_climbs_no_ladder(scenes):
    assert "cpu" not in set(store.read(scenes["five"] / "tables")["ladder"].gpu)


def test_kinds_stand_apart_and_each_gpu_has_one_for_its_figures(scenes):
    table = store.read(scenes["five"] / "tables")["benchmark"]
    assert table.groupby(["gpu", "kernel"]).kind.nunique().eq(1).all()
    kinds = dict(table[["gpu", "kind"]].drop_duplicates().itertuples(index=False))
    assert kinds["h200"] == "measured" and kinds["a100"] == "recorded" and kinds["cpu"] == "functional"


def test_means_never_mix_kinds(kernels, tmp_path, atlas):
    # The same kernel and GPU: benchmark recorded, validated here. The verdict is the measured row's, without figures.
    softmax = kernels[0]
    for document in synthetic.on_gpu(softmax, "h200"):
        synthetic.write(tmp_path, "recorded", document)
    synthetic.write(tmp_path, "measured", synthetic.validate(softmax, "h200"))
    atlas("tables", tmp_path)
    row = store.read(tmp_path / "tables")["verdicts"].iloc[0]
    assert row.kind == "measured" and pd.isna(row.speedup_geomean) and pd.isna(row.figure)


def test_a_verdicts_mean_is_the_geometric_mean_of_its_best_rows(scenes):
    tables = store.read(scenes["five"] / "tables")
    verdict = tables["verdicts"].query("kernel == 'softmax' and gpu == 'h100'").iloc[0]
    best = tables["benchmark"].query("kernel == 'softmax' and gpu == 'h100' and best")
    assert verdict.cases == len(best) == 16
    assert verdict.speedup_geomean == pytest.approx(math.exp(best.speedup.map(math.log).mean()))
    assert verdict.speedup_worst == best.speedup.min()


def test_the_interpreter_has_no_performance_in_its_verdict(scenes):
    functional = store.read(scenes["five"] / "tables")["verdicts"].query("gpu == 'cpu'")
    assert set(functional.kind) == {"functional"} and set(functional.status) == {"ok"}
    assert functional[["figure", "speedup", "speedup_geomean", "roof_fraction"]].isna().all(axis=None)


def test_coverage_names_every_cell_even_those_without_a_document(scenes):
    coverage = store.read(scenes["one"] / "tables")["coverage"]
    cell = coverage.query("kernel == 'matmul' and gpu == 't4'").set_index("stage")
    assert cell.status.to_dict() == {"build": "ok", "validate": "none", "autotune": "none", "benchmark": "none"}
    assert "matmul on t4 was not measured here and there is no record" in cell.reason["benchmark"]
    assert "build" not in set(coverage[coverage.gpu == "cpu"].stage), "the interpreter compiles nothing"


def test_the_time_of_a_stage_that_not_every_run_has_is_covered_where_it_ran():
    """Sampling was left out of where the time went."""
    document = {"status": "ok", "reason": "", "seconds": 13.0, "software": {"date": "2026-11-27"}}
    entries = [
        collection.Entry("h200", "softmax", stage, document, "measured", Path(stage))
        for stage in ("build", "sample", "predict")
    ]
    found = {row["stage"]: row for row in made.coverage(entries, {}) if row["kernel"]}
    assert found["sample"]["seconds"] == 13.0 and "predict" not in found
    assert "beyond" not in found, "nobody asked for it"


def test_tables_of_a_selection_hold_nothing_else(scenes, monkeypatch, capsys):
    monkeypatch.setattr(catalog, "KERNELS", scenes["five"].parent / "kernels")
    results = scenes["five"]
    chosen = scenes["none"].parent / "chosen"
    chosen.mkdir()
    for folder in ("measured", "recorded"):
        (chosen / folder).symlink_to(results / folder)
    words = ["tables", "--results", str(chosen), "--kernels", "softmax"]
    assert cli.main([*words, "--gpus", "h200,t4"]) == 0
    for name, table in store.read(chosen / "tables").items():
        assert "kernel" not in table or set(table.kernel.dropna()) <= {"softmax"}, name
        assert name == "survey" or set(table.gpu) <= {"h200", "t4"}
    assert cli.main([*words, "--gpus", "h2000"]) == 2 and "h2000" in capsys.readouterr().err


def test_a_stale_record_is_shown_and_marked(kernels, tmp_path, atlas):
    results = tmp_path / "results"
    synthetic.write_everything(results, kernels, recorded=["a100"], functional=False)
    (tmp_path / "kernels" / "softmax.py").write_text("changed = True\n")
    atlas("tables", results)
    tables = store.read(results / "tables")
    assert tables["verdicts"].set_index("kernel").stale.to_dict() == {"softmax": True, "matmul": False}
    rows = tables["benchmark"]
    assert rows[rows.kernel == "softmax"].stale.all() and len(rows[rows.kernel == "softmax"])


def test_documents_from_before_a_row_said_that_it_is_queued_read_and_count_as_ever(kernels, tmp_path, atlas):
    before = synthetic.benchmark(kernels[0], "h200")
    waiting = {"reason": "launch latency is in the figure: the call waits for the device by itself"}
    before["rows"] = [row | (waiting if row["provider"] == "liger" else {}) for row in before["rows"]]
    said = [row | ({"queued": not row["reason"]} if "median_us" in row else {}) for row in before["rows"]]
    tables = {}
    for name, rows in {"before": before["rows"], "after": said}.items():
        synthetic.write(tmp_path / name, "recorded", before | {"rows": rows})
        atlas("tables", tmp_path / name)
        tables[name] = store.read(tmp_path / name / "tables")
    assert tables["before"]["benchmark"].queued.isna().all()
    assert (~tables["after"]["benchmark"].queued).sum() == sum(row["provider"] == "liger" for row in said) > 0
    assert not tables["before"]["verdicts"].stale.any() and tables["before"]["verdicts"].figure.notna().all()
    for name in ("verdicts", "coverage", "ladder"):
        pd.testing.assert_frame_equal(tables["before"][name], tables["after"][name])
    without = [tables[name]["benchmark"].drop(columns="queued") for name in tables]
    pd.testing.assert_frame_equal(*without)


def test_a_missing_or_foreign_table_is_named_with_the_remedy(scenes, tmp_path):
    with pytest.raises(AtlasError, match=r"benchmark\.parquet: no such table; run `python -m atlas tables`"):
        store.read(tmp_path)
    store.write(tmp_path, "benchmark", pd.DataFrame({"gpu": ["h200"]}))
    with pytest.raises(AtlasError, match="another release wrote this table"):
        store.read(tmp_path)
    (tmp_path / "benchmark.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(AtlasError, match="not readable as Parquet"):
        store.read(tmp_path)
