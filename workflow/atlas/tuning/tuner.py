"""One run of the tuner: every pass and case of a kernel on one GPU, and on more of its kind while they are free."""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..declaration import GPU
from ..host.environment import triton_version
from ..host.progress import progress
from ..timing import PROTOCOL as TIMING
from ..validation import PROTOCOL as VALIDATION
from ..workers.devices import ALONE, DevicePool, Devices, Later
from ..workers.process import Process
from .budget import Budget
from .candidates import Candidate, Problem, longest_first
from .certificates import Certificates
from .journal import Journal
from .outcome import OK
from .search import ByStrategy, Found, Way
from .session import Session
from .strategies.strategy import Strategy
from .summary import Run, fields
from .worker import Setting

if TYPE_CHECKING:
    from ..host.leases import Lease
    from .ahead import Ahead

PROTOCOL = f"{TIMING} tuning/1"
"""Clock, and how the tuner uses it; a change of either that moves figures raises its version."""


@dataclass(frozen=True)
class Options:
    """How to search: ``budget_seconds`` None for no limit; ``jobs`` 0 compiles nothing ahead.

    ``certify_seeds`` is how many seeds winners are certified with; with 0 they are not.
    """

    strategy: Strategy | Way
    budget_seconds: float | None
    trial_timeout_seconds: float
    jobs: int
    certify_seeds: int = 0

    @property
    def way(self) -> Way:
        """The strategy as a way to search a problem."""
        return ByStrategy(self.strategy) if isinstance(self.strategy, Strategy) else self.strategy


def context(
    kernel_digest: str, gpu: GPU, device: Mapping[str, Any], calls: Mapping[str, str | None] = MappingProxyType({})
) -> dict[str, Any]:
    """What a measurement holds for; ``device`` is :func:`atlas.host.environment.device`'s answer.

    ``kernel_digest`` is for a reader: which version of a variant a measurement is of stands in its key.  ``calls`` are
    the digests of the configs that called kernels run with.
    """
    found = {
        "protocol": PROTOCOL,
        "kernel_digest": kernel_digest,
        "gpu": gpu.name,
        "device": {name: device.get(name) for name in ("device_name", "driver", "power_cap_w")},
        "torch": importlib.metadata.version("torch"),
        "triton": triton_version(),
        "ptxas": _ptxas(gpu),
    }
    return found | {"calls": dict(calls)} if calls else found


def _ptxas(gpu: GPU) -> str | None:
    if gpu.backend != "cuda":
        return None
    from triton import knobs

    # Triton picks the assembler the same way.
    tool = knobs.nvidia.ptxas_blackwell if int(gpu.arch) >= 100 else knobs.nvidia.ptxas
    return tool.version


def tune(
    problems: Sequence[Problem],
    gpu: GPU,
    setting: Setting,
    journal: Journal,
    options: Options,
    title: str,
    *,
    devices: Devices = ALONE,
    process: Process | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """Search every problem and return the document's fields.

    ``journal`` must be open.  ``devices`` are where to work, ``process`` is a worker on the first of them that was
    started already, and ``began`` the :func:`time.perf_counter` that the wall time counts from.  Raises AtlasError
    where the device is not here, and RuntimeError where no worker starts.
    """
    entered = time.perf_counter()
    began = entered if began is None else began
    certificates = Certificates(journal, VALIDATION, tuple(range(options.certify_seeds)))
    shared: dict[str, Any] = {"certificates": certificates, "began": time.monotonic()}
    ahead: Ahead | None = None

    def open_session(lease: Lease | None) -> Session:
        session = Session(
            setting, journal, options.trial_timeout_seconds, process=process if lease is devices.own else None,
            environment=lease.environment if lease else None, **shared,
        )  # fmt: skip
        session.ahead = ahead
        return session

    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(DevicePool(open_session, devices))
        wanted = list(_unknown(longest_first(problems), journal, options.way))
        if wanted:
            pool.first.begin()  # it imports torch while this process finds out what to compile
        if options.jobs and wanted:
            from .ahead import Ahead  # it needs a Triton that compiles

            ahead = pool.first.ahead = stack.enter_context(Ahead(setting.load, gpu, wanted, options.jobs))
        searching = time.perf_counter()
        found = _search_all(problems, pool, options, title)
    run = Run(
        way=options.way,
        protocol=PROTOCOL,
        budget_seconds=options.budget_seconds,
        wall_seconds=time.perf_counter() - began,
        seconds=_spent(pool, {"import": entered - began, "enumerate": searching - entered}),
        measured=sum(session.measured for session in pool.sessions),
        journal=journal,
        certificates=certificates,
        device_names=[name or gpu.name for name in pool.device_names],
        notes=pool.notes,
        compile_seconds=pool.first.compile_seconds,
    )
    return fields(found, run)


def _spent(pool: DevicePool, before: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase: those ``before`` the search, and those of the sessions together."""
    seconds = {**before, "idle": pool.idle_seconds}
    for session in pool.sessions:
        for phase, spent in session.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    return seconds


def _unknown(problems: Iterable[Problem], journal: Journal, way: Way) -> Iterable[tuple[Problem, Candidate]]:
    """The candidates whose first measurement is not in the journal, in the order of the search."""
    for problem in problems:
        candidates, samples = way.first(problem)
        for candidate in candidates:
            if not journal.has(problem, candidate, Session.method(samples)):
                yield problem, candidate


def _search_all(problems: Sequence[Problem], pool: DevicePool, options: Options, title: str) -> list[Found]:
    budget = Budget(options.budget_seconds, len(problems))
    with progress() as display:
        bar = display.add_task(title, total=len(problems), note="")
        notes = Notes(lambda text: display.update(bar, note=text))

        def find(session: Session, problem: Problem, begun: Any) -> Found | Later:
            watched = Watched(session, lambda note: notes.set(str(problem), note), problem)
            try:
                if begun is None:
                    with budget.share(lambda: session.busy_seconds) as share:
                        begun = options.way.begin(problem, watched, share)
                        winner = begun.compare()
                    if winner is not None:
                        session.prepare_certificate(problem, winner)
                    # Certified once all are searched: by then what that launches has been compiled beside them.
                    return Later(begun)
                begun.measuring = watched
                if begun.cut_short:  # by now it is known what the others left over
                    with budget.rest(lambda: session.busy_seconds) as share:
                        if not share.over:
                            begun.resume(share)
                found = begun.settle()
            finally:
                notes.set(str(problem), "")
            display.update(bar, advance=1)
            return found

        return pool.work(problems, find, longest_first)


class Notes:
    """What is said of the problems under way, as one line."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show
        self._notes: dict[str, str] = {}
        self._turn = threading.Lock()

    def set(self, problem: str, note: str) -> None:
        """Say ``note`` of the problem, or nothing more."""
        with self._turn:
            self._notes[problem] = note
            self._show("; ".join(filter(None, self._notes.values())))


class Watched:
    """A session whose screenings show: the problem at hand and the best median so far."""

    def __init__(self, session: Session, show: Callable[[str], None], problem: Problem):
        self._session, self._show, self._problem = session, show, problem
        self._best = float("inf")
        self._tried = 0
        self.next_of, self.check, self.final = session.next_of, session.check, session.final
        self.certify = session.certify
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
