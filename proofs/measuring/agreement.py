"""The clock's figures agree with two others: ncu's counter of kernel durations, and Triton's own benchmark function.

All three start from the same state: a buffer of at least twice L2 has just been written.  What they measure is not the
same.  Events bracket a call: they hold what launching costs the device and, where a call launches several kernels, the
gaps between them.  ncu counts from a kernel's start to its end, and adds up the kernels of a call.  So the clock's
figure is the larger by some microseconds, which hardly depend on the kernel: long cases are claimed in per cent, short
ones in microseconds, and nothing is deducted.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas import catalog
from atlas.errors import AtlasError
from atlas.profiling import ncu
from atlas.profiling.ncu import by_call, watch
from atlas.stages import frame

from .. import scratch
from ..evidence import Evidence, at_least, at_most

if TYPE_CHECKING:
    from atlas.declaration import Case

LIMIT = 3.0
"""Per cent that a long case may differ from either."""
LAUNCHING_US = 5.0
"""What launching a few kernels between two events may cost: how far a short case may lie above ncu's figure.  A clock
that loses time, or adds some in proportion, does not keep between this and 0."""
LONG_US = 200.0
"""From here on cases are long: :data:`LAUNCHING_US` is within :data:`LIMIT`, and do_bench, which queues nothing ahead,
finds the device behind the host."""
LONG_CASES, SHORT_CASES = 10, 6
_LONGEST_US = 5000.0
_REPEATS = 7
"""Launches of a case that ncu measures."""
_DO_BENCH_MS = (100, 200)
"""Warm-up and measurement."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """The tuned config of one case, and what the tuner measured."""

    kernel: str
    direction: str
    case: Case
    variant: str
    config: Mapping[str, Any]
    tuned_us: float

    def to_json(self) -> dict[str, Any]:
        """As the watched process wants it."""
        work = {"kernel": self.kernel, "direction": self.direction, "variant": self.variant}
        return work | self.case.to_json() | {"config": dict(self.config)}


@dataclass(frozen=True)
class Ours:
    """What was measured here, microseconds: by the clock, and by do_bench if it is valid."""

    median_us: float
    do_bench_us: float | None
    unfit: str = ""
    """Why the case cannot be compared: the three would run it at different clocks, as it draws too much power."""


@dataclass(frozen=True)
class Theirs:
    """What ncu measured of a call: how many kernels it launches, and the median of their sum, microseconds."""

    kernels: int
    median_us: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels`` and ``--scratch``."""
    scratch.add_arguments(parser)


def run(job: frame.Job) -> Evidence:
    """Choose the cases, time them here, let ncu watch them, and compare."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: agreement is of a GPU's clocks, and the interpreter has none; "
                         "name a GPU of this host")  # fmt: skip
    ncu.find()
    candidates, notes = at_hand(job)
    with frame.leased(job), scratch.folder(job) as folder:
        instruments = Instruments(job)
        chosen, unfit = choose(candidates, instruments)
        notes += unfit
        instruments.release()
        theirs = _watch(job, list(chosen), folder)
    return evidence(list(zip(chosen, chosen.values(), theirs, strict=True)), notes)


def at_hand(job: frame.Job) -> tuple[list[Candidate], list[str]]:
    """Every case that was tuned, with its best config; and what was left out."""
    from atlas.declaration import Case

    found, notes = [], []
    for kernel in scratch.kernels_of(job.arguments):
        try:
            kind, document = scratch.earlier(job, kernel, "autotune")
        except AtlasError as error:
            if job.arguments.kernels:
                raise
            notes.append(f"{kernel} is left out: {error}")
            continue
        if document["kernel_digest"] != catalog.digest(kernel):
            notes.append(f"{kernel} is left out: its {kind} tuning is of another version of {kernel}")
            continue
        found += [
            Candidate(kernel, best["direction"], Case.from_json(best), best["variant"], best["config"],
                      best["median_us"])
            for best in document["best"]
        ]  # fmt: skip
    return found, notes


def choose(candidates: Sequence[Candidate], instruments: Instruments) -> tuple[dict[Candidate, Ours], list[str]]:
    """The cases to compare with what they measure here, and why others were passed over."""
    long = [c for c in candidates if LONG_US <= c.tuned_us <= _LONGEST_US]
    short = [c for c in candidates if c.tuned_us < LONG_US]
    chosen, notes = _take(long, LONG_CASES, instruments)
    brief, more = _take(short, SHORT_CASES, instruments)
    return chosen | brief, notes + more


def _take(
    candidates: Sequence[Candidate], count: int, instruments: Instruments
) -> tuple[dict[Candidate, Ours], list[str]]:
    rest, taken, notes = list(candidates), {}, []
    while rest and len(taken) < count:
        candidate = _unlike(taken, rest)
        rest.remove(candidate)
        found = instruments.ours(candidate)
        if found.unfit:
            notes.append(f"{label(candidate)} was passed over: {found.unfit}")
        elif (found.median_us >= LONG_US) == (candidate.tuned_us >= LONG_US):
            taken[candidate] = found
    return taken, notes


def _unlike(taken: Collection[Candidate], rest: Sequence[Candidate]) -> Candidate:
    """The next case: of the kernel and direction taken least, the one farthest in length from all that were taken.

    Lengths are compared by their logarithms.  The longest comes first; of equals, that which was tuned first.
    """
    times = Counter((c.kernel, c.direction) for c in taken)

    def distance(candidate: Candidate) -> float:
        return min((abs(math.log(candidate.tuned_us / c.tuned_us)) for c in taken), default=candidate.tuned_us)

    return max(rest, key=lambda c: (-times[c.kernel, c.direction], distance(c)))


class Instruments:
    """What measures here: the clock as the stages use it, and do_bench."""

    def __init__(self, job: frame.Job):
        from atlas import timing
        from atlas.host import runtime
        from atlas.profiling import launches

        self._device = runtime.device_of(job.gpu_name, job.block)
        self._clock = timing.Clock(self._device)
        self._launches = launches

    def ours(self, candidate: Candidate) -> Ours:
        """The figures of one case."""
        import triton.testing

        thunk = self._launches.thunk(candidate.to_json(), self._device)
        timing = self._clock.measure(thunk)
        if timing.throttled:
            return Ours(timing.median_us, None, _lowered(timing.throttled_by, "and under ncu it would not"))
        if not timing.queued:
            return Ours(timing.median_us, None, "it waits for the device by itself")
        if timing.median_us < LONG_US:
            return Ours(timing.median_us, None)
        warmup, rep = _DO_BENCH_MS
        bench = 1000 * triton.testing.do_bench(thunk, warmup=warmup, rep=rep, return_mode="median")
        reasons = self._clock.throttled_by()
        return Ours(timing.median_us, bench, _lowered(reasons, "under do_bench's calls") if reasons else "")

    def release(self) -> None:
        """Give the memory of earlier cases back: another process is to work on the device."""
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()


def _lowered(reasons: Sequence[str], where: str) -> str:
    return f"the board lowered its clock ({', '.join(reasons)}), {where}"


def _watch(job: frame.Job, cases: Sequence[Candidate], folder: Path) -> list[Theirs]:
    """ncu's figures of every case."""
    asked = [case.to_json() for case in cases]
    launches = watch(job.gpu_name, job.arguments.gpus_file, asked, _REPEATS, folder)
    return sort_out(launches, len(cases), _REPEATS)


def sort_out(launches: Sequence[ncu.Launch], cases: int, repeats: int) -> list[Theirs]:
    """The figures of each case: launches come call by call, each after a marker.

    RuntimeError where the list is not of so many cases.
    """
    calls = [[launch.microseconds for launch in call] for call in by_call(launches, repeats * cases)]
    groups = [calls[first : first + repeats] for first in range(0, len(calls), repeats)]
    return [Theirs(len(group[0]), statistics.median(map(sum, group))) for group in groups]


def evidence(found: Sequence[tuple[Candidate, Ours, Theirs]], notes: Sequence[str]) -> Evidence:
    """The claims, and a row for each case, shortest first."""
    rows = [_row(*each) for each in sorted(found, key=lambda each: each[1].median_us)]
    long = [row for row in rows if row["ours us"] >= LONG_US]
    short_us = [row["over ncu us"] for row in rows if row["ours us"] < LONG_US]

    def largest(key: str) -> float | None:
        return max((abs(row[key]) for row in long), default=None)

    return Evidence(
        claims=[
            at_least(f"cases of at least {LONG_US:g} us that were compared", len(long), LONG_CASES),
            at_most("their largest difference from ncu, %", largest("over ncu %"), LIMIT),
            at_most("their largest difference from do_bench, %", largest("over do_bench %"), LIMIT),
            at_most("shorter cases: most that ours is over ncu's, us", max(short_us, default=None), LAUNCHING_US),
            at_least("shorter cases: least that ours is over ncu's, us", min(short_us, default=None), 0.0),
        ],
        rows=rows,
        notes=[
            f"ncu's {ncu.DURATION} counts from a kernel's start to its end and is added up over a call's kernels; "
            "events also hold the launches and the gaps between. Nothing is deducted.",
            f"ncu (median of {_REPEATS} launches) runs one kernel at a time, with pauses, at the clock the driver "
            "chooses. Cases at which the board lowers its clock, under ours or under do_bench, which leaves no pauses, "
            "are passed over: the three would not run at one clock. Ours takes each case by itself here, not in turns "
            "with others. Every sample starts after a write of at least twice L2, in all three.",
            *notes,
        ],
    )


def _row(candidate: Candidate, ours: Ours, theirs: Theirs) -> dict[str, Any]:
    bench = ours.do_bench_us
    return {
        "case": label(candidate),
        "kernels": theirs.kernels,
        "ours us": ours.median_us,
        "ncu us": theirs.median_us,
        "over ncu us": ours.median_us - theirs.median_us,
        "over ncu %": 100 * (ours.median_us / theirs.median_us - 1),
        "do_bench us": bench,
        "over do_bench %": None if bench is None else 100 * (ours.median_us / bench - 1),
    }


def label(candidate: Candidate) -> str:
    """A case for a person."""
    return f"{candidate.kernel} {candidate.direction} {candidate.case} {candidate.variant}"
