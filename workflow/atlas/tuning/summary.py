"""The autotune document's fields, from what the searches found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .candidates import INTERPRETED, Candidate, Problem
from .certificates import Certificates
from .journal import Journal
from .outcome import OK, WRONG, Outcome
from .search import Found, Way

_SHOWN = 3

_NOTHING = 5e-4
"""Seconds that the document would show as 0."""

TRIALS = ("prepare", "time", "check", "certify")
"""The phases in which a worker executes what it was asked for."""

EMPTY: dict[str, Any] = {
    "protocol": "",
    "strategy": "",
    "budget_seconds": None,
    "seconds_by_phase": {},
    "trials_by_status": {},
    "best": [],
    "trials": [],
}
"""The fields where there was no search."""


@dataclass(frozen=True)
class Run:
    """What a run came to, apart from what its searches found.

    ``seconds`` are by phase, summed over all sessions.  ``compile_seconds`` tells what the compiler took.
    """

    way: Way
    protocol: str
    budget_seconds: float | None
    wall_seconds: float
    seconds: Mapping[str, float]
    measured: int
    journal: Journal
    certificates: Certificates
    device_names: Sequence[str]
    notes: Sequence[str]
    compile_seconds: Callable[[Problem, Candidate], float | None]


def fields(found: Sequence[Found], run: Run) -> dict[str, Any]:
    """The document's fields, with ``status`` and ``reason`` where a problem has no best config."""
    trials = [row for one in found for row in _trials(one, run)]
    untried = sum(len(one.untried) for one in found)
    return {
        "protocol": run.protocol,
        "strategy": run.way.name,
        "method": _method(found, run, untried),
        "budget_seconds": run.budget_seconds,
        **_time(run),
        "devices": {"count": len(run.device_names), "names": list(run.device_names), "notes": list(run.notes)},
        "trials_by_status": dict(Counter(row["status"] for row in trials)),
        "ruled_out": sum(one.problem.ruled_out for one in found),
        "untried": untried,
        "journal": {
            "measured": run.measured,
            "reused": run.journal.reused,
            "damaged_lines": run.journal.damaged,
        },
        "best": [_best(one, run) for one in found if one.ranking],
        "trials": trials,
        **_verdict(found),
    }


def _time(run: Run) -> dict[str, Any]:
    """Where the time went.  With one device the phases add up to the wall time: ``other`` is what none accounts for."""
    seconds = {phase: spent for phase, spent in run.seconds.items() if spent >= _NOTHING}
    if len(run.device_names) == 1:
        seconds["other"] = max(0.0, run.wall_seconds - sum(seconds.values()))
    return {
        "wall_seconds": round(run.wall_seconds, 3),
        "trial_seconds": round(sum(seconds.get(phase, 0.0) for phase in TRIALS), 3),
        "seconds_by_phase": {phase: round(spent, 3) for phase, spent in seconds.items()},
    }


def _method(found: Sequence[Found], run: Run, untried: int) -> str:
    parts = [run.way.method]
    if run.certificates.seeds:
        parts.append("the fastest that validates on the edge cases of its dtype is the best")
    left_out = sum(one.problem.left_out for one in found)
    if left_out:
        parts.append(
            f"of each variant the interpreter runs the default and {INTERPRETED - 1} configs spread over the space, "
            f"not the other {left_out}"
        )
    if untried:
        parts.append(f"the budget ended with {untried} candidates not tried")
    return "; ".join(parts)


def _verdict(found: Sequence[Found]) -> dict[str, str]:
    lost = [one for one in found if not one.ranking]
    if not lost:
        return {}
    wrong = any(trial.outcome.status == WRONG for one in lost for trial in one.trials.values())
    shown = "; ".join(f"{one.problem}: {_why(one)}" for one in lost[:_SHOWN])
    more = f"; and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return {"status": WRONG if wrong else "failed", "reason": f"no config works for {shown}{more}"}


def _why(one: Found) -> str:
    worst = next((t.outcome for t in one.trials.values() if t.outcome.status == WRONG), None)
    outcome = worst or next((trial.outcome for trial in one.trials.values()), Outcome("failed", "none was tried"))
    return f"{outcome.status}, {outcome.reason}"


def _named(problem: Problem) -> dict[str, Any]:
    return {"direction": problem.direction, **problem.case.to_json()}


def _tried(candidate: Candidate) -> dict[str, Any]:
    return {"variant": candidate.variant, "config": candidate.config}


def _times(outcome: Outcome) -> dict[str, Any]:
    return {"median_us": outcome.median_us, "q1_us": outcome.q1_us, "q3_us": outcome.q3_us}


def _best(one: Found, run: Run) -> dict[str, Any]:
    winner, *others = one.ranking
    second = others[0] if others else None
    default = one.finals.get(one.problem.default) if one.problem.default else None
    return {
        **_named(one.problem),
        **_tried(winner),
        **_times(one.finals[winner]),
        "runner_up": {**_tried(second), "median_us": one.finals[second].median_us} if second else None,
        "default_us": default.median_us if default and default.status == OK else None,
        "trials": len(one.trials),
        "space": one.problem.space,
        "regret": one.regret,
        "certificate": run.certificates.to_json(one.certificate) if one.certificate else None,
    }


def _trials(one: Found, run: Run) -> list[dict[str, Any]]:
    return [
        {
            **_named(one.problem),
            **_tried(candidate),
            "status": trial.outcome.status,
            "reason": trial.outcome.reason,
            **_times(trial.outcome),
            "samples": trial.outcome.samples,
            "rung": trial.rung,
            "at_seconds": round(trial.at_seconds, 3),
            "compile_seconds": run.compile_seconds(one.problem, candidate),
        }
        for candidate, trial in one.trials.items()
    ]
