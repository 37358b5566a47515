"""Configs chosen at cases nobody tuned: regret against the best of the space, and time against the untuned default.

From the records alone, on any machine: each tuned case in turn is left out of what a call knows, the call's choice is
made by the product's own code, and what it takes is read off the trials of the case.  Left out are the case itself, all
cases of its shape class (any dtype and flags, sizes within :data:`CLASS` doublings in sum), and everything that was
timed on the GPU, so that another one's timings decide.  Beside the case alone left out, it is also left out where all
that the other GPU timed is known.  The nearest tuned case, the rule of before, stands beside it, and the best of the
configs that a call may choose from: what no rule can mend without more of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from atlas import catalog
from atlas.declaration import GPU, Case, Declaration, choice
from atlas.declaration.timings import Timed, Timings, parsed
from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.results import collection
from atlas.stages import frame
from atlas.tuning import export

from .. import scratch
from ..evidence import Claim, Evidence, at_most
from .regret import share

MEDIAN, TAIL, KERNEL, ELSEWHERE = 0.02, 0.08, 0.01, 0.03
"""Most median regret, its 95th percentile, how far a kernel may be behind the default, median regret by another GPU."""

MILLISECONDS = 5.0
"""A choice may take at most, in the median of a kernel's pass: once for a shape, before the launch is compiled."""

CLASS = 2.0
DRAWS = 1000
ALONE = "the case"
SAMPLE = "the sample"
"""All drawn cases at once; beside it each alone, as the kernel's own cases are left out."""
SEED = 0


@dataclass(frozen=True)
class Known:
    """What a GPU's record says of one pass of a kernel: entries, timings, and every trial of a case by its config."""

    gpu: GPU
    declaration: Declaration
    direction: str
    entries: Sequence[Mapping[str, Any]]
    timings: Timings
    trials: Mapping[str, Mapping[str, float]]
    """By case and config, both as text: microseconds of all that today's kernel still has."""
    sampled: frozenset[str] = frozenset()
    """The cases, as text, that a sample drew: the others are the kernel's own."""

    def own(self, case: Timed) -> bool:
        """Whether a case is the kernel's own."""
        return as_text(case.dtype, case.sizes) not in self.sampled


@dataclass(frozen=True)
class Pick:
    """At one case the microseconds of three choices, of the best that a call may choose and of the best config, and
    what the choice took to be made."""

    kernel: str
    sizes: str
    chosen: float
    default: float
    nearest: float
    choosable: float
    best: float
    milliseconds: float

    def regret(self, which: str) -> float:
        """Of a choice, by its field's name: how much longer it takes than the best of the space."""
        return getattr(self, which) / self.best - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels``."""
    parser.add_argument("--kernels", default="", metavar="A,B", help="default: all that the GPU has records of")


def run(job: frame.Job) -> Evidence:
    """Leave out, choose, compare."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU that has records")
    kernels = scratch.kernels_of(job.arguments)
    blocks = load_gpus(job.arguments.gpus_file)
    own = known(job.results, job.gpu_name, blocks[job.gpu_name], kernels)
    if not own:
        raise AtlasError(f"{job.results}: no autotune document of {job.gpu_name}; take its records from git")
    others = {
        name: known(job.results, name, block, kernels)
        for name, block in blocks.items()
        if name != job.gpu_name and block["target"] == blocks[job.gpu_name]["target"]
    }
    picks = {
        ALONE: [pick for one in own.values() for pick in left_out(one, itself)],
        "its shape class": [pick for one in own.values() for pick in left_out(one, shape_class)],
    }
    drawn = [pick for one in own.values() for pick in without_sample(one)]
    if drawn:
        picks[SAMPLE] = drawn
        picks[f"{SAMPLE}, case by case"] = [
            pick for one in own.values() for pick in left_out(one, itself, lambda case, one=one: not one.own(case))
        ]
    for name, theirs in others.items():
        shared = [pick for key in own.keys() & theirs.keys() for pick in elsewhere(own[key], theirs[key])]
        if shared:
            picks[f"all but {name}"] = shared
            picks[f"{ALONE}, {name} known"] = [
                pick for key in own.keys() & theirs.keys() for pick in left_out(own[key], itself, other=theirs[key])
            ]
    return evidence(picks)


def known(results: Any, gpu_name: str, block: Mapping[str, Any], kernels: Sequence[str]) -> dict[Any, Known]:
    """By kernel and direction what the GPU's documents say, as export would write it."""
    gpu, found = gpus.gpu(gpu_name, block), {}
    there = collection.collect(results, kernels, [gpu_name])
    samples = export.sampled(there)
    for entry in export.exportable(there):
        declaration = catalog.load(entry.kernel)
        documents = [entry.document, *filter(None, [samples.get((gpu_name, entry.kernel))])]
        rows = export.tuned(gpu_name, block["match"], documents)["entries"]
        passes = parsed(export.timed(declaration, gpu, *documents))
        for direction, timings in passes.items():
            trials: dict[str, dict[str, float]] = {}
            for trial in itertools.chain(*(document["trials"] for document in documents)):
                usable = trial["direction"] == direction and trial["median_us"]
                case = Case.from_json(trial)
                if usable and not choice.launchable(declaration.passes[direction], trial, case, gpu)[1]:
                    key = as_text(trial["dtype"], trial["sizes"])
                    trials.setdefault(key, {})[as_text(trial["variant"], trial["config"])] = trial["median_us"]
            own = [row for row in rows if row["direction"] == direction]
            sampled = {as_text(one["dtype"], one["sizes"]) for document in documents[1:] for one in document["trials"]}
            found[entry.kernel, direction] = Known(
                gpu, declaration, direction, own, timings, trials, frozenset(sampled)
            )
    return found


def itself(case: Timed, dtype: str, sizes: Mapping[str, Any]) -> bool:
    """Whether a case is the one that is left out."""
    return case.dtype == dtype and case.sizes == sizes


def shape_class(case: Timed, dtype: str, sizes: Mapping[str, Any]) -> bool:
    """Whether a case is of the shape class of the one that is left out."""
    return doublings(case.sizes, sizes) <= CLASS


def left_out(
    own: Known,
    gone: Callable[[Timed, str, Mapping[str, Any]], bool],
    of: Callable[[Timed], bool] | None = None,
    other: Known | None = None,
) -> Iterator[Pick]:
    """A pick for each case ``of`` the kernel's own, of what is known without it and what else is gone, and of all that
    another GPU timed, if one is named."""
    for case in filter(of or own.own, own.timings.cases):
        entries = [one for one in own.entries if not gone(_timed(one), case.dtype, case.sizes)]
        cases = [one for one in own.timings.cases if not gone(one, case.dtype, case.sizes)]
        yield pick_at(own, case, entries, _narrowed(own, entries, cases), other)


def without_sample(own: Known) -> Iterator[Pick]:
    """A pick for each case of the sample, of what the kernel's own cases tell."""
    entries = [one for one in own.entries if own.own(_timed(one))]
    cases = [one for one in own.timings.cases if own.own(one)]
    for case in own.timings.cases:
        if not own.own(case):
            yield pick_at(own, case, entries, _narrowed(own, entries, cases))


def elsewhere(own: Known, other: Known) -> Iterator[Pick]:
    """A pick for each case, of what is known from another GPU alone."""
    for case in own.timings.cases:
        yield pick_at(own, case, [], Timings((), ()), other)


def _narrowed(own: Known, entries: Sequence[Mapping[str, Any]], cases: Sequence[Timed]) -> Timings:
    """The timings of these cases as export would have written them: of configs that won or are a default."""
    won = {as_text(one["variant"], one["config"]) for one in entries}
    kept = {case.default for case in cases} | {
        place for place, config in enumerate(own.timings.configs) if as_text(*config) in won
    }
    return Timings(
        own.timings.configs,
        tuple(
            Timed(one.dtype, one.sizes, one.default, {place: us for place, us in one.us.items() if place in kept})
            for one in cases
        ),
    )


def pick_at(
    own: Known, timed: Timed, entries: Sequence[Mapping[str, Any]], timings: Timings, other: Known | None = None
) -> Pick:
    """Configs that were not timed at the case are no candidates: nobody could say what they take."""
    case = Case(timed.dtype, tuple(timed.sizes.items()))
    times = own.trials[as_text(case.dtype, timed.sizes)]
    able, theirs = (
        [one for one in of if one["dtype"] == case.dtype and as_text(one["variant"], one["config"]) in times]
        for of in (entries, other.entries if other else [])
    )
    others = {} if other is None else {other.gpu.name: {own.direction: _timed_here(other.timings, times)}}
    start = time.process_time()
    made = choice.explained(
        own.declaration, own.direction, case, own.gpu, able, lambda: {own.direction: timings}, lambda: others
    )
    spent = time.process_time() - start
    default = timed.us[timed.default]
    close = min(able or theirs, key=lambda one: nearness(timed.sizes, one["sizes"]), default=None)
    if close is None or math.isinf(nearness(timed.sizes, close["sizes"])):
        nearest = default
    else:
        nearest = times[as_text(close["variant"], close["config"])]
    chosen = times[as_text(made.variant.name, made.config)]
    choosable = min([default, *(times[as_text(one.variant, one.config)] for one in made.considered)])
    sizes = json.dumps(timed.sizes, sort_keys=True)
    return Pick(own.declaration.name, sizes, chosen, default, nearest, choosable, min(times.values()), 1e3 * spent)


def _timed_here(timings: Timings, times: Mapping[str, float]) -> Timings:
    """The timings of another GPU, certified for no dtype where the config was not timed at the case."""
    certified = (
        dtypes if as_text(*config) in times else frozenset()
        for config, dtypes in zip(timings.configs, timings.certified, strict=True)
    )
    return Timings(timings.configs, timings.cases, tuple(certified))


def doublings(sizes: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Sum of \\\\|log2 ratio\\\\| over the sizes that both have; infinite where none is in both."""
    both = [name for name in sizes.keys() & other.keys() if _size(sizes[name]) and _size(other[name])]
    return sum(abs(math.log2(sizes[name] / other[name])) for name in both) if both else math.inf


def nearness(sizes: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The rule of before: infinite where flags differ, an operand in another order counts 3 doublings."""
    if sizes.keys() - {"layout"} != other.keys() - {"layout"}:
        return math.inf
    orders = itertools.zip_longest(sizes.get("layout", ""), other.get("layout", ""), fillvalue="N")
    apart = 3.0 * sum(one != another for one, another in orders)
    for name, value in sizes.items():
        if name != "layout" and value != other[name]:
            apart += abs(math.log2(value / other[name])) if _size(value) and _size(other[name]) else math.inf
    return apart


def evidence(picks: Mapping[str, Sequence[Pick]]) -> Evidence:
    """Claims of all kernels together, rows of each."""
    rows = [_row(left, kernel, own) for left, found in picks.items() for kernel, own in _by_kernel(found).items()]
    rows += [_row(left, "all", found) for left, found in picks.items()]
    claims: list[Claim] = []
    case = picks[ALONE]
    for left, found in picks.items():
        if left.startswith(SAMPLE):
            continue  # of a few trials a case the best is not known: rows alone
        if left.endswith("known"):
            text = f"mean time without {left}, over that without {ALONE}"
            kernels = {pick.kernel for pick in found}
            without = [pick for pick in case if pick.kernel in kernels]
            claims.append(at_most(text, (1 + over_default(found)) / (1 + over_default(without)), 1.0))
            continue
        by_gpu = left.startswith("all but")
        claims.append(_percent(f"median regret without {left}", found, middle, ELSEWHERE if by_gpu else MEDIAN))
        if not by_gpu:
            claims.append(_percent(f"95th percentile of the regret without {left}", found, tail, TAIL))
            claims.append(_percent(f"mean time over the default's without {left}", found, over_default, 0.0))
    behind = {kernel: over_default(own) for kernel, own in _by_kernel(case).items()}
    worst = max(behind, key=behind.__getitem__)
    claims.append(at_most(f"% that {worst} is behind its default in the mean", 100 * behind[worst], 100 * KERNEL))
    slowest = max(median(pick.milliseconds for pick in own) for own in _by_kernel(case).values())
    claims.append(
        at_most("ms of processor time a choice takes, in the median of the slowest kernel", slowest, MILLISECONDS)
    )
    notes = [
        "times are the tuner's medians; regret is over the fastest config of today's space that was timed there",
        "configs that were not timed at a case, and cases whose default was not, are left out",
        "not the default: cases at which the call takes another config; at the others its regret is the default's",
        f"intervals: 95 % by {DRAWS} draws of shapes with replacement",
    ]
    return Evidence(claims, rows, notes)


def _by_kernel(picks: Sequence[Pick]) -> dict[str, list[Pick]]:
    found: dict[str, list[Pick]] = {}
    for pick in picks:
        found.setdefault(pick.kernel, []).append(pick)
    return dict(sorted(found.items()))


def middle(picks: Sequence[Pick], which: str = "chosen") -> float:
    return median(pick.regret(which) for pick in picks)


def tail(picks: Sequence[Pick], which: str = "chosen") -> float:
    return share([pick.regret(which) for pick in picks], 0.95) or 0.0


def over_default(picks: Sequence[Pick], which: str = "chosen") -> float:
    return math.exp(fmean(math.log(getattr(pick, which) / pick.default) for pick in picks)) - 1


def _percent(text: str, picks: Sequence[Pick], figure: Callable[[Sequence[Pick]], float], limit: float) -> Claim:
    low, high = _interval(picks, figure)
    return at_most(f"{text}, % ({100 * low:.2f} to {100 * high:.2f})", 100 * figure(picks), 100 * limit)


def _interval(picks: Sequence[Pick], figure: Callable[[Sequence[Pick]], float]) -> tuple[float, float]:
    """By drawing shapes of kernels, with all their dtypes and passes: these are no independent cases."""
    shapes: dict[Any, list[Pick]] = {}
    for pick in picks:
        shapes.setdefault((pick.kernel, pick.sizes), []).append(pick)
    drawing, groups = random.Random(SEED), list(shapes.values())
    draws = [figure([*itertools.chain(*drawing.choices(groups, k=len(groups)))]) for _ in range(DRAWS)]
    return share(draws, 0.025) or 0.0, share(draws, 0.975) or 0.0


def _row(left: str, kernel: str, picks: Sequence[Pick]) -> dict[str, Any]:
    figures = {"left out": left, "kernel": kernel, "cases": len(picks)}
    figures["not the default"] = sum(pick.chosen != pick.default for pick in picks)
    for which in ("chosen", "nearest"):
        figures[f"{which}: % over default"] = round(100 * over_default(picks, which), 2)
    for which in ("chosen", "choosable", "default", "nearest"):
        regrets = [pick.regret(which) for pick in picks]
        figures[f"{which}: regret %, median"] = round(100 * median(regrets), 2)
        figures[f"{which}: mean"] = round(100 * fmean(regrets), 2)
        figures[f"{which}: 95th"] = round(100 * tail(picks, which), 2)
        figures[f"{which}: worst"] = round(100 * max(regrets), 1)
    return figures


def _timed(entry: Mapping[str, Any]) -> Timed:
    return Timed(entry["dtype"], entry["sizes"], 0, {})


def _size(value: Any) -> bool:
    return bool(value) and not isinstance(value, bool | str)


def as_text(*values: Any) -> str:
    return json.dumps(values, sort_keys=True)
