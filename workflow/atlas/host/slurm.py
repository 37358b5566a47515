"""A SLURM cluster as its own commands show it: which partition has which GPU, and what a killed run left behind.

Asked once a run, by the head process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AtlasError

JOB_PREFIX = "kernel-atlas"
"""What the names of our jobs begin with, as ``slurm-jobname-prefix`` of ``profiles/slurm`` says."""

_CANCEL_SECONDS = 60.0
_FOREVER = float("inf")


@dataclass(frozen=True)
class Partition:
    """One partition that is up: whether jobs go there by default, its time limit, and how many GPUs of each model."""

    name: str
    default: bool
    limit_minutes: float
    gpus: Mapping[str, int]
    """GPUs by model; those that the cluster gives no model are under ``""``."""


def partitions() -> list[Partition]:
    """The partitions that this user may use.

    Raises :class:`AtlasError` where SLURM is not at hand or does not answer.
    """
    return read_sinfo(_asked("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G"))


def read_sinfo(said: str) -> list[Partition]:
    """What ``sinfo --format=%P|%a|%l|%D|%G`` printed; a partition of unlike nodes has several lines."""
    found: dict[str, Partition] = {}
    for line in said.splitlines():
        name, up, limit, nodes, gres = line.strip().split("|", 4)
        if up != "up":
            continue
        default, name = name.endswith("*"), name.rstrip("*")
        earlier = found.get(name)
        models = dict(earlier.gpus) if earlier else {}
        for model, count in _gpus_of(gres):
            models[model] = models.get(model, 0) + count * int(nodes)
        found[name] = Partition(name, default, _minutes(limit), models)
    return list(found.values())


def partition_of(asked: Mapping[str, Any], there: Iterable[Partition]) -> str | None:
    """The partition for a block's ``cluster`` resources; None where no partition has what they ask for.

    A named ``slurm_partition`` is taken; else the one that has the model of ``gpu_model`` or ``gres``, the default one
    before others, then the one with the longest time limit.
    """
    named, model = asked.get("slurm_partition"), _model(asked)
    fit = [one for one in there if (model in one.gpus if model else one.gpus)]
    if named:
        return str(named) if str(named) in {one.name for one in fit} else None
    return _preferred(fit)


def host_partition(there: Iterable[Partition]) -> str | None:
    """The partition for jobs that need no GPU: one without GPUs, whose nodes time nothing; None where all have some."""
    return _preferred([one for one in there if not one.gpus])


def end_leftovers(folder: Path) -> list[str]:
    """Cancel the jobs of earlier runs in ``folder`` and wait until they are gone; gives their ids.

    A run that was killed leaves its jobs in SLURM, where they would write the documents that the next run writes.
    Call it while Snakemake holds the folder's lock.  Raises :class:`AtlasError` where a job does not end in a minute.
    """
    left = _left_in(folder)
    if left:
        _asked("scancel", *left)
    end = time.monotonic() + _CANCEL_SECONDS
    while remaining := _left_in(folder):
        if time.monotonic() > end:
            raise AtlasError(
                f"jobs {', '.join(remaining)} of an earlier run in {folder} do not end; see to them with scancel"
            )
        time.sleep(1)
    return left


def _left_in(folder: Path) -> list[str]:
    mine = re.compile(rf"(\d+)\|{JOB_PREFIX}_[0-9a-f-]{{36}}\|(.*)")
    found = (
        mine.fullmatch(line.strip())
        for line in _asked("squeue", "--me", "--noheader", "--format=%A|%j|%Z").splitlines()
    )
    return [one[1] for one in found if one and Path(one[2]) == folder]


def _asked(*words: str) -> str:
    if shutil.which(words[0]) is None:
        raise AtlasError(
            f"placement: slurm: there is no {words[0]} here; run where sbatch works, or with placement=local"
        )
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise AtlasError(f"placement: slurm: {words[0]} failed: {done.stderr.strip()}; try it by hand")
    return done.stdout


def _preferred(fit: list[Partition]) -> str | None:
    return max(fit, key=lambda one: (one.default, one.limit_minutes)).name if fit else None


def _model(asked: Mapping[str, Any]) -> str:
    """The GPU model in ``gpu_model: a100`` or ``gres: gpu:a100:1``; empty where neither names one."""
    if asked.get("gpu_model"):
        return str(asked["gpu_model"])
    words = str(asked.get("gres", "")).split(":")
    return words[1] if len(words) > 1 and words[0] == "gpu" and not words[1].isdigit() else ""


def _gpus_of(gres: str) -> Iterable[tuple[str, int]]:
    """Models and counts in ``gpu:a100:4(S:0-1),gpu:2,nvme:1``; a part in brackets is left out."""
    for one in re.sub(r"\([^)]*\)", "", gres).split(","):
        match one.split(":"):
            case ["gpu", model, count] if count.isdigit():
                yield model, int(count)
            case ["gpu", word]:
                yield ("", int(word)) if word.isdigit() else (word, 1)
            case ["gpu"]:
                yield "", 1


def _minutes(limit: str) -> float:
    """``1-02:03:04``, ``02:03:04``, ``03:04`` or ``infinite`` in minutes."""
    days, _, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or not (days or "0").isdigit():
        return _FOREVER
    hours, minutes, seconds = ([0, 0, 0, *map(int, parts)])[-3:]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60
