"""Tasks dealt to processes on one device: order, room, and what becomes of those whose process is lost."""

import functools
import os
import signal

import dealt
import pytest
from atlas.errors import AtlasError
from atlas.workers import dealing
from atlas.workers.child import Child
from atlas.workers.dealing import Dealing, NoWorker


@pytest.fixture
def deal(tmp_path):
    """Have labels done; their outcomes, and the log of what began and ended."""

    def done(*labels, workers=2, memory=100.0):
        new = functools.partial(Child, dealt.serve, dealt.tasks(*labels), str(tmp_path))
        with Dealing(new, workers, memory) as table:
            outcomes = table.work()
            losses = table.losses
        lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
        return outcomes, [(pid, what, int(index)) for pid, what, index in lines], losses

    return done


def found(outcomes):
    return [None if outcome is None else outcome.parts for outcome in outcomes]


def test_results_stand_in_the_order_of_the_tasks_whoever_did_them(deal):
    outcomes, log, losses = deal(*["meets"] * 8, workers=3)
    assert found(outcomes) == [[f"meets {index}"] for index in range(8)]
    assert [outcome.notes for outcome in outcomes] == [(f"noted {index}",) for index in range(8)]
    assert len({pid for pid, _, _ in log}) > 1 and not losses


def test_tasks_of_one_group_go_to_one_worker_in_their_order(deal):
    _, log, _ = deal("a@1", "b@2", "a@1", "b@2", "a@1", "b@2")
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


def test_tasks_side_by_side_have_room_and_those_without_run_alone_at_the_end(deal):
    outcomes, log, _ = deal("big*50", "big*50", "huge*90", "small*5", "alone!", workers=3)
    assert found(outcomes) == [["big 0"], ["big 1"], ["huge 2"], ["small 3"], ["alone 4"]]
    overlaps = _overlaps(log)
    assert frozenset((0, 1)) not in overlaps
    assert not any(2 in pair or 4 in pair for pair in overlaps)
    assert [index for _, what, index in log if what == "begins"][-2:] == [2, 4]


def test_a_task_that_was_short_of_memory_is_repeated_alone_and_only_that_counts(deal):
    outcomes, log, losses = deal("greedy", "a", "a", "a")
    assert found(outcomes) == [["greedy 0"], ["a 1"], ["a 2"], ["a 3"]]
    begun = [index for _, what, index in log if what == "begins"]
    assert begun.count(0) == 2 and begun[-1] == 0 and not losses


def test_a_lost_device_costs_its_task_and_the_rest_of_the_group_is_done_by_another(deal):
    outcomes, log, losses = deal("loses@1", "a@1", "b@2", workers=1)
    assert found(outcomes) == [["loses 0"], ["a 1"], ["b 2"]]
    assert losses == ["it is lost"]
    assert len({pid for pid, _, _ in log}) == 2
    assert [index for _, what, index in log if what == "begins"] == [0, 2, 1], "what may be lost again comes last"


def test_a_process_that_dies_or_hangs_says_so_in_its_task(deal, monkeypatch):
    monkeypatch.setattr(dealing, "SILENCE_SECONDS", 8.0)
    outcomes, _, losses = deal("dies", "a", "hangs", "b")
    assert [outcome.ended for outcome in outcomes] == [
        "the process ended by SIGABRT", "", "no answer within 8 s", ""
    ]  # fmt: skip
    assert found(outcomes)[0] == ["dies 0"], "what it had found before"
    assert len(losses) == 2


def test_a_process_that_somebody_kills_is_tried_again_alone(deal):
    outcomes, log, _ = deal("killed", "a")
    assert "SIGKILL" in outcomes[0].ended
    assert [index for _, what, index in log if what == "begins"].count(0) == 2


def test_it_is_given_up_when_every_task_loses_its_worker(deal, monkeypatch):
    monkeypatch.setattr(dealing, "MOST_LOSSES", 3)
    outcomes, _, losses = deal(*["loses"] * 9, workers=2)
    assert len(losses) == 3
    assert found(outcomes).count(None) == 6


def test_what_keeps_a_worker_from_planning_is_said():
    with Dealing(functools.partial(Child, dealt.refuse), 2) as table, pytest.raises(AtlasError, match="no such GPU"):
        table.work()
    with Dealing(functools.partial(Child, dealt.fail), 1) as table, pytest.raises(NoWorker, match="NameError: x"):
        table.work()
    with Dealing(functools.partial(Child, os.getcwd), 2) as table, pytest.raises(NoWorker, match="exit status 1"):
        table.work()


def test_where_there_is_room_for_fewer_workers_those_do_it(deal, tmp_path):
    (tmp_path / "room for one").touch()
    outcomes, log, losses = deal("a", "a", "a", workers=3)
    assert found(outcomes) == [["a 0"], ["a 1"], ["a 2"]]
    assert len({pid for pid, _, _ in log}) == 1 and not losses


def test_what_was_found_is_kept_where_no_other_worker_starts(deal, tmp_path):
    (tmp_path / "room for one").touch()
    outcomes, _, losses = deal("a@1", "loses@1", "a@1", workers=1)
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
    new = functools.partial(Child, dealt.serve, dealt.tasks("hangs"), str(tmp_path))

    def interrupt(label, done):
        os.kill(os.getpid(), end)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(raised), Dealing(new, 2) as table:
        pids = [member.child.pid for member in table._members]
        table.work(interrupt)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list(tmp_path.glob("*.stderr"))
