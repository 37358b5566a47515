"""What is predicted of a GPU beside what it measured, and beside what others published.

From the records alone, on any machine.  Each GPU that timed a kernel is predicted from another that did, by its
datasheet as if nobody had it at hand, and by its own survey.  Published figures of libraries that the benchmark calls,
too, are predicted from what the same library takes on the GPU that was benchmarked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from atlas import catalog
from atlas.benchmarking.roofs import cost
from atlas.declaration import Case
from atlas.errors import AtlasError
from atlas.prediction import configs, predicted
from atlas.prediction.knowledge import Known
from atlas.prediction.scaling import scaled
from atlas.reading.config import load_gpus
from atlas.reading.published import PUBLISHED_FILE, Point, load_published
from atlas.results import documents, files
from atlas.results.subject import label
from atlas.stages import frame
from atlas.stages.predict import Evidence

from .. import scratch
from ..evidence import Claim, at_least, at_most
from ..evidence import Evidence as Found
from .regret import share

MEDIAN, TAIL, KEPT, INSIDE = 0.10, 0.25, 0.96, 0.80
"""Most median error of a time, its 95th percentile, least share of the best config's speed in the median, and of times
in their intervals."""

_TWINS = {"fp16": "bf16", "bf16": "fp16"}
"""What is multiplied and moved as fast: published cases are often of the other one."""


@dataclass(frozen=True)
class Pick:
    """One case: predicted and true microseconds of the chosen config, the best config's, and the interval."""

    kernel: str
    us: float
    low_us: float
    high_us: float
    true_us: float
    best_us: float
    timed: bool
    """Whether the GPU timed the config that was chosen; else its best stands for it."""

    @property
    def error(self) -> float:
        """Of the time, relative to the true one; positive where it was expected to be slower."""
        return self.us / self.true_us - 1

    @property
    def inside(self) -> bool:
        """Whether the true time lies in the interval."""
        return self.low_us <= self.true_us <= self.high_us


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kernels`` and the published figures."""
    parser.add_argument("--kernels", default="", metavar="A,B", help="default: all that two GPUs have records of")
    parser.add_argument("--published-file", default=PUBLISHED_FILE, help="default: config/published.yaml")


def run(job: frame.Job) -> Found:
    """Predict the GPU from each other one that timed the same kernels, and each of these from it."""
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: the interpreter has no speed; name a GPU that has records")
    evidence = Evidence(job.results, load_gpus(job.arguments.gpus_file))
    kernels = scratch.kernels_of(job.arguments)
    pairs = {
        (source, target, how): found
        for other in evidence.surveyed()
        if other != job.gpu_name
        for source, target in ((job.gpu_name, other), (other, job.gpu_name))
        for how in ("datasheet", "survey")
        if (found := list(picks(evidence, kernels, source, target, how)))
    }
    if not pairs:
        raise AtlasError(f"{job.results}: no other GPU timed what {job.gpu_name} did; take its records from git")
    points = list(beside(evidence, load_published(job.arguments.published_file), job.gpu_name, job.results))
    rows = [_row(*key, name, own) for key, found in pairs.items() for name, own in _by_kernel(found).items()]
    return Found(
        [claim for key, found in pairs.items() if key[2] == "datasheet" for claim in claims(*key[:2], found)],
        rows + [_point_row(*point) for point in points],
        [
            "true times are the tuner's medians of the chosen config, errors those of its predicted time",
            "by the datasheet: as if the GPU had no survey; kernels recorded on one GPU alone say nothing",
            _summary(points),
        ],
    )


def picks(evidence: Evidence, kernels: Sequence[str], source: str, target: str, how: str) -> Iterator[Pick]:
    """A pick for each case of ``target`` that both GPUs timed."""
    own = evidence.known(target, own=how == "survey")
    for kernel in kernels:
        tuned, truth = evidence.tuned(source, kernel), evidence.tuned(target, kernel)
        if tuned is None or truth is None:
            continue
        declaration = catalog.load(kernel)
        times = {direction: configs.trials(truth, direction, own.gpu) for direction in declaration.passes}
        rows = predicted.rows(declaration, tuned, evidence.build(target, kernel), evidence.known(source), own)
        for row in rows:
            timed = dict(_by_config(times[row["direction"]], row))
            if row["status"] == "ok" and timed:
                best = min(timed.values())
                us = timed.get(configs.key((row["variant"], row["config"])))
                yield Pick(kernel, row["median_us"], row["low_us"], row["high_us"], us or best, best, us is not None)


def _by_config(known: configs.Trials, row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for case, timed in known.cases:
        if case.to_json() == {"dtype": row["dtype"], "sizes": row["sizes"]}:
            yield from ((configs.key(one), us) for one, us in timed)


def claims(source: str, target: str, found: Sequence[Pick]) -> list[Claim]:
    """What is claimed of one GPU predicted from another, of all kernels together."""
    way, errors = f"{source} to {target}", [abs(pick.error) for pick in found]
    kept = [pick.best_us / pick.true_us for pick in found if pick.timed]
    inside = sum(pick.inside for pick in found) / len(found)
    return [
        at_most(f"% by which a time is off in the median, {way}", 100 * median(errors), 100 * MEDIAN),
        at_most(f"% at the 95th percentile, {way}", 100 * (share(errors, 0.95) or 0.0), 100 * TAIL),
        at_least(f"% of the best config's speed that the chosen one has in the median, {way}", 100 * median(kept),
                 100 * KEPT),
        at_least(f"% of times in their interval, {way}", 100 * inside, 100 * INSIDE),
    ]  # fmt: skip


def beside(
    evidence: Evidence, points: Sequence[Point], source: str, results: Any
) -> Iterator[tuple[Point, float, Any]]:
    """Each published figure of a library that ``source`` timed on the case: its microseconds, and what is predicted."""
    known, read = evidence.known(source), {}
    for point in points:
        if point.gpu not in evidence.blocks or point.gpu == source or not point.peer:
            continue
        if point.kernel not in read:
            read[point.kernel] = _benchmark(results, source, point.kernel)
        row = _alike(read[point.kernel], point)
        if row is None:
            continue
        target: Known = evidence.known(point.gpu, own=False)
        # A library reaches the tensor cores wherever there are some, whatever Triton does.
        instruction = "" if point.dtype == "fp32" else "mma"
        spent = cost(catalog.load(point.kernel).passes[point.direction], Case.from_json(row))
        span = scaled(row["median_us"], 0.0, spent, point.dtype, known, target, instruction)
        yield point, point.us(spent.bytes, spent.flops), span


def _benchmark(results: Any, gpu: str, kernel: str) -> list[dict[str, Any]]:
    for folder in ("measured", "recorded"):
        path = files.found(results / folder / gpu / kernel, "benchmark")
        if path.exists():
            return documents.read(path, "benchmark")["rows"]
    return []


def _alike(rows: Sequence[Mapping[str, Any]], point: Point) -> Mapping[str, Any] | None:
    """The timed row of the same library on the same case, of the dtype or of the one that is as fast."""
    for dtype in (point.dtype, _TWINS.get(point.dtype)):
        for row in rows:
            same = (row["provider"], row["direction"], row["dtype"]) == (point.peer, point.direction, dtype)
            if same and row["sizes"] == point.sizes and row.get("median_us"):
                return row
    return None


def _by_kernel(found: Sequence[Pick]) -> dict[str, list[Pick]]:
    by_kernel: dict[str, list[Pick]] = {}
    for pick in found:
        by_kernel.setdefault(pick.kernel, []).append(pick)
    return dict(sorted(by_kernel.items())) | {"all": list(found)}


def _row(source: str, target: str, how: str, name: str, own: Sequence[Pick]) -> dict[str, Any]:
    errors = [abs(pick.error) for pick in own]
    kept = [pick.best_us / pick.true_us for pick in own if pick.timed]
    return {
        "from": source,
        "to": target,
        "by": how,
        "what": name,
        "cases": len(own),
        "error %, median": round(100 * median(errors), 1),
        "95th": round(100 * (share(errors, 0.95) or 0.0), 1),
        "worst": round(100 * max(errors), 1),
        "mean, signed": round(100 * sum(pick.error for pick in own) / len(own), 1),
        "config %, median": round(100 * median(kept), 2) if kept else None,
        "config %, 5th": round(100 * (share(kept, 0.05) or 0.0), 1) if kept else None,
        "in interval %": round(100 * sum(pick.inside for pick in own) / len(own), 1),
    }


def _point_row(point: Point, us: float, span: Any) -> dict[str, Any]:
    inside = span.low_us <= us <= span.high_us
    return dict.fromkeys(_row("", "", "", "", [_NOTHING])) | {
        "from": "published",
        "to": point.gpu,
        "by": point.library,
        "what": f"{point.kernel} {point.direction} {point.dtype} {label(point.sizes)}",
        "cases": 1,
        "error %, median": round(100 * abs(span.us / us - 1), 1),
        "mean, signed": round(100 * (span.us / us - 1), 1),
        "in interval %": 100.0 * inside,
    }


_NOTHING = Pick("", 1.0, 1.0, 1.0, 1.0, 1.0, True)


def _summary(points: Sequence[tuple[Point, float, Any]]) -> str:
    by_gpu: dict[str, list[bool]] = {}
    for point, us, span in points:
        by_gpu.setdefault(point.gpu, []).append(span.low_us <= us <= span.high_us)
    said = ", ".join(f"{gpu} {sum(inside)} of {len(inside)}" for gpu, inside in sorted(by_gpu.items()))
    return f"published figures in the interval: {said or 'none is of a case and library that were timed'}"
