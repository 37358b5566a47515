"""Cases whose only peers are weak: marked wherever they are shown, and out of every mean."""

import pytest
import synthetic
from atlas import cli
from atlas.figures import overviews
from atlas.reporting import outcome
from atlas.results import documents
from atlas.tables import store
from matplotlib.text import Text

WHY = "computes in bf16"


@pytest.fixture
def results(kernels, tmp_path, atlas):
    """Softmax on an H200, whose fp32 cases were timed against peers that are no even match."""
    document = synthetic.benchmark(kernels[0], "h200")
    for row in document["rows"]:
        if row["dtype"] == "fp32" and row.get("median_us"):
            row["weak"] = WHY
    for one in (document, synthetic.survey("h200"), synthetic.validate(kernels[0], "h200")):
        synthetic.write(tmp_path, "measured", one)
    atlas("tables", tmp_path)
    return tmp_path


def test_the_table_keeps_the_mark_and_the_verdict_counts_and_leaves_out(results):
    tables = store.read(results / "tables")
    best = tables["benchmark"].query("best")
    weak = best.weak.fillna("") == WHY
    verdict = tables["verdicts"].iloc[0]
    assert 0 < weak.sum() < len(best) and set(best[weak].dtype) == {"fp32"}
    assert (verdict.cases, verdict.weak_cases) == (len(best), weak.sum())
    assert verdict.speedup_worst == best[~weak].speedup.min()


def test_the_log_gives_a_mean_without_them_and_another_of_them(results, capsys):
    assert cli.main(["log", "--results", str(results)]) == 0
    page = capsys.readouterr().out
    assert "times the fastest peer over 4 cases, from " in page
    assert " Left out: 4 cases of weak peers alone, " in page and f" ({WHY})." in page


def test_figure_and_report_say_how_many_are_left_out(results):
    tables = store.read(results / "tables")
    figure = overviews.speedup(tables)
    words = "\n".join(text.get_text() for text in figure.findobj(Text))
    assert words.count(", 4 weak)") == 2, "each pass says how many"
    assert "without those whose peers are weak" in words
    assert "timed cases, without 8 of weak peers" in outcome.summary(tables)
    shown = [cell.note for cells in outcome.verdict_table(tables).rows for cell in cells]
    assert f"{len(tables['benchmark'].query('best'))} cases, 8 weak" in shown
    rows = [cells for kind in ("faster", "slower") for cells in outcome.case_table(tables, kind).rows]
    shown = [cell.note for cells in rows for cell in cells]
    assert f"weak: {WHY}" in shown


def test_where_all_are_weak_the_figure_says_so(results):
    tables = store.read(results / "tables")
    tables["benchmark"]["weak"] = WHY
    tables["verdicts"]["weak_cases"] = tables["verdicts"].cases
    assert any(cell.note.endswith(" cases, all weak") for cell in outcome.verdict_table(tables).rows[0])
    assert "weak peers" in "\n".join(text.get_text() for text in overviews.speedup(tables).findobj(Text))


def test_a_document_with_the_mark_is_a_valid_one(results):
    path = results / "measured" / "h200" / "softmax" / "benchmark.json"
    assert any(row.get("weak") for row in documents.read(path, "benchmark")["rows"])
