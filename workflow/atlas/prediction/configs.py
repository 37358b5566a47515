"""Which config to run on a GPU that timed none, and what it would take on the one that timed others.

The rule is a call's (:mod:`atlas.declaration.choice`): of the configs that were timed at the case and that the GPU can
launch, the one that gains most over the GPU's own default, if it gains more than the estimate may be wrong by; else the
default.  Where the default was timed, too, nothing is estimated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..declaration import GPU, Case, Declaration, Pass
from ..declaration.choice import at_worst, launchable, untuned
from ..declaration.expected import estimates
from ..declaration.likeness import SCALE, Candidate, near
from ..declaration.timings import Timed, Timings

NEAREST = 4
"""Cases whose timings an estimate is made from: it rests on a few timings, most of them of the case itself."""


@dataclass(frozen=True)
class Chosen:
    """A variant and a config, the microseconds it should take on the GPU that timed others, and how sure that is.

    ``error`` is the standard error of the time's logarithm, ``grounds`` says in words what it rests on.
    """

    variant: str
    config: Mapping[str, Any]
    us: float
    error: float
    grounds: str


@dataclass(frozen=True)
class Trials:
    """Of one pass of a kernel on one GPU: by case the microseconds of each config that was timed."""

    source: GPU
    cases: tuple[tuple[Case, tuple[tuple[Candidate, float], ...]], ...]

    def at(self, case: Case) -> Sequence[tuple[Candidate, float]]:
        """What was timed at a case."""
        return next((timed for other, timed in self.cases if other == case), ())

    def around(self, work: Pass, case: Case) -> Timings:
        """The timings of the nearest cases, as the model of choice takes them."""
        by_nearness = sorted(self.cases, key=lambda one: -near(case.dtype, dict(case.sizes), _timed(one[0])))
        configs: list[Candidate] = []
        cases = []
        for other, timed in by_nearness[:NEAREST]:
            default = untuned(work, other, self.source)
            own = {} if default is None else {key(one): us for one, us in timed}
            if default is None or key((default[0].name, default[1])) not in own:
                continue
            for one, _ in timed:
                if one not in configs:
                    configs.append(one)
            places = {configs.index(one): us for one, us in timed}
            cases.append(
                Timed(other.dtype, dict(other.sizes), configs.index((default[0].name, dict(default[1]))), places)
            )
        return Timings(tuple(configs), tuple(cases))


def key(candidate: Candidate) -> str:
    """A candidate as text."""
    return json.dumps(candidate, sort_keys=True)


def trials(document: Mapping[str, Any], direction: str, source: GPU) -> Trials:
    """What an autotune document timed of a pass on ``source``."""
    found: dict[Case, list[tuple[Candidate, float]]] = {}
    for row in document["trials"]:
        if row["direction"] == direction and row.get("median_us") and row["status"] == "ok":
            own = found.setdefault(Case.from_json(row), [])
            own.append(((row["variant"], dict(row["config"])), row["median_us"]))
    return Trials(source, tuple((case, tuple(timed)) for case, timed in found.items()))


def chosen(
    declaration: Declaration, direction: str, case: Case, target: GPU, known: Trials, refused: Collection[str]
) -> Chosen | str:
    """The choice for a case that was timed elsewhere, or why there is none.

    ``refused`` are candidates (:func:`key`) that a build found unable to run on ``target``.
    """
    work = declaration.passes[direction]
    default = untuned(work, case, target)
    if default is None:
        return "; ".join(f"{one.name}: {one.unsupported(case, target)}" for one in work.variants)
    own: Candidate = (default[0].name, dict(default[1]))
    timed = known.at(case)
    if not timed:
        return f"not timed on {known.source.name}"
    able = [
        (one, us)
        for one, us in timed
        if key(one) not in refused and not launchable(work, {"variant": one[0], "config": one[1]}, case, target)[1]
    ]
    best = min(able, key=lambda item: item[1], default=None)
    where = f"on {known.source.name}"
    if best is not None and any(one == own for one, _ in able):
        return Chosen(*best[0], best[1], 0.0, f"{best[1]:.4g} us {where}")
    # What cannot run here says all the same how long the default, of the same variant, would have taken there.
    beside = best or min((item for item in timed if item[0][0] == own[0]), key=lambda item: item[1], default=None)
    if beside is None:
        fastest = min(us for _, us in timed)
        return Chosen(
            *own, fastest, SCALE, f"the default: {where} other variants were timed, {fastest:.4g} us at least"
        )
    (estimate,) = estimates(known.around(work, case), case.dtype, dict(case.sizes), own, [beside[0]])
    if best is not None and at_worst(estimate) < 0:
        return Chosen(*best[0], best[1], 0.0, f"{best[1]:.4g} us {where}")
    us = beside[1] * math.exp(-estimate.log_ratio)
    return Chosen(*own, us, estimate.error, f"the default: {us:.4g} us expected {where}")


def _timed(case: Case) -> Timed:
    return Timed(case.dtype, dict(case.sizes), 0, {})
