"""How much slower a pick is than the fastest config known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

RESOLVED = 0.005
"""Medians this close to each other count as alike whatever their intervals, as in the benchmark's verdicts."""

Timed = Mapping[str, Any]
"""One finalist: ``median_us``, and ``low_us`` and ``high_us``, the 95 % confidence interval of the median."""


def regret(pick: Timed, finalists: Collection[Timed]) -> float:
    """The pick's median over the smallest of all finalists, minus 1.

    The smallest of several noisy medians is on average below the truth, so this errs against the pick.
    """
    return pick["median_us"] / min(one["median_us"] for one in finalists) - 1


def alike(pick: Timed, finalists: Collection[Timed]) -> bool:
    """Whether the samples cannot tell the pick from the fastest: intervals overlap, or medians agree but for 0.5 %."""
    best = min(finalists, key=lambda one: one["median_us"])
    return pick["low_us"] <= best["high_us"] or regret(pick, finalists) <= RESOLVED


def share(values: Sequence[float], of: float) -> float | None:
    """The smallest of ``values`` that at least the fraction ``of`` of them does not exceed; None without values."""
    return sorted(values)[max(0, math.ceil(of * len(values)) - 1)] if values else None
