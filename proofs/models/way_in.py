"""The commands by which a user's program comes to configs of its own, typed in a copy of the checkout.

README.md, "Your program": watch, tune, export, and run again.  Nothing here knows what is claimed of them.
"""

from __future__ import annotations

import collections
import csv
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas import catalog
from atlas.declaration import choice, tuned
from atlas.stages import frame
from atlas.workload.current import Workload
from atlas.workload.problems import Problem, described

from .. import scratch

PROGRAM = "proofs.models.step"
"""What the user trains with."""

WATCHED_STEPS, WATCHED_WARM = 3, 1
"""Steps while the program is watched: the counts of calls grow with them, the problems do not."""

_PARTS = (*scratch.CHECKOUT, "proofs")


@dataclass(frozen=True)
class WayIn:
    """One model's way in: its commands, in the checkout ``root``.

    ``sizes`` are further words of the program, ``settings`` those of ``snakemake --config``.
    """

    job: frame.Job
    model: str
    root: Path
    cores: int
    steps: int
    sizes: Sequence[str] = ()
    settings: Sequence[str] = ()

    @property
    def calls(self) -> Path:
        """The file of calls."""
        return self.root / f"{self.model}.json"

    @property
    def exported(self) -> Path:
        """The file of configs."""
        return self.root / f"{self.model}-{self.job.gpu_name}.json"

    @property
    def results(self) -> Path:
        """Of the workload's run."""
        return self.root / "workloads" / self.calls.stem / "results"

    def program(self, *more: str) -> list[str]:
        """What follows ``python -m`` of the program."""
        return [PROGRAM, self.model, *more, *self.sizes]

    def commands(self) -> dict[str, list[str]]:
        """What follows ``python -m``, by step, in the order in which a user types them."""
        watched = self.program("--steps", str(WATCHED_STEPS), "--warm", str(WATCHED_WARM))
        gpu = self.job.gpu_name
        again = ["--nolock"] if (self.results.parent / ".snakemake").exists() else []  # that of a run which was killed
        return {
            "watch": ["atlas", "watch", "--output", self.calls.name, "--", sys.executable, "-m", *watched],
            "tune": ["snakemake", "--cores", str(self.cores), *again, "--config", f"workload={self.calls.name}",
                     f"gpus={gpu}", *self.settings],
            "export": ["atlas", "workload", self.calls.name, "--gpu", gpu, "--export", self.exported.name],
            "after": self.program("--steps", str(self.steps)),
        }  # fmt: skip

    def copy(self) -> None:
        """Make the checkout anew."""
        scratch.copy_checkout(self.job, self.root, _PARTS)

    def do(self, step: str) -> float:
        """Type a step's command; its wall seconds.  RuntimeError where it fails, with a line of each failed job."""
        module, *words = self.commands()[step]
        log = self.root / f"{step}.log"
        try:
            return scratch.run(module, words, {}, log, cwd=self.root)
        except RuntimeError as error:
            raise RuntimeError("; ".join([str(error), *self._of_jobs(log)])) from None

    def _of_jobs(self, log: Path) -> list[str]:
        """What the failed jobs said last, by what Snakemake said of them."""
        text = log.read_text(errors="replace") if log.exists() else ""
        paths = dict.fromkeys(re.findall(r"^ +log: (results/logs/\S+\.log)", text, re.MULTILINE))
        found = []
        for name in paths:
            path = self.results.parent / name
            lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
            found += [f"{name}: {lines[-1]}"] if lines else []
        return found

    def train(self, way: str) -> dict[str, Any]:
        """What the program printed, and the ``seconds`` it took: ``torch``, ``before`` or ``after``."""
        module, *words = self.commands()["after"]
        given = {choice.VARIABLE: self.exported.name} if way == "after" else {}
        log = self.root / f"{way}.log"
        words += ["--torch"] if way == "torch" else []
        seconds = scratch.run(module, words, given, log, cwd=self.root)
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith('{"')]
        if not lines:
            raise RuntimeError(f"python -m {module} ended well and printed no figures")
        return json.loads(lines[-1]) | {"seconds": seconds}

    def seen(self) -> dict[str, int]:
        """What ``watch`` wrote: how many calls of how many kinds, and what they come to."""
        workload = Workload(self.calls)
        found = workload.document["calls"]
        return {
            "calls": sum(call["count"] for call in found),
            "kinds": len(found),
            "problems": len(_tunable(workload)),
            "kernels": len(workload.kernels),
        }

    def stages(self) -> dict[str, float]:
        """Seconds of the run's jobs by stage, the longest first, as Snakemake measured them; views have none."""
        found: collections.Counter[str] = collections.Counter()
        for path in (self.results / "benchmarks").rglob("*.tsv"):
            with path.open() as file:
                found[path.stem] += sum(float(row["s"]) for row in csv.DictReader(file, delimiter="\t"))
        return dict(found.most_common())

    def untuned(self) -> list[str]:
        """The problems of the kernels asked for that have no entry in the exported file."""
        entries = tuned.read(self.exported)[1]
        asked = _kernels(self.settings)
        return [
            f"{one.kernel} {one.at.direction} {described(one)}"
            for one in _tunable(Workload(self.calls))
            if (asked is None or one.kernel in asked) and not any(_is_of(entry, one) for entry in entries)
        ]

    def predicted(self) -> dict[str, float | None]:
        """Milliseconds of a step that the report says are gained: over the default configs, and over the peers."""
        from atlas.reporting.workload import gains_of
        from atlas.tables import store

        tables = store.read(self.results / "tables", {"benchmark": store.TABLES["benchmark"]})
        gains = [one for one in gains_of(tables["benchmark"], Workload(self.calls)) if one.gpu == self.job.gpu_name]
        steps = WATCHED_STEPS + WATCHED_WARM

        def a_step(saved: list[float | None]) -> float | None:
            known = [one for one in saved if one is not None]
            return sum(known) / steps if known else None

        return {
            "over default ms": a_step([one.saved(one.default_us) for one in gains]),
            "over peers ms": a_step([one.saved(one.peer_us) for one in gains]),
        }


def _tunable(workload: Workload) -> list[Problem]:
    """The problems for which configs are chosen, each once."""
    found = {(one.kernel, one.at): one for one in workload.problems if one.kernel in workload.kernels}
    return [one for one in found.values() if one.at.direction in catalog.load(one.kernel).passes]


def _is_of(entry: dict[str, Any], problem: Problem) -> bool:
    at = problem.at
    named = (entry["kernel"], entry["direction"], entry["dtype"]) == (problem.kernel, at.direction, at.dtype)
    return named and choice.same_case(dict(at.sizes), entry["sizes"])


def _kernels(settings: Sequence[str]) -> list[str] | None:
    """The kernels that ``--config kernels=…`` names; None for all."""
    named = [word.partition("=")[2] for word in settings if word.startswith("kernels=")]
    return named[-1].split(",") if named and named[-1] != "all" else None
