"""How long a run takes on several GPUs of one host, by simulating its schedule with the seconds of recorded jobs.

A run of all recorded kernels: survey, build, validate, autotune, benchmark, each job of the length its document states.
A build's goes with its cores, of which the record had 16.  Nothing else becomes slower or faster beside a neighbour.
"""

import functools
import heapq

import pytest
from atlas import catalog
from atlas.host import gpus
from atlas.plan import sharing
from atlas.plan.durations import Durations, Ranks
from atlas.results import files

from .conftest import PROJECT

STAGES = ("build", "validate", "autotune", "benchmark")
CORES = 16
"""Of the recorded host, and so many for each GPU here."""


@pytest.fixture(scope="module")
def seconds():
    """Recorded seconds by stage and kernel."""
    known = Durations(PROJECT / "results")
    kernels = sorted(path.parent.name for path in files.listed(PROJECT / "results/recorded/h200", "*/benchmark"))
    found = {(stage, kernel): known.recorded(stage, "h200", kernel) for kernel in kernels for stage in STAGES}
    assert len(kernels) > 20 and None not in found.values(), "the records are incomplete"
    return found | {("survey", ""): known.recorded("survey", "h200", "")}


def waits_for(job, jobs):
    """What a job reads, as the rules have it."""
    stage, kernel = job
    earlier = {"autotune": ("build", "validate"), "benchmark": ("validate", "autotune")}.get(stage, ())
    found = {(name, kernel) for name in earlier} | ({("survey", "")} if stage == "benchmark" else set())
    if stage in ("autotune", "benchmark"):
        found |= {("autotune", name) for name in catalog.called(kernel)}
    return found & set(jobs)


def makespan(seconds, count, ranks=None):
    """Seconds of the whole run on ``count`` GPUs: whenever a job ends, those of the highest rank that fit begin."""
    here = {"h200": gpus.Place(gpus.HERE, "NVIDIA H200", count)}
    threads = sharing.threads(CORES * count, count, here)
    waiting = {job: waits_for(job, seconds) for job in seconds}
    running, now, cores, boards = [], 0.0, CORES * count, count
    while waiting or running:
        ready = [job for job, needed in waiting.items() if not needed]
        for job in sorted(ready, key=(lambda job: -ranks.of(*job)) if ranks else (lambda job: 0)):
            build = job[0] == "build"
            wanted = min(CORES * count, threads.build if build else threads.gpu)
            if wanted <= cores and (build or boards):
                cores, boards = cores - wanted, boards - (not build)
                length = seconds[job] * (CORES / min(wanted, CORES) if build else 1.0)
                heapq.heappush(running, (now + length, job, wanted, not build))
                del waiting[job]
        now, job, freed, board = heapq.heappop(running)
        cores, boards = cores + freed, boards + board
        for needed in waiting.values():
            needed.discard(job)
    return now


@pytest.fixture(scope="module")
def ranks(seconds):
    kernels = sorted({kernel for _, kernel in seconds if kernel})
    callers = {name: [kernel for kernel in kernels if name in catalog.called(kernel)] for name in kernels}
    return Ranks(("survey", *STAGES), kernels, lambda *job: seconds[job], callers.__getitem__)


def bound(seconds, ranks, count):
    """What no schedule goes below: the GPUs' work shared evenly, and the longest chain of jobs."""
    work = sum(length for (stage, _), length in seconds.items() if stage != "build")
    return max(work / count, max(ranks.of(*job) for job in seconds))


@pytest.mark.parametrize(("count", "times", "of_bound"), [(2, 1.9, 1.05), (4, 3.8, 1.1), (8, 5.0, 1.35)])
def test_several_gpus_are_kept_busy(seconds, ranks, count, times, of_bound):
    whole = functools.partial(makespan, seconds)
    assert whole(1, ranks) / whole(count, ranks) >= times
    assert whole(count, ranks) / bound(seconds, ranks, count) <= of_bound
    assert whole(count, ranks) <= 1.02 * whole(count), "in the order of the rules, which may be lucky by part of a job"
