"""The guided strategy on spaces of known shape under noise, and what it owes every strategy's caller."""

import statistics
import subprocess
import sys
from types import SimpleNamespace

import pytest
from atlas import ROOT
from atlas.tuning.candidates import Candidate
from atlas.tuning.outcome import Outcome
from atlas.tuning.search import search
from atlas.tuning.strategies import guided, model
from atlas.tuning.strategies.halving import HALVING
from tuning_landscapes import Noisy, landscape, problem_of

from proofs.tuning.strategies import chance

UNLIMITED = SimpleNamespace(over=False)
SEEDS = range(6)


def find(times, strategy, seed):
    measuring = Noisy(times, seed)
    found = search(problem_of(times), strategy, measuring, UNLIMITED)
    return found, measuring, len({candidate for candidate, _ in measuring.screened})


@pytest.fixture(scope="module")
def searched():
    """Of each seed a landscape of its own, searched by guided and by chance with as many trials."""
    results = []
    for seed in SEEDS:
        times = landscape(seed)
        found, measuring, trials = find(times, guided.guided(seed), seed)
        by_chance, lucky, _ = find(times, chance(trials, seed), seed)
        results.append((measuring.regret(found), trials / len(times), lucky.regret(by_chance)))
    return results


def test_it_comes_within_2_percent_of_the_optimum_with_15_percent_of_the_trials(searched):
    assert all(share <= 0.15 for _, share, _ in searched)
    assert sum(regret <= 0.02 for regret, _, _ in searched) >= len(SEEDS) - 1


def test_chance_does_worse_with_as_many_trials(searched):
    assert statistics.mean(r for r, _, _ in searched) < 0.5 * statistics.mean(r for _, _, r in searched)


def ask(strategy, candidates, answer):
    """The rounds of a search whose figures ``answer(candidate, round)`` gives."""
    rounds = strategy.search(candidates)
    asked = [next(rounds)]
    try:
        while True:
            asked.append(rounds.send({c: answer(c, asked[-1]) for c in asked[-1].candidates}))
    except StopIteration:
        return asked


def plain(times):
    """Answers without noise."""

    def answer(candidate, asked):
        t = times[candidate]
        return Outcome("launch_error", "as told") if t is None else Outcome("ok", "", t, t, t, asked.samples)

    return answer


def test_nothing_is_asked_for_twice_with_the_same_samples():
    times = dict(list(landscape(1).items())[::4])
    rounds = ask(guided.GUIDED, list(times), plain(times))
    asked = [(candidate, one.samples) for one in rounds for candidate in one.candidates]
    assert len(asked) == len(set(asked))


def test_the_same_answers_lead_to_the_same_questions():
    times = dict(list(landscape(2).items())[::4])
    first, again = (ask(guided.guided(3), list(times), plain(times)) for _ in range(2))
    assert first == again
    assert first != ask(guided.guided(4), list(times), plain(times))


def test_a_search_that_starts_again_asks_the_same_of_all_but_the_one_that_was_wrong():
    # A finalist that computes the wrong thing is taken away, and what was measured is remembered.
    times = landscape(2)
    before = next(guided.GUIDED.search(list(times))).candidates
    wrong = next(c for c in times if c not in before)
    after = next(guided.GUIDED.search([c for c in times if c != wrong])).candidates
    assert set(before) == set(after)


def test_a_small_space_is_tried_whole_as_halving_does():
    times = dict(list(landscape(1, 5.0).items())[200:224])  # docs/tuning.md: up to 24 configs
    assert ask(guided.GUIDED, list(times), plain(times)) == ask(HALVING, list(times), plain(times))


def test_the_default_of_every_variant_is_among_the_first():
    times = {**landscape(1), **{Candidate.of("other", {"BLOCK": 2**i}): 300.0 for i in range(4, 10)}}
    candidates = list(times)
    first = next(guided.GUIDED.search(candidates)).candidates
    assert {candidates[0], Candidate.of("other", {"BLOCK": 16})} <= set(first)
    assert len(first) == len(set(first)) == 20, "docs/tuning.md: spread over the space"


def test_where_hardly_anything_works_it_goes_on_until_something_does():
    times = dict.fromkeys(landscape(1))
    works = list(times)[777]
    rounds = ask(guided.GUIDED, list(times), plain({**times, works: 10.0}))
    assert works in {candidate for one in rounds for candidate in one.candidates}


def test_a_space_where_nothing_works_is_tried_whole_and_ends():
    times = dict.fromkeys(list(landscape(1))[:50])
    assert sum(len(one.candidates) for one in ask(guided.GUIDED, list(times), plain(times))) == 50


def test_a_space_whose_configs_all_take_the_same_time_ends_early():
    times = dict.fromkeys(landscape(1), 50.0)
    rounds = ask(guided.GUIDED, list(times), plain(times))
    assert len({c for one in rounds if one.rung == 0 for c in one.candidates}) < 0.15 * len(times)


def test_ratios_words_and_absent_parameters_become_columns():
    candidates = [
        Candidate.of("a", {"BLOCK": 64, "order": "row", "same": 1}),
        Candidate.of("a", {"BLOCK": 256, "order": "column", "same": 1}),
        Candidate.of("b", {"SPLIT": 0, "order": "row", "same": 1}),
    ]
    columns = model.matrix(candidates).T.tolist()
    assert [6.0, 8.0, -1.0] in columns  # log2 of BLOCK, which variant b lacks
    assert [1.0, 0.0, 1.0] in columns and [0.0, 1.0, 0.0] in columns  # order
    assert all(len(set(column)) > 1 for column in columns)  # nothing to learn from what never varies


def test_scikit_learn_is_loaded_only_where_a_space_needs_it():
    code = "import sys, atlas.tuning.strategies; print('sklearn' in sys.modules, 'scipy.special' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "workflow", check=True
    )
    assert done.stdout.split() == ["False", "False"]
