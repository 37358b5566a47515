"""How long what took so long on one GPU should take on another.

A time is a launch, and then work at the roof beside other work, of which the longer hides most of the other::

    us = floor + (roof^p + other^p)^(1/p)

The roof's time is known on both GPUs.  The other's is what the formula leaves on the first.  Nobody knows what bounds
it: if instructions, it goes as SMs times clock; if what bounds the roof, too (data moved twice), as that.  The
expectation lies between, and the interval reaches from one to the other, widened by what else may be off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..benchmarking.roofs import Bound, Cost, bound
from .knowledge import Known

OVERLAP = 3.0
"""p: 1 would say that nothing is hidden; chosen on the H200 and the H100, whose memory differs and nothing else."""

NEAR, FAR, FOREIGN = 0.05, 0.15, 0.3
"""Standard error of the logarithm beside all that is known: within an architecture, a vendor, and beyond."""

FLOOR_ERROR_US = 0.4
"""Of launches: by drivers and hosts more than by GPUs."""

SIDES = 1.645
"""Standard errors to either side: nine of ten."""

_LEAST_SHARE = 0.05
"""Of a time that is at least work, however short."""


@dataclass(frozen=True)
class Span:
    """Expected microseconds, and those between which nine of ten should lie; the roof that binds, and its time."""

    us: float
    low_us: float
    high_us: float
    roof: Bound | None


def scaled(
    us: float, error: float, cost: Cost, dtype: str, source: Known, target: Known, instruction: str = ""
) -> Span:
    """What takes ``us`` on ``source``, give or take ``error`` of its logarithm, on ``target``.

    ``instruction`` is what products become there, where a build says so.
    """
    work = max(us - source.floor_us, _LEAST_SHARE * us)
    there, _ = target.through(instruction or None, dtype)
    here, _ = source.through(None, dtype)
    first, second = bound(cost, dtype, here), bound(cost, dtype, there)
    issued = source.issue / target.issue
    if first is None or second is None:
        middle, ends = work * issued, (work * issued, work * issued)
    else:
        at_roof = min(first.roof_us, work)
        other = (work**OVERLAP - at_roof**OVERLAP) ** (1 / OVERLAP)
        roof = second.roof_us * at_roof / first.roof_us
        like = second.roof_us / first.roof_us
        low, middle, high = (
            _together(roof, other * factor)
            for factor in (min(like, issued), math.sqrt(like * issued), max(like, issued))
        )
        ends = low, high
    spread = SIDES * math.hypot(error, _distance(source, target), source.spread, target.spread)
    launch = SIDES * FLOOR_ERROR_US
    return Span(
        us=target.floor_us + middle,
        low_us=max(target.floor_us - launch, 0.0) + ends[0] * math.exp(-spread),
        high_us=target.floor_us + launch + ends[1] * math.exp(spread),
        roof=second,
    )


def _together(roof: float, other: float) -> float:
    return (roof**OVERLAP + other**OVERLAP) ** (1 / OVERLAP)


def _distance(source: Known, target: Known) -> float:
    if source.gpu.backend != target.gpu.backend:
        return FOREIGN
    return NEAR if source.gpu.arch == target.gpu.arch else FAR
