"""While it runs: one line for each job that ended, with what came of it and about how long the others will take.

``[37/179] build matmul h200 · 296 ok, 13 pruned · 41 s · about 22 min left``.  Listens to what Snakemake logs.
"""

from __future__ import annotations

import json
import logging
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from ..host import gpus
from .durations import BEGINNING, Durations

if TYPE_CHECKING:
    from .jobs import Plan

_ROWS = {"survey": "roofs", "build": "configs", "validate": "checks", "autotune": "trials", "benchmark": "rows"}
"""Where a stage's document has the rows with a status."""

_WITHOUT_WORK = ("all", "reproduce")
_SELECTING = re.compile(r"Select jobs to execute\.\.\.|Execute \d+ jobs\.\.\.")
"""Said of every job, and of none what it is."""

_TOLD = 110
"""Characters of what came of a job."""


class Lines(logging.Handler):
    """Prints a line to stderr for every job that ends, in the place of what Snakemake says of its begin and its end."""

    def __init__(self, plan: Plan, cores: int | None, results: Path = Path("results")):
        super().__init__(logging.INFO)
        self._plan, self._cores, self._results = plan, cores or 1, results
        self._durations = Durations(results)
        self._speaks = False
        self._jobs: dict[int, tuple[Mapping[str, Any], float]] = {}
        self._left: Counter[str] = Counter()
        self._total = 0
        self._expected: dict[str, float] = {}
        self._began = self._due = 0.0

    def take_over(self) -> None:
        """Begin: from now on a terminal gets these lines; Snakemake's log file gets all that it did."""
        self._speaks, self._began = True, time.monotonic()
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                handler.addFilter(_of_no_job)

    def emit(self, record: logging.LogRecord) -> None:
        """Take in one of Snakemake's events."""
        event, said = getattr(record, "event", None), record.__dict__
        if event == LogEvent.RUN_INFO:
            self._plan_for(said["stats"])
        elif event == LogEvent.JOB_INFO:
            self._jobs[said["jobid"]] = said, time.monotonic()
        elif event == LogEvent.JOB_FINISHED and self._speaks:
            self._finished(said.get("job_id", said.get("jobid")))

    def _plan_for(self, stats: Mapping[str, int]) -> None:
        counts = {rule: count for rule, count in stats.items() if rule != "total"}
        self._left, self._total = Counter(counts), sum(counts.values()) - sum(counts.get(r, 0) for r in _WITHOUT_WORK)
        self._expected = {rule: self._mean(rule) for rule in counts}
        self._due = self._rest()

    def _finished(self, job: Any) -> None:
        said, began = self._jobs.pop(job, ({}, 0.0))
        rule = said.get("rule_name", "")
        if not rule or rule in _WITHOUT_WORK:
            return
        self._left[rule] -= 1
        done = self._total - sum(count for name, count in self._left.items() if name not in _WITHOUT_WORK)
        named = said.get("wildcards") or {}
        subject = " ".join([rule, *(named[key] for key in ("kernel", "gpu") if key in named)])
        parts = [subject, self._outcome(rule, named), in_words(time.monotonic() - began), self._remaining()]
        print(f"[{done}/{self._total}] {' · '.join(part for part in parts if part)}", file=sys.stderr, flush=True)

    def _outcome(self, rule: str, named: Mapping[str, str]) -> str:
        folder = [named[key] for key in ("gpu", "kernel") if key in named]
        try:
            if rule in _ROWS:
                document = self._results.joinpath("measured", *folder, f"{rule}.json")
                return outcome(rule, json.loads(document.read_text()))
            last = self._results.joinpath("logs", *folder, f"{rule}.log").read_text().strip().rpartition("\n")[2]
            return "" if rule == "verdict" else _short(last.strip())
        except (OSError, ValueError, LookupError, TypeError):  # a line less tells no wrong
            return ""

    # --- How long ----------------------------------------------------------------------------------------------------

    def _remaining(self) -> str:
        rest, elapsed = self._rest(), time.monotonic() - self._began
        if rest <= 0:
            return ""
        done = self._due - rest
        pace = min(4.0, max(0.25, elapsed / done)) if done > 0.05 * self._due else 1.0
        return f"about {in_words(rest * pace)} left"

    def _rest(self) -> float:
        return sum(count * self._expected.get(rule, 0.0) for rule, count in self._left.items())

    def _mean(self, rule: str) -> float:
        """Seconds that a job of a rule adds to a run, from what such jobs took before, here or where they recorded."""
        found = []
        for gpu in self._plan.gpus:
            share = 1 / self._cores if gpus.functional(self._plan.blocks[gpu]) else 1.0
            stages = {*self._plan.stages(gpu), "cuda", "survey"}
            found += [share * seconds for seconds in self._seconds(rule, gpu)] if rule in stages else []
        return statistics.fmean(found) if found else BEGINNING.get(rule, 0.0)

    def _seconds(self, rule: str, gpu: str) -> Iterator[float]:
        known = []
        for kernel in self._plan.kernels:
            seconds = self._durations.before(rule, gpu, kernel)
            if seconds is None and self._plan.places[gpu].where == gpus.HERE:
                seconds = self._durations.recorded(rule, gpu, kernel)
            known.append(seconds)
        there = [seconds for seconds in known if seconds is not None]
        typical = statistics.fmean(there) if there else BEGINNING.get(rule, 0.0)
        yield from (typical if seconds is None else seconds for seconds in known)


def outcome(stage: str, document: Mapping[str, Any]) -> str:
    """What a document came to in a few words: ``296 ok, 13 pruned``, and its reason where it is not ok."""
    counts = Counter(row["status"] for row in document.get(_ROWS[stage], []))
    said = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    if stage == "autotune" and document.get("best"):
        said = f"{len(document['best'])} cases tuned: {said}"
    if document["status"] != "ok":
        said = f"{document['status'].upper()}: {document['reason'].splitlines()[0] if document['reason'] else said}"
    return _short(said)


def _short(said: str) -> str:
    """What there is room for; an ellipsis says that there was more, such as the rest of a path."""
    return said if len(said) <= _TOLD else f"{said[: _TOLD - 1]}…"


def in_words(seconds: float) -> str:
    """``41 s``, ``22 min``, ``3 h 5 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _of_no_job(record: logging.LogRecord) -> bool:
    if getattr(record, "event", None) in (LogEvent.JOB_INFO, LogEvent.JOB_FINISHED, LogEvent.PROGRESS):
        return False
    return not (isinstance(record.msg, str) and _SELECTING.fullmatch(record.msg))


def follow(plan: Plan, cores: int | None) -> Lines:
    """Listen to this process' Snakemake; nothing is said before :meth:`Lines.take_over`."""
    lines = Lines(plan, cores)
    logger.addHandler(lines)
    return lines
