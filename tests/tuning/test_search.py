"""What a search decides, with figures from a table in place of a device."""

import dataclasses

import pytest
import tuning_fakes as fakes
from atlas.tuning.budget import Budget
from atlas.tuning.candidates import Candidate
from atlas.tuning.outcome import Outcome
from atlas.tuning.search import Search, search
from atlas.tuning.strategies import STRATEGIES, strategy
from atlas.tuning.strategies.halving import survivors
from tuning_tables import Table, find


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_finds_the_optimum_of_a_convex_surface(name):
    found = find(Table(), name)
    assert found.ranking[0].config == fakes.OPTIMUM
    assert found.untried == []


def test_the_default_is_measured_first_and_takes_part_in_the_last_comparison():
    table = Table()
    found = find(table)
    assert table.screened[0][0] == found.problem.default
    assert found.problem.default in found.finals


def test_the_four_fastest_and_the_default_are_compared_in_the_end():
    # Costs of the fake kernel: 1, 1.4, 1.4, 1.8 and so on; the default takes three times as long.
    found = find(Table(), "exhaustive")
    by_time = sorted(found.problem.candidates, key=lambda c: fakes.cost_us(c.config, 1000))
    fastest = {fakes.cost_us(c.config, 1000) for c in by_time[:4]}
    compared = [c for c in found.finals if c != found.problem.default]
    assert len(compared) == 4 and found.problem.default in found.finals
    assert {fakes.cost_us(c.config, 1000) for c in compared} <= fastest


def test_a_first_look_takes_no_finalist_s_place_from_what_was_measured_longer():
    # Eight are within 1 % and go on; the longer they are measured the warmer the device, until the others' figures, of
    # the first look, are the lower ones.
    class Warming(Table):
        def cost(self, problem, candidate):
            place = problem.candidates.index(candidate)
            return (100.0 if place < 8 else 102.0) + 0.1 * place

        def screen(self, problem, candidate, samples, limit_us):
            outcome = super().screen(problem, candidate, samples, limit_us)
            return dataclasses.replace(outcome, median_us=outcome.median_us * (1.0 if samples == 5 else 1.1))

    found = find(Warming())
    assert {trial.rung for trial in found.trials.values()} >= {0, 2}
    assert set(found.finals) <= set(found.problem.candidates[:8]) and len(found.finals) == 4, "the default among them"


def test_exhaustive_knows_its_regret_and_halving_says_that_it_does_not():
    assert find(Table(), "exhaustive").regret == 0.0
    assert find(Table(), "halving").regret is None


def test_halving_knows_its_regret_where_all_candidates_reach_the_last_comparison():
    # Four configs: none is sorted out before the finalists are timed.
    assert find(Table(), "halving", tiles=(64,)).regret == 0.0


def test_halving_takes_far_fewer_samples_than_exhaustive():
    halving, exhaustive = Table(), Table()
    find(halving, "halving")
    find(exhaustive, "exhaustive")
    assert sum(n for _, n in halving.screened) < sum(n for _, n in exhaustive.screened) / 2


def test_a_config_far_behind_is_stopped_after_one_sample():
    # Those beyond 1.5 times the optimum that come after it in the order of the space.
    found = find(Table())
    stopped = [c for c, trial in found.trials.items() if trial.outcome.status == "stopped"]
    assert stopped
    assert all(fakes.cost_us(c.config, 1000) > 1.5 * fakes.cost_us(fakes.OPTIMUM, 1000) for c in stopped)


def test_whatever_takes_more_than_one_and_a_half_times_the_best_so_far_is_stopped():
    table = Table()
    found = find(table)
    best, stopped = float("inf"), 0
    for candidate in [candidate for candidate, samples in table.screened if samples == 5]:
        cost = fakes.cost_us(candidate.config, 1000)
        was_stopped = found.trials[candidate].outcome.status == "stopped"
        assert was_stopped == (cost > 1.5 * best)
        stopped += was_stopped
        best = min(best, cost)
    assert stopped > 5


def test_a_wrong_config_cannot_win_and_does_not_stop_the_others():
    # By its false speed everything else is 3 times too slow.  It comes second, right after the default.
    wrong = {"tile": 16, "warps": 1}
    found = find(Table(wrong=[wrong]))
    assert found.trials[Candidate.of("plain", wrong)].outcome.status == "wrong"
    assert found.ranking[0].config == fakes.OPTIMUM
    assert not any(c.config == wrong for c in found.finals)


def test_a_space_that_is_wrong_throughout_has_no_best():
    every = [{"tile": tile, "warps": warps} for tile in fakes.TILES for warps in fakes.WARPS]
    found = find(Table(wrong=every))
    assert found.ranking == []
    assert {trial.outcome.status for trial in found.trials.values()} == {"wrong"}


def test_a_finalist_that_fails_in_the_last_comparison_loses_it_alone():
    found = find(Table(final_fails=[fakes.OPTIMUM]))
    assert found.trials[Candidate.of("plain", fakes.OPTIMUM)].outcome.status == "crashed"
    assert found.ranking[0].config in ({"tile": 64, "warps": 2}, {"tile": 64, "warps": 8})


def test_the_next_best_are_compared_where_all_finalists_fail():
    near = [{"tile": 64, "warps": w} for w in fakes.WARPS] + [{"tile": t, "warps": 4} for t in (32, 128)]
    default = {"tile": 16, "warps": 2}
    found = find(Table(final_fails=[*near, default]))
    assert found.ranking and found.ranking[0].config not in near


def test_without_budget_the_default_alone_is_tried():
    found = find(Table(), budget=0)
    assert list(found.trials) == [found.problem.default]
    assert found.ranking == [found.problem.default]
    assert len(found.untried) == len(found.problem.candidates) - 1


def test_without_budget_candidates_are_tried_until_one_works():
    fails = [{"tile": 16, "warps": warps} for warps in fakes.WARPS]
    found = find(Table(fails=fails), budget=0)
    assert [t.outcome.status for t in found.trials.values()].count("ok") == 1
    assert found.ranking


def test_a_budget_that_ends_amid_the_screen_leaves_a_checked_best():
    table = Table()
    found = find(table, budget=10)
    assert 0 < len(found.untried) < len(found.problem.candidates) - 1
    assert found.ranking and found.regret is None
    assert table.elapsed_seconds < 20  # the comparison of two finalists and their checks come on top


def test_a_budget_is_shared_out_and_what_one_leaves_is_for_those_after_it():
    spent = [0.0]
    budget = Budget(30, 3)
    with budget.share(lambda: spent[0]) as share:
        spent[0] = 9.9
        assert not share.over
        spent[0] = 4.0  # the first needs 4 of its 10
    with budget.share(lambda: spent[0]) as share:
        spent[0] = 16.9
        assert not share.over  # 26 left for two: 13 each
        spent[0] = 17.0
        assert share.over
    with budget.share(lambda: spent[0]) as share:
        assert not share.over


def test_problems_side_by_side_share_a_budget_of_all_devices_seconds():
    first, second = [100.0], [7.0]  # each device counts its own seconds
    budget = Budget(30, 3)
    with budget.share(lambda: first[0]) as one, budget.share(lambda: second[0]) as other:
        first[0] += 10
        assert one.over and not other.over
        second[0] += 4
    with budget.share(lambda: second[0]) as last:
        second[0] += 15.9
        assert not last.over  # 10 and 4 of 30 are spent
        second[0] += 0.1
        assert last.over


def test_what_is_left_over_in_the_end_is_shared_by_those_that_were_cut_short():
    spent = [0.0]
    budget = Budget(40, 4)
    for seconds in (10, 10, 1, 1):  # the first two are cut short, the others need a tenth of theirs
        with budget.share(lambda: spent[0]):
            spent[0] += seconds
    for _ in range(2):
        with budget.rest(lambda: spent[0]) as share:  # 18 left for two
            spent[0] += 8.9
            assert not share.over
            spent[0] += 0.1
            assert share.over


def test_a_second_turn_leaves_those_their_share_that_wait_for_their_first():
    spent = [0.0]
    budget = Budget(30, 3)
    for _ in range(2):
        with budget.share(lambda: spent[0]):
            spent[0] += 10  # cut short
    with budget.rest(lambda: spent[0]) as share:  # 10 left for two that were cut short and one that waits
        spent[0] += 3.3
        assert not share.over
        spent[0] += 0.1
        assert share.over
    with budget.share(lambda: spent[0]) as share:
        spent[0] += 6.5  # 6.6 left, of which the one that was cut short has another turn only afterwards
        assert not share.over


def test_a_search_that_was_cut_short_goes_on_and_asks_nothing_twice():
    table, whole = Table(), find(Table())
    (problem,) = fakes.problems()
    begun = Search(problem, STRATEGIES["halving"], table, Budget(10, 1).share(lambda: table.elapsed_seconds))
    assert begun.compare() is not None and begun.cut_short
    begun.resume(Budget(None, 1).share(lambda: table.elapsed_seconds))
    found = begun.settle()
    assert not begun.cut_short and not found.untried
    assert found.ranking[0] == whole.ranking[0]
    assert len(table.screened) == len(set(table.screened))


def test_a_problem_that_goes_back_to_the_queue_gets_its_share_of_what_is_left():
    spent = [0.0]
    budget = Budget(30, 3)
    with pytest.raises(RuntimeError), budget.share(lambda: spent[0]):
        spent[0] = 3.0
        raise RuntimeError("the device is gone")
    with budget.share(lambda: spent[0]) as share:  # 27 left for three
        spent[0] = 11.9
        assert not share.over
        spent[0] = 12.0
        assert share.over


def test_the_winner_is_certified_and_nobody_else():
    table = Table()
    found = find(table)
    assert [c.config for c in table.certified] == [fakes.OPTIMUM]
    assert found.certificate.certificate["checks"] == 20


def test_a_winner_that_fails_its_certification_gives_way_to_the_runner_up():
    table = Table(uncertified=[fakes.OPTIMUM])
    found = find(table)
    loser = found.trials[Candidate.of("plain", fakes.OPTIMUM)].outcome
    assert (loser.status, loser.reason) == ("wrong", "not certified: n=1: y[0] is 3, expected 2")
    assert found.ranking[0] == table.certified[1] != Candidate.of("plain", fakes.OPTIMUM)
    assert found.certificate.status == "ok"
    # Nothing is explored again: the loser's time was honest.
    assert len(table.screened) == len(find_screened(Table()))


def test_the_next_best_are_compared_where_no_finalist_is_certified():
    every = [{"tile": tile, "warps": warps} for tile in fakes.TILES for warps in fakes.WARPS]
    right = {"tile": 256, "warps": 1}
    found = find(Table(uncertified=[config for config in every if config != right]))
    assert found.ranking[0].config == right
    nothing = find(Table(uncertified=every))
    assert nothing.ranking == [] and nothing.certificate is None


def find_screened(table):
    find(table)
    return table.screened


def test_near_ties_go_on_to_the_next_rung_whatever_their_rank():
    # 12 within 1 %: a third would be 4, and which 4 would be chance.
    close = {Candidate.of("v", {"i": i}): Outcome("ok", "", 100 + i / 12, 0, 0, 5) for i in range(12)}
    far = {Candidate.of("v", {"i": 20 + i}): Outcome("ok", "", 150, 0, 0, 5) for i in range(12)}
    assert set(survivors(close | far)) == set(close)
    assert len(survivors(dict(list(far.items())[:2]) | dict(list(close.items())[:1]))) <= 4


def test_inputs_that_cannot_be_drawn_end_the_problem_at_once():
    class NoMemory(Table):
        def screen(self, problem, candidate, samples, limit_us):
            self.screened.append(candidate)
            return Outcome("out_of_memory", "drawing the inputs", whole_problem=True)

    table = NoMemory()
    found = find(table)
    assert len(table.screened) == 1
    assert found.ranking == []


def test_an_unknown_strategy_is_refused_with_the_nearest_name():
    with pytest.raises(Exception, match="did you mean 'halving'"):
        strategy("halfing")


def test_on_the_interpreter_three_configs_of_each_variant_are_candidates():
    from atlas.declaration.hardware import INTERPRETER
    from atlas.tuning.candidates import Ruling, problems

    declaration = fakes.declare()
    declaration = dataclasses.replace(declaration, edge_cases=tuple(declaration.cases(INTERPRETER)))
    (problem,) = problems(declaration, INTERPRETER, Ruling())
    assert len(problem.candidates) == 3
    assert problem.left_out == len(fakes.TILES) * len(fakes.WARPS) - 3
    assert run_functional(problem).regret is None  # most of the space was not run


def run_functional(problem):
    from atlas.tuning.strategies.strategy import FUNCTIONAL

    table = Table()
    return search(problem, FUNCTIONAL, table, Budget(None, 1).share(lambda: table.elapsed_seconds))
