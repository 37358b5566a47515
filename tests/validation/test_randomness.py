"""Passes that draw random numbers: what is asked of their masks, on a dropout kernel and on mutants of it."""

import math
from pathlib import Path

import pytest
from atlas.validation import randomness
from scipy import stats

from .planting import inspect, planted

DROPOUT = Path(__file__).with_name("dropout_kernel.py")
KEEP = "keep = tl.rand(seed, row.to(tl.int32) * n + offs) >= p"

MUTANTS = {
    # name: ((old, new), checks that must fail, words one of them must hold)
    "seed ignored": (("tl.rand(seed,", "tl.rand(7,"), {"other_seed_other_mask"}, "different from those of the next"),
    "wrong scale": (("x / (1 - p)", "x"), {"values"}, "x the tolerance"),
    "backward draws others": (
        ("tl.rand(seed,", "tl.rand(seed + BACKWARD,"), {"masks_agree"}, "backward drops others than forward in"
    ),
    "keep rate off by 2 %": ((">= p", ">= p + 0.018"), {"keep_rate"}, "of 40000 elements are kept (0.88"),
    "mask hangs on the config": (
        ("* n + offs) >= p", "* n + offs + BLOCK) >= p"), {"same_seed_same_mask"}, "config {'BLOCK': 4096} keeps others"
    ),
    "one element kept whatever p is": (
        (KEEP, KEEP.replace("keep = tl.rand", "keep = (offs < 100) | (tl.rand").replace(">= p", ">= p)")),
        {"extreme_probabilities"},
        "with p = 0.99: ",
    ),
    "p = 0 drops": ((">= p", "> tl.maximum(p, 0.05)"), {"extreme_probabilities"}, "with p = 0: "),
}  # fmt: skip


def inspected(folder, *faults, **selected):
    return inspect(planted(folder, *faults, of=DROPOUT), seeds=1, **selected)


def test_the_true_kernel_passes_every_check(tmp_path):
    findings = inspected(tmp_path, variant="rows") + [
        finding
        for check in ("gradients", "public_function")
        for finding in inspected(tmp_path, check=check, sizes=(("m", 5), ("n", 33)))
    ]
    assert [str(finding) for finding in findings if finding.status != "pass"] == []
    assert {finding.check for finding in findings} >= {*randomness.CHECKS, "values", "gradients", "public_function"}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught_by_the_check_that_is_for_it(mutant, tmp_path):
    fault, checks, words = MUTANTS[mutant]
    direction = "backward" if "masks_agree" in checks else "forward"
    failed = [
        finding
        for check in sorted(checks)
        for finding in inspected(tmp_path, fault, check=check, variant="rows", direction=direction)
        if finding.status == "fail"
    ]
    assert checks <= {finding.check for finding in failed}, [str(finding) for finding in failed]
    assert any(words in finding.reason for finding in failed if finding.check in checks), [str(f) for f in failed]


@pytest.mark.parametrize(("count", "rate"), [(165, 0.9), (40_000, 0.9), (2**24, 0.5), (1000, 1.0), (1000, 0.0)])
def test_a_right_kernel_trips_a_statistical_check_at_most_once_in_a_billion(count, rate):
    least, most = randomness.bounds(count, rate)
    beyond = stats.binom.cdf(least - 1, count, rate) + stats.binom.sf(most, count, rate)
    assert beyond <= 1e-9


def test_the_bounds_are_no_wider_than_once_in_a_billion_asks_for():
    # By the normal approximation 6.1 standard deviations of sqrt(n p q) on either side.
    least, most = randomness.bounds(40_000, 0.9)
    reach = 6.1 * math.sqrt(40_000 * 0.9 * 0.1)
    assert least == pytest.approx(36_000 - reach, abs=0.02 * reach)
    assert most == pytest.approx(36_000 + reach, abs=0.02 * reach)


def test_what_a_check_sees_hangs_on_the_number_of_elements():
    assert randomness.power(40_000, 0.9, 0.9 * 0.98) > 0.999, "2 % of the keep rate, at the test's 40 000 elements"
    assert randomness.power(165, 0.9, 0.9 * 0.98) < 0.01, "nothing to be seen in 165"
    found = randomness.detectable(2**20, 0.5)
    assert math.isclose(randomness.power(2**20, 0.5, 0.5 * (1 - found)), 0.999, abs_tol=2e-3)
