"""What a parent makes of a child that inspects, and of what its rounds come to."""

import signal

import pytest
from atlas.workers.process import Died, TimedOut

from proofs import inspecting
from proofs.inspecting import Outcome, Request, Step, Wrong
from proofs.mutants import false_alarms

REQUEST = Request("softmax", None, (), ((0, 1),), stop=False)


class Script:
    """A child that answers what it was given, in turn."""

    def __init__(self, *answers):
        self._answers = list(answers)

    def send(self, message):
        assert message is REQUEST

    def receive(self, timeout_seconds):
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def follow(*answers):
    return inspecting.follow(Script(*answers), REQUEST, 7)


def test_findings_are_collected_until_the_child_has_ended():
    steps = [Step(3), Step(2, (Wrong("values", "fail", "a reason"),))]
    outcome = follow(("begins", "a"), ("found", steps[0]), ("begins", "b"), ("found", steps[1]), ("ended", None))
    assert (outcome.checks, outcome.wrong, outcome.lost, outcome.failed) == (5, [*steps[1].wrong], "", "")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (TimedOut(), "no answer within 7 s, at forward m=4"),
        (Died(-signal.SIGSEGV, "an address\n"), "ended by SIGSEGV: an address, at forward m=4"),
        (("lost", "an illegal access"), "an illegal access"),
    ],
)
def test_a_hang_a_crash_and_a_lost_device_are_failures_after_what_was_found(last, words):
    outcome = follow(("begins", "forward m=4"), ("found", Step(4)), last)
    (wrong,) = outcome.wrong
    assert (wrong.check, wrong.status, outcome.checks) == ("device lost", "fail", 4)
    assert words in wrong.reason


def test_a_child_that_could_not_inspect_found_nothing():
    outcome = follow(("failed", "SyntaxError: a copy that does not parse"))
    assert (outcome.wrong, outcome.failed) == ([], "SyntaxError: a copy that does not parse")


def test_no_seed_is_used_in_two_rounds_or_by_an_ordinary_validation():
    seeds = [seed for one in false_alarms.fresh_seeds(20, 5) for seed in one]
    assert len(seeds) == len(set(seeds)) == 100
    assert not set(seeds) & set(range(5))


def test_a_row_of_rounds_names_the_nearest_miss_and_counts_every_alarm():
    steps = [Step(10, (), (0.4, "a"), (1.2, "c")), Step(5), Step(1, (Wrong("values", "error", "x"),), (0.7, "b"), None)]
    row = false_alarms._row("softmax", 2, ((5, 6), (7, 8)), Outcome(steps, lost="hung"))
    expected = {"checks": 16, "seeds": 4, "findings": 2, "tolerance_used": 0.7, "tolerance_used_by": "b",
                "error_over_torch": 1.2, "error_over_torch_of": "c"}  # fmt: skip
    assert {key: row[key] for key in expected} == expected
