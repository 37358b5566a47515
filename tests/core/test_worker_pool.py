"""Tasks of a pool on one device: order, room, and what becomes of those whose process is lost."""

import functools
import os
import signal

import pool_targets
import pytest
from atlas.errors import AtlasError
from atlas.workers import pool
from atlas.workers.pool import Pool
from atlas.workers.process import NoWorker, Process


@pytest.fixture
def work(tmp_path):
    """Have labels done; their outcomes, and the log of what began and ended."""

    def done(*labels, workers=2, memory=100.0):
        new = functools.partial(Process, pool_targets.serve, pool_targets.tasks(*labels), str(tmp_path))
        with Pool(new, workers, memory) as made:
            outcomes = made.work()
            losses = made.losses
        lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
        return outcomes, [(pid, what, int(index)) for pid, what, index in lines], losses

    return done


def found(outcomes):
    return [None if outcome is None else outcome.parts for outcome in outcomes]


def test_results_stand_in_the_order_of_the_tasks_whoever_did_them(work):
    outcomes, log, losses = work(*["meets"] * 8, workers=3)
    assert found(outcomes) == [[f"meets {index}"] for index in range(8)]
    assert [outcome.notes for outcome in outcomes] == [(f"noted {index}",) for index in range(8)]
    assert len({pid for pid, _, _ in log}) > 1 and not losses


def test_tasks_of_one_group_go_to_one_worker_in_their_order(work):
    _, log, _ = work("a@1", "b@2", "a@1", "b@2", "a@1", "b@2")
    for group in ({0, 2, 4}, {1, 3, 5}):
        begun = [(pid, index) for pid, what, index in log if what == "begins" and index in group]
        assert [index for _, index in begun] == sorted(group)
        assert len({pid for pid, _ in begun}) == 1


def _overlaps(log):
    """Pairs of tasks that were under way at the same time."""
    under_way, pairs = set(), set()
    for _, what, index in log:
        if what == "begins":
            pairs |= {frozenset((index, other)) for other in under_way}
            under_way.add(index)
        else:
            under_way.discard(index)
    return pairs


def test_tasks_side_by_side_have_room_and_those_without_run_alone_at_the_end(work):
    outcomes, log, _ = work("big*50", "big*50", "huge*90", "small*5", "alone!", workers=3)
    assert found(outcomes) == [["big 0"], ["big 1"], ["huge 2"], ["small 3"], ["alone 4"]]
    overlaps = _overlaps(log)
    assert frozenset((0, 1)) not in overlaps
    assert not any(2 in pair or 4 in pair for pair in overlaps)
    assert [index for _, what, index in log if what == "begins"][-2:] == [2, 4]


def test_a_task_that_was_short_of_memory_is_repeated_alone_and_only_that_counts(work):
    outcomes, log, losses = work("greedy", "a", "a", "a")
    assert found(outcomes) == [["greedy 0"], ["a 1"], ["a 2"], ["a 3"]]
    begun = [index for _, what, index in log if what == "begins"]
    assert begun.count(0) == 2 and begun[-1] == 0 and not losses


def test_a_lost_device_costs_its_task_and_the_rest_of_the_group_is_done_by_another(work):
    outcomes, log, losses = work("loses@1", "a@1", "b@2", workers=1)
    assert found(outcomes) == [["loses 0"], ["a 1"], ["b 2"]]
    assert losses == ["it is lost"]
    assert len({pid for pid, _, _ in log}) == 2
    assert [index for _, what, index in log if what == "begins"] == [0, 2, 1], "what may be lost again comes last"


def test_a_process_that_dies_or_hangs_says_so_in_its_task(work, monkeypatch):
    def expect(self, seconds, expect=pool.Worker.expect):
        expect(self, 1.0 if self.index == 2 else seconds)  # it alone, however busy the host is

    monkeypatch.setattr(pool.Worker, "expect", expect)
    outcomes, _, losses = work("dies", "a", "hangs", "b")
    assert [outcome.ended for outcome in outcomes] == [
        "the process ended by SIGABRT", "", "no answer within 1 s", ""
    ]  # fmt: skip
    assert found(outcomes)[0] == ["dies 0"], "what it had found before"
    assert len(losses) == 2


def test_a_process_that_somebody_kills_is_tried_again_alone(work):
    outcomes, log, _ = work("killed", "a")
    assert "SIGKILL" in outcomes[0].ended
    assert [index for _, what, index in log if what == "begins"].count(0) == 2


@pytest.mark.parametrize(("workers", "most"), [(1, 3), (2, 4)])
def test_it_is_given_up_when_every_task_loses_its_worker(work, monkeypatch, workers, most):
    """Of two workers the other one, which is at a task, may be lost at the moment of the third loss."""
    monkeypatch.setattr(pool, "MOST_LOSSES", 3)
    outcomes, _, losses = work(*["loses"] * 9, workers=workers)
    assert 3 <= len(losses) <= most
    assert found(outcomes).count(None) == 9 - len(losses)


def test_what_keeps_a_worker_from_planning_is_said():
    with (
        Pool(functools.partial(Process, pool_targets.refuse), 2) as made,
        pytest.raises(AtlasError, match="no such GPU"),
    ):
        made.work()
    with Pool(functools.partial(Process, pool_targets.fail), 1) as made, pytest.raises(NoWorker, match="NameError: x"):
        made.work()
    with Pool(functools.partial(Process, os.getcwd), 2) as made, pytest.raises(NoWorker, match="exit status 1"):
        made.work()


def test_where_there_is_room_for_fewer_workers_those_do_it(work, tmp_path):
    (tmp_path / "room for one").touch()
    outcomes, log, losses = work("a", "a", "a", workers=3)
    assert found(outcomes) == [["a 0"], ["a 1"], ["a 2"]]
    assert len({pid for pid, _, _ in log}) == 1 and not losses


def test_what_was_found_is_kept_where_no_other_worker_starts(work, tmp_path):
    (tmp_path / "room for one").touch()
    outcomes, _, losses = work("a@1", "loses@1", "a@1", workers=1)
    assert found(outcomes) == [["a 0"], ["loses 1"], None]
    assert losses == ["it is lost", "no worker starts: no room"]


@pytest.fixture
def interruptible():
    """Ctrl-C raises, also where a shell started the tests in the background and so has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("end", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["ctrl-c", "terminated"]
)
def test_no_worker_is_left_however_it_ends(tmp_path, monkeypatch, interruptible, end, raised):
    new = functools.partial(Process, pool_targets.serve, pool_targets.tasks("hangs"), str(tmp_path))

    def interrupt(label, done):
        os.kill(os.getpid(), end)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(raised), Pool(new, 2) as made:
        pids = [member.process.pid for member in made._members]
        made.work(interrupt)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list(tmp_path.glob("*.stderr"))
