"""What one measurement of one candidate came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

OK = "ok"
TIMEOUT = "timeout"
CRASHED = "crashed"
WRONG = "wrong"
STOPPED = "stopped"
COMPILE_ERROR = "compile_error"
OUT_OF_RESOURCES = "out_of_resources"
OUT_OF_MEMORY = "out_of_memory"
LAUNCH_ERROR = "launch_error"
UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Outcome:
    """The status of one measurement, its reason where it is not ``ok``, and the timing where there is one.

    ``median_us``, ``q1_us`` and ``q3_us`` are microseconds over ``samples`` samples, which are ``samples_us`` in the
    order taken, rounded to 3 decimals.  ``stopped`` says that fewer samples than asked for were taken, since the first
    was far behind the best.  ``seconds`` are those the worker spent by phase; ``whole_problem`` says that the inputs
    themselves failed, so no other candidate can fare better.  ``certificate`` counts the cases, checks and seeds of a
    certification.
    """

    status: str
    reason: str = ""
    median_us: float | None = None
    q1_us: float | None = None
    q3_us: float | None = None
    samples: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    whole_problem: bool = False
    samples_us: tuple[float, ...] = ()
    certificate: Mapping[str, int] | None = None

    @property
    def worked(self) -> bool:
        """True where the candidate ran, also where it was stopped early."""
        return self.status in (OK, STOPPED)

    def to_json(self) -> dict[str, Any]:
        """The fields a journal keeps."""
        kept = asdict(self)
        del kept["seconds"], kept["whole_problem"]
        if self.certificate is None:
            del kept["certificate"]
        return kept

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Outcome:
        """The outcome a journal's entry holds, with or without its samples; KeyError where it is not one."""
        names = ("status", "reason", "median_us", "q1_us", "q3_us", "samples")
        return Outcome(
            **{name: entry[name] for name in names},
            samples_us=tuple(entry.get("samples_us", ())),
            certificate=entry.get("certificate"),
        )


def killed(how: str) -> bool:
    """Whether a process that ended in this way was ended by a person, or by a host short of memory.

    No kernel ends its process by SIGKILL.
    """
    return "ended by SIGKILL" in how


def status_of(error: BaseException) -> str:
    """The trial status that an exception of a compilation or launch stands for."""
    # By name, so that a parent which only reads documents needs neither torch's nor Triton's modules.
    names = {kind.__name__ for kind in type(error).__mro__}
    # Torch has an error of its own for a device's memory, and none for the host's.
    if names & {"OutOfMemoryError", "MemoryError"} or "DefaultCPUAllocator" in str(error):
        return OUT_OF_MEMORY
    if "OutOfResources" in names:
        return OUT_OF_RESOURCES
    if names & {"CompilationError", "PTXASError", "InterpreterError"} or "PassManager::run failed" in str(error):
        return COMPILE_ERROR
    return LAUNCH_ERROR


def reason_of(error: BaseException) -> str:
    """An exception as one line for a document."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A compiler's error ends with what was wrong and starts with the source around it.
    line = (lines[-1] if status_of(error) == COMPILE_ERROR else lines[0]) if lines else ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
