"""The tuner against ``triton.autotune`` on the same configs and cases: wall time, and how good the picks are.

Everything runs in fresh processes.  triton.autotune is Triton's own class with its own benchmark (see ``triton_side``),
timed from its first call; the tuner is ``python -m atlas autotune``, timed with its start-up, without a build before
it.  Both start with an empty compile cache.  What is fastest is found by timing the whole space, and settled by timing
the picks, the fastest of the whole space and the default in turns (see ``finals``).
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.results import documents
from atlas.results.pieces import Pieces
from atlas.stages import frame

from .. import scratch
from ..evidence import Claim, Evidence, at_most, none_of
from ..scratch import context
from .regret import alike, regret, share

TIME_LIMIT = 0.125
"""Most of triton.autotune's wall time that the tuner may take."""

REGRET_LIMIT = 0.01
"""Most regret at the 95th percentile of the problems."""

TOP = 6
"""How many of the fastest of the whole space take part in the last comparison."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m proofs tuning-speed``."""
    scratch.add_arguments(parser, kernels="matmul,layer_norm")
    scratch.add_cores(parser)
    parser.add_argument("--few-jobs", type=int, default=2, metavar="N", help="cores of the tuner's second run, of "
                        "which one is its worker's; 0 leaves that run out (default: 2)")  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy the journals of the whole space to "
                        "FOLDER/<kernel>/journal.jsonl, which proofs.tuning.strategies searches")  # fmt: skip


def run(job: frame.Job) -> Evidence:
    """Race every kernel; AtlasError on a GPU that only the interpreter stands for."""
    if job.functional:
        raise AtlasError(f"proofs tuning-speed: GPU {job.gpu_name!r} is the interpreter, whose times are not speeds; "
                         "name a GPU of this host")  # fmt: skip
    kernels = scratch.kernels_of(job.arguments)
    with scratch.folder(job) as folder:
        results = [_race(job, kernel, folder / kernel) for kernel in kernels]
    return evidence(results)


@dataclass(frozen=True)
class Race:
    """What was measured for one kernel: wall seconds of each side, and each problem's last comparison.

    ``few_jobs`` and ``few_seconds`` are 0 and None where the tuner ran once only.  ``phases`` are the tuner's seconds
    on all cores, by phase.
    """

    kernel: str
    cores: int
    seconds: float
    few_jobs: int
    few_seconds: float | None
    triton_seconds: float
    configs: int
    problems: Sequence[Problem]
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """One problem's picks (None: there is none) and the finalists' times by name; ``reason`` where that failed."""

    name: str
    ours: str | None
    tritons: str | None
    default: str | None
    timed: Mapping[str, Mapping[str, Any]]
    reason: str = ""

    def regret(self, pick: str | None) -> float | None:
        """The pick's regret, None where it was not timed."""
        return regret(self.timed[pick], self.timed.values()) if pick in self.timed else None


def _race(job: frame.Job, kernel: str, folder: Path) -> Race:
    cores = scratch.cores_of(job.arguments)
    pieces = Pieces(folder / "pieces.jsonl", context(job, kernel))
    ours = pieces.once(f"tuner, {cores} cores", lambda: _tune(job, kernel, folder / "tuner", cores))
    whole = pieces.once("whole space", lambda: _whole_space(job, kernel, folder, cores))
    if job.arguments.keep:
        _keep(folder / "whole" / "measured" / job.gpu_name / kernel, job.arguments.keep / kernel)
    tritons = _triton(job, kernel, folder)
    problems = _finals(job, kernel, folder, _by_problem(ours["best"]), tritons, _fastest(whole["trials"]))
    few = job.arguments.few_jobs
    few_seconds = None
    if few:
        again = pieces.once(f"tuner, {few} jobs", lambda: _tune(job, kernel, folder / "few", few))
        few_seconds = again["seconds"]
    return Race(
        kernel=kernel,
        cores=cores,
        seconds=ours["seconds"],
        few_jobs=few,
        few_seconds=few_seconds,
        triton_seconds=sum(one["seconds"] for one in tritons.values()),
        configs=sum(one["configs"] for one in tritons.values()),
        problems=problems,
        phases=ours["phases"],
    )


def _tune(job: frame.Job, kernel: str, folder: Path, jobs: int) -> dict[str, Any]:
    """The tuner as a user runs it, with nothing there beforehand: ``seconds``, and its document's ``best``."""
    shutil.rmtree(folder, ignore_errors=True)
    seconds, document = _autotune(job, kernel, folder, folder / "cache", ["--jobs", jobs])
    return {"seconds": seconds, "best": document["best"], "phases": document["seconds_by_phase"]}


def _whole_space(job: frame.Job, kernel: str, folder: Path, cores: int) -> dict[str, Any]:
    """Every config timed; what the tuner compiled serves again, and a journal of an earlier try is gone on with."""
    # What is certified is the tuner's pick; here it is the times that count.
    words = ["--jobs", cores, "--strategy", "exhaustive", "--certify-seeds", 0]
    _, document = _autotune(job, kernel, folder / "whole", folder / "tuner" / "cache", words)
    return {"trials": [row for row in document["trials"] if row["status"] == "ok"]}


def _autotune(
    job: frame.Job, kernel: str, results: Path, cache: Path, words: Sequence[object]
) -> tuple[float, Mapping[str, Any]]:
    scratch.put(job, kernel, ["validate"], results)
    command = ["autotune", kernel, *scratch.common(job), "--results", results, *words]
    environment = {"TRITON_CACHE_DIR": str(cache), gpus.LIMIT_VARIABLE: "1"}  # triton.autotune has one GPU, too
    seconds = scratch.run("atlas", command, environment, results / "log.txt")
    document = documents.read(results / "measured" / job.gpu_name / kernel / "autotune.json", "autotune")
    return seconds, scratch.require_ok(document)


def _triton(job: frame.Job, kernel: str, folder: Path) -> dict[str, Any]:
    """What triton.autotune came to, by problem.  One that is cut off goes on with the cache it has filled."""
    kept = folder / "triton.jsonl"
    environment = {"TRITON_CACHE_DIR": str(folder / "triton-cache"), "TRITON_CACHE_AUTOTUNING": "0"}
    command = [kernel, *scratch.common(job), "--pieces", kept]
    scratch.run("proofs.tuning.triton_side", command, environment, folder / "triton.log")
    return Pieces(kept, context(job, kernel)).all()


def _finals(
    job: frame.Job, kernel: str, folder: Path, ours: Mapping[str, Any], tritons: Mapping[str, Any],
    fastest: Mapping[str, Sequence[Any]],
) -> list[Problem]:  # fmt: skip
    asked = []
    for name, one in tritons.items():
        picks = [pick for pick in (ours.get(name), one["pick"], *fastest.get(name, ())) if pick]
        asked.append({**{key: one[key] for key in ("direction", "dtype", "sizes")}, "candidates": picks})
    (folder / "asked.json").write_text(json.dumps(asked))
    kept = folder / "finals.jsonl"
    command = [kernel, *scratch.common(job), "--asked", folder / "asked.json", "--pieces", kept]
    # Whoever compiled a finalist first, it is compiled: here its time counts, not its compiler's.
    environment = {"TRITON_CACHE_DIR": str(folder / "tuner" / "cache")}
    scratch.run("proofs.tuning.finals", command, environment, folder / "finals.log")
    found = Pieces(kept, context(job, kernel)).all()
    return [_problem(name, ours.get(name), one, found.get(name)) for name, one in tritons.items()]


def _problem(name: str, ours: Any, triton: Mapping[str, Any], found: Mapping[str, Any] | None) -> Problem:
    if found is None:
        return Problem(name, None, None, None, {}, "no candidate to compare")
    return Problem(
        name, _text(ours), _text(triton["pick"]), found["default"], found["timed"],
        found["reason"] or triton["reason"] or ("" if ours else "the tuner found no config"),
    )  # fmt: skip


def _text(pick: Mapping[str, Any] | None) -> str | None:
    from atlas.tuning.candidates import Candidate

    return str(Candidate.of(pick["variant"], pick["config"])) if pick else None


def _by_problem(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    from .finals import named

    return {named(row): {"variant": row["variant"], "config": row["config"]} for row in rows}


def _fastest(trials: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The ``TOP`` fastest of each problem."""
    from .finals import named

    found: dict[str, list[Any]] = {}
    for row in sorted(trials, key=lambda row: row["median_us"]):
        best = found.setdefault(named(row), [])
        if len(best) < TOP:
            best.append({"variant": row["variant"], "config": row["config"]})
    return found


def _keep(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "journal.jsonl", target / "journal.jsonl")


def evidence(races: Sequence[Race]) -> Evidence:
    """The claims, a row a kernel, and the notes."""
    claims: list[Claim] = []
    for race in races:
        text = f"{race.kernel}: the tuner's wall time on {race.cores} cores over triton.autotune's"
        claims.append(at_most(text, race.seconds / race.triton_seconds, TIME_LIMIT))
    problems = [problem for race in races for problem in race.problems]
    regrets = _regrets(problems, "ours")
    text = f"regret of the tuner's picks at the 95th percentile of {len(problems)} problems"
    claims.append(at_most(text, share(regrets, 0.95), REGRET_LIMIT))
    lost = [one for one in problems if one.regret(one.ours) is None]
    claims.append(none_of("problems whose pick could not be compared", lost))
    notes = [
        "Wall times in seconds; regret in per cent: a config's median over that of the fastest known, minus 1, both "
        "sampled in turns.  The fastest known is the best of either side's pick, the default and the "
        f"{TOP} fastest when the whole space was timed.",
        "The tuner's time is of the whole command with the start of Python, torch and the GPU, and with checking and "
        "certifying its picks; triton.autotune's is from its first call, without start-up, in one process that "
        "compiles and times in turns.  Both begin with an empty compile cache.",
        "'alike' counts the problems whose pick the samples cannot tell from the fastest: the 95 % confidence "
        "intervals of the medians overlap, or the medians are within 0.5 %.",
    ]
    notes += [f"{race.kernel}: the tuner's seconds by phase: {_phases(race)}" for race in races if race.phases]
    notes += [f"{race.kernel}: {note}" for race in races for note in _worst(race.problems)]
    notes += [f"{race.kernel}, {one.name}: {one.reason}" for race in races for one in race.problems if one.reason]
    return Evidence(claims, [_row(race) for race in races], notes)


def _row(race: Race) -> dict[str, Any]:
    timed = [one for one in race.problems if one.ours in one.timed]
    return {
        "kernel": race.kernel,
        "problems": len(race.problems),
        "configs": race.configs,
        "triton s": race.triton_seconds,
        "cores": race.cores,
        "tuner s": race.seconds,
        "ratio": race.seconds / race.triton_seconds,
        "few cores": race.few_jobs,
        "tuner s, few": race.few_seconds,
        "ratio, few": race.few_seconds / race.triton_seconds if race.few_seconds else None,
        **_spread("regret", _regrets(race.problems, "ours")),
        "alike": sum(alike(one.timed[one.ours], one.timed.values()) for one in timed),
        **_spread("triton's regret", _regrets(race.problems, "tritons")),
        **_spread("default's regret", _regrets(race.problems, "default")),
    }


def _phases(race: Race) -> str:
    longest = sorted(race.phases.items(), key=lambda phase: -phase[1])
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in longest if seconds)


def _regrets(problems: Sequence[Problem], whose: str) -> list[float]:
    found = [one.regret(getattr(one, whose)) for one in problems]
    return [one for one in found if one is not None]


def _spread(name: str, regrets: Sequence[float]) -> dict[str, float | None]:
    shares = {"median": 0.5, "p95": 0.95, "worst": 1.0}
    found = {label: share(regrets, of) for label, of in shares.items()}
    return {f"{name} {label} %": None if value is None else 100 * value for label, value in found.items()}


def _worst(problems: Sequence[Problem]) -> list[str]:
    """Where the tuner's pick was furthest behind, and behind what."""
    timed = [one for one in problems if one.ours in one.timed]
    if not timed:
        return []
    worst = max(timed, key=lambda one: one.regret(one.ours))
    fastest = min(worst.timed, key=lambda name: worst.timed[name]["median_us"])
    if fastest == worst.ours:
        return ["every pick was the fastest known"]
    times = f"{worst.timed[worst.ours]['median_us']:.3f} against {worst.timed[fastest]['median_us']:.3f} us"
    return [f"the worst pick is {worst.ours} for {worst.name}, behind {fastest}: {times}"]
