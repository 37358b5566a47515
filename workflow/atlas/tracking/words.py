"""What is said of a run in any store alike: its tags, its points, and how a write ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from .runs import Point, Run

UNCHANGED, BUSY = "unchanged", "busy"
"""How a write ended where nothing was written: the tree is there, or somebody else is at it."""

PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
_TABLES = "mlflow.loggedArtifacts"
_MOST_CHARACTERS = 7900  # of a tag


def limited(text: str, most: int) -> str:
    """The text's beginning; a database refuses what is longer, and PostgreSQL the character that ends C's strings."""
    return text.replace("\0", "�")[:most]


def tags_of(run: Run, extra: Mapping[str, str]) -> dict[str, str]:
    """A run's tags, its description and list of tables among them."""
    tags = run.tags | dict(extra)
    if run.note:
        tags[NOTE] = run.note
    if run.tables:
        tags[_TABLES] = json.dumps([{"path": name, "type": "table"} for name in run.tables])
    return {key: limited(value, _MOST_CHARACTERS) for key, value in tags.items()}


def curves(run: Run) -> Iterator[tuple[str, Point]]:
    """All points of a run's metrics, each with its time."""
    end = run.span[1]
    for name, value in run.metrics.items():
        yield name, Point(value, 0, end)
    for name, points in run.curves.items():
        for point in points:
            yield name, Point(point.value, point.step, point.milliseconds or end)
