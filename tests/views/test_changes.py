"""Did a change make it slower: a benchmark measured here against the record of the same GPU and kernel."""

import copy
import json

import pytest
import synthetic
from atlas.reporting import comparisons, outcome
from atlas.results import changes, collection, differences
from atlas.tables import store

SOFTMAX = synthetic.KERNELS[1]


def two_runs(results, ours=1.0, peers=1.0, **now):
    """A record, and a run of today whose variants and peers take ``ours`` and ``peers`` times as long."""
    before = synthetic.benchmark(SOFTMAX, "h200")
    after = copy.deepcopy(before) | {"software": before["software"] | {"date": "2026-11-22T10:00:00+00:00"}} | now
    for row in after["rows"]:
        row["median_us"] *= peers if row["provider_kind"] == "peer" else ours
    synthetic.write(results, "recorded", before)
    synthetic.write(results, "measured", after)
    return list(changes.against_record(collection.measured_and_recorded(results)))


@pytest.mark.parametrize(
    ("ours", "peers", "verdict"),
    [
        (1.2, 1.0, "slower"),
        (0.8, 1.0, "faster"),
        (1.002, 1.0, "same"),
        (1.2, 1.2, "same"),  # the board is slower, not the kernel
        (1.0, 0.8, "same"),  # another torch made the peers faster
        (0.8, 0.8, "same"),
    ],
)
def test_a_case_is_slower_where_its_own_time_and_the_peers_both_say_so(kernels, tmp_path, ours, peers, verdict):
    rows = two_runs(tmp_path, ours, peers)
    assert len(rows) == 16, "every case, of both passes and dtypes"
    assert {row["verdict"] for row in rows} == {verdict}
    assert rows[0]["step"] == pytest.approx(1 / ours) and rows[0]["peer_step"] == pytest.approx(1 / peers)


def test_short_cases_have_a_wider_margin(kernels, tmp_path):
    rows = two_runs(tmp_path, ours=1.05)
    short = [row["median_us"] < differences.SHORT_US for row in rows]
    assert any(short) and not all(short)
    assert [row["verdict"] for row in rows] == ["undecided" if brief else "slower" for brief in short]


def test_other_protocols_decide_nothing(kernels, tmp_path):
    rows = two_runs(tmp_path, ours=2.0, protocol="timing/9")
    assert {row["verdict"] for row in rows} == {"undecided"}
    assert "16 undecided" in changes.sentences(rows)[0]


def test_a_record_of_this_very_run_is_no_second_run(kernels, tmp_path):
    for folder in ("measured", "recorded"):
        synthetic.write(tmp_path, folder, synthetic.benchmark(SOFTMAX, "h200"))
    synthetic.write(tmp_path, "measured", synthetic.benchmark(SOFTMAX, "a100"))
    assert collection.measured_and_recorded(tmp_path) == []


def test_a_loss_since_the_record_is_in_table_report_and_summary(kernels, tmp_path, atlas, capsys):
    two_runs(tmp_path, ours=1.5, identities={"*": "another"})
    assert atlas("tables", tmp_path) == atlas("verdict", tmp_path) == 0, "slower is no failure"
    tables = store.read(tmp_path / "tables")
    table = tables["changes"]
    assert set(table.verdict) == {"slower"} and not table.same_source.any()
    assert json.loads(table.sizes[0]) == SOFTMAX.sizes[0]
    sentence = "softmax on h200 against its record of 2026-11-20: 16 of 16 cases slower (0.67x at worst:"
    assert sentence in capsys.readouterr().out
    assert comparisons.changed_sentences(tables)[0].startswith(sentence)
    assert "Slower than its record: softmax on h200" in [alarm.headline for alarm in outcome.alarms(tables)]
    steps = [row[9].sort for row in comparisons.changed_table(tables).rows]
    assert steps == pytest.approx([1 / 1.5] * 16)
