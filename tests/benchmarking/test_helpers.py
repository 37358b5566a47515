"""A benchmark on several devices: every case once, rows in the order of the cases, devices given back."""

import os
import threading
from types import SimpleNamespace

import pytest
from atlas.benchmarking import helpers
from atlas.benchmarking.helpers import Helpers, Shared
from atlas.workers.devices import Devices
from atlas.workers.process import NOTHING

from . import helper_targets

WORK = [("forward", number) for number in range(8)]


class Lease(SimpleNamespace):
    """A device, which says when it is given back."""

    def __init__(self, uuid):
        super().__init__(uuid=uuid, device_name="NVIDIA H200", environment={}, free=threading.Event())

    def release(self):
        self.free.set()


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(helpers, "serve", helper_targets.serve)
    monkeypatch.setattr(helpers, "TRITON", NOTHING)


def timed(setting="works", wanted=lambda lent: False, meanwhile=None):
    """The rows, the document's field, and the devices that were lent; the stage itself waits before its second case."""
    lent, shared = [], Shared(WORK)

    def spare():
        if len(lent) == 2:
            return None
        lent.append(Lease(f"GPU-{len(lent)}"))
        return lent[-1]

    devices = Devices(Lease("GPU-own"), spare, lambda: wanted(lent))
    with Helpers(shared, WORK, setting, devices, lambda: None, ask_seconds=0.01) as helping:
        while (case := shared.first()) is not None:
            if case == 1:
                meanwhile(lent)
            shared.done(case, [{"case": case, "by": os.getpid()}])
    return shared.rows, helping.facts(), lent


def until(true):
    event = threading.Event()
    for _ in range(3000):
        if true():
            return
        event.wait(0.01)
    raise AssertionError("did not happen")


def test_each_case_is_timed_once_and_rows_are_in_order():
    def no_sooner_than_both(lent):  # else the first helper may be done with all before a second one is asked for
        until(lambda: len(lent) == 2)

    rows, facts, lent = timed(
        wanted=no_sooner_than_both, meanwhile=lambda lent: until(lambda: len(lent) == 2 and lent[0].free.is_set())
    )
    assert [row["case"] for row in rows] == list(range(8))
    assert len({row["by"] for row in rows}) >= 2
    assert facts["devices"]["count"] == len(facts["devices"]["names"]) >= 2
    assert all(lease.free.is_set() for lease in lent)


def test_a_helper_that_dies_costs_no_case():
    rows, facts, _ = timed("dies", meanwhile=lambda lent: until(lambda: lent and lent[0].free.is_set()))
    assert [row["case"] for row in rows] == list(range(8)) and {row["by"] for row in rows} == {os.getpid()}
    assert "was not used to its end: ended with exit status 3" in facts["devices"]["notes"][0]


def test_a_device_that_others_want_is_given_back():
    rows, facts, _ = timed(
        wanted=lambda lent: True, meanwhile=lambda lent: until(lambda: lent and lent[0].free.is_set())
    )
    assert [row["case"] for row in rows] == list(range(8)) and {row["by"] for row in rows} == {os.getpid()}
    assert facts == {}


def test_without_further_devices_the_document_says_nothing_of_them():
    shared = Shared(WORK)
    with Helpers(shared, WORK, "works", Devices(), lambda: None, ask_seconds=0.01) as helping:
        while (case := shared.first()) is not None:
            shared.done(case, [])
    assert helping.facts() == {}
