"""When one provider is faster than another."""

import pytest
from atlas.benchmarking.judging import compare, verdict


def row(median, spread=0.0, kind="variant", provider="a", status="ok"):
    return {
        "provider": provider, "provider_kind": kind, "status": status, "reason": "", "queued": True,
        "median_us": median, "q1_us": median * (1 - spread), "q3_us": median * (1 + spread),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "spread", "expected"),
    [
        (90.0, 0.01, "faster"),
        (110.0, 0.01, "slower"),
        (100.2, 0.001, "same"),  # intervals a hair apart, medians within 0.5 %
        (99.8, 0.02, "same"),
        (97.0, 0.05, "undecided"),  # medians 3 % apart, intervals overlap
        (99.2, 0.002, "undecided"),  # apart, but by less than 0.5 %
        (103.0, 0.05, "undecided"),  # and the same on the other side
        (100.8, 0.002, "undecided"),
    ],
)
def test_a_difference_counts_where_quartile_intervals_are_half_a_percent_apart(mine, spread, expected):
    assert verdict(row(mine, spread), row(100.0, spread)) == expected


def test_speedup_is_against_the_fastest_peer_that_is_right():
    rows = [
        row(50.0),
        row(100.0, kind="peer", provider="torch"),
        row(80.0, kind="peer", provider="torch.compile"),
        row(10.0, kind="peer", provider="liger", status="wrong"),
    ]
    compare(rows)
    assert rows[0]["speedup"] == pytest.approx(1.6)
    assert rows[0]["verdict"] == "faster"
    assert rows[1]["speedup"] == pytest.approx(0.8)
    assert rows[2]["verdict"] is None  # it is the measure itself


def test_more_than_ten_times_faster_than_the_fastest_peer_is_suspect():
    rows = [row(9.0), row(11.0, provider="b"), row(100.0, kind="peer", provider="torch")]
    compare(rows)
    assert rows[0]["status"] == "suspect"
    assert "torch" in rows[0]["reason"]
    assert rows[1]["status"] == "ok"


def test_without_a_right_peer_there_is_no_speedup():
    rows = [row(9.0), row(100.0, kind="peer", status="wrong")]
    compare(rows)
    assert "speedup" not in rows[0]


def test_beside_a_peer_that_waits_for_the_device_any_factor_may_be_true():
    # a loop over 64 groups that reads their sizes back takes what its 64 launches take
    waiting = row(100.0, kind="peer", provider="torch") | {"queued": False}
    rows = [row(5.0), waiting]
    compare(rows)
    assert rows[0]["status"] == "ok" and rows[0]["speedup"] == pytest.approx(20.0)


def test_where_every_peer_that_ran_is_weak_the_others_say_why():
    rows = [
        row(9.0),
        row(9.0, kind="default"),
        row(20.0, kind="peer", provider="torch") | {"weak": "in bf16"},
        row(15.0, kind="peer", provider="cudnn") | {"weak": "in bf16, too"},
        row(1.0, kind="peer", provider="fp8", status="failed"),
    ]
    compare(rows)
    assert [one.get("weak") for one in rows] == ["in bf16, too", "in bf16, too", "in bf16", "in bf16, too", None]
    assert rows[0]["speedup"] == pytest.approx(15 / 9)


def test_one_peer_that_is_an_even_match_is_enough_even_if_it_is_slower():
    rows = [row(9.0), row(15.0, kind="peer") | {"weak": "in bf16"}, row(20.0, kind="peer", provider="fp8")]
    compare(rows)
    assert "weak" not in rows[0] and rows[0]["speedup"] == pytest.approx(15 / 9)
