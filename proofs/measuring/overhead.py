"""Where autotune's wall time goes: to trials, to compiling for them, or to neither.

From the autotune documents at hand, or with ``--run`` from fresh runs after a build, as the workflow has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.results import documents
from atlas.stages import frame

from .. import scratch
from ..evidence import Evidence, at_least, none_of

TRIALS = ("prepare", "time", "check", "certify")
"""Phases in which a worker does what it is asked: inputs, timing, comparing with the reference, certifying winners."""

TIMING = ("time",)
"""Of these the one that nothing can do without."""

COMPILING = ("compile",)
"""Phases in which the search stands still because the CPU compiles for it."""

LIMIT = 0.8
"""Least share of the suite's wall time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``python -m proofs overhead``."""
    scratch.add_arguments(parser)
    scratch.add_cores(parser)
    parser.add_argument("--run", action="store_true", help="build and tune each kernel afresh, in the scratch folder; "
                        "otherwise the documents at hand are read")  # fmt: skip


@dataclass(frozen=True)
class Spent:
    """A kernel's stage.

    ``phases`` are in seconds, summed over ``devices``; ``wall_seconds`` is None where the document does not say it.
    """

    kernel: str
    source: str
    wall_seconds: float | None
    phases: Mapping[str, float]
    devices: int = 1

    @property
    def device_seconds(self) -> float:
        """Wall time of all devices together."""
        return (self.wall_seconds or 0.0) * self.devices

    def seconds(self, names: Sequence[str]) -> float:
        """What the named phases took together."""
        return sum(self.phases.get(name, 0.0) for name in names)


def run(job: frame.Job) -> Evidence:
    """Read or run every kernel's stage; AtlasError on a GPU that only the interpreter stands for."""
    if job.functional:
        raise AtlasError(f"proofs overhead: GPU {job.gpu_name!r} is the interpreter, which has no device to keep busy; "
                         "name a GPU")  # fmt: skip
    kernels = scratch.kernels_of(job.arguments)
    if not job.arguments.run:
        return evidence([_spent(kernel, *scratch.earlier(job, kernel, "autotune")) for kernel in kernels])
    with scratch.folder(job) as folder:
        return evidence([_spent(kernel, "run", _run(job, kernel, folder)) for kernel in kernels])


def _run(job: frame.Job, kernel: str, folder: Path) -> Mapping[str, Any]:
    """Autotune after a build, with no journal."""
    output = folder / "measured" / job.gpu_name / kernel
    for path in output.glob("journal.jsonl*"):
        path.unlink()
    scratch.put(job, kernel, ["validate"], folder)
    common = [*scratch.common(job), "--results", folder, "--jobs", scratch.cores_of(job.arguments)]
    for stage in ("build", "autotune"):
        environment = {gpus.LIMIT_VARIABLE: "1"}  # what devices wait for each other is the throughput's proof
        scratch.run("atlas", [stage, kernel, *common], environment, folder / f"{kernel}-{stage}.log")
    return scratch.require_ok(documents.read(output / "autotune.json", "autotune"))


def _spent(kernel: str, source: str, document: Mapping[str, Any]) -> Spent:
    devices = document.get("devices", {}).get("count", 1)
    return Spent(kernel, source, document.get("wall_seconds"), document["seconds_by_phase"], devices)


def evidence(found: Sequence[Spent]) -> Evidence:
    """The claims, a row a kernel with its phases, and where the rest went."""
    known = [one for one in found if one.wall_seconds is not None]
    wall = sum(one.device_seconds for one in known)
    busy = sum(one.seconds((*TRIALS, *COMPILING)) for one in known)
    lacking = [one for one in found if one.wall_seconds is None]
    text = "share of autotune's wall time, over the suite, with the GPU in trials or the search waiting for compilers"
    claims = [at_least(text, busy / wall if wall else None, LIMIT)]
    claims.append(none_of("documents that do not say what the stage took", lacking))
    names = sorted({name for one in found for name in one.phases})
    rest = {name: sum(one.phases.get(name, 0.0) for one in known) for name in names if name not in TRIALS + COMPILING}
    notes = [
        f"{one.kernel}: the {one.source} document has no wall_seconds, it is of an earlier release; tune it again, or "
        "give --run"
        for one in lacking
    ]
    if wall:
        longest = sorted(rest.items(), key=lambda item: -item[1])
        parts = [f"{name} {seconds:.2f} s" for name, seconds in longest if seconds]
        notes.append(f"Of {wall:.1f} s of wall time {wall - busy:.1f} s went elsewhere: {', '.join(parts)}.")
        notes.append(
            "Wall time is from the start of the process, imports included, to the end of the search, once for each "
            f"device; trials are the phases {', '.join(TRIALS)}; 'timing' is the share of {' and '.join(TIMING)} with "
            f"{' and '.join(COMPILING)} alone."
        )
    return Evidence(claims, [_row(one, names) for one in found], notes)


def _row(one: Spent, names: Sequence[str]) -> dict[str, Any]:
    busy = one.seconds((*TRIALS, *COMPILING))
    return {
        "kernel": one.kernel,
        "source": one.source,
        "devices": one.devices,
        "wall s": one.wall_seconds,
        "share": busy / one.device_seconds if one.wall_seconds else None,
        "timing": one.seconds((*TIMING, *COMPILING)) / one.device_seconds if one.wall_seconds else None,
        **{name: one.phases.get(name, 0.0) for name in names},
    }
