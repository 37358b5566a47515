"""What a run holds before it is anywhere: plain data, so that describing runs needs no MLflow."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORM = 5
"""Raised when runs are described in another way, so that trees written in the old way are replaced."""


@dataclass(frozen=True)
class Point:
    """One value of a metric's curve; ``milliseconds`` since the epoch, or None for the run's end."""

    value: float
    step: int
    milliseconds: int | None = None


@dataclass
class Run:
    """One run with its children.

    ``metrics`` hold a number, ``curves`` a metric's points; ``tables`` become JSON tables that the interface draws,
    ``files`` are copied as they are, by artifact path.  ``span`` is start and end in milliseconds since the epoch.
    """

    name: str
    tags: dict[str, str]
    span: tuple[int, int]
    failed: bool = False
    note: str = ""
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    children: list[Run] = field(default_factory=list)

    def walk(self) -> Iterator[Run]:
        """This run, then all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Tree:
    """The runs of one (kernel, GPU), or of one GPU's survey.

    ``key`` says which, ``digest`` changes with what was described: equal digests mean there is nothing to do.
    """

    key: str
    digest: str
    root: Run


def digest_of(*parts: Any) -> str:
    """A short SHA-256 of JSON values; the order of a mapping's keys does not matter."""
    text = json.dumps([FORM, *parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def span_of(document: Mapping[str, Any]) -> tuple[int, int]:
    """When a stage began and ended, in milliseconds since the epoch; the epoch itself for a document without date."""
    try:
        end = datetime.datetime.fromisoformat(document["software"]["date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        end = document["seconds"]
    return round((end - document["seconds"]) * 1000), round(end * 1000)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The entries that are finite numbers, to five digits: the interface shows every digit it is given."""
    return {
        metric_name(name): float(value if float(value).is_integer() else f"{value:.5g}")
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def metric_name(name: str) -> str:
    """The name with every character that MLflow refuses replaced by an underscore."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def words(values: Mapping[str, Any]) -> dict[str, str]:
    """The entries that are not None as text, as params and tags hold them; mappings as JSON."""
    return {
        name: json.dumps(value) if isinstance(value, Mapping | list) else str(value)
        for name, value in values.items()
        if value is not None and value != ""
    }
