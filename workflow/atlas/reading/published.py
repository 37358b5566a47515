"""Load and check ``config/published.yaml``, figures of others, none without its source.  Imports no torch."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AtlasError
from .config import check, config_file, load_yaml

PUBLISHED_FILE = config_file("published.yaml")

_COLUMNS = {"us": "median_us", "GB/s": "gb_per_s", "TFLOP/s": "tflop_per_s"}


@dataclass(frozen=True)
class Point:
    """One figure: ``entry`` is the name of its block, ``value`` in ``unit``: ``us``, ``GB/s`` or ``TFLOP/s``.

    ``peer`` is the benchmark's provider that calls the same library, ``""`` where there is none.
    """

    entry: str
    source: str
    date: str
    gpu: str
    kernel: str
    direction: str
    dtype: str
    sizes: Mapping[str, Any]
    library: str
    version: str
    peer: str
    value: float
    unit: str
    note: str

    @property
    def column(self) -> str:
        """What a benchmark's row calls a figure of this unit: ``median_us``, ``gb_per_s`` or ``tflop_per_s``."""
        return _COLUMNS[self.unit]

    def us(self, bytes_moved: float, flops: float) -> float:
        """The microseconds of a call that moves so many bytes and does so many operations."""
        if self.unit == "us":
            return self.value
        return bytes_moved / (1e3 * self.value) if self.unit == "GB/s" else flops / (1e6 * self.value)


def load_published(path: Path = PUBLISHED_FILE) -> list[Point]:
    """The points of a file, none where there is no file; :class:`AtlasError` names file, key and remedy."""
    if not path.exists():
        return []
    entries = _with_dates_as_text(load_yaml(path))
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and not entry.get("source"):
            raise AtlasError(
                f"{path}: key {name!r}: missing key 'source': a figure is not shown without where it was read; "
                "give the address of the page, or remove the entry"
            )
    check(entries, "published", str(path))
    return [
        Point(
            entry=name,
            **{key: entry[key] for key in ("source", "date", "gpu", "kernel", "direction", "dtype", "unit")},
            **{key: entry.get(key, "") for key in ("library", "version", "peer", "note")},
            **point,
        )
        for name, entry in entries.items()
        for point in entry["points"]
    ]


def _with_dates_as_text(value: Any) -> Any:
    """YAML reads 2024-07-11 as a date."""
    if isinstance(value, dict):
        return {key: _with_dates_as_text(item) for key, item in value.items()}
    return value.isoformat() if isinstance(value, datetime.date) else value
