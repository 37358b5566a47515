"""Generated faults of one kernel, tried one after the other: ``python -m proofs.mutants.attempts KERNEL --gpu G …``.

The file ``--asked`` lists their names; what comes of each is a line of ``--pieces``.  Whoever started this process
starts it again where a fault ended it: what was begun last is then the fault that did.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from atlas import catalog
from atlas.results.pieces import Pieces
from atlas.stages import frame

from .. import scratch
from ..inspecting import DEVICE_LOST
from ..scratch import context
from . import generated, planting
from .planting import Mutant

CAUGHT, SURVIVED, UNDECIDED, NOT_RUN, INVALID = "caught", "survived", "undecided", "not run", "invalid"
"""Found; not found; not found in the time there was; no check here runs what was changed; it raises where it runs."""

BEGUN = "begun: "
HANG_SECONDS = 300.0
MOST_SECONDS = 120.0
"""Of the checks of one fault."""


def outcomes(
    job: frame.Job, kernel: str, names: Collection[str], folder: Path, seeds: int
) -> dict[str, dict[str, Any]]:
    """What came of each generated fault of a kernel, by name; what ``folder`` holds already is not tried again.

    A process that a fault ends is started again for the others: that fault counts as caught, by a device that was lost.
    """
    asked, kept = folder / f"{kernel}.json", folder / f"{kernel}.jsonl"
    asked.write_text(json.dumps(sorted(names)))
    words = [kernel, *scratch.common(job), "--asked", asked, "--pieces", kept, "--seeds", seeds]
    while True:
        try:
            scratch.run(__name__, words, {}, folder / f"{kernel}.log")
            death = ""
        except RuntimeError as error:
            death = str(error)
        pieces = Pieces(kept, context(job, kernel))
        known = pieces.all()
        if not death:
            return {name: known[name] for name in names if name in known}
        begun = [name.removeprefix(BEGUN) for name in known if name.startswith(BEGUN)]
        ending = [name for name in begun if name not in known]
        if not ending:
            raise RuntimeError(death)
        lost = {"status": CAUGHT, "by": DEVICE_LOST, "reason": death, "checks": 0, "seconds": 0.0}
        pieces.once(ending[-1], functools.partial(dict, lost))


def attempt(job: frame.Job, device: Any, folder: Path, mutant: Mutant, seeds: Sequence[int]) -> dict[str, Any]:
    """What validation makes of a fault: ``status``, ``by`` (the check), ``reason``, ``checks`` and ``seconds``."""
    since = time.perf_counter()
    found = _inspected(job, device, planting.plant(folder, mutant.kernel, mutant), mutant, seeds)
    if found["status"] in (SURVIVED, UNDECIDED):
        (operation,) = mutant.edits
        probe = dataclasses.replace(mutant, edits=(dataclasses.replace(operation, probe=True),))
        run = _inspected(job, device, planting.plant(folder, mutant.kernel, probe), probe, seeds[:1])
        if run["status"] == SURVIVED:  # and not in part alone
            found |= {"status": NOT_RUN, "reason": "no check here runs what was changed"}
    return found | {"seconds": round(time.perf_counter() - since, 2)}


def _inspected(job: frame.Job, device: Any, path: Path, mutant: Mutant, seeds: Sequence[int]) -> dict[str, Any]:
    from atlas.validation import Inspection, Selection

    since, checks = time.perf_counter(), 0
    try:
        declaration = planting.load(path, interpret=job.functional)
    except Exception as failure:
        return {"status": INVALID, "by": "", "reason": f"{type(failure).__name__}: {failure}", "checks": 0}
    for direction, variant in mutant.reached_by:
        chosen = Selection(direction=direction, variant=variant)
        inspection = Inspection(declaration, job.gpu(), device, seeds, chosen)
        for task in inspection.tasks():
            for finding in inspection.run(task):
                checks += 1
                if finding.status == "fail":
                    return {"status": CAUGHT, "by": finding.check, "reason": str(finding), "checks": checks}
                if finding.status == "error":
                    return {"status": INVALID, "by": "", "reason": str(finding), "checks": checks}
            if time.perf_counter() - since > MOST_SECONDS:
                return {"status": UNDECIDED, "by": "", "reason": f"in {MOST_SECONDS:g} s", "checks": checks}
    return {"status": SURVIVED, "by": "", "reason": "", "checks": checks}


def main(words: Sequence[str] | None = None) -> None:
    """Try what is asked and is not among the pieces yet."""
    parser = argparse.ArgumentParser(prog="python -m proofs.mutants.attempts")
    frame.add_common_arguments(parser)
    parser.add_argument("--asked", type=Path, required=True)
    parser.add_argument("--pieces", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args(words)
    job = frame.job("prove", arguments)
    if job.functional:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    asked = set(json.loads(arguments.asked.read_text()))
    pieces = Pieces(arguments.pieces, context(job, job.kernel))
    with frame.leased(job), tempfile.TemporaryDirectory(prefix="atlas-mutants.") as folder:
        _try_all(job, asked, pieces, Path(folder), range(arguments.seeds))


def _try_all(job: frame.Job, asked: set[str], pieces: Pieces, folder: Path, seeds: Sequence[int]) -> None:
    import torch
    from atlas.host import runtime
    from atlas.validation import DeviceLost

    if job.functional:
        torch.set_num_threads(1)  # as the validate stage does
    device = runtime.device_of(job.gpu_name, job.block)
    catalog.load(job.kernel, interpret=job.functional)  # where the kernel itself does not load, no fault is tried
    for mutant in generated.mutants([job.kernel]):
        if mutant.name not in asked or mutant.name in pieces.all():
            continue
        pieces.once(BEGUN + mutant.name, dict)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            pieces.once(mutant.name, functools.partial(attempt, job, device, folder, mutant, seeds))
        except DeviceLost:
            sys.exit(1)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
