"""The chart on top: how fast every GPU is beside a chosen one, kinds apart, by what binds."""

import numpy as np
import pandas as pd
import pytest
from atlas import catalog
from atlas.reporting import answers, comparisons, outcome, overview, standing, strips
from atlas.tables import store


@pytest.fixture
def tables(scenes):
    return store.read(scenes["five"] / "tables")


def test_a_mark_is_the_mean_of_the_cases_that_both_gpus_timed_beside_what_roofs_allow(tables):
    best = tables["benchmark"].query("best and kernel == 'matmul' and kind != 'functional'")
    times = {gpu: own.set_index(["dtype", "sizes"]).median_us for gpu, own in best.groupby("gpu")}
    found = {(m.bound, m.gpu): m for m in standing.marks(tables, "h200") if m.kernel == "matmul"}
    for bound, chosen in (("launch", times["h200"] < 20), ("compute", times["h200"] >= 20)):
        steps = (times["h200"][chosen] / times["h100"]).dropna().astype(float)
        mark = found[bound, "h100"]
        assert (mark.times, mark.cases) == (pytest.approx(np.exp(np.log(steps).mean())), len(steps))
    assert found["compute", "h100"].allowed == pytest.approx(720 / 780, rel=1e-3)
    assert np.isnan(found["launch", "h100"].allowed) and found["compute", "h200"].times == pytest.approx(1)


def test_kinds_are_marks_of_their_own_and_appear_by_being_in_a_table(tables):
    case = tables["benchmark"].query("best and kernel == 'matmul' and gpu == 'h200' and median_us > 20").iloc[0]
    key = {name: case[name] for name in ("kernel", "direction", "dtype", "sizes")}
    us = float(case.median_us)
    predicted = key | {"gpu": "b200", "kind": "predicted", "median_us": us / 2, "low_us": us / 3, "high_us": us}
    published = key | {"gpu": "a100", "kind": "published", "tflop_per_s": float(case.tflop_per_s) / 4}
    tables |= {name: tables[name].iloc[:0] for name in ("predictions", "published")}
    before = standing.marks(tables, "h200")
    tables |= {"predictions": pd.DataFrame([predicted]), "published": pd.DataFrame([published])}
    found = standing.marks(tables, "h200")
    assert repr([mark for mark in found if mark.kind == "measured"]) == repr(before), "averaged with nothing"
    (one,), (other,) = ([mark for mark in found if mark.kind == kind] for kind in ("predicted", "published"))
    assert (one.gpu, one.times, one.low, one.high) == ("b200", *map(pytest.approx, (2, 1, 3)))
    assert (other.gpu, other.times) == ("a100", pytest.approx(0.25))
    assert standing.every_gpu(tables)[-1] == "b200" and "b200" not in standing.gpus(tables)
    drawn = strips.lane([one, other], strips.Scale.of([0.25, 3]), {"a100": 0, "b200": 1}, "h200")
    assert 'class="g1 hollow"' in drawn and 'href="#diamond" class="g0"' in drawn and 'class="span g1"' in drawn
    others = [published | {"gpu": "b200"}, published | {"gpu": "h800", "sizes": '{"m": 1}'}]
    tables["published"] = pd.DataFrame([published, *others])
    beside = {"h200": standing.marks(tables, "h200")}
    shown = overview.marked(tables, beside)
    legend = {key.gpu: key for key in overview.legend(tables, beside, shown)}
    assert [kind for kind, _ in legend["b200"].kinds] == ["predicted", "published"], "nobody timed it"
    shapes = {kind: shape for key in legend.values() for kind, shape in key.kinds}
    assert " hollow" in shapes["predicted"] and "#diamond" in shapes["published"], "as in the chart"
    assert "circle" in shapes["measured"] and " hollow" not in shapes["measured"]
    assert "h800" not in legend and overview.unmarked(tables, shown) == ["h800"], "it has no case in common"


def test_the_answers_are_of_the_gpu_with_most_kernels_and_most_bandwidth(tables):
    assert standing.gpus(tables)[0] == "h200"
    found = standing.marks(tables, "h200")
    said = {answer.question: answer for answer in answers.answers(tables, [], "h200", found)}
    assert (
        said["Which GPU?"].headline == "h200 is fastest" and "The table below has 1 more." in said["Which GPU?"].words
    )
    assert said["What changed?"].headline == "No comparison"
    prices = [
        {"gpu": gpu, "roof": "price", "value": usd, "kind": "published"} for gpu, usd in (("h200", 9), ("h100", 2))
    ]
    tables["survey"] = pd.concat([tables["survey"], pd.DataFrame(prices)])
    grid = overview.gpu_table(tables, "h200", found)
    assert grid.rows[0][-1].text == "1.00\N{MULTIPLICATION SIGN}", "work for a dollar beside itself"
    which = answers.which_gpu(tables, "h200", found)
    assert "Most work for its price: h100, at 2 USD an hour." in which.words


def test_calls_that_nobody_tuned_stand_beside_the_mean_of_those_that_are(tables):
    calls = tables["beyond"].query("gpu == 'h200' and ratio.notna()").iloc[:2]
    tables["beyond"] = calls.assign(ratio=[0.5, 2.0])
    words = answers.fastest(tables, "h200").words
    assert words[-1] == "2 calls that nobody tuned: 1.00\N{MULTIPLICATION SIGN}, 1 behind by more than 10 %."
    assert len(answers.fastest(tables, "h100").words) == len(words) - 1, "nobody made them there"


def test_what_is_stale_is_named_by_its_gpu(tables):
    verdicts = tables["verdicts"]
    where = verdicts.gpu + " " + verdicts.kernel
    tables["verdicts"] = verdicts.assign(stale=where.isin(["h100 softmax", "h200 matmul", "h200 softmax"]))
    words = next(alarm.words for alarm in outcome.alarms(tables) if alarm.headline == "Stale")
    assert words.startswith("softmax on h100; matmul and softmax on h200: ")


def test_checks_of_code_that_has_changed_since_do_not_say_that_a_kernel_is_right(tables):
    """A record of older code stood behind "Yes" for kernels that nothing had checked as they are."""
    tables["verdicts"] = tables["verdicts"].assign(status="ok")
    old = (tables["validation"].kernel == "softmax") & (tables["validation"].status == "pass")
    everywhere = tables | {"validation": tables["validation"].assign(stale=old)}
    said = answers.right(everywhere, [])
    assert said.level == "warn" and said.headline == "1 of 2 kernels"
    assert "Part of softmax was checked nowhere since it changed." in said.words
    assert f"{old.sum():,} of them of code that has changed since" in said.words[0]
    elsewhere = tables | {"validation": tables["validation"].assign(stale=old & (tables["validation"].gpu == "h200"))}
    assert answers.right(elsewhere, []).headline == "Yes: 2 kernels", "another GPU checked today's code"


def test_stale_rows_are_marked_where_their_figures_stand(tables):
    rows = tables["benchmark"]
    tables["benchmark"] = rows.assign(stale=(rows.gpu == "h100") & (rows.kernel == "softmax"))
    beside = standing.marks(tables, "h100")
    shown = overview.marked(tables, {"h100": beside})
    stale = {row.kernel: row.stale for row in overview.chart(tables, "h100", beside, shown).rows}
    assert stale == {"matmul": False, "softmax": True}
    assert not any(row.stale for row in overview.chart(tables, "h200", [], []).rows), "of the chosen GPU alone"
    cases = {(row[0].text, row[1].text): row[2] for row in outcome.case_table(tables).rows}
    assert cases["softmax", "h100"].text == "recorded, stale" and "stale" in cases["softmax", "h100"].style
    assert cases["matmul", "h100"].text == "recorded"
    pairs = [row for row in comparisons.across_table(tables).rows if row[0].text == "softmax"]
    assert {cell.note for row in pairs for cell in row[2:4] if cell.text == "h100"} == {"recorded, stale"}


@pytest.mark.parametrize(
    ("elsewhere", "shown"), [("unsupported", "ok"), ("skipped", "skipped"), ("wrong", "wrong"), ("ok", "ok")]
)
def test_what_one_gpu_does_not_support_is_no_status_of_the_kernel(tables, elsewhere, shown):
    """A T4 has no fp8: the kernel that an H200 ran was marked as unsupported on the first page."""
    verdicts = tables["verdicts"].copy()
    verdicts["status"] = ["ok" if gpu == "h200" else elsewhere for gpu in verdicts.gpu]
    both = verdicts.groupby("kernel").gpu.nunique().loc[lambda count: count > 1].index[0]
    rows = overview.chart(tables | {"verdicts": verdicts}, "h200", [], []).rows
    assert next(row.status for row in rows if row.kernel == both) == shown
    verdicts["status"] = "unsupported"
    rows = overview.chart(tables | {"verdicts": verdicts}, "h200", [], []).rows
    assert {row.status for row in rows} == {"unsupported"}


def test_a_scale_has_few_ticks_and_holds_what_is_beyond_it():
    wide = strips.Scale.of([0.01, 8])
    assert len(wide.ticks) <= 5 and wide.place(1e-9) == 0 and wide.place(1e9) == 100
    assert [f"{tick:.2g}" for tick in strips.Scale.of([1.0]).ticks] == ["0.71", "1", "1.4"]


def test_a_kernel_without_a_family_of_its_own_has_that_of_the_one_it_is_made_from():
    assert {catalog.family(name) for name in catalog.names()} >= {"matmul", "rows", "attention"}
    assert catalog.family("matmul_w8a16") == "matmul" and catalog.family("gone") == ""
