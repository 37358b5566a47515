"""Who else was at work on the host while a stage measured: jobs on its other GPUs, and its cores.

They share power supply, cooling, PCIe and cores.  A document says how many there were: where a figure moved, that is a
reason to look at.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_SECONDS = 2.0
"""How often other GPUs are looked at: a test of a few locks."""

_STAT = Path("/proc/stat")


class Neighbours:
    """Use it as a context manager around the work; ``others`` says how many GPUs of this host somebody else has now."""

    def __init__(self, others: Callable[[], int], look_seconds: float = LOOK_SECONDS):
        self._others, self._look_seconds = others, look_seconds
        self._seen: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="atlas neighbours", daemon=True)
        self._busy: float | None = None

    def __enter__(self) -> Neighbours:
        self._began = _jiffies()
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        before, after = self._began, _jiffies()
        if before and after and after[1] > before[1]:
            self._busy = (after[0] - before[0]) / (after[1] - before[1])

    def to_json(self) -> dict[str, Any]:
        """``gpus``, the mean of how many others had, ``most_gpus``, and ``cores_busy``, of all cores of the host.

        The last counts this stage's own work, too.
        """
        found: dict[str, Any] = {"cores_busy": None if self._busy is None else round(self._busy, 3)}
        if self._seen:
            found |= {"gpus": round(sum(self._seen) / len(self._seen), 2), "most_gpus": max(self._seen)}
        return found

    def _watch(self) -> None:
        while not self._over.wait(self._look_seconds):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(Exception):  # that nobody can be seen is no reason to lose a measurement
            self._seen.append(self._others())


def _jiffies() -> tuple[int, int] | None:
    """Busy time of all cores, and all time, since the host began (proc_stat(5)); None where there is no such file."""
    try:
        user, nice, system, idle, wait, *rest = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:9])
    except (OSError, ValueError):
        return None
    return user + nice + system + sum(rest), user + nice + system + idle + wait + sum(rest)
