"""One device, one holder: whoever asks, however the holder ends."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
from atlas import ROOT
from atlas.errors import AtlasError
from atlas.host import environment, leases
from atlas.stages import frame
from fake_nvml import Board, FakeNvml

BLOCK = {"match": "H200", "target": {"cuda": 90}}
T4 = {"match": "T4", "target": {"cuda": 75}}
SCRIPT = Path(__file__).with_name("lease_process.py")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Locks of this test's own, and two simulated devices of one kind beside one of another."""
    monkeypatch.setenv(leases.FOLDER_VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200;NVIDIA H200;Tesla T4")
    for name in ("KERNEL_ATLAS_GPUS", "CUDA_VISIBLE_DEVICES", leases.HOLDER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "leases"


class Process:
    """A job of another process."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
        )

    def tell(self, word):
        """Say something and do not wait for the answer."""
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def answer(self):
        """The answer, waited for."""
        return self._process.stdout.readline().strip()

    def ask(self, word):
        """Both."""
        self.tell(word)
        return self.answer()

    def kill(self):
        """``kill -9``."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def process():
    """Makes processes, and ends them with the test."""
    made = []

    def make():
        made.append(Process())
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(BrokenPipeError):
            one.kill()


def until(true, seconds=240):
    """Wait for something another process does; fail where it takes far too long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)


class Waiter(threading.Thread):
    """Somebody who waits for a lease, in this process."""

    def __init__(self, block=BLOCK):
        super().__init__(daemon=True)
        self._block, self.lease = block, None
        self.start()

    def run(self):
        self.lease = leases.lease("h200", self._block)


def test_two_processes_never_hold_one_device_and_the_third_gets_what_is_given_back(process):
    one, two = process(), process()
    one.tell("lease"), two.tell("lease")
    first, second = one.answer(), two.answer()
    assert {first, second} == {"SIMULATED-0", "SIMULATED-1"}
    third = Waiter()
    until(lambda: two.ask("wanted") == "True")
    assert third.lease is None
    two.ask("release")
    third.join(240)
    assert third.lease.uuid == second and two.ask("wanted") == "False"
    third.lease.release()


def test_a_killed_holders_device_is_free_at_once_though_its_children_live_on(process, monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200")
    one = process()
    assert one.ask("lease") == "SIMULATED-0"
    children = [int(word) for word in one.ask("bear").split()]
    try:
        one.kill()
        with leases.lease("h200", BLOCK) as lease:
            assert lease.uuid == "SIMULATED-0"
        for child in children:
            os.kill(child, 0)  # raises if it is gone
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_a_device_of_another_kind_is_never_lent():
    with leases.lease("t4", T4) as lease:
        assert (lease.uuid, lease.device_name) == ("SIMULATED-2", "Tesla T4")
        assert lease.environment["CUDA_VISIBLE_DEVICES"] == "SIMULATED-2"
        assert not leases.wanted("t4", T4)
    with pytest.raises(AtlasError, match="'a100' is not here.*'A100'.*NVIDIA H200, NVIDIA H200, Tesla T4"):
        leases.lease("a100", {"match": "A100", "target": {"cuda": 80}})


def test_a_lease_given_back_twice_is_not_taken_from_the_next():
    first = leases.lease("t4", T4)
    first.release()
    with leases.lease("t4", T4):
        first.release()
        waiter = Waiter(T4)
        until(lambda: leases.wanted("t4", T4))
        assert waiter.lease is None
    waiter.join(240)
    waiter.lease.release()


def test_a_spare_is_lent_within_the_limit(monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200;NVIDIA H200;NVIDIA H200;Tesla T4")
    with leases.lease("h200", BLOCK):
        assert leases.spare("h200", BLOCK) is None, "one at a time is the default"
        monkeypatch.setenv("KERNEL_ATLAS_GPUS", "2")
        with leases.lease("t4", T4):
            assert leases.spare("h200", BLOCK) is None, "the limit is the host's, whatever the kind"
        with leases.spare("h200", BLOCK) as lent:
            assert lent.uuid == "SIMULATED-1"
            assert leases.spare("h200", BLOCK) is None
        monkeypatch.setenv("KERNEL_ATLAS_GPUS", "8")
        taken = [leases.spare("h200", BLOCK) for _ in range(3)]
        assert [one and one.uuid for one in taken] == ["SIMULATED-1", "SIMULATED-2", None]
        for one in taken[:2]:
            one.release()


def test_others_leases_are_counted_and_ones_own_are_not(process):
    with leases.lease("h200", BLOCK):
        others = leases.counter_of_others()
        assert others() == 0
        process().ask("lease")
        assert others() == 1


def test_a_document_says_how_many_other_gpus_were_at_work(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "software", dict)
    monkeypatch.setattr(frame.documents, "write", lambda path, document: None)
    asked = job(tmp_path)
    with frame.leased(asked), leases.lease("h200", BLOCK) as other:
        monkeypatch.setattr(leases, "_held", leases._held - {other})  # as if it were another process's
        document = frame.write_document(asked, {}, lambda job: time.sleep(0.1) or {})
        assert document["neighbours"]["gpus"] == document["neighbours"]["most_gpus"] == 1
        assert 0 <= document["neighbours"]["cores_busy"] <= 1
        assert "neighbours" not in frame.write_document(asked, {}, lambda job: {}, kind="compiled")


def test_a_limit_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_GPUS", "all")
    with pytest.raises(AtlasError, match="KERNEL_ATLAS_GPUS is 'all'"):
        leases.spare("h200", BLOCK)


def test_who_waits_comes_before_who_has_one_already(process, monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_GPUS", "2")
    greedy = process()
    greedy.ask("lease"), greedy.ask("spare")
    waiter = Waiter()
    until(lambda: greedy.ask("wanted") == "True")
    other = leases.lease("t4", T4)
    assert not leases.wanted("t4", T4), "nobody waits for a device of this kind"
    other.release()
    given = greedy.ask("release")
    greedy.tell("spare")
    waiter.join(240)
    assert waiter.lease.uuid == given and greedy.answer() == "none"
    waiter.lease.release()


def test_waiting_is_said_once_with_holder_and_folder(folder, monkeypatch, capsys):
    monkeypatch.setattr(leases, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["/somewhere/atlas/__main__.py", "survey", "--gpu", "t4"])
    with leases.lease("t4", T4):
        waiter = Waiter(T4)
        said = []
        until(lambda: said.append(capsys.readouterr().err) or any(said))
        time.sleep(3 * leases._POLL_SECONDS)
    waiter.join(240)
    waiter.lease.release()
    (line,) = ("".join(said) + capsys.readouterr().err).splitlines()
    assert f"SIMULATED-2 by process {os.getpid()} (atlas survey --gpu t4)" in line and str(folder) in line


def test_every_user_of_the_host_can_take_part(folder):
    before = os.umask(0o077)
    try:
        leases.lease("t4", T4).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


def test_a_folder_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(leases.FOLDER_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(AtlasError, match=r"file: GPU leases cannot be kept there: .*; name another .*KERNEL_ATLAS_LEA"):
        leases.lease("t4", T4)


def test_amd_devices_are_leased_as_one():
    amd = {"match": "MI300X", "target": {"hip": "gfx942"}}
    with leases.lease("mi300x", amd) as lease:
        assert lease.uuid == "" and "CUDA_VISIBLE_DEVICES" not in lease.environment
        waiter = Waiter(amd)
        until(lambda: leases.wanted("mi300x", amd))
        assert waiter.lease is None
    waiter.join(240)
    waiter.lease.release()


def test_what_a_holder_starts_works_on_the_holders_device(process, monkeypatch):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200;NVIDIA H200")
    with leases.lease("h200", BLOCK), leases.lease("h200", BLOCK) as second:
        with leases.adopted(second):
            child = process()
        stranger = process()
        assert child.ask("lease") == second.uuid == "SIMULATED-1"
        stranger.tell("lease")
        until(lambda: leases.wanted("h200", BLOCK))
        child.ask("release")
        assert leases.wanted("h200", BLOCK), "the device is the holder's as before"
    assert stranger.answer() == "SIMULATED-0"
    assert child.ask("lease") == "SIMULATED-1", "a holder that is gone has nothing to share: an ordinary lease"
    assert not leases.wanted("h200", BLOCK)


def job(tmp_path, gpu="h200", block=BLOCK):
    return frame.Job("survey", None, gpu, block, tmp_path, Namespace())


def test_a_stage_sees_its_device_alone_and_its_document_names_that_board(tmp_path, monkeypatch):
    a, b = Board("GPU-a"), Board("GPU-b", power_cap_mw=500_000)
    monkeypatch.delenv("KERNEL_ATLAS_DEVICES")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(a, b))
    monkeypatch.setenv("KERNEL_ATLAS_GPUS", "2")
    monkeypatch.setattr(frame, "_latest", {})
    monkeypatch.setattr(environment, "software", dict)
    asked = job(tmp_path)
    assert frame.envelope(asked, "measured", "ok", "", 0.0)["device"]["power_cap_w"] == 700.0, "no lease: the first"
    with leases.lease("h200", BLOCK) as first, frame.leased(asked) as own:
        assert (first.uuid, own.uuid) == ("GPU-a", "GPU-b")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
        first.release()
        with frame.leased(asked) as again:
            assert again is own, "one process, one device"
        with leases.spare("h200", BLOCK) as lent:
            assert lent.uuid == "GPU-a", "a spare is looked for among all that was visible before"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    document = frame.envelope(asked, "measured", "ok", "", 0.0)
    assert document["device"]["power_cap_w"] == 500.0
    assert frame.envelope(asked, "compiled", "ok", "", 0.0)["device"] == {}


def test_a_process_whose_cuda_is_bound_to_a_device_leases_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "_latest", {})
    for name in ("_bound", "_before"):
        monkeypatch.setattr(leases, name, getattr(leases, name))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all of them")  # put back after the test
    initialised = False
    monkeypatch.setattr(leases, "_cuda_runs", lambda: initialised)
    asked = job(tmp_path)
    with leases.lease("h200", BLOCK), frame.leased(asked) as own:
        initialised = True
    with frame.leased(asked) as again:
        assert again.uuid == own.uuid == "SIMULATED-1", "device 0 is free, and out of this process's reach"


def test_cuda_that_was_initialised_too_early_is_a_mistake_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_cuda_runs", lambda: True)
    with pytest.raises(RuntimeError, match="before the lease"), frame.leased(job(tmp_path)):
        pass
    with leases.lease("h200", BLOCK):
        pass  # and nothing stays leased


def test_the_interpreter_needs_no_lease(tmp_path):
    with frame.leased(job(tmp_path, "cpu", {"target": {"cpu": "interpreter"}})) as own:
        assert own is None
    assert leases.spare("cpu", {"target": {"cpu": "interpreter"}}) is None
    assert not leases.wanted("cpu", {"target": {"cpu": "interpreter"}})
