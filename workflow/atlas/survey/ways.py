"""The best of several ways: the rule by which every throughput roof is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..timing import Clock, Timing
from ..timing.samples import Thunk

FINALISTS = 3
_FINAL = {"min_seconds": 0.1, "max_samples": 50}

UNITS = {"GB/s": 1e3, "TFLOP/s": 1e6}
"""How many bytes or operations in a microsecond are one of the unit."""


@dataclass(frozen=True)
class Way:
    """One way to reach a roof: what is run, in words, and the bytes or operations of one call."""

    how: str
    thunk: Thunk
    amount: float


Group = Callable[[], list[Way]]
"""Makes ways over the same buffers; called when it is their turn, so that one group's buffers exist at a time."""


@dataclass(frozen=True)
class _Best:
    how: str
    rate: float
    timing: Timing


def best(clock: Clock, name: str, unit: str, groups: Iterable[Group]) -> dict[str, Any]:
    """The survey's row ``name``: the highest rate that any way reaches.

    All ways of a group are screened and its finalists measured in turns, before the next group is made.  A way that
    raises is left out; where none is left, the row says why.
    """
    found: list[_Best] = []
    failures: dict[str, None] = {}
    for group in groups:
        try:
            found += _measured(clock, unit, group(), failures)
        except Exception as error:
            failures[_words(error)] = None
    if not found:
        return missing(name, unit, "; ".join(failures), "failed") if failures else missing(name, unit, "no way to it")
    top = max(found, key=lambda each: each.rate)
    return row(name, top.rate, unit, f"{top.how}; the best of {len(found)} measured", top.timing)


def _measured(clock: Clock, unit: str, ways: list[Way], failures: dict[str, None]) -> list[_Best]:
    screened: list[tuple[float, Way]] = []
    for way in ways:
        try:
            screened.append((way.amount / clock.screen(way.thunk).median_us, way))
        except Exception as error:
            failures[f"{way.how}: {_words(error)}"] = None
    screened.sort(key=lambda item: item[0], reverse=True)
    finalists = {way.how: way for _, way in screened[:FINALISTS]}
    timings = clock.interleave({how: way.thunk for how, way in finalists.items()}, **_FINAL)
    scale = UNITS[unit]
    return [_Best(how, way.amount / timings[how].median_us / scale, timings[how]) for how, way in finalists.items()]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def row(name: str, value: float, unit: str, how: str, timing: Timing | None = None) -> dict[str, Any]:
    """A roof as the document holds it."""
    fields = {"name": name, "value": value, "unit": unit, "how": how, "status": "ok", "reason": ""}
    if timing is not None:
        fields |= {
            "median_us": timing.median_us,
            "q1_us": timing.q1_us,
            "q3_us": timing.q3_us,
            "samples": len(timing.samples_us),
            "sm_clock_mhz": timing.sm_clock_mhz,
            "temperature_c": timing.temperature_c,
            "power_w": timing.power_w,
        }
        if timing.throttled:
            fields["reason"] = f"the board lowered its clock while this was measured: {', '.join(timing.throttled_by)}"
    return fields


def missing(name: str, unit: str, reason: str, status: str = "unsupported") -> dict[str, Any]:
    """The row of a roof that this GPU does not have."""
    return {"name": name, "value": None, "unit": unit, "how": "", "status": status, "reason": reason}
