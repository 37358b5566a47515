"""What a session answers from its journal, what it asks of a worker, and what it counts against the budget."""

import pytest
import tuning_fakes as fakes
from atlas.tuning.journal import Journal
from atlas.tuning.outcome import Outcome
from atlas.tuning.session import Session


class Answering(Session):
    """A session that notes what it would ask of a worker, and answers what it is told to."""

    def __init__(self, journal):
        super().__init__(fakes.setting(), journal, 20.0)
        self.asked, self.answer = [], Outcome("ok", "", 10.0, 9.0, 11.0, 5)

    def _ask(self, problem, request, timeout_seconds):
        self.asked.append((request, timeout_seconds))
        return (self.answer,) * len(getattr(request, "candidates", (1,)))


@pytest.fixture
def session(tmp_path):
    with Journal(tmp_path / "journal.jsonl", {"kernel_digest": "a"}, 20.0) as journal:
        yield Answering(journal)


@pytest.fixture
def problem():
    (found,) = fakes.problems()
    return found


def test_a_check_by_an_earlier_validation_is_made_again(session, problem, monkeypatch):
    first = problem.candidates[0]
    session.check(problem, first)
    session.check(problem, first)
    assert len(session.asked) == 1
    monkeypatch.setattr("atlas.validation.PROTOCOL", "validation/99")
    session.check(problem, first)
    assert len(session.asked) == 2, "what it let pass the stricter one may not"


def test_times_taken_in_turns_hold_for_these_finalists_alone(session, problem):
    one, other, third = problem.candidates[:3]
    known = Outcome("ok", "", 10.0, 10.0, 10.0, 5)
    session.final(problem, {one: known, other: known})
    session.final(problem, {other: known, one: known})
    assert len(session.asked) == 1, "the same, in another order"
    session.final(problem, {one: known, third: known})
    session.final(problem, {one: known})
    assert len(session.asked) == 3


def test_how_many_samples_a_final_takes_goes_by_the_slowest(session, problem):
    one, other, third = problem.candidates[:3]
    times = {one: 10.0, other: 5000.0, third: 70.0}
    session.final(problem, {c: Outcome("ok", "", us, us, us, 5) for c, us in times.items()})
    request, timeout = session.asked[0]
    assert request.slowest_us == 5000.0
    assert timeout == 3 * 20.0, "a trial's time for each"


@pytest.mark.parametrize(("limit", "again"), [(30.0, False), (99.0, False), (101.0, True), (None, True)])
def test_a_stop_in_an_earlier_run_holds_as_long_as_the_limit_would_stop_it_again(session, problem, limit, again):
    first = problem.candidates[0]
    session.answer = Outcome("stopped", "the first sample took more than 50 us", 100.0, 100.0, 100.0, 1)
    session.screen(problem, first, 5, limit_us=50.0)
    session.answer = Outcome("ok", "", 100.0, 99.0, 101.0, 5)
    found = session.screen(problem, first, 5, limit_us=limit)
    assert (len(session.asked) == 2) is again
    assert found.status == ("ok" if again else "stopped")


def test_a_screening_of_other_samples_is_another_measurement(session, problem):
    first = problem.candidates[0]
    for samples in (5, 15, 5):
        session.screen(problem, first, samples, None)
    assert [request.samples for request, _ in session.asked] == [5, 15]


def test_a_check_has_three_trials_time(session, problem):
    session.check(problem, problem.candidates[0])
    assert session.asked[0][1] == 60.0, "docs/measuring.md: three times trial_timeout_seconds"


def test_waiting_for_compilers_and_the_first_start_are_not_charged_to_the_budget(session):
    session.seconds.update(
        {"start": 100.0, "compile": 200.0, "time": 1.0, "prepare": 2.0, "check": 4.0, "certify": 8.0, "lost": 16.0}
    )
    session.seconds["restart"] = 32.0
    assert session.busy_seconds == 63.0


def test_inputs_that_cannot_be_drawn_are_not_remembered(session, problem):
    session.answer = Outcome("out_of_memory", "drawing the inputs", whole_problem=True)
    for _ in range(2):
        session.screen(problem, problem.candidates[0], 5, None)
    assert len(session.asked) == 2
