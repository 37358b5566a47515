"""Tables of the report as plain data, and how its numbers are written; the template escapes every text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..results.subject import label

DASH = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the value it sorts by, a smaller second line, a class (``num``, ``bad``, ``badge ok``), the
    place of the page that its text leads to."""

    text: str
    sort: str | float = ""
    note: str = ""
    style: str = ""
    link: str = ""


@dataclass(frozen=True)
class Grid:
    """One table; without rows its place is taken by ``empty``, a sentence."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str = ""
    caption: str = ""
    numeric: frozenset[int] = field(default=frozenset())


def text(value: Any, note: str = "", style: str = "") -> Cell:
    """A cell of text; a dash for nothing."""
    return Cell(DASH if missing(value) or value == "" else str(value), note=note, style=style)


def number(value: Any, form: str = "{:.3g}", note: str = "", style: str = "") -> Cell:
    """A cell of a number written by ``form``; sorts by value, nothing first."""
    if missing(value):
        return Cell(DASH, sort=float("-inf"), note=note, style=f"num {style}".strip())
    return Cell(form.format(float(value)), sort=float(value), note=note, style=f"num {style}".strip())


def badge(status: str, note: str = "", label: str = "") -> Cell:
    """A status or kind, coloured and in words."""
    return Cell(label or status, note=note, style=f"badge {status}")


def missing(value: Any) -> bool:
    """True for None, NaN and pandas' NA."""
    return value is None or (not isinstance(value, str | Mapping | list) and bool(pd.isna(value)))


def rate(value: float, unit: str) -> str:
    """``3,920 GB/s`` or ``97.5 TFLOP/s``."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """``31 s``, ``3.2 min``, ``1.4 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def microseconds(value: float) -> str:
    """A time of three digits, or of all before the point, in the unit that suits it."""
    number, unit = (value, "\N{MICRO SIGN}s") if value < 999.5 else (value / 1000, "ms")
    return f"{number:,.0f} {unit}" if number >= 99.95 else f"{number:.3g} {unit}"


def config_words(config: str | Mapping[str, Any] | None) -> str:
    """``BLOCK=128 num_warps=8`` of a config or its JSON."""
    return "" if missing(config) else label(config)


def listed(names: Sequence[str], most: int = 6) -> str:
    """``a, b and c``; a long list ends in how many more there are."""
    names = list(names)
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
