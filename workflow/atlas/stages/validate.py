"""validate: every variant of a kernel against its float64 reference, on a GPU or on the interpreter.

To repeat one check and have it explained: :mod:`.debug`.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import AtlasError
from ..progress import progress
from . import frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the stage's arguments."""
    frame.add_common_arguments(parser)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds per case (default: 5)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="K", help="the seeds are K to K+N-1 (default: 0)")


def run(arguments: argparse.Namespace) -> None:
    """Write the document."""
    job = frame.job("validate", arguments)
    if arguments.seeds < 1:
        raise AtlasError(f"--seeds {arguments.seeds}: give at least 1")
    if arguments.first_seed < 0:
        raise AtlasError(f"--first-seed {arguments.first_seed}: give at least 0")
    from .. import validation

    with frame.leased(job):
        frame.write_document(job, {"protocol": validation.PROTOCOL, "seeds": [], "checks": []}, _body)


def _body(job: frame.Job) -> dict[str, Any]:
    from .. import validation
    from ..validation.findings import row, summary, worst

    first = job.arguments.first_seed
    seeds = list(range(first, first + job.arguments.seeds))
    inspection = _inspection(job, seeds)
    findings, lost = _findings(inspection)
    kept = worst(findings)
    status, reason = summary(kept, lost)
    return {
        "protocol": validation.PROTOCOL,
        "seeds": seeds,
        "checks": [row(finding, job.kernel, job.gpu_name) for finding in kept],
        "left_out": inspection.left_out,
        "status": status,
        "reason": reason,
    }


def _inspection(job: frame.Job, seeds: list[int]) -> Any:
    import torch

    from .. import runtime, validation

    if job.functional:
        torch.set_num_threads(1)  # the interpreter's tensors are small: threads cost more than they bring
    declaration = job.declaration()
    device = runtime.device_of(job.gpu_name, job.block)
    return validation.Inspection(declaration, job.gpu(), device, seeds)


def _findings(inspection: Any) -> tuple[list[Any], str]:
    """All findings, and what took the device down, or ``""``."""
    from ..validation import DeviceLost

    findings: list[Any] = []
    tasks = inspection.tasks()
    with progress() as shown:
        bar = shown.add_task("validate", total=len(tasks), note="")
        for task in tasks:
            shown.update(bar, note=task.label)
            try:
                findings += inspection.run(task)
            except DeviceLost as error:
                return findings, str(error)
            shown.advance(bar)
    return findings, ""
