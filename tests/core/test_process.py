"""A process that may hang or die: its parent finds out, and is told how."""

import contextlib
import os
import signal
import threading
import time

import process_targets as children
import pytest
from atlas.workers.process import Died, Process, TimedOut


@pytest.fixture
def start():
    started = []

    def begin(target):
        child = Process(target)
        child.start()
        started.append(child)
        return child

    yield begin
    for child in started:
        child.kill()


def test_a_child_answers_and_is_gone_after_its_context(start):
    with start(children.echo) as child:
        child.send({"a": 1})
        assert child.receive(240) == {"a": 1}
    assert not child.running


def test_a_child_has_its_environment_before_it_does_anything(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")  # the parent's own device
    with Process(children.tell, "CUDA_VISIBLE_DEVICES", environment={"CUDA_VISIBLE_DEVICES": "GPU-1"}) as child:
        child.start()
        assert child.receive(240) == "GPU-1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0"


def test_a_child_can_be_ended_while_another_thread_waits_for_it(start):
    child = start(children.sleep)
    threading.Timer(0.2, child.interrupt).start()
    with pytest.raises(Died, match="SIGKILL"):
        child.receive(240)
    child.interrupt()  # once more does nothing


def test_a_child_that_gives_no_answer_is_gone_afterwards(start):
    child = start(children.sleep)
    pid = child.pid
    with pytest.raises(TimedOut):
        child.receive(0.5)
    assert not child.running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_dies_is_quoted(start):
    with pytest.raises(Died, match="SIGABRT: Assertion `layout' failed"):
        start(children.abort).receive(240)


def test_sending_to_a_dead_child_is_noticed_when_its_answer_is_awaited(start):
    child = start(children.echo)
    os.kill(child.pid, signal.SIGKILL)
    time.sleep(0.2)
    child.send("anybody there")
    with pytest.raises(Died, match="SIGKILL"):
        child.receive(240)


def test_a_child_leaves_no_file_behind(start, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    child = start(children.sleep)
    assert list(tmp_path.iterdir()) == []  # nor would it where both are killed
    with contextlib.suppress(TimedOut):
        child.receive(0)
    assert list(tmp_path.iterdir()) == []
