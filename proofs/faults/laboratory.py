"""Runs of :mod:`.run` that can be watched, killed, and compared with an undisturbed one."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from atlas import ROOT
from atlas.host.environment import python_path
from atlas.tuning import journal
from atlas.tuning.outcome import OUT_OF_MEMORY, killed
from atlas.tuning.session import WORKER

from . import run as tuning_run

RUN_SECONDS = 300.0
"""A run that takes longer is killed, and did not end as expected."""

GONE_SECONDS = 90.0
"""What the driver is given to take a killed worker off its device."""

_POLL_SECONDS, _LOOK_SECONDS = 0.003, 0.05
"""How often a run is asked whether it goes on, and for its workers, which takes more of a core."""

Trial: TypeAlias = tuple[str, ...]
"""Direction, dtype, sizes, variant, config."""


@dataclass
class Run:
    """One run: its exit status (negative for a signal), what it said, and its document's fields where it wrote them."""

    folder: Path
    status: int = 0
    said: str = ""
    fields: dict[str, Any] | None = None
    seconds: float = 0.0
    workers: set[int] = field(default_factory=set)
    """Process ids of the workers that were seen."""

    @property
    def statuses(self) -> dict[Trial, str]:
        """The status of each trial; empty where there is no document."""
        rows = self.fields["trials"] if self.fields else ()
        return {_trial(row): row["status"] for row in rows}

    @property
    def ok(self) -> bool:
        """Whether the run completed with a best config for every problem."""
        return self.status == 0 and self.fields is not None and self.fields.get("status", "ok") == "ok"

    def best(self) -> dict[str, tuple[Any, float]]:
        """By the case's sizes, the number of passes that the best config makes, and its median in microseconds."""
        rows = self.fields["best"] if self.fields else ()
        return {json.dumps(row["sizes"]): (row["config"]["passes"], row["median_us"]) for row in rows}


@dataclass
class Laboratory:
    """Starts runs on one GPU, each in a process of its own that logs into its folder."""

    gpu_name: str
    gpus_file: Path
    root: Path
    timeout_seconds: float = 3.0
    jobs: int = 2
    _numbers: Any = field(default_factory=itertools.count)

    def folder(self, name: str) -> Path:
        """A new folder for a run's journal."""
        path = self.root / name
        path.mkdir(parents=True)
        return path

    def command(self, folder: Path, output: Path, faults: Sequence[str], cases: int, *more: object) -> list[str]:
        """The command that tunes the kernel with its journal in ``folder``."""
        options = {
            "--gpu": self.gpu_name, "--gpus-file": self.gpus_file, "--folder": folder, "--output": output,
            "--faults": ",".join(faults), "--cases": cases, "--jobs": self.jobs,
            "--trial-timeout-seconds": self.timeout_seconds,
        }  # fmt: skip
        words = [word for pair in options.items() for word in pair] + list(more)
        return [sys.executable, "-m", tuning_run.__name__, *map(str, words)]

    def run(
        self,
        folder: Path,
        faults: Sequence[str] = (),
        cases: int = 1,
        more: Sequence[object] = (),
        meanwhile: Callable[[Run, int], bool] = lambda run, pid: True,
    ) -> Run:
        """Run it to its end.  ``meanwhile(run, pid)`` is called again and again until it returns True."""
        number = next(self._numbers)
        output, log = self.root / f"{number}.json", self.root / f"{number}.log"
        found = Run(folder)
        since = time.perf_counter()
        with log.open("wb") as words:
            process = subprocess.Popen(
                self.command(folder, output, faults, cases, *more), cwd=ROOT, env=environment(),
                stdout=words, stderr=words,
            )  # fmt: skip
            try:
                over, looked = False, 0.0
                while process.poll() is None:
                    if time.monotonic() - looked > _LOOK_SECONDS:
                        found.workers |= set(workers_of(process.pid))
                        looked = time.monotonic()
                    over = over or meanwhile(found, process.pid)
                    if time.perf_counter() - since > RUN_SECONDS:
                        break
                    time.sleep(_POLL_SECONDS)
            finally:
                process.kill()
                found.status = process.wait()
        found.seconds = time.perf_counter() - since
        found.said = _last_line(log)
        if found.status == 0:
            found.fields = json.loads(output.read_text())
        return found


def environment() -> dict[str, str]:
    """This process's environment, with one device at most and this checkout's modules."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return inherited | {"PYTHONPATH": python_path(), "KERNEL_ATLAS_GPUS": "1"}


def finished(folder: Path) -> list[dict[str, Any]]:
    """The measurements in a run's journal, in the order they were added."""
    path = folder / "journal.jsonl"
    return list(journal.entries(path)) if path.exists() else []


def identity(entry: dict[str, Any]) -> tuple[str, ...]:
    """What was measured and how, the same in any run; of a certificate not of which config, since noise may choose."""
    kind = entry["method"].split()[0]
    named = (entry["direction"], entry["dtype"])
    return (*named, kind) if kind.startswith("cert") else (*_trial(entry), entry["method"])


def is_joint(entry: dict[str, Any]) -> bool:
    """Whether it was measured in turns with others, so that what was lost of one is measured again of all."""
    return entry["method"].startswith("final")


def again(entries: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """What was measured a second time though it was finished, joint measurements aside."""
    counts = Counter(identity(entry) for entry in entries if not is_joint(entry) and _stays(entry))
    return [key for key, count in counts.items() if count > 1]


def difference(one: Run, other: Run) -> str:
    """How the trials of two completed runs, or what they measured, differ beyond noise; ``""`` if they do not."""
    if not one.ok:
        return f"it ended with {one.status}: {one.said}"
    if one.statuses != other.statuses:
        changed = {k: v for k, v in one.statuses.items() if other.statuses.get(k) != v}
        return f"{len(changed)} trials ended otherwise: {sorted(set(changed.values()))}"
    mine, theirs = ({identity(entry) for entry in finished(run.folder)} for run in (one, other))
    if missing := theirs - mine:
        return f"{len(missing)} measurements are missing"
    if extra := mine - theirs:
        return f"{len(extra)} measurements are of something else"
    return ""


def workers_of(pid: int) -> list[int]:
    """The processes that a run has started for its trials: below the servers that forked them."""
    children = []
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += [int(word) for word in (task / "children").read_text().split()]
    below = [found for child in children for found in workers_of(child)]
    return [child for child in children if _is_worker(child)] + below


def _is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == WORKER
    except OSError:
        return False


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: Iterable[int], seconds: float = GONE_SECONDS) -> list[int]:
    """The processes that are still there after so many seconds, however soon it returns if there are none."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def kill(pid: int) -> bool:
    """``kill -9``; False where the process has ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _trial(row: dict[str, Any]) -> Trial:
    sizes, config = json.dumps(row["sizes"]), json.dumps(row["config"])
    return row["direction"], row["dtype"], sizes, row["variant"], config


def _stays(entry: dict[str, Any]) -> bool:
    """Whether the next run counts it: a lack of memory and a worker somebody killed are tried again."""
    return entry["status"] != OUT_OF_MEMORY and not killed(entry["reason"])


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
