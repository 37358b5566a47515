"""The rule between two sides: what one run can decide, what several can, and what stays undecided."""

import math

import pytest
from atlas.results.differences import ENOUGH, difference


def runs(*medians, spread=0.0, **more):
    """A row a run; ``spread``: how far its quartiles lie apart, of the median."""
    return [{"median_us": m, "q1_us": m * (1 - spread / 2), "q3_us": m * (1 + spread / 2), **more} for m in medians]


FIVE = (100.0, 100.1, 99.9, 100.2, 99.8)


def times(factor):
    return [factor * median for median in FIVE]


def test_five_runs_a_side_tell_3_per_cent_and_one_commit_is_the_same():
    assert difference(runs(*FIVE), runs(*times(1.03))).verdict == "slower"
    assert difference(runs(*FIVE), runs(*times(0.97))).verdict == "faster"
    assert difference(runs(*FIVE), runs(*times(1.001))).verdict == "same"


def test_one_run_a_side_leaves_a_small_difference_undecided_and_says_how_many_would_do():
    found = difference(runs(100.0), runs(101.5))
    assert (found.verdict, found.reason) == ("undecided", f"its runs lie as far apart; 1 run a side, give {ENOUGH}")


def test_one_run_out_of_line_decides_nothing():
    # A process may move a median by 3 %: of five runs it is one, of one run it is all.
    found = difference(runs(*FIVE), runs(103.5, *times(1.0)[1:]))
    assert (found.verdict, found.reason) == ("undecided", "its runs lie as far apart")
    assert difference(runs(100.0), runs(103.5)).verdict == "slower"


def test_runs_that_overlap_decide_nothing():
    found = difference(runs(100, 104, 100.5, 104.5, 101), runs(103, 105, 103.5, 100.2, 106))
    assert found.verdict == "undecided"
    assert found.low < 1 < found.high


def test_the_interval_holds_the_step_and_leaves_out_1_where_the_case_is_slower():
    found = difference(runs(*FIVE), runs(*times(1.05)))
    assert found.low < found.step < found.high < 1
    assert found.step == pytest.approx(1 / 1.05, rel=1e-6)


def test_sides_exchanged_give_the_reciprocal():
    there, back = difference(runs(*FIVE), runs(*times(1.03))), difference(runs(*times(1.03)), runs(*FIVE))
    assert (there.verdict, back.verdict) == ("slower", "faster")
    assert math.isclose(there.step * back.step, 1) and math.isclose(there.low * back.high, 1)


@pytest.mark.parametrize(
    ("spread", "shift", "verdict"),
    [
        (0.02, 1.03, "slower"),
        (0.06, 1.03, "slower"),
        (0.12, 1.03, "undecided"),
        (0.13, 1.066, "undecided"),  # two heaps: the median of the same code fell to either (layer_norm's `helped`)
        (0.13, 1.12, "slower"),
    ],
)
def test_the_margin_grows_with_the_distance_of_the_quartiles(spread, shift, verdict):
    found = difference(runs(*FIVE, spread=spread), runs(*times(shift), spread=spread))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"sm_clock_mhz": 1980.0}, {"sm_clock_mhz": 1900.0}, "the clocks differ"),
        ({}, {"throttled": True}, "the board lowered its clock"),
    ],
)
def test_one_run_at_another_clock_decides_nothing_under_3_6_per_cent(before, after, why):
    found = difference(runs(100.0, **before), runs(103.0, **after))
    assert found.verdict == "undecided" and found.reason.startswith(why)
    assert difference(runs(100.0, **before), runs(106.0, **after)).verdict == "slower"


def test_peers_that_moved_as_far_take_the_blame_and_half_as_far_do_not():
    before, after = runs(*FIVE), runs(*times(1.04))
    assert difference(before, after, [(FIVE, times(1.04))]).verdict == "same"
    assert difference(before, after, [(FIVE, times(1.02))]).verdict == "slower"
    one, other = runs(100.0, throttled=True), runs(106.0)
    assert difference(one, other, [((100.0,), (105.5,))]).reason == "the peers moved as well"
    assert difference(before, after, [(FIVE, times(0.9))]).verdict == "slower"


def test_a_peer_out_of_line_is_outvoted():
    peers = [(FIVE, times(1.0)), (FIVE, times(1.2)), (FIVE, times(1.0))]
    assert difference(runs(*FIVE), runs(*times(1.04)), peers).peer_step == pytest.approx(1.0)
