"""Survey: a GPU's roofs, each by the one clock."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import AtlasError
from . import frame

_ESSENTIAL = ("copy", "read", "write", "elementwise")
"""Roofs without which no kernel's figure can be judged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The survey's arguments: no kernel."""
    frame.add_common_arguments(parser, kernel=False)


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/measured/<gpu>/survey.json``."""
    job = frame.job("survey", arguments)
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: the interpreter has no roofs to survey; name a GPU, or leave it out")
    from .. import timing

    with frame.leased(job):
        empty = {"protocol": timing.PROTOCOL, "roofs": [], "properties": {}}
        frame.print_outcome(job, frame.write_document(job, empty, _body))


def _body(job: frame.Job) -> dict[str, Any]:
    from .. import timing
    from ..declaration import gpu_of
    from ..host import gpus, runtime
    from ..host.progress import progress
    from ..survey import bandwidth, multiplication

    device = runtime.device_of(job.gpu_name, job.block)
    clock = timing.Clock(device)
    gpu = gpu_of(device)
    peaks = job.block["datasheet"].get("tflop_per_s", {})
    found: list[dict[str, Any]] = []
    with progress() as shown:
        task = shown.add_task(f"survey {job.gpu_name}", total=None, note="warming up")
        clock.warm_up()
        for roofs in (
            bandwidth.launch_roofs(clock, device),
            bandwidth.roofs(clock, gpu, device),
            multiplication.roofs(clock, gpu, device, peaks),
        ):
            for row in roofs:
                found.append(row)
                shown.update(task, advance=1, note=row["name"])
    told = runtime.properties(device)
    fields = {"protocol": timing.PROTOCOL, "roofs": found, "properties": told}
    fields["reason"] = gpus.disagreement(job.gpu_name, job.block, told)
    lost = [row for row in found if row["name"] in _ESSENTIAL and row["value"] is None]
    if lost:
        fields |= {"status": "failed", "reason": f"roof {lost[0]['name']}: {lost[0]['reason']}"}
    return fields
