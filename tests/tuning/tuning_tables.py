"""A search's figures from a table in place of a device."""

import tuning_fakes as fakes
from atlas.tuning.budget import Budget
from atlas.tuning.outcome import Outcome
from atlas.tuning.search import search
from atlas.tuning.strategies import STRATEGIES


class Table:
    """Answers from the known surface and counts what it is asked; each request costs one second of budget."""

    def __init__(self, wrong=(), fails=(), final_fails=(), uncertified=()):
        self.wrong, self.fails, self.final_fails, self.uncertified = wrong, fails, final_fails, uncertified
        self.screened = []
        self.certified = []
        self.elapsed_seconds = 0.0

    def next_of(self, problem, pending):
        return pending[0]

    def cost(self, problem, candidate):
        if candidate.config in self.wrong:
            return 0.001
        return fakes.cost_us(candidate.config, problem.case["n"])

    def screen(self, problem, candidate, samples, limit_us):
        self.elapsed_seconds += 1
        self.screened.append((candidate, samples))
        if candidate.config in self.fails:
            return Outcome("launch_error", "as told")
        cost = self.cost(problem, candidate)
        if limit_us is not None and cost > limit_us:
            return Outcome("stopped", "far behind", cost, cost, cost, 1)
        return Outcome("ok", "", cost, cost, cost, samples)

    def check(self, problem, candidate):
        self.elapsed_seconds += 1
        return Outcome("wrong", "y[0] is 3, expected 2") if candidate.config in self.wrong else Outcome("ok")

    def certify(self, problem, candidate):
        self.elapsed_seconds += 1
        self.certified.append(candidate)
        if candidate.config in self.uncertified:
            return Outcome("wrong", "n=1: y[0] is 3, expected 2", certificate={"cases": 4, "checks": 9, "seeds": 5})
        return Outcome("ok", certificate={"cases": 4, "checks": 20, "seeds": 5})

    def final(self, problem, candidates):
        self.elapsed_seconds += len(candidates)
        found = {}
        for candidate in candidates:
            cost = self.cost(problem, candidate)
            failed = candidate.config in self.final_fails
            found[candidate] = Outcome("crashed", "late") if failed else Outcome("ok", "", cost, cost, cost, 100)
        return found


def find(table, strategy_name="halving", budget=None, **declared):
    """The result of a search on the fake kernel's one problem."""
    (problem,) = fakes.problems(**declared)
    with Budget(budget, 1).share(lambda: table.elapsed_seconds) as share:
        return search(problem, STRATEGIES[strategy_name], table, share)
