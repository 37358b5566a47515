"""How the jobs of a run share a host's cores, so that each of its GPUs has one that keeps it busy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..host import gpus

ALL = 1024
"""Threads of a job that takes all cores there are: Snakemake lowers it to ``--cores`` or ``--max-threads``."""

_GPUS_A_BUILDER = 4
"""Builds of about so many GPUs' kernels are compiled while those are tuned and timed, by one build at a time."""


@dataclass(frozen=True)
class Threads:
    """Cores for a job that compiles and runs on a GPU, and for a build."""

    gpu: int = ALL
    build: int = ALL


def threads(cores: int | None, gpu_limit: int | None, places: Mapping[str, gpus.Place]) -> Threads:
    """What each takes of ``cores``, where ``gpu_limit`` GPUs are used at a time at most; None for what is not known.

    With several GPUs in use one part in so many is left to builds: they need no GPU, and one that had all cores would
    leave every GPU idle.  With one GPU nothing runs beside a measurement.
    """
    here = sum(place.count for place in places.values())
    used = min(gpu_limit or 1, here)
    if cores is None or used < 2:
        return Threads()
    builders = -(-used // _GPUS_A_BUILDER)
    share = max(1, cores // (used + builders))
    return Threads(share, max(1, (cores - used * share) // builders))
