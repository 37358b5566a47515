"""The process that ncu watches: the launches of some cases, again and again, from the cache state of the clock.

``python -m atlas.profiling.launches PLAN``; the plan is JSON, see :func:`main`.  Before every launch comes one of
:func:`atlas_marker`, so that a list of launches tells where the launches of one call end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from .. import catalog
from ..cuda.programs import Programs
from ..declaration import Case
from ..errors import in_a_line
from ..host import runtime
from ..reading.config import load_gpus
from ..timing.device import CudaDevice, board_of
from ..timing.samples import Thunk
from .ncu import FAILED

SEED = 0


@triton.jit
def atlas_marker():
    """A kernel that does nothing."""


def mark() -> None:
    """Launch :func:`atlas_marker`."""
    atlas_marker[(1,)](num_warps=1)


def thunk(asked: Mapping[str, Any], device: torch.device) -> Thunk:
    """One call of ``{"kernel", "direction", "dtype", "sizes"}`` on inputs drawn from the seed.

    Of the variant under ``"variant"`` with the ``"config"``, or of the peer under ``"peer"``; where that is in CUDA C++
    the ``"folder"`` holds what the cuda stage built for the GPU of the name ``"gpu"``.
    """
    work = catalog.load(asked["kernel"]).passes[asked["direction"]]
    inputs = runtime.draw(work, Case.from_json(asked), device, SEED)
    if "peer" in asked:
        peer = work.peers[asked["peer"]]
        if peer.launcher:
            programs = Programs(asked["kernel"], asked["gpu"], Path(asked["folder"]), device)
            return programs.prepare(peer.launcher, inputs)
        return peer.prepare(**inputs)
    launch, config = work.variant(asked["variant"]).launch, asked["config"]
    return lambda: launch(config=config, **inputs)


def main(path: Path) -> None:
    """Launch what the plan names: ``{"gpu", "gpus_file", "repeats", "cases", "lenient"}``.

    Of each case ``repeats`` calls, each after a marker and the clock's flush.  ``lenient``: a case that fails before
    its first counted launch is left out, and ``failed.json`` beside the plan says why, by its number.
    """
    plan = json.loads(path.read_text())
    device = runtime.device_of(plan["gpu"], load_gpus(Path(plan["gpus_file"]))[plan["gpu"]])
    clocked = CudaDevice(device)
    clocked.soak(board_of(clocked.index))
    mark()
    failed: dict[int, str] = {}
    for number, asked in enumerate(plan["cases"]):
        try:
            call = thunk(asked, device)
            for _ in range(2):
                call()
            torch.cuda.synchronize()
        except Exception as error:
            if not plan["lenient"]:
                raise
            failed[number] = in_a_line(error)
            continue
        for _ in range(plan["repeats"]):
            _watched(mark)
            clocked.flush()
            _watched(call)
    path.with_name(FAILED).write_text(json.dumps(failed))


def _watched(call: Thunk) -> None:
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
