"""The workload of this run: what ``snakemake --config workload=calls.json`` names, for every process of it.

A run of a workload has a folder of its own, so its results neither mix with those of the kernels' own cases nor make
them due.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import catalog
from ..errors import AtlasError
from . import calls
from .problems import problems

VARIABLE = "KERNEL_ATLAS_WORKLOAD"
"""Names the file of calls."""

MOST_CASES = 64
"""Of a kernel: those that took longest, or were met most often; more would take hours to tune."""

Sizes = tuple[str, tuple[tuple[str, Any], ...]]
"""Dtype and sizes of a case."""


class Workload:
    """The problems of one file of calls."""

    def __init__(self, path: Path):
        self.path = path
        self.document = calls.read(path)
        self.problems = problems(self.document)
        known = set(catalog.names())
        self._cases: dict[str, dict[Sizes, None]] = {}
        self._backward: set[str] = set()
        for problem in self.problems:
            if problem.kernel in known:
                self._cases.setdefault(problem.kernel, {})[problem.case] = None
                if problem.at.direction == "backward":
                    self._backward.add(problem.kernel)

    @property
    def kernels(self) -> list[str]:
        """The kernels that it comes to, of those there are."""
        return sorted(self._cases)

    def cases(self, kernel: str) -> list[Sizes]:
        """The cases of a kernel that are tuned and timed."""
        return list(self._cases.get(kernel, ()))[:MOST_CASES]

    def backward(self, kernel: str) -> bool:
        """Whether a gradient of the kernel was taken."""
        return kernel in self._backward

    def digest(self, kernel: str) -> str:
        """Changes when the kernel's cases do, or whether it has a gradient."""
        text = json.dumps([sorted(map(repr, self.cases(kernel))), self.backward(kernel)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def current() -> Workload | None:
    """The workload of this process; None where it has none.  Raises :class:`AtlasError` for a file that is none."""
    path = os.environ.get(VARIABLE)
    return _read(path) if path else None


@functools.cache
def _read(path: str) -> Workload:
    return Workload(Path(path))


def begin(config: Mapping[str, Any]) -> Path | None:
    """Make the workload that the config names that of this process and of all it starts; the folder of its run.

    None for a config without one.  A job on another host finds it in its environment.
    """
    named = config.get("workload") or ""
    if not isinstance(named, str):
        raise AtlasError(f"config: key 'workload': {named!r} is no path of a file of calls")
    path = os.environ.get(VARIABLE) or (str(Path(named).absolute()) if named else "")
    if not path:
        return None
    if named and Path(named).name != Path(path).name:  # a job of the run finds the file there, from another folder
        raise AtlasError(f"config: key 'workload' is {named}, but {VARIABLE} is {path}; unset one of them")
    os.environ[VARIABLE] = path
    workload = _read(path)
    if not workload.kernels:
        raise AtlasError(f"{path}: no call comes to a case of a kernel: python -m atlas workload {path}")
    return Path("workloads", Path(path).stem)
