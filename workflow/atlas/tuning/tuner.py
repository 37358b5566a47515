"""One run of the tuner: every pass and case of a kernel on one GPU, one after the other."""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..declaration import GPU
from ..progress import progress
from ..timing import PROTOCOL as TIMING
from .budget import Budget
from .candidates import Candidate, Problem
from .journal import Journal
from .outcome import OK
from .search import Found, search
from .session import Session
from .strategy import Strategy
from .summary import fields
from .worker import Setting

PROTOCOL = f"{TIMING} tuning/1"
"""Clock, and how the tuner uses it; a change of either that moves figures raises its version."""


@dataclass(frozen=True)
class Options:
    """How to search: ``budget_seconds`` None for no limit; ``jobs`` 0 compiles nothing ahead."""

    strategy: Strategy
    budget_seconds: float | None
    trial_timeout_seconds: float
    jobs: int


def context(kernel_digest: str, gpu: GPU, device: Mapping[str, Any]) -> dict[str, Any]:
    """What a measurement holds for; ``device`` is :func:`atlas.environment.device`'s answer."""
    return {
        "protocol": PROTOCOL,
        "kernel_digest": kernel_digest,
        "gpu": gpu.name,
        "device": {name: device.get(name) for name in ("device_name", "driver", "power_cap_w")},
        "torch": importlib.metadata.version("torch"),
        "triton": importlib.metadata.version("triton"),
        "ptxas": _ptxas(gpu),
    }


def _ptxas(gpu: GPU) -> str | None:
    if gpu.backend != "cuda":
        return None
    from triton import knobs

    # Triton picks the assembler the same way.
    tool = knobs.nvidia.ptxas_blackwell if int(gpu.arch) >= 100 else knobs.nvidia.ptxas
    return tool.version


def tune(
    problems: Sequence[Problem], gpu: GPU, setting: Setting, journal: Journal, options: Options, title: str
) -> dict[str, Any]:
    """Search every problem and return the document's fields.

    ``journal`` must be open.  Raises AtlasError where the device is not here, and RuntimeError where no worker starts.
    """
    began = time.perf_counter()
    session = Session(setting, journal, options.trial_timeout_seconds)
    with contextlib.ExitStack() as stack:
        stack.enter_context(session)
        wanted = list(_unknown(problems, journal, options.strategy))
        if wanted:
            session.begin()  # it imports torch while this process finds out what to compile
        if options.jobs and wanted:
            from .ahead import Ahead  # it needs a Triton that compiles

            session.ahead = stack.enter_context(Ahead(setting.load, gpu, wanted, options.jobs))
        overhead = {"enumerate": time.perf_counter() - began}
        found = _search_all(problems, session, options, title)
        total = time.perf_counter() - began
        overhead["other"] = max(0.0, total - sum(overhead.values()) - sum(session.seconds.values()))
        return fields(found, session, options.strategy, PROTOCOL, options.budget_seconds, overhead)


def _unknown(problems: Iterable[Problem], journal: Journal, strategy: Strategy) -> Iterable[tuple[Problem, Candidate]]:
    """The candidates whose first measurement is not in the journal, in the order of the search."""
    for problem in problems:
        first = next(strategy.search(problem.candidates))
        for candidate in problem.candidates:
            if not journal.has(problem, candidate, Session.method(first.samples)):
                yield problem, candidate


def _search_all(problems: Sequence[Problem], session: Session, options: Options, title: str) -> list[Found]:
    budget = Budget(options.budget_seconds, len(problems), lambda: session.busy_seconds)
    found = []
    with progress() as display:
        bar = display.add_task(title, total=len(problems), note="")
        for problem in problems:
            budget.next_problem()
            watched = Watched(session, lambda note: display.update(bar, note=note), problem)
            found.append(search(problem, options.strategy, watched, budget))
            display.update(bar, advance=1)
    return found


class Watched:
    """A session whose screenings show: the problem at hand and the best median so far."""

    def __init__(self, session: Session, show: Callable[[str], None], problem: Problem):
        self._session, self._show, self._problem = session, show, problem
        self._best = float("inf")
        self._tried = 0
        self.next_of, self.check, self.final = session.next_of, session.check, session.final
        show(str(problem))

    @property
    def elapsed_seconds(self) -> float:
        return self._session.elapsed_seconds

    def screen(self, problem: Problem, *asked: Any) -> Any:
        outcome = self._session.screen(problem, *asked)
        self._tried += 1
        if outcome.status == OK:
            self._best = min(self._best, outcome.median_us)
        best = f", best {self._best:.1f} µs" if self._best < float("inf") else ""
        self._show(f"{problem}: {self._tried} trials of {len(problem.candidates)} configs{best}")
        return outcome
