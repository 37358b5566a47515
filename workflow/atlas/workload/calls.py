"""Read a file of calls, strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import AtlasError
from ..reading import strict
from ..reading.config import check

_EMPTY: dict[str, Any] = {
    "programs": [], "processes": 0, "software": {}, "devices": [], "timed_by": None, "seconds": 0.0, "left_out": 0,
    "calls": [], "cases": [],
}  # fmt: skip
_REMEDY = "python -m atlas watch writes such a file; config/README.md says what one written by hand holds"


def read(path: Path) -> dict[str, Any]:
    """The file's content, with every key; :class:`AtlasError` names file, key and remedy where it cannot be used."""
    try:
        document = strict.load_json(path)
    except FileNotFoundError:
        raise AtlasError(f"{path}: no such file of calls; {_REMEDY}") from None
    except strict.Unreadable as error:
        raise AtlasError(f"{path}: {error}; {_REMEDY}") from None
    try:
        check(document, "calls", str(path))
    except AtlasError as error:
        raise AtlasError(f"{error}; {_REMEDY}") from None
    return _EMPTY | document
