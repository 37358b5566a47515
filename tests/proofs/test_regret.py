"""The arithmetic of regret."""

import pytest

from proofs.tuning.regret import alike, regret, share


def timed(median, half=0.0):
    return {"median_us": median, "low_us": median - half, "high_us": median + half}


def test_regret_is_against_the_fastest_of_all_and_zero_for_it():
    finalists = [timed(11.0), timed(10.0), timed(14.0)]
    assert regret(finalists[0], finalists) == pytest.approx(0.1)
    assert regret(finalists[1], finalists) == 0


@pytest.mark.parametrize(
    ("pick", "best", "expected"),
    [
        (timed(10.2, 0.15), timed(10.0, 0.1), True),  # intervals overlap
        (timed(10.2, 0.05), timed(10.0, 0.1), False),
        (timed(10.04, 0.001), timed(10.0, 0.001), True),  # within the margin of every verdict
    ],
    ids=["intervals overlap", "intervals apart", "half a per cent"],
)
def test_picks_are_alike_where_the_samples_cannot_tell_them_apart(pick, best, expected):
    assert alike(pick, [pick, best]) is expected


@pytest.mark.parametrize(
    ("values", "of", "expected"),
    [
        ([], 0.95, None),
        ([3.0], 0.95, 3.0),
        (list(range(1, 21)), 0.95, 19),  # one of twenty may be worse
        (list(range(1, 20)), 0.95, 19),  # of nineteen none may
        ([2, 1, 3], 0.5, 2),
        ([2, 1, 3], 1.0, 3),
    ],
)
def test_a_share_is_one_of_the_values(values, of, expected):
    assert share(values, of) == expected
