"""The counters of one call, out of those of its launches; and how two calls differ, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = Mapping[str, Any]
"""A counter's value by name, None where ncu gave none; ``stall`` is the heaviest reason of the longest launch."""

_SUMS = ("duration_us", "dram_read_bytes", "dram_write_bytes", "shared_conflicts")
_MEANS = ("dram_percent", "l2_hit_percent", "tensor_percent", "issue_percent", "occupancy_percent")


@dataclass(frozen=True)
class Column:
    """A counter as it is shown: its head, its value for a person, and how two of it are compared."""

    name: str
    head: str
    shown: Callable[[float], str]
    ratio: bool
    """Whether a step is a quotient; else it is a difference."""

    def cell(self, call: Call, before: Call | None) -> str:
        """The value, with the step from ``before`` in brackets: ``263 us (0.42x)``, ``74 % (+12)``."""
        value, other = call.get(self.name), before and before.get(self.name)
        if value is None:
            return ""
        if other is None or (self.ratio and not other):
            return self.shown(value)
        step = f"{value / other:.2f}x" if self.ratio else f"{value - other:+.0f}"
        return f"{self.shown(value)} ({step})"


def _bytes(value: float) -> str:
    return f"{value / 2**20:,.{0 if value > 100 * 2**20 else 2}f} MiB"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


COLUMNS = (
    Column("duration_us", "time", lambda value: f"{value:,.4g} us", True),
    Column("dram_read_bytes", "DRAM read", _bytes, True),
    Column("dram_write_bytes", "written", _bytes, True),
    Column("l2_hit_percent", "L2 hits", _percent, False),
    Column("tensor_percent", "tensor cores", _percent, False),
    Column("occupancy_percent", "occupancy", _percent, False),
    Column("registers", "registers", "{:.0f}".format, False),
    Column("shared_conflicts", "bank conflicts", "{:,.0f}".format, True),
)
"""What a step of a ladder is judged by."""


def of_call(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a call's launches come to: time, bytes and conflicts add up, shares are means by time, registers the most.

    A counter that a launch lacks is None, as its sum would be too small.
    """
    longest = max(launches, key=lambda one: one["duration_us"])
    found: dict[str, Any] = {name: _total([one.get(name) for one in launches]) for name in _SUMS}
    for name in _MEANS:
        weighed = [None if one.get(name) is None else one[name] * one["duration_us"] for one in launches]
        total = _total(weighed)
        found[name] = None if total is None or not found["duration_us"] else total / found["duration_us"]
    found["registers"] = max((one["registers"] for one in launches if one.get("registers") is not None), default=None)
    return found | {"stall": next(iter(longest["stalls"]), None), "launches": len(launches)}


def dram_bytes(call: Call) -> float | None:
    """What the device's memory moved; None where that was not counted."""
    return _total([call["dram_read_bytes"], call["dram_write_bytes"]])


def _total(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(values)
