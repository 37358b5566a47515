"""What ptxas says with ``-v``: registers, spills and shared memory of each entry function."""

from __future__ import annotations

import re
from typing import Any

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_\w+'")
_FIGURES = {
    "registers": re.compile(r"\bUsed (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


def usage(said: str) -> list[dict[str, Any]]:
    """A row for each entry function, sorted by name; what ptxas does not mention is 0, but for registers None."""
    parts = _ENTRY.split(said)[1:]
    rows = [{"name": name, **_figures(text)} for name, text in zip(parts[::2], parts[1::2], strict=True)]
    return sorted(rows, key=lambda row: row["name"])


def _figures(text: str) -> dict[str, int | None]:
    found = {key: pattern.search(text) for key, pattern in _FIGURES.items()}
    return {key: int(match[1]) if match else (None if key == "registers" else 0) for key, match in found.items()}
