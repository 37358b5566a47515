"""Several devices share one queue of problems; threads and leases are real, workers are not."""

import dataclasses
import os
import threading
import time

import pytest
import tuning_fakes as fakes
from atlas.errors import AtlasError
from atlas.tuning import candidates, tuner
from atlas.tuning.journal import Journal
from atlas.tuning.outcome import Outcome
from atlas.tuning.session import Session
from atlas.tuning.strategies import STRATEGIES
from atlas.workers.devices import DevicePool, Devices, Ended, Member
from atlas.workers.process import NoWorker

SIZES = (1000, 3000, 2000, 5000, 4000)


class Lease:
    """A device that is returned once."""

    def __init__(self, host, index):
        self.host, self.index = host, index
        self.uuid, self.device_name = f"GPU-{index}", "fake"
        self.environment = {"CUDA_VISIBLE_DEVICES": f"GPU-{index}"}

    def release(self):
        self.host.free.append(self.index)


class Host:
    """Lends devices 1 to N - 1 as spares; device 0 is the job's own."""

    def __init__(self, count, others_want=False):
        self.free = list(range(1, count))
        self.lent = []
        self.others_want = others_want

    def spare(self):
        if self.others_want or not self.free:
            return None
        self.lent.append(self.free.pop(0))
        return Lease(self, self.lent[-1])

    @property
    def devices(self):
        return Devices(Lease(self, 0), self.spare, lambda: self.others_want)


class Quick(Session):
    """Answers from the surface, without a process; says on which device."""

    gates = ()
    """Threads meet here before a device's first answer, so that all of them have one."""
    dead = ()
    """Devices on which no worker starts."""
    dies = {}  # noqa: RUF012 - set by tests
    """After how many answers a device's worker is lost for good."""
    asked = ()
    uncertified = ()
    seconds_each = 0.0
    seconds_once = 0.0
    """What a device's first answer takes beside."""

    def __init__(self, *args, environment=None, **kwargs):
        super().__init__(*args, environment=environment, **kwargs)
        self.index = int(environment["CUDA_VISIBLE_DEVICES"].rpartition("-")[2])
        self.answers = 0

    def begin(self):
        pass

    def close(self):
        pass

    def await_worker(self):
        if self._ended:
            raise Ended
        if self.index in self.dead:
            raise NoWorker("the worker did not start: its process ended by SIGBUS")
        self._ready = True

    def _ask(self, problem, request, timeout_seconds):
        self.await_worker()
        for gate in self.gates if not self.answers else ():
            gate.wait(240)
        self.answers += 1
        if self.answers > self.dies.get(self.index, 10**6):
            raise NoWorker("the worker did not start: its process ended by SIGBUS")
        self._spend("time", self.seconds_each + (self.seconds_once if self.answers == 1 else 0))
        self.measured += 1
        candidates = getattr(request, "candidates", None) or (request.candidate,)
        self.asked.append((self.index, type(request).__name__, problem.case["n"], *map(str, candidates)))
        costs = [fakes.cost_us(c.config, problem.case["n"]) for c in candidates]
        return tuple(Outcome("ok", "", cost, cost, cost, getattr(request, "samples", 100)) for cost in costs)

    def _exchange(self, request, timeout_seconds):
        self.asked.append((self.index, "Certify", request.dtype, str(request.candidate)))
        wrong = request.candidate.config in self.uncertified
        return (Outcome("wrong" if wrong else "ok", "y[0] is 3" if wrong else "", certificate={
            "cases": 3, "checks": 12, "seeds": 2}),)  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(tuner, "Session", Quick)
    monkeypatch.setattr("atlas.workers.devices.ASK_SECONDS", 0.01)
    monkeypatch.setattr(Quick, "asked", [])

    def run(folder, host, budget=None, seeds=2, sizes=SIZES, **attributes):
        for name, value in attributes.items():
            monkeypatch.setattr(Quick, name, value)
        options = tuner.Options(STRATEGIES["exhaustive"], budget, 20.0, jobs=0, certify_seeds=seeds)
        with Journal(folder / "journal.jsonl", {"protocol": "test"}, 20.0) as journal:
            return tuner.tune(
                fakes.problems(sizes=sizes), fakes.DEVICE, fakes.setting(), journal, options, "test",
                devices=host.devices,
            )  # fmt: skip

    return run


def without_times(document):
    trials = [{k: v for k, v in row.items() if k != "at_seconds"} for row in document["trials"]]
    return document["best"], trials, document["trials_by_status"], document["journal"]


@pytest.mark.parametrize("count", [2, 4])
def test_several_devices_share_the_queue_and_find_what_one_finds(tmp_path, quick, count):
    alone = quick(tmp_path / "one", Host(1))
    host = Host(count)
    together = quick(tmp_path / "all", host, gates=[threading.Barrier(count)])
    assert together["devices"] == {"count": count, "names": ["fake"] * count, "notes": []}
    assert alone["devices"]["count"] == 1
    assert [row["sizes"]["n"] for row in together["best"]] == list(SIZES)  # in the document's order, not the queue's
    assert without_times(together) == without_times(alone)
    assert sorted(host.free) == list(range(1, count)), "every borrowed device is given back"


def test_a_device_that_is_given_back_and_lent_again_is_one_device():
    host = Host(3)
    pool = DevicePool(lambda lease: None, host.devices)
    pool.members += [Member(None, Lease(host, index), is_first=False, tasks=1) for index in (1, 2, 1)]
    pool.members.append(Member(None, Lease(host, 3), is_first=False))  # it came to no problem
    assert pool.device_names == ["fake"] * 3


def test_what_presumably_takes_longest_comes_first(tmp_path, quick):
    quick(tmp_path, Host(1), sizes=(1000, 10**9, 10**8))
    order = dict.fromkeys(n for _, kind, n, *_ in Quick.asked if kind == "Screen")
    assert list(order) == [10**9, 10**8, 1000]


def test_no_device_is_asked_for_while_no_problem_waits(tmp_path, quick):
    host = Host(4)
    quick(tmp_path, host, sizes=(1000,))
    assert host.lent == []


def test_a_device_on_which_no_worker_starts_is_dropped_with_a_note(tmp_path, quick):
    host = Host(2)

    class Until:
        """Holds the first device's first answer up until the second one was lent."""

        def wait(self, seconds):
            until = time.monotonic() + seconds
            while not host.lent:
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(0.05)  # in which it could be asked for again

    document = quick(tmp_path / "two", host, dead=[1], gates=[Until()])
    (note,) = document["devices"]["notes"]
    assert "was not used to its end: the worker did not start: its process ended by SIGBUS" in note
    assert host.lent == [1], "it is not asked for again"
    assert host.free == [1]
    assert len(document["best"]) == len(SIZES)


def test_a_problem_whose_device_is_lost_goes_back_to_the_queue_and_keeps_what_was_measured(tmp_path, quick):
    host = Host(2)
    alone = quick(tmp_path / "one", Host(1))
    Quick.asked.clear()
    document = quick(tmp_path / "two", host, dies={1: 5}, gates=[threading.Barrier(2)])
    assert document["devices"]["notes"] and document["devices"]["count"] == 1  # it finished no problem
    assert without_times(document)[:3] == without_times(alone)[:3]
    screens = [asked[1:] for asked in Quick.asked if asked[1] == "Screen"]
    assert len(screens) == len(set(screens)), "nothing is measured twice"


def test_borrowed_devices_are_given_back_after_the_problem_at_hand_when_others_want_one(tmp_path, quick):
    host = Host(3)

    class Wanted:
        """All three work; then somebody else wants a device."""

        meeting = threading.Barrier(3)

        def wait(self, seconds):
            self.meeting.wait(seconds)
            host.others_want = True

    document = quick(tmp_path, host, gates=[Wanted()])
    done = {index: {n for i, kind, n, *_ in Quick.asked if i == index and kind == "Screen"} for index in range(3)}
    assert len(done[1]) == len(done[2]) == 1
    assert len(done[0]) == len(SIZES) - 2
    assert sorted(host.free) == [1, 2]
    assert len(document["best"]) == len(SIZES)


def test_a_budget_is_of_all_devices_together(tmp_path, quick):
    # 24 screenings of a second each, 5 problems, 60 seconds: 12 each, whoever searches them.
    for count, gates in ((1, []), (2, [threading.Barrier(2)])):
        document = quick(tmp_path / str(count), Host(count), budget=60.0, seconds_each=1.0, gates=gates)
        trials = document["seconds_by_phase"]["time"]
        assert 60 <= trials <= 60 + 5 * 8  # checks and the last comparison of each problem come on top
        assert document["untried"] > 0


def test_the_first_problem_pays_for_a_devices_first_launch_and_is_searched_all_the_same(tmp_path, quick):
    """On an H200 whose first launch took 5 s the largest case of 28 was left with its default, 29 s before the end."""
    document = quick(tmp_path, Host(1), budget=300.0, seconds_each=1.0, seconds_once=70.0)
    assert document["untried"] == 0


def test_a_config_is_certified_once_however_many_cases_it_wins_and_not_again_when_resumed(tmp_path, quick):
    document = quick(tmp_path, Host(2), gates=[threading.Barrier(2)])
    certified = [asked[1:] for asked in Quick.asked if asked[1] == "Certify"]
    assert certified == [("Certify", "fp32", "plain tile=64 warps=4")]
    expected = {"protocol": certificate_protocol(), "cases": 3, "checks": 12, "seeds": 2}
    assert [row["certificate"] for row in document["best"]] == [expected] * len(SIZES)
    Quick.asked.clear()
    again = quick(tmp_path, Host(1), gates=[])
    assert Quick.asked == []
    assert again["best"] == document["best"]


def certificate_protocol():
    from atlas.validation import PROTOCOL

    return PROTOCOL


def test_a_config_that_is_not_certified_wins_no_case(tmp_path, quick):
    document = quick(tmp_path, Host(1), uncertified=[fakes.OPTIMUM])
    assert all(row["config"] != fakes.OPTIMUM and row["certificate"] for row in document["best"])
    lost = [row for row in document["trials"] if row["config"] == fakes.OPTIMUM]
    assert {(row["status"], row["reason"]) for row in lost} == {("wrong", "not certified: y[0] is 3")}
    assert sum(asked[1] == "Certify" for asked in Quick.asked) == 2


def test_without_seeds_nothing_is_certified_and_no_certificate_is_claimed(tmp_path, quick):
    document = quick(tmp_path, Host(1), seeds=0)
    assert {row["certificate"] for row in document["best"]} == {None}


def test_an_error_in_one_session_ends_them_all_and_is_raised(tmp_path, quick):
    host = Host(2)
    refused = AtlasError("journal.jsonl: no space left")

    class Disk:
        def wait(self, seconds):
            if threading.current_thread().name == "atlas session 1":
                raise refused

    with pytest.raises(AtlasError, match="no space left"):
        quick(tmp_path, host, gates=[threading.Barrier(2), Disk()])
    assert host.free == [1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("atlas session")]


def test_ctrl_c_ends_all_sessions_and_keeps_no_outcome_of_theirs(tmp_path):
    # Real workers, each at a launch that hangs.
    problems = fakes.problems(sizes=(1000, 2000), faults=(("all", "hangs"),))
    setting = fakes.setting(sizes=(1000, 2000), faults=(("all", "hangs"),))
    host = Host(2)
    with Journal(tmp_path / "journal.jsonl", {"protocol": "test"}, 600.0) as journal:

        def open_session(lease):
            return Session(setting, journal, 600.0, environment=lease.environment)

        ended = []

        def do(session, problem, begun):
            try:
                session.screen(problem, problem.candidates[0], 5, None)
            except Ended:
                ended.append(problem)
                raise

        pids = []

        class Interrupted(DevicePool):
            """Ctrl-C, once both workers are at work."""

            def _over(self, seconds, tasks):
                pids[:] = [member.session.worker_pid for member in self.members if member.session._prepared]
                if len(pids) == 2:
                    raise KeyboardInterrupt
                return super()._over(0.05, tasks)

        with pytest.raises(KeyboardInterrupt), Interrupted(open_session, host.devices) as pool:
            pool.work(problems, do)
        assert len(ended) == 2
    assert host.free == [1]
    assert '"key"' not in (tmp_path / "journal.jsonl").read_text()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_queue_does_not_depend_on_the_order_problems_are_declared_in():
    (first,), (second,) = fakes.problems(sizes=(10,)), fakes.problems(sizes=(10**9,))
    assert candidates.longest_first([first, second]) == candidates.longest_first([second, first]) == [second, first]
    assert dataclasses.replace(first, presumed_seconds=0.0).without_sizes.case.sizes == ()
