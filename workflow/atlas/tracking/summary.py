"""What the last tracking said of itself in ``mlflow/tracked.json``; imports no MLflow, for a workflow being parsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def last(results: Path) -> dict[str, Any]:
    """The summary; empty where there is none that can be read."""
    try:
        found = json.loads((results / "mlflow" / "tracked.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def missed(results: Path) -> int:
    """How many trackings found their server away so far: it grows with each, and a tracking that succeeds keeps it."""
    return int(last(results).get("missed", 0))


def away(results: Path) -> str:
    """Why the last tracking left its documents for later; empty where it did not."""
    return str(last(results).get("away", ""))
