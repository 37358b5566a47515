"""What halving sorts out under a clock's noise; docs/tuning.md shows the simulation at large."""

from types import SimpleNamespace

import numpy as np
import pytest
from atlas.tuning.candidates import Candidate
from atlas.tuning.outcome import Outcome
from atlas.tuning.search import search
from atlas.tuning.strategies import halving
from atlas.tuning.strategies.strategy import EXHAUSTIVE
from tuning_landscapes import Noisy, crowded, problem_of


def outcomes(medians, quartile, samples=5):
    """Medians with quartiles that far to either side."""
    return {
        Candidate.of("v", {"i": i}): Outcome("ok", "", m, m - quartile, m + quartile, samples)
        for i, m in enumerate(medians)
    }


def test_more_go_on_where_the_samples_scatter_more():
    medians = [100 + i for i in range(30)]
    calm, rough = (len(halving.survivors(outcomes(medians, quartile))) for quartile in (0.5, 5.0))
    assert calm == 4, "finalists, however calm the samples"
    # Quartiles 10 apart: the standard error of 5 samples' median is 3.9 %, and 4 of these are 15.5 %.
    assert rough == 16


@pytest.mark.parametrize(
    ("within", "goes_on"), [(1.009, True), (1.011, False)]
)  # calm samples: 1 % alone counts, for drift between them
def test_what_lies_within_one_per_cent_goes_on_however_calm_the_samples(within, goes_on):
    medians = [100.0 + i / 100 for i in range(6)] + [100.0 * within] * 6 + [150.0] * 6
    assert len(halving.survivors(outcomes(medians, 0.01))) == (12 if goes_on else 6)


@pytest.mark.parametrize(("within", "goes_on"), [(1.15, True), (1.16, False)])
def test_what_lies_within_four_standard_errors_goes_on(within, goes_on):
    # In the faster half's median the quartiles are 10 of 107 apart: a median of 5 samples errs by
    # sqrt(pi / 2) / 1.349 * 0.0935 / sqrt(5) = 3.88 %, and four of these are 15.5 %.
    medians = [100.0] + [107.0] * 8 + [100.0 * within] * 9
    assert len(halving.survivors(outcomes(medians, 5.0))) == (18 if goes_on else 9)


def test_with_more_samples_the_same_scatter_lets_fewer_go_on():
    medians = [100 + i for i in range(30)]
    assert len(halving.survivors(outcomes(medians, 5.0, 45))) < len(halving.survivors(outcomes(medians, 5.0, 5)))


def test_one_config_with_wild_samples_does_not_keep_all_others():
    answers = outcomes([100 + i for i in range(30)], 0.5)
    wild = next(iter(answers))
    answers[wild] = Outcome("ok", "", 100.0, 60.0, 180.0, 5)
    assert len(halving.survivors(answers)) == 4


# At 4 us a sample scatters by 8 %, and 100 samples of each finalist do not tell 1 % apart.
@pytest.mark.parametrize("least_us, limit", [(4.0, 0.02), (10.0, 0.01), (300.0, 0.01)])
def test_its_regret_stays_within_the_limit_in_19_of_20_searches(least_us, limit):
    regrets, samples, spent = [], 0, 0
    for seed in range(40):
        times = crowded(seed, least_us)
        found = {}
        for strategy in (halving.HALVING, EXHAUSTIVE):
            measuring = Noisy(times, seed)
            found[strategy.name] = search(problem_of(times), strategy, measuring, SimpleNamespace(over=False))
            if strategy is halving.HALVING:
                regrets.append(measuring.regret(found["halving"]))
                samples += measuring.screening
            else:
                spent += measuring.screening
    assert np.quantile(regrets, 0.95, method="higher") <= limit
    assert samples < spent / 2
