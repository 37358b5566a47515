"""End a process with all that it started, in whatever sessions and groups that is by now."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_ROUNDS = 3
"""Of looking for the processes: one may start another while they are looked for."""


def kill_family(pid: int) -> None:
    """Kill a process, its group where it leads one, and all that it started."""
    for _ in range(_ROUNDS):
        below = _below(pid)
        for one in [*below, pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if not below:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """All processes that a process started, and those these started."""
    parents = dict(_parents())
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _parents() -> Iterable[tuple[int, int]]:
    """Every process with its parent; none where the system does not tell by files."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
