"""Samples tried on records: what a few trials a case find, and what they tell of cases nobody tuned.

From the records alone, on any machine.  Of each pass some cases stay the kernel's own, with all their trials; as many
are a sample's: the product's own code decides which of their recorded trials are looked at, the default's and a few
more.  At the cases left over a call's choice is made with the sample and without it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from atlas.declaration import Case
from atlas.declaration.timings import Timed, Timings
from atlas.errors import AtlasError
from atlas.reading.config import load_gpus
from atlas.stages import frame
from atlas.tuning import probe
from atlas.tuning.candidates import Candidate, Problem
from atlas.tuning.outcome import OK, Outcome
from atlas.tuning.transfer import Model, Seen

from .. import scratch
from ..evidence import Evidence, at_most
from .choice import Known, Pick, as_text, known, over_default, pick_at, tail
from .regret import share

FOUND = 0.02
"""Most that the best of a sample's trials may be behind the best of the space, at the 95th percentile."""

OWN = SAMPLED = 0.4
"""Shares of a pass's cases; the rest are left over."""

LEAST = 6
"""Cases of a pass, or it has too few to be shared out."""

SPLITS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``, and how many times to share the cases out."""
    parser.add_argument("--kernels", default="", metavar="A,B", help="default: all that the GPU has records of")
    parser.add_argument("--splits", type=int, default=SPLITS, metavar="N", help=f"default: {SPLITS}")


def run(job: frame.Job) -> Evidence:
    """Share the cases out, sample, choose."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU that has records")
    block = load_gpus(job.arguments.gpus_file)[job.gpu_name]
    own = known(job.results, job.gpu_name, block, scratch.kernels_of(job.arguments))
    if not own:
        raise AtlasError(f"{job.results}: no autotune document of {job.gpu_name}; take its records from git")
    outcomes = [shared(one, seed) for one in own.values() for seed in range(job.arguments.splits)]
    return evidence([one for one in outcomes if one is not None])


class Recorded:
    """Answers from a case's recorded times, as a session would; everything is right, and certified."""

    elapsed_seconds = 0.0
    over = False

    def __init__(self, us: Mapping[Candidate, float]):
        self._us = us

    def screen(self, problem: Problem, candidate: Candidate, samples: int, limit_us: float | None) -> Outcome:
        us = self._us[candidate]
        return Outcome(OK, "", us, us, us, samples)

    def final(self, problem: Problem, finalists: Mapping[Candidate, Outcome]) -> Mapping[Candidate, Outcome]:
        return finalists

    def certify(self, problem: Problem, candidate: Candidate) -> Outcome:
        return Outcome(OK, certificate={})


@dataclass(frozen=True)
class Shared:
    """Of one sharing out of a pass's cases: how far the best trial of each sampled case is behind its best, how many
    trials these took, the picks of the cases left over by the own cases alone, and with the sample."""

    kernel: str
    behind: Sequence[float]
    trials: Sequence[int]
    alone: Sequence[Pick]
    sampled: Sequence[Pick]


def shared(one: Known, seed: int) -> Shared | None:
    """Share out and sample; None for a pass of too few cases."""
    cases = [case for case in one.timings.cases if one.own(case)]
    if len(cases) < LEAST:
        return None
    random.Random(f"{seed} {one.declaration.name} {one.direction}").shuffle(cases)
    first, second = round(OWN * len(cases)), round((OWN + SAMPLED) * len(cases))
    seen = {_name(case): _seen(one, case) for case in cases}
    own, drawn, rest = cases[:first], cases[first:second], cases[second:]
    tried, won = _sample(one, [seen[_name(case)] for case in own], [seen[_name(case)] for case in drawn])
    best = {_name(case): min(seen[_name(case)].us, key=seen[_name(case)].us.__getitem__) for case in own}
    alone = _knowledge(one, [seen[_name(case)] for case in own], best)
    both = _knowledge(one, [*(seen[_name(case)] for case in own), *tried], best | won)
    return Shared(
        one.declaration.name,
        [min(few.us.values()) / min(seen[_name(few)].us.values()) - 1 for few in tried],
        [len(few.us) for few in tried],
        [pick_at(one, case, *alone) for case in rest],
        [pick_at(one, case, *both) for case in rest],
    )


def _seen(one: Known, case: Timed) -> Seen:
    us = {Candidate.of(*json.loads(key)): us for key, us in one.trials[_name(case)].items()}
    variant, config = one.timings.configs[case.default]
    default = next(each for each in us if (each.variant, each.config) == (variant, dict(config)))
    return Seen(case.dtype, case.sizes, default, us)


def _sample(one: Known, own: Sequence[Seen], drawn: Sequence[Seen]) -> tuple[list[Seen], dict[str, Candidate]]:
    """What is looked at of the drawn cases, and what won of that."""
    certified = {(one.direction, each.dtype, min(each.us, key=each.us.__getitem__)): Outcome(OK) for each in own}
    sample = probe.Sample({one.direction: Model(list(own))}, certified)
    begun = []
    for each in drawn:
        others = (candidate for candidate in each.us if candidate != each.default)
        candidates = (each.default, *others)
        problem = Problem(
            one.direction, Case(each.dtype, tuple(each.sizes.items())), candidates, frozenset([each.default]),
            each.default, len(candidates),
        )  # fmt: skip
        recorded = Recorded(each.us)
        begun.append((each, sample.begin(problem, recorded, recorded)))
        begun[-1][1].compare()
    tried, won = [], {}
    for each, search in begun:
        found = search.settle()
        tried.append(Seen(each.dtype, each.sizes, each.default, {tried: each.us[tried] for tried in found.trials}))
        if found.ranking and found.certificate is not None:
            won[_name(each)] = found.ranking[0]
    return tried, won


def _knowledge(one: Known, seen: Sequence[Seen], won: Mapping[str, Candidate]) -> tuple[list[dict[str, Any]], Timings]:
    """Entries and timings as export would write them of these cases."""
    winners = [(each, won[_name(each)]) for each in seen if _name(each) in won]
    entries = [
        {"kernel": one.declaration.name, "direction": one.direction, "dtype": each.dtype, "sizes": dict(each.sizes),
         "variant": candidate.variant, "config": candidate.config, "certificate": {"cases": 1}}
        for each, candidate in winners
    ]  # fmt: skip
    configs = list(dict.fromkeys([*(candidate for _, candidate in winners), *(each.default for each in seen)]))
    place = {candidate: index for index, candidate in enumerate(configs)}
    cases = tuple(
        Timed(each.dtype, each.sizes, place[each.default], {place[c]: us for c, us in each.us.items() if c in place})
        for each in seen
    )
    return entries, Timings(tuple((candidate.variant, candidate.config) for candidate in configs), cases)


def _name(case: Timed | Seen) -> str:
    return as_text(case.dtype, case.sizes)


def evidence(outcomes: Sequence[Shared]) -> Evidence:
    """The claims of all kernels together, a row of each."""
    behind = [value for one in outcomes for value in one.behind]
    alone, sampled = ([pick for one in outcomes for pick in getattr(one, side)] for side in ("alone", "sampled"))
    trials = [count for one in outcomes for count in one.trials]
    claims = [
        at_most(
            f"% that the best trial is behind at the 95th percentile of {len(behind)} sampled cases",
            None if not behind else 100 * (share(behind, 0.95) or 0.0), 100 * FOUND,
        )
    ]  # fmt: skip
    if alone:
        claims += [
            at_most(
                f"95th percentile of the regret of {len(alone)} choices with a sample over that without one",
                (1 + tail(sampled)) / (1 + tail(alone)), 1.0,
            ),
            at_most(
                "mean time with a sample over that without one",
                (1 + over_default(sampled)) / (1 + over_default(alone)), 1.0,
            ),
        ]  # fmt: skip
    kernels = sorted({one.kernel for one in outcomes})
    rows = [_row(kernel, [one for one in outcomes if one.kernel == kernel]) for kernel in kernels]
    notes = [
        f"{fmean(trials):.1f} trials a sampled case, the default's among them" if trials else "no case was sampled",
        f"of a pass's cases {OWN:.0%} are its own, {SAMPLED:.0%} a sample's, the rest are chosen at",
    ]
    return Evidence(claims, [*rows, _row("all", outcomes)], notes)


def _row(kernel: str, outcomes: Sequence[Shared]) -> dict[str, Any]:
    behind = [value for one in outcomes for value in one.behind]
    row: dict[str, Any] = {
        "kernel": kernel,
        "best trial behind %, mean": round(100 * fmean(behind), 2) if behind else None,
        "95th": round(100 * (share(behind, 0.95) or 0.0), 2),
        "choices": sum(len(one.alone) for one in outcomes),
    }
    for side, name in (("alone", "alone"), ("sampled", "with the sample")):
        picks = [pick for one in outcomes for pick in getattr(one, side)]
        if picks:
            regrets = [100 * pick.regret("chosen") for pick in picks]
            row[f"{name}: regret %, median"] = round(median(regrets), 2)
            row[f"{name}: mean"] = round(fmean(regrets), 2)
            row[f"{name}: 95th"] = round(100 * tail(picks), 2)
            row[f"{name}: % over default"] = round(100 * over_default(picks), 2)
    return row
