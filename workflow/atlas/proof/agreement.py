"""The clock's figures agree with two others: ncu's counter of kernel durations, and Triton's own benchmark function.

All three start from the same state: a buffer of at least twice L2 has just been written.  What they measure is not the
same.  Events bracket a call: they hold what launching costs the device and, where a call launches several kernels, the
gaps between them.  ncu counts from a kernel's start to its end, and adds up the kernels of a call.  The difference, the
bracket, does not depend on the kernel: it is measured on kernels that do nothing, as many as the call launches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import catalog
from ..environment import python_path
from ..errors import AtlasError
from ..stages import frame
from . import ncu, scratch
from .evidence import Claim, Evidence, at_least, at_most

if TYPE_CHECKING:
    from ..declaration import Case

LIMIT = 3.0
"""Per cent, of every claim."""
CASES, SHORT_CASES = 10, 4
"""Cases that the claims are of, and short ones beside them that are shown."""
LONG_US = 20.0
"""From here on a case is claimed; below, the bracket is a large part of the figure."""
RAW_US = 100.0
"""From here on the figure itself is claimed, bracket included."""
DO_BENCH_US = 200.0
"""From here on the device is behind the host in do_bench, which queues nothing ahead."""
MARKER = "atlas_marker"
"""The kernel that :mod:`atlas.proof.launches` launches before each call."""
_LONGEST_US = 5000.0
_REPEATS = 7
"""Launches of a case that ncu measures from each cache state."""
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
    """What was measured here, microseconds: by the clock, by the clock from clean lines, by do_bench if it is valid."""

    median_us: float
    clean_us: float
    do_bench_us: float | None
    unfit: str = ""
    """Why the case cannot be compared: it was throttled, which ncu's pauses would have prevented."""


@dataclass(frozen=True)
class Theirs:
    """What ncu measured, microseconds: medians of the sum of a call's kernels, from dirty and from clean lines."""

    kernels: int
    median_us: float
    clean_us: float


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
        empty_us, theirs = _watch(job, list(chosen), folder)
        brackets = {
            kernels: instruments.empties_us(kernels) - kernels * empty_us
            for kernels in sorted({found.kernels for found in theirs})
        }
    return evidence(list(zip(chosen, chosen.values(), theirs, strict=True)), brackets, empty_us, notes)


def at_hand(job: frame.Job) -> tuple[list[Candidate], list[str]]:
    """Every case that was tuned, with its best config; and what was left out."""
    from ..declaration import Case

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
            notes.append(f"{kernel} is left out: its {kind} tuning is of another version of kernels/{kernel}.py")
            continue
        found += [
            Candidate(kernel, best["direction"], Case.from_json(best), best["variant"], best["config"],
                      best["median_us"])
            for best in document["best"]
        ]  # fmt: skip
    return found, notes


def choose(candidates: Sequence[Candidate], instruments: Instruments) -> tuple[dict[Candidate, Ours], list[str]]:
    """The cases to compare with what they measure here, and why others were passed over.

    Kernels and directions take turns; each gives its longest case first, then its shortest over :data:`LONG_US`, then
    whatever lies farthest from those it gave.  Of short cases each gives its shortest.
    """
    long = [c for c in candidates if LONG_US < c.tuned_us <= _LONGEST_US]
    chosen, notes = _take(_turns(long), CASES, LONG_US, instruments)
    short = sorted((c for c in candidates if c.tuned_us <= LONG_US), key=lambda c: c.tuned_us)
    firsts = list({(c.kernel, c.direction): c for c in reversed(short)}.values())[::-1]
    brief, more = _take(firsts, SHORT_CASES, 0.0, instruments)
    return chosen | brief, notes + more


def _take(
    candidates: Sequence[Candidate], count: int, least_us: float, instruments: Instruments
) -> tuple[dict[Candidate, Ours], list[str]]:
    taken: dict[Candidate, Ours] = {}
    notes = []
    for candidate in candidates:
        if len(taken) == count:
            break
        found = instruments.ours(candidate)
        if found.unfit:
            notes.append(f"{label(candidate)} was passed over: {found.unfit}")
        elif found.median_us > least_us:
            taken[candidate] = found
    return taken, notes


def _turns(candidates: Sequence[Candidate]) -> list[Candidate]:
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.kernel, candidate.direction), []).append(candidate)
    orders = [_spread(group) for group in groups.values()]
    longest = max(map(len, orders), default=0)
    return [order[turn] for turn in range(longest) for order in orders if turn < len(order)]


def _spread(group: Sequence[Candidate]) -> list[Candidate]:
    """Longest, shortest, then always the one whose logarithm is farthest from all before; ties keep their order."""
    rest = sorted(group, key=lambda c: -c.tuned_us)
    order = [rest.pop(0)]
    while rest:
        far = max(rest, key=lambda c: min(abs(math.log(c.tuned_us / other.tuned_us)) for other in order))
        rest.remove(far)
        order.append(far)
    return order


class Instruments:
    """What measures here: the clock as the stages use it, the same from clean lines, and do_bench."""

    def __init__(self, job: frame.Job):
        from .. import runtime, timing
        from ..timing.board import board_of
        from ..timing.queue import Sampler
        from . import launches

        self._device = runtime.device_of(job.gpu_name, job.block)
        self._clock = timing.Clock(self._device)
        clean = launches.CleanDevice(self._device)
        self._clean = timing.Clock.of_parts(Sampler(clean), board_of(clean.index), device=clean)
        self._launches = launches

    def ours(self, candidate: Candidate) -> Ours:
        """The figures of one case."""
        import triton.testing

        thunk = self._launches.thunk(candidate.to_json(), self._device)
        timing = self._clock.measure(thunk)
        unfit = ""
        if timing.throttled:
            unfit = f"the board lowered its clock ({', '.join(timing.throttled_by)}), and under ncu it would not"
        elif not timing.queued:
            unfit = "it waits for the device by itself"
        if unfit:
            return Ours(timing.median_us, timing.median_us, None, unfit)
        bench = None
        if timing.median_us >= DO_BENCH_US:
            warmup, rep = _DO_BENCH_MS
            bench = 1000 * triton.testing.do_bench(thunk, warmup=warmup, rep=rep, return_mode="median")
        return Ours(timing.median_us, self._clean.measure(thunk).median_us, bench)

    def empties_us(self, count: int) -> float:
        """The clock's figure for a call that launches so many kernels that do nothing."""

        def call() -> None:
            for _ in range(count):
                self._launches.mark()

        return self._clock.measure(call).median_us

    def release(self) -> None:
        """Give the memory of earlier cases back: another process is to work on the device."""
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()


def _watch(job: frame.Job, cases: Sequence[Candidate], folder: Path) -> tuple[float, list[Theirs]]:
    """ncu's figure for a kernel that does nothing, and its figures of every case."""
    plan = folder / "launches.json"
    plan.write_text(json.dumps({
        "gpu": job.gpu_name, "gpus_file": str(job.arguments.gpus_file.resolve()), "repeats": _REPEATS,
        "cases": [case.to_json() for case in cases],
    }))  # fmt: skip
    environment = os.environ | {"PYTHONPATH": python_path()}
    words = [sys.executable, "-m", "atlas.proof.launches", str(plan)]
    return sort_out(ncu.profile(words, environment, folder / "ncu.csv"), len(cases), _REPEATS)


def sort_out(launches: Sequence[ncu.Launch], cases: int, repeats: int) -> tuple[float, list[Theirs]]:
    """The median of the markers, and the figures of each case: launches come call by call, each after a marker.

    RuntimeError where the list is not of so many cases.
    """
    markers, calls = [], []
    for launch in launches:
        if launch.kernel == MARKER:
            markers.append(launch.microseconds)
            calls.append([])
        elif calls:
            calls[-1].append(launch.microseconds)
    if len(calls) != 2 * repeats * cases or not all(calls):
        raise RuntimeError(f"ncu saw {len(calls)} calls, {sum(map(bool, calls))} of them with kernels; "
                           f"{2 * repeats * cases} were made")  # fmt: skip
    found = []
    for first in range(0, len(calls), 2 * repeats):
        dirty, clean = calls[first : first + repeats], calls[first + repeats : first + 2 * repeats]
        sums = [statistics.median(map(sum, part)) for part in (dirty, clean)]
        found.append(Theirs(len(dirty[0]), *sums))
    return statistics.median(markers), found


def evidence(
    found: Sequence[tuple[Candidate, Ours, Theirs]], brackets: Mapping[int, float], empty_us: float, notes: list[str]
) -> Evidence:
    """The claims, and a row for each case, shortest first."""
    rows = [_row(*each, brackets[each[2].kernels]) for each in sorted(found, key=lambda each: each[1].median_us)]
    long = [row for row in rows if row["ours us"] > LONG_US]
    raw = [row for row in long if row["ours us"] >= RAW_US]
    bench = [row for row in rows if row["do_bench %"] is not None]
    spent = ", ".join(f"{bracket:.2f} us for {kernels}" for kernels, bracket in brackets.items())
    return Evidence(
        claims=[
            at_least(f"cases over {LONG_US:g} us that were compared", len(long), CASES),
            _within(f"over {LONG_US:g} us: largest difference from ncu, less the bracket, %", long, "less bracket %"),
            _within(f"over {RAW_US:g} us: largest difference from ncu, bracket included, %", raw, "ncu %"),
            _within(f"over {DO_BENCH_US:g} us: largest difference from do_bench, %", bench, "do_bench %"),
        ],
        rows=rows,
        notes=[
            f"ncu's {ncu.METRIC} counts from a kernel's start to its end; events hold the launch too. That bracket is "
            f"the clock's figure of kernels that do nothing less ncu's ({empty_us:.2f} us each), by the number of "
            f"kernels in a call: {spent}. Cases up to {LONG_US:g} us are shown and not claimed.",
            "Every sample starts after a write of at least twice L2, in all three. 'clean' starts after a read of as "
            "much as well: where ncu's two figures are equal and the clock's are not, ncu has written the dirty lines "
            "back before its kernel started, and the clean pair is the one to compare.",
            f"ncu (median of {_REPEATS} launches) runs one kernel at a time, with pauses, at the clock the driver "
            "chooses: a board that is not throttled runs at the same clock, and throttled cases are passed over. The "
            "clock takes each case by itself here, not in turns with others.",
            *notes,
        ],
    )


def _within(text: str, rows: Sequence[Mapping[str, Any]], key: str) -> Claim:
    return at_most(text, max((abs(row[key]) for row in rows), default=None), LIMIT)


def _row(candidate: Candidate, ours: Ours, theirs: Theirs, bracket_us: float) -> dict[str, Any]:
    def per_cent(figure: float, other: float) -> float:
        return 100 * (figure / other - 1)

    return {
        "case": label(candidate),
        "kernels": theirs.kernels,
        "ours us": ours.median_us,
        "ncu us": theirs.median_us,
        "ncu %": per_cent(ours.median_us, theirs.median_us),
        "less bracket %": per_cent(ours.median_us - bracket_us, theirs.median_us),
        "clean us": ours.clean_us,
        "ncu clean us": theirs.clean_us,
        "clean less bracket %": per_cent(ours.clean_us - bracket_us, theirs.clean_us),
        "do_bench us": ours.do_bench_us,
        "do_bench %": None if ours.do_bench_us is None else per_cent(ours.median_us, ours.do_bench_us),
    }


def label(candidate: Candidate) -> str:
    """A case for a person."""
    return f"{candidate.kernel} {candidate.direction} {candidate.case} {candidate.variant}"
