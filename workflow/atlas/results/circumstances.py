"""What differs between two sides beside their times: code, configs, versions, device, clocks, protocol."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..identity.needs import changed, sentence
from .collection import calls

_SOFTWARE = ("commit", "torch", "triton", "python", "cuda", "hip")
_DEVICE = ("device_name", "driver", "power_cap_w", "max_sm_clock_mhz", "max_memory_clock_mhz")
_BESIDE = {"gpus": "other GPUs of the host at work", "cores_busy": "share of its cores at work"}
_NOTABLE = 0.25
_READINGS = (("SM clock", "sm_clock_mhz", "MHz", 10.0), ("temperature", "temperature_c", "C", 5.0))
"""Medians that are told where they differ by more."""


def differing(before: Sequence[Any], after: Sequence[Any]) -> list[dict[str, str]]:
    """What changed between the runs of one kernel and GPU: dictionaries of ``what``, ``before`` and ``after``.

    ``before`` and ``after`` are entries of the collection, a run each.  Of several runs all values are named.
    """
    sides = ([entry.document for entry in before], [entry.document for entry in after])
    return [
        {"what": what, "before": ", ".join(old), "after": ", ".join(new)}
        for what, old, new in _facts(*sides)
        if old != new
    ]


def _facts(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any, Any]]:
    yield "code", [], _code(before[-1], after[-1])
    yield _values(before, after, "protocol", lambda one: one.get("protocol"))
    for key in _SOFTWARE:
        yield _values(before, after, key, lambda one, key=key: one["software"].get(key))
    for key in _DEVICE:
        yield _values(before, after, key, lambda one, key=key: one["device"].get(key))
    for key, what in _BESIDE.items():
        old, new = _mean(before, key), _mean(after, key)
        if old is not None and new is not None and abs(new - old) > _NOTABLE:
            yield what, [f"{old:.1f}"], [f"{new:.1f}"]
    names = sorted({name for one in (*before, *after) for name in calls(one)})
    for name in names:
        yield _values(before, after, f"configs of {name}", lambda one, name=name: calls(one).get(name))
    for what, key, unit, tolerance in _READINGS:
        old, new = _reading(before, key), _reading(after, key)
        if old and new and abs(new - old) > tolerance:
            yield what, [f"{old:.0f} {unit}"], [f"{new:.0f} {unit}"]
    old, new = (f"{100 * _throttled(side):.0f} %" for side in (before, after))
    yield "throttled rows", [old], [new]


def _values(before: Any, after: Any, what: str, value: Any) -> tuple[str, list[str], list[str]]:
    old, new = (
        list(dict.fromkeys(_shown(value(one)) for one in side if value(one) is not None)) for side in (before, after)
    )
    return what.replace("_", " "), old, new


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _code(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Which of the kernel's identities differ, in words."""
    then, now = before.get("identities"), after.get("identities")
    if then is None or now is None:
        return [] if before["kernel_digest"] == after["kernel_digest"] else ["the kernel's code changed"]
    names = changed("benchmark", then, now)
    return [sentence(names, then, now)] if names else []


def _reading(side: Sequence[Mapping[str, Any]], key: str) -> float | None:
    found = [row[key] for one in side for row in one["rows"] if row.get(key)]
    return statistics.median(found) if found else None


def _mean(side: Sequence[Mapping[str, Any]], key: str) -> float | None:
    found = [one["neighbours"][key] for one in side if one.get("neighbours", {}).get(key) is not None]
    return statistics.fmean(found) if found else None


def _throttled(side: Sequence[Mapping[str, Any]]) -> float:
    found = [bool(row.get("throttled")) for one in side for row in one["rows"] if row.get("median_us")]
    return statistics.fmean(found) if found else 0.0
