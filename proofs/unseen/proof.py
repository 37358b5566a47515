"""At shapes that nobody tuned, public functions are as fast as the fastest peer: geometric mean, and how many lose."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atlas import catalog
from atlas.errors import AtlasError
from atlas.results.beyond import OURS, against_peers
from atlas.results.subject import label
from atlas.results.verdict import geometric_mean
from atlas.sampling import drawing
from atlas.stages import frame

from .. import scratch
from ..evidence import Evidence, at_least, at_most, none_of

MEAN, SLOWER, SLOW_SHARE, WORST = 1.22, 0.9, 0.04, 0.75
"""Least geometric mean of the fastest peer's time over ours, the share that may be below ``SLOWER``, the worst."""
SHOWN = 0.95
"""Losses below this are listed."""
CASES, SECONDS = 8, 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, the seed, how many cases, which modes, and how long."""
    scratch.add_arguments(parser)
    scratch.add_cores(parser)
    parser.add_argument("--seed", type=int, help="of the shapes (default: another one each time)")
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"shapes a kernel (default: {CASES})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="start no case after this (default: an hour)")


def run(job: frame.Job) -> Evidence:
    """Draw, compile ahead, time; cases of all kernels in turns, so that a proof cut short has some of each."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU of this host")
    asked = job.arguments
    seed = time.time_ns() % 10**6 if asked.seed is None else asked.seed
    kernels = scratch.kernels_of(asked)
    with frame.leased(job):
        compile_ahead(job, kernels, seed)
        rows, left_out = _timed(job, kernels, seed)
    notes = [f"shapes drawn by seed {seed}, {asked.cases} a kernel"]
    if left_out:
        notes.append(f"out of time: {left_out} cases were not begun")
    return evidence(rows, notes)


def compile_ahead(job: frame.Job, kernels: Sequence[str], seed: int) -> None:
    """Call every provider once, kernels beside each other: the caches on disk then hold what is compiled."""

    def prepare(kernel: str) -> None:
        words = [
            "-m",
            "proofs.unseen.ahead",
            kernel,
            *scratch.common(job),
            "--seed",
            seed,
            "--cases",
            job.arguments.cases,
        ]
        subprocess.run([sys.executable, *map(str, words)], check=False, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip

    with ThreadPoolExecutor(scratch.cores_of(job.arguments)) as pool:
        list(pool.map(prepare, kernels))


def _timed(job: frame.Job, kernels: Sequence[str], seed: int) -> tuple[list[dict[str, Any]], int]:
    from atlas.benchmarking import beyond
    from atlas.host import runtime
    from atlas.timing import Clock

    gpu, device = job.gpu(), runtime.device_of(job.gpu_name, job.block)
    clock, ends = Clock(device), time.monotonic() + job.arguments.seconds
    benches = {name: beyond.Bench(catalog.load(name), gpu, device, clock) for name in kernels}
    drawn = {name: drawing.drawn(b.declaration, gpu, seed, job.arguments.cases) for name, b in benches.items()}
    turns = [
        turn
        for turn in itertools.chain(*itertools.zip_longest(*([(n, c) for c in cs] for n, cs in drawn.items())))
        if turn
    ]
    rows: list[dict[str, Any]] = []
    for number, (name, case) in enumerate(turns):
        if time.monotonic() > ends:
            return rows, len(turns) - number
        for mode in beyond.modes(benches[name].declaration):
            found = benches[name].rows(case, mode)
            if found:
                rows.append(summary(name, found))
    return rows, 0


def summary(kernel: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of one call: our time, the fastest peer's, and theirs over ours; without a time it says why."""
    (call,) = against_peers(found)
    why = "; ".join(f"{row['provider']}: {row['reason']}" for row in found if row["provider"] != OURS)
    return {
        "kernel": kernel,
        "mode": call["mode"],
        "case": f"{label(call['sizes'])} {call['dtype']}",
        "us": call.get("median_us"),
        "peer": call["peer"],
        "peer_us": call["peer_us"],
        "ratio": call["ratio"],
        "reason": call["reason"] or ("" if call["ratio"] else why),
        "wrong": call["status"] == "wrong",
    }


def evidence(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Evidence:
    """The claims, and as rows the kernels' means and then every loss."""
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    share = sum(ratio < SLOWER for ratio in ratios) / len(ratios) if ratios else None
    claims = [
        none_of("calls that failed or are wrong", (row for row in rows if row["us"] is None or row["wrong"])),
        at_least("geometric mean of the fastest peer's time over ours", geometric_mean(ratios), MEAN),
        at_most(f"share of {len(ratios)} calls below {SLOWER}", share, SLOW_SHARE),
        at_least("the worst call", min(ratios, default=None), WORST),
    ]
    return Evidence(claims, [*_means(rows), *_losses(rows)], notes)


def _means(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups = defaultdict(list)
    for row in rows:
        if row["ratio"]:
            groups[row["kernel"], row["mode"]].append(row["ratio"])
    found = []
    for (kernel, mode), ratios in sorted(groups.items()):
        slow = sum(ratio < SLOWER for ratio in ratios)
        found.append(_row(kernel, mode, f"{len(ratios)} cases, {slow} below {SLOWER}", geometric_mean(ratios)))
    return found


def _losses(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lost = sorted((row for row in rows if row["ratio"] and row["ratio"] < SHOWN), key=lambda row: row["ratio"])
    names = ("kernel", "mode", "case", "ratio", "us", "peer", "peer_us", "reason")
    return [_row(*(row[name] for name in names)) for row in (*lost, *(row for row in rows if not row["ratio"]))]


def _row(kernel, mode, case, ratio, us=None, peer=None, peer_us=None, reason="") -> dict[str, Any]:
    return {
        "kernel": kernel,
        "mode": mode,
        "case": case,
        "peer over ours": ratio,
        "us": us,
        "fastest peer": peer or "",
        "its us": peer_us,
        "reason": reason,
    }
