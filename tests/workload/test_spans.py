"""Calls are timed by pairs of events, some of each kind, and without waiting.  The device here is made up."""

from dataclasses import dataclass

import pytest
import torch
from atlas.watching import spans
from atlas.watching.book import Problem, Run

DEVICE = torch.device("cuda", 0)


class Device:
    """A device whose calls take a millisecond each, and are done when ``done`` says so."""

    def __init__(self):
        self.now, self.done, self.broken = 0.0, False, False

    def event(self, enable_timing):
        return Event(self)


@dataclass
class Event:
    device: Device
    at: float = 0.0

    def record(self, stream):
        if self.device.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")
        self.device.now += 1.0
        self.at = self.device.now

    def query(self):
        return self.device.done

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def device(monkeypatch):
    found = Device()
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return found


def called(timer, run, times):
    """Calls of one kind, as a seat makes them; which of them were timed."""
    timed = []
    for number in range(times):
        span = timer.begin(run, DEVICE)
        if span is not None:
            timed.append(number)
            timer.end(span)
        run.seen += 1
        run.count += 1
    return timed


def test_what_compiles_is_not_timed_the_next_are_and_later_one_of_many(device):
    device.done = True
    run = Run("forward", Problem("softmax"))
    assert called(spans.Spans(), run, 100) == [*range(2, 12), 32, 64, 96]
    assert (run.timed, round(run.seconds, 6)) == (13, 0.013)


def test_nobody_waits_and_at_the_end_all_are_read(device):
    timer, run = spans.Spans(), Run("forward", Problem("softmax"))
    called(timer, run, 6)
    assert run.timed == 0, "the device is not done"

    def wait():
        device.done = True

    timer.read(wait)
    assert run.timed == 4


def test_a_device_that_never_answers_fills_no_memory(device):
    timer, runs = spans.Spans(), [Run("forward", Problem("softmax")) for _ in range(100)]
    for run in runs:
        called(timer, run, 40)
    device.done = True
    timer.read()
    assert sum(one.timed for one in runs) <= 512


def test_a_lost_device_ends_the_timing_and_not_the_program(device):
    timer, run = spans.Spans(), Run("forward", Problem("softmax"))
    device.broken = True
    called(timer, run, 10)
    assert run.timed == 0 and timer.obstacle == "RuntimeError: CUDA error: an illegal memory access was encountered"
    device.broken = False
    assert called(timer, run, 10) == []
