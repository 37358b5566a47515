"""What a document states of itself, from its first lines: many are asked while the workflow is parsed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..reading import strict

_BYTES = 8192
"""Documents begin with their envelope, which is a few thousand bytes long."""

_WORD = r'"{}"\s*:\s*"([^"]*)"'
_WORDS = {key: re.compile(_WORD.format(key)) for key in ("stage", "status", "date", "code")}
_IDENTITIES = re.compile(r'"identities"\s*:\s*(\{[^}]*\})')
_END = re.compile(r'"seconds"\s*:')


@dataclass(frozen=True)
class Head:
    """A document's stage, status, date, the identities it is true of, and that of the code which wrote it.

    None where it does not state one, or cannot be read: the stages that read it whole say what is wrong with it.
    """

    stage: str | None = None
    status: str | None = None
    date: str | None = None
    identities: dict[str, str] | None = None
    code: str | None = None


def head(path: Path) -> Head:
    """The head of the document at ``path``; of one that is missing, empty."""
    if not path.is_file():
        return Head()
    try:
        with path.open(errors="replace") as file:
            text = file.read(_BYTES)
    except OSError:
        return Head()
    if not _END.search(text):  # an envelope in another order, or one with a very long reason
        return _whole(path)
    found = {key: match[1] for key, pattern in _WORDS.items() if (match := pattern.search(text))}
    identities = _IDENTITIES.search(text)
    try:
        return Head(**found, identities=json.loads(identities[1]) if identities else None)
    except json.JSONDecodeError:
        return _whole(path)


def _whole(path: Path) -> Head:
    try:
        document: Any = strict.load_json(path)
        found = {key: document.get(key) for key in ("stage", "status", "identities", "code")}
        return Head(**found, date=document["software"].get("date"))
    except (strict.Unreadable, FileNotFoundError, KeyError, TypeError, AttributeError):
        return Head()
