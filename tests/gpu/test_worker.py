"""The tuner's worker on a real GPU: an illegal access and an endless kernel cost their own trial and nothing else."""

import functools
import os
import signal
import time

import pytest
from atlas.declaration import gpu_of
from atlas.host import runtime
from atlas.timing import Clock
from atlas.tuning import candidates
from atlas.tuning.journal import Journal
from atlas.tuning.session import Session
from atlas.tuning.worker import Setting

from proofs.faults import kernel as faulty_kernel

pytestmark = pytest.mark.gpu

TIMEOUT_SECONDS = 6.0
FAULTS = (faulty_kernel.STRAY, faulty_kernel.ENDLESS, faulty_kernel.SHARED, faulty_kernel.MEMORY)


@pytest.fixture(scope="module")
def trials(tmp_path_factory, block, cuda):
    """The session, its problem, and candidates by variant."""
    folder = tmp_path_factory.mktemp("session")
    setting = Setting(
        load=functools.partial(faulty_kernel.declare, FAULTS),
        device=functools.partial(runtime.device_of, *block),
        clock=Clock,
    )
    (problem,) = candidates.problems(setting.load(), gpu_of(cuda), candidates.Ruling())
    with (
        Journal(folder / "journal.jsonl", {"protocol": "test"}, TIMEOUT_SECONDS) as journal,
        Session(setting, journal, TIMEOUT_SECONDS) as session,
    ):
        yield session, problem, {candidate.variant: candidate for candidate in problem.candidates}


def screened(trials, variant, samples):
    """The journal answers for what was screened with as many samples before."""
    session, problem, by_variant = trials
    return session.screen(problem, by_variant[variant], samples, None)


def test_a_sound_config_is_timed_and_right(trials):
    session, problem, by_variant = trials
    outcome = screened(trials, "sound", 5)
    assert outcome.status == "ok" and outcome.samples == 5
    assert 20 < outcome.median_us < 100_000
    assert session.check(problem, by_variant["sound"]).status == "ok"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_own_trial_and_the_next_is_as_before(trials, fault, figure):
    before = screened(trials, "sound", 6 + FAULTS.index(fault))
    began = time.perf_counter()
    outcome = screened(trials, fault, 5)
    took = time.perf_counter() - began
    assert outcome.status == faulty_kernel.expected(fault, functional=False), outcome
    assert outcome.reason
    if fault == faulty_kernel.ENDLESS:
        assert TIMEOUT_SECONDS <= took < TIMEOUT_SECONDS + 30
    if fault == faulty_kernel.STRAY:
        assert "illegal" in outcome.reason.lower()
    after = screened(trials, "sound", 20 + FAULTS.index(fault))
    assert after.status == "ok"
    assert after.median_us == pytest.approx(before.median_us, rel=0.1)
    figure(f"worker: {fault}: {outcome.status} after {took:.1f} s ({outcome.reason[:70]})")


def test_a_worker_killed_from_outside_costs_no_trial(trials):
    session, _, _ = trials
    screened(trials, "sound", 40)
    os.kill(session.worker_pid, signal.SIGKILL)
    assert screened(trials, "sound", 41).status == "ok"


def test_this_process_still_has_its_gpu(trials):
    import torch

    assert float(torch.ones(8, device="cuda").sum()) == 8.0
