"""Calls that ncu watches in a process of their own, and its launches sorted by call: a marker comes before each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..host.environment import python_path
from . import ncu
from .ncu import Launch

MARKER = "atlas_marker"
"""The kernel that :mod:`.launches` launches before each call."""


def watch(
    gpu: str,
    gpus_file: Path,
    cases: Sequence[Mapping[str, Any]],
    repeats: int,
    folder: Path,
    metrics: Sequence[str] = (ncu.DURATION,),
    flush: bool = False,
) -> list[Launch]:
    """All launches of ``repeats`` calls of each case, with their markers; the plan and ncu's log go into ``folder``.

    ``cases`` are as :func:`.launches.thunk` takes them; for ``metrics`` and ``flush``, and what is raised, see
    :func:`.ncu.profile`.
    """
    plan = folder / "launches.json"
    plan.write_text(
        json.dumps({"gpu": gpu, "gpus_file": str(gpus_file.resolve()), "repeats": repeats, "cases": list(cases)})
    )
    environment = os.environ | {"PYTHONPATH": python_path()}
    words = [sys.executable, "-m", "atlas.profiling.launches", str(plan)]
    return ncu.profile(words, environment, folder / "ncu.csv", metrics, flush)


def by_call(launches: Sequence[Launch], expected: int) -> list[list[Launch]]:
    """The launches of each call, in order; RuntimeError unless there are ``expected`` calls, each with a kernel."""
    calls: list[list[Launch]] = []
    for launch in launches:
        if launch.kernel == MARKER:
            calls.append([])
        elif calls:
            calls[-1].append(launch)
    if len(calls) != expected or not all(calls):
        raise RuntimeError(f"ncu saw {len(calls)} calls, {sum(map(bool, calls))} of them with kernels; "
                           f"{expected} were made")  # fmt: skip
    return calls
