"""The rule by which a median counts as settled."""

import random

import pytest
from atlas.timing.samples import median_interval, quartiles, settled


def test_quartiles_of_a_plain_sequence():
    assert quartiles([1, 2, 3, 4, 5]) == (2, 3, 4)


@pytest.mark.parametrize(
    ("count", "ranks"),
    # Tabled for 95 %, for instance in Conover, Practical Nonparametric Statistics: order statistics counted from 1.
    [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (50, (18, 33)), (100, (40, 61))],
)
def test_interval_of_the_median_has_the_tabled_ranks(count, ranks):
    assert median_interval(range(1, count + 1)) == ranks


def test_five_samples_are_too_few_for_any_interval():
    assert median_interval([1.0] * 5) is None
    assert not settled([1.0] * 5)


def test_interval_covers_the_true_median_as_often_as_it_claims_also_for_a_skewed_distribution():
    generator = random.Random(7)
    truth = 0.6931471805599453  # median of the exponential distribution: ln 2
    hits = 0
    for _ in range(2000):
        low, high = median_interval([generator.expovariate(1) for _ in range(25)])
        hits += low <= truth <= high
    assert 0.94 <= hits / 2000 <= 0.98  # at least 95 %, discrete ranks make it a little more


def test_narrow_samples_settle_and_wide_ones_do_not():
    generator = random.Random(1)
    assert settled([100 + generator.gauss(0, 0.3) for _ in range(20)])
    assert not settled([100 + generator.gauss(0, 10) for _ in range(20)])


@pytest.mark.parametrize(("end", "enough"), [(100.4, True), (99.6, True), (100.6, False), (99.4, False)])
def test_both_ends_of_the_interval_must_lie_within_half_a_per_cent(end, enough):
    # Of 20 samples the interval is from the 6th to the 15th: one end is the median itself, the other is ``end``.
    assert settled([100.0] * 11 + [end] * 9) is enough


def test_an_outlier_neither_unsettles_the_median_nor_is_dropped_from_the_quartiles():
    samples = [100.0] * 19 + [5000.0]
    assert settled(samples)
    assert quartiles([1, 1, 1, 1, 1000])[1] == 1
