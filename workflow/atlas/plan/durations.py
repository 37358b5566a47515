"""How long jobs take: what they took before, here or where they were recorded, and which should therefore begin first.

A job's rank is its own time and that of the longest chain of jobs that wait for it.  Where as many run as there are
GPUs, the highest rank first keeps all of them busy to the end (Topcuoglu, Hariri and Wu, 2002).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from .. import catalog
from ..results import files
from ..results.documents import read_envelope

BEGINNING = {
    "build": 6.0, "validate": 15.0, "autotune": 6.0, "benchmark": 4.0, "cuda": 0.5, "profile": 30.0, "energy": 30.0,
    "survey": 40.0, "predict": 40.0, "tables": 25.0, "figures": 35.0, "report": 20.0, "track": 33.0, "verdict": 8.0,
}  # fmt: skip
"""What a job takes of which nothing is known yet: on two cores without a GPU."""

_ON_A_GPU = {"build": 28.0, "validate": 33.0, "autotune": 40.0, "sample": 30.0, "benchmark": 95.0, "beyond": 60.0}
"""The same where it runs on a GPU: the mean of 23 kernels on one H200."""

_AFTER = {
    "build": ("autotune", "predict"),
    "validate": ("autotune", "sample", "benchmark", "beyond"),
    "autotune": ("sample", "benchmark", "predict"),
    "sample": ("beyond",),
    "benchmark": ("profile", "energy"),
    "cuda": ("benchmark",),
    "survey": ("benchmark",),
}
"""Which stages wait for a stage."""


class Durations:
    """Seconds of jobs under ``results``; each file is read once."""

    def __init__(self, results: Path = Path("results")):
        self._results = results
        self._read: dict[Path, float | None] = {}
        self._callers: dict[tuple[str, ...], dict[str, list[str]]] = {}

    def before(self, rule: str, gpu: str, kernel: str) -> float | None:
        """What Snakemake measured of the job's last run here."""
        return self._of(self._results / "benchmarks" / gpu / kernel / f"{rule}.tsv", _measured)

    def recorded(self, rule: str, gpu: str, kernel: str) -> float | None:
        """What a GPU's record says the stage took."""
        return self._of(files.found(self._results / "recorded" / gpu / kernel, rule), _stated)

    def expected(self, rule: str, gpu: str, kernel: str, functional: bool = False) -> float:
        """Seconds of a job: of its last run here, its record, another GPU's record, or what is usual of its stage."""
        found = self.before(rule, gpu, kernel)
        if found is None and not functional:
            recorded = self._results / "recorded"
            paths = [files.found(recorded / gpu / kernel, rule), *files.listed(recorded, f"*/{kernel}/{rule}")]
            found = next((said for path in paths if (said := self._of(path, _stated)) is not None), None)
        return _usual(rule, functional) if found is None else found

    def ranks(self, gpu: str, stages: Iterable[str], kernels: Collection[str], functional: bool = False) -> Ranks:
        """The ranks of a GPU's jobs: its ``stages`` for these kernels."""
        callers = {} if functional else self._callers_of(tuple(kernels))
        seconds = functools.partial(self._expected_of, gpu, functional)
        return Ranks(("survey", *stages), kernels, seconds, lambda kernel: callers.get(kernel, ()))

    def _callers_of(self, kernels: tuple[str, ...]) -> dict[str, list[str]]:
        """By kernel which of these call it; found once, for it is the same on every GPU."""
        if kernels not in self._callers:
            callers = self._callers[kernels] = {}
            for kernel in kernels:
                for name in catalog.called(kernel):
                    callers.setdefault(name, []).append(kernel)
        return self._callers[kernels]

    def _expected_of(self, gpu: str, functional: bool, rule: str, kernel: str) -> float:
        return self.expected(rule, gpu, kernel, functional)

    def _of(self, path: Path, read: Callable[[Path], float | None]) -> float | None:
        if path not in self._read:
            self._read[path] = read(path)
        return self._read[path]


def _usual(rule: str, functional: bool) -> float:
    return BEGINNING.get(rule, 0.0) if functional else _ON_A_GPU.get(rule, BEGINNING.get(rule, 0.0))


def _measured(path: Path) -> float | None:
    try:
        names, values = (line.split("\t") for line in path.read_text().splitlines()[:2])
        return float(dict(zip(names, values, strict=True))["s"])
    except (OSError, ValueError, KeyError):
        return None


def _stated(path: Path) -> float | None:
    return read_envelope(path).seconds


class Ranks:
    """Ranks of the jobs of one GPU.

    ``stages`` run there, for ``kernels``; ``seconds(rule, kernel)`` says how long each takes, and ``callers(kernel)``
    which kernels are tuned and timed with this one's configs.
    """

    def __init__(
        self,
        stages: Iterable[str],
        kernels: Iterable[str],
        seconds: Callable[[str, str], float],
        callers: Callable[[str], Iterable[str]],
    ):
        self._stages, self._kernels = frozenset(stages), tuple(kernels)
        self._seconds, self._callers = seconds, callers
        self._known: dict[tuple[str, str], float] = {}

    def of(self, rule: str, kernel: str = "") -> float:
        """Seconds from the job's begin to the end of all that waits for it; a survey has no kernel."""
        if (rule, kernel) not in self._known:
            followers = [stage for stage in _AFTER.get(rule, ()) if stage in self._stages]
            kernels = (kernel,) if kernel else self._kernels
            waiting = [self.of(stage, name) for stage in followers for name in kernels]
            if rule == "autotune":
                waiting += [self.of(rule, name) for name in self._callers(kernel)]
            self._known[rule, kernel] = self._seconds(rule, kernel) + max(waiting, default=0.0)
        return self._known[rule, kernel]
