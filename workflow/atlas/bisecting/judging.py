"""Is a tree slower than the good one?  Both are measured in turns, each time in a fresh process, and compared."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..host.environment import python_path
from ..results.differences import Difference, difference

MEASURE = Path(__file__).with_name("measure.py")
_SECONDS = 600.0
"""What one process may take, compiling included."""


class Unmeasured(Exception):
    """A tree that cannot be timed: it does not import, lacks the kernel or the case, or its launch fails."""


@dataclass(frozen=True)
class Subject:
    """What is timed: a tree of the project and the Python that runs it."""

    tree: str
    python: str


@dataclass(frozen=True)
class Question:
    """One case, how many runs a side, and the good side.

    ``asked`` is what :mod:`.measure` is asked; ``script`` measures, ``environment`` names the device to it.
    """

    asked: Mapping[str, Any]
    good: Subject
    runs: int
    script: str = str(MEASURE)
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The question as another process reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_json(text: str) -> Question:
        """The question that :meth:`to_json` wrote."""
        fields = json.loads(text)
        return Question(**fields | {"good": Subject(**fields["good"])})


def judged(question: Question, subject: Subject) -> Difference:
    """The good side against ``subject``, in turns: which goes first alternates.  Raises :class:`Unmeasured`."""
    rows: dict[Subject, list[Mapping[str, Any]]] = {question.good: [], subject: []}
    for number in range(question.runs):
        order = (question.good, subject) if number % 2 == 0 else (subject, question.good)
        for one in order:
            rows[one].append(_run(question, one))
    before, after = rows[question.good], rows[subject]
    names = [name for name in before[0]["peers"] if all(name in row["peers"] for row in (*before, *after))]
    peers = [tuple([row["peers"][name] for row in side] for side in (before, after)) for name in names]
    return difference(before, after, peers)


def _run(question: Question, subject: Subject) -> Mapping[str, Any]:
    """One process' figures."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment = inherited | dict(question.environment) | {"PYTHONPATH": python_path(Path(subject.tree))}
    command = [subject.python, "-P", question.script, json.dumps(dict(question.asked))]
    try:
        done = subprocess.run(
            command, cwd=subject.tree, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unmeasured(f"{subject.python}: {error}") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Unmeasured(said[-1] if said else f"ended with status {done.returncode}")
    return json.loads(lines[-1])
