"""Profile: hardware counters of every variant and of the fastest peer, on the cases with the most traffic.

Every step of the ladder has its counters, and on a case that the step it was made from ran, too.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..cuda import nvcc
from ..errors import AtlasError, in_a_line
from ..profiling import ncu
from ..results.subject import PassCase
from ..results.verdict import best_of_each_case, busiest
from . import called, frame

_SHARED_KEYS = ("provider", "provider_kind", "direction", "dtype", "sizes", "config", "bytes")

Row = Mapping[str, Any]
"""A row of a benchmark."""

LeftOut = Mapping[tuple[str, str], str]
"""Pass and name of each peer that cannot be profiled here, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m atlas profile``."""
    frame.add_common_arguments(parser)
    parser.add_argument("--cases", type=int, default=1, metavar="N", help="cases a pass, those with the most traffic "
                        "first (default: 1)")  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/<kernel>/profile.json``; without ncu it says so."""
    job = frame.job("profile", arguments)
    if job.functional:
        raise AtlasError(f"GPU {job.gpu_name!r} is the interpreter, which has no counters; profile on another GPU")
    if arguments.cases < 1:
        raise AtlasError(f"--cases {arguments.cases}: give at least 1")
    with frame.leased(job) as lease, called.settled(job, lease) as used:
        document = frame.write_document(job, {"rows": []} | used, lambda job: _body(job) | used)
    if document["reason"]:
        print(f"atlas profile: {job.kernel} on {job.gpu_name}: {document['status']}: {document['reason']}")


def _body(job: frame.Job) -> dict[str, Any]:
    try:
        ncu.find()
    except AtlasError as error:
        raise frame.Stop("skipped", str(error)) from None
    frame.require_ok(job, "benchmark")
    benchmark, cases, built = job.earlier("benchmark"), job.arguments.cases, _built(job)
    lacking = {key: reason for key, reason in built.items() if reason}
    try:
        found, failed = _profile(job, benchmark, lacking)
    except RuntimeError as error:
        if not _peers(choose(benchmark, cases, lacking)) & set(built):
            raise
        # The process that launches them all ended; whether it was for a peer in CUDA C++ shows without.
        lacking = {key: reason or in_a_line(error) for key, reason in built.items()}
        found, failed = _profile(job, benchmark, lacking)
    left_out = [f"{PassCase.of(row)} {row['provider']} was left out: {reason}" for row, reason in failed]
    passed_over = _passed_over(_peers(choose(benchmark, cases)), lacking)
    return {
        "rows": [_row(asked, call) for asked, call in found],
        "reason": "; ".join(filter(None, (passed_over, *left_out))),
    }


Found = tuple[list[tuple[Row, list[ncu.Launch]]], list[tuple[Row, str]]]
"""The launches of one call of each row, and the rows whose call failed, with the reason."""


def _profile(job: frame.Job, benchmark: Mapping[str, Any], lacking: LeftOut) -> Found:
    chosen = list(choose(benchmark, job.arguments.cases, lacking))
    if not chosen:
        raise frame.Stop("skipped", "the benchmark timed no variant")
    with tempfile.TemporaryDirectory(prefix="atlas-profile.") as folder:
        return _watch(job, chosen, Path(folder))


def _built(job: frame.Job) -> dict[tuple[str, str], str]:
    """Pass and name of each peer in CUDA C++, and why what the cuda stage built of it cannot be loaded, or ``""``."""
    if not nvcc.sources(job.kernel):
        return {}
    import torch

    from ..cuda.programs import Programs

    programs = Programs(job.kernel, job.gpu_name, job.folder, torch.device("cuda"))
    return {
        (direction, name): peer.missing() or programs.obstacle[1]
        for direction, work in job.declaration().passes.items()
        for name, peer in work.peers.items()
        if peer.launcher
    }


def _peers(rows: Iterable[Row]) -> set[tuple[str, str]]:
    return {(row["direction"], row["provider"]) for row in rows if row["provider_kind"] == "peer"}


def _passed_over(fastest: set[tuple[str, str]], lacking: LeftOut) -> str:
    """Which of the fastest peers another stands for, and why; ``""`` where none is."""
    passed = sorted(fastest & set(lacking))
    parts = [f"the fastest peer, {name}, was passed over: {lacking[direction, name]}" for direction, name in passed]
    return "; ".join(dict.fromkeys(parts))


def choose(benchmark: Mapping[str, Any], count: int, lacking: LeftOut = MappingProxyType({})) -> Iterator[Row]:
    """A benchmark's rows that are to be profiled, case by case.

    Of each pass's ``count`` busiest cases the right variants, each with the faster of its configs, and the fastest peer
    that is not ``lacking``; then the steps of the ladder that no such case shows beside the step they follow.
    """
    rows = [
        row
        for row in benchmark["rows"]
        if row["provider_kind"] != "peer" or (row["direction"], row["provider"]) not in lacking
    ]
    best = best_of_each_case(rows)
    for direction in dict.fromkeys(row["direction"] for row in best):
        own = [row for row in best if row["direction"] == direction]
        ordered = busiest(own)
        others = sorted((row for row in own if row not in ordered), key=lambda row: -row["bytes"])
        timed = {PassCase.of(top): _faster_of_configs(rows, top) for top in (*ordered, *others)}
        asked = {PassCase.of(top): list(timed[PassCase.of(top)]) for top in ordered[:count]}
        for step in benchmark.get("steps", ()):  # a document of an earlier release holds none
            if step["direction"] == direction:
                _add_step(asked, timed, step)
        peers = {PassCase.of(top): top["peer"] for top in ordered[:count]}
        for case, names in asked.items():
            yield from (timed[case][name] for name in names)
            yield from (row for row in rows if _is_peer(row, case, peers.get(case)))


def _faster_of_configs(rows: Iterable[Row], top: Row) -> dict[str, Row]:
    """Of each variant that was right on the case of ``top``, the row of its tuned or its default config."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["provider_kind"] != "peer" and row["status"] == "ok" and PassCase.of(row) == PassCase.of(top):
            before = found.get(row["provider"], {}).get("median_us", math.inf)
            if row["median_us"] < before:
                found[row["provider"]] = row
    return found


def _add_step(
    asked: dict[PassCase, list[str]], timed: Mapping[PassCase, Mapping[str, Row]], step: Mapping[str, str]
) -> None:
    """Ask for a step and the one it follows on the busiest case that both ran, unless a case asked for has both."""
    for wanted in ({step["variant"], step["follows"]} - {""}, {step["variant"]}):
        both = [case for case, variants in timed.items() if wanted <= variants.keys()]
        if both:
            if not any(wanted <= set(asked.get(case, ())) for case in both):
                names = asked.setdefault(both[0], [])
                names += [name for name in timed[both[0]] if name in wanted and name not in names]
            return


def _is_peer(row: Row, case: PassCase, name: str | None) -> bool:
    peer = row["provider_kind"] == "peer" and row["provider"] == name
    return peer and row["status"] == "ok" and PassCase.of(row) == case


def _watch(job: frame.Job, chosen: Sequence[Row], folder: Path) -> Found:
    cases = [ncu.asked(job.kernel, job.gpu_name, job.folder, row) for row in chosen]
    metrics = ncu.known(ncu.metrics())
    try:
        launches = ncu.watch(job.gpu_name, job.arguments.gpus_file, cases, 1, folder, metrics, flush=True, lenient=True)
    except AtlasError as error:  # counters are not permitted
        raise frame.Stop("skipped", str(error)) from None
    failed = ncu.failures(folder)
    ran = [row for number, row in enumerate(chosen) if number not in failed]
    if not ran:
        raise RuntimeError(f"every call failed, the first: {failed[0]}")
    calls = ncu.by_call(launches, len(ran))
    return list(zip(ran, calls, strict=True)), [(chosen[number], reason) for number, reason in failed.items()]


def _row(asked: Mapping[str, Any], call: Sequence[ncu.Launch]) -> dict[str, Any]:
    return {key: asked[key] for key in _SHARED_KEYS} | {"launches": [ncu.facts(launch) for launch in call]}
