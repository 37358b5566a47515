"""A sample's few trials: which the model asks for, what deserves a certificate, and what a document says of it."""

import tuning_fakes as fakes
from atlas.tuning import probe
from atlas.tuning.budget import Budget
from atlas.tuning.candidates import Candidate
from atlas.tuning.outcome import Outcome
from atlas.tuning.transfer import Model, Seen
from tuning_tables import Table

CERTIFICATE = Outcome("ok", certificate={"protocol": "validation/2", "cases": 4, "checks": 20, "seeds": 5})


def of(tile, warps):
    return Candidate.of("plain", {"tile": tile, "warps": warps})


def known(n):
    """All that was timed at a case, as the tuner would have."""
    us = {
        of(tile, warps): fakes.cost_us({"tile": tile, "warps": warps}, n)
        for tile in fakes.TILES
        for warps in fakes.WARPS
    }
    return Seen("fp32", {"n": n}, of(16, 2), us)


def probed(table, sample, n=1000, budget=None):
    (problem,) = fakes.problems(sizes=(n,))
    with Budget(budget, 1).share(lambda: table.elapsed_seconds) as share:
        found = sample.begin(problem, table, share)
        contender = found.compare()
        return found.settle(), contender


def test_what_was_fast_at_another_case_is_tried_first_and_certified_where_it_gains():
    table, sample = Table(), probe.Sample({"forward": Model([known(4000)])}, {})
    found, contender = probed(table, sample)
    asked = [candidate for candidate, _ in table.screened]
    assert asked[0] == of(16, 2), "the default, beside which all others are"
    assert asked[1] == of(64, 4) == contender == found.ranking[0]
    assert len(asked) <= 1 + probe.MOST and set(asked) <= set(sample.pool(found.problem))
    assert len(sample.pool(found.problem)) == 1 + probe.POOL < len(found.problem.candidates)
    assert table.certified == [of(64, 4)] and found.certificate.certificate["checks"] == 20
    assert sample.models["forward"].seen[-1].sizes == {"n": 1000}, "the next case learns from it"


def test_without_anything_known_trials_are_spread_and_still_few():
    table = Table()
    found, _ = probed(table, probe.Sample({"forward": Model()}, {}))
    assert 3 <= len(table.screened) <= 1 + probe.MOST
    assert fakes.cost_us(found.ranking[0].config, 1000) < fakes.cost_us({"tile": 16, "warps": 2}, 1000)


def test_a_config_with_a_certificate_needs_no_other_and_a_small_gain_deserves_none():
    certified = {("forward", "fp32", of(64, 4)): CERTIFICATE}
    table = Table()
    found, contender = probed(table, probe.Sample({"forward": Model([known(4000)])}, certified))
    assert contender is None and not table.certified and found.certificate is CERTIFICATE
    table = Table(uncertified=[fakes.OPTIMUM])
    found, _ = probed(table, probe.Sample({"forward": Model([known(4000)])}, {}))
    assert found.ranking == [of(16, 2)], "what is not certified is passed over, down to the default"
    assert of(64, 4) in found.trials


def test_a_default_that_fails_leaves_nothing_to_compare_with():
    table = Table(fails=[{"tile": 16, "warps": 2}])
    found, _ = probed(table, probe.Sample({"forward": Model([known(4000)])}, {}))
    assert not found.ranking and len(table.screened) == 1


def test_the_budget_ends_the_trials_but_not_the_default():
    table = Table()
    found, _ = probed(table, probe.Sample({"forward": Model([known(4000)])}, {}), budget=0.5)
    assert [candidate for candidate, _ in table.screened] == [of(16, 2)] == found.ranking
