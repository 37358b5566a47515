"""The rule by which two sides of the same work are called faster, slower, same or undecided.

A side is one run of a benchmark, or several, each a process of its own.  A new process moves a median of the same code:
by 0.18 % in the median of cases, by 1.2 % at the 95th percentile and by 3 % at worst (docs/proving.md, repeatability).
No sample within a run tells this, so one run a side cannot decide a small difference.  The median of three runs can:
its tail is a third of that (a heavy tail dies with the median; of Student's t with 1.6 degrees of freedom, which has
these percentiles, to 0.36).  ``python -m proofs verdicts`` tries the rule on recorded samples.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHORT_US = 20.0
MARGIN, SHORT_MARGIN = 0.02, 0.10
"""What counts as a difference, of cases from 20 us on and of shorter ones: those of the same code came to just under a
tenth at the 95th percentile."""

BETWEEN = 0.012
"""How far two runs of the same code lie apart, at the 95th percentile of cases from 20 us on; for shorter ones in the
proportion of the margins."""
_THROTTLED = 3.0
"""So many times as far where the board lowered its clock in a run, or the clocks of the sides differ: peers of the same
code, of records of one GPU type on several days, lay 5.6 % apart at the 95th percentile instead of 2.0 %."""
_OF_SPREAD = 0.6
"""At least so much of the distance of the quartiles: peers whose quartiles were 2 to 5 % apart differed between runs by
2.4 % at the 95th percentile, those of 5 % and more by 5.1 %."""
_HEAPS = 0.10
"""The margin is half as much, too, where that is more; and as much from quartiles so far apart on, since the median of
two heaps of samples falls to either."""
_CLOCKS = 0.005
_TELLING, ENOUGH = 3, 5
"""From so many runs a side on they show by themselves how far they lie apart; and so many decide nearly every case."""
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """How two sides compare: ``step`` is time before over time after, below 1 is slower now.

    The 95 % interval of the step is ``low`` to ``high``.  ``peer_step`` is the median of the peers' own steps, None
    without peers that ran on both sides.  ``reason`` says why a difference is ``undecided``, else it is empty.
    """

    step: float
    low: float
    high: float
    peer_step: float | None
    verdict: str
    reason: str = ""


def difference(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    peers: Sequence[tuple[Sequence[float], Sequence[float]]] = (),
) -> Difference:
    """Compare the rows of one case, a row a run; ``peers``: for each that ran on both sides its medians in us.

    A case is ``slower`` where (a) the step passes the margin, (b) its whole interval passes a quarter of that, and (c)
    half of the margin remains after the peers' step is divided out.  ``faster`` likewise.  It is ``same`` where the
    whole interval, or what the peers leave of it, lies within the usual margin, else ``undecided``.
    """
    times = [[math.log(row["median_us"]) for row in side] for side in (before, after)]
    apart = sorted(new - old for old, new in itertools.product(*times))  # above 0 is slower
    shift = statistics.median(apart)
    short = max(row["median_us"] for row in (*before, *after)) < SHORT_US
    apart_within = max(map(_quartiles_apart, (*before, *after)))
    spread = _OF_SPREAD * apart_within
    usual = -math.log1p(-(SHORT_MARGIN if short else MARGIN))
    margin = max(usual, spread if apart_within > _HEAPS else spread / 2)
    known, why = _known(before, after, short, spread)
    k = _left_out(len(before), len(after))
    low, high = min(apart[k], shift - known), max(apart[-1 - k], shift + known)
    peer_shifts = [statistics.median(map(math.log, new)) - statistics.median(map(math.log, old)) for old, new in peers]
    of_peers = statistics.median(peer_shifts) if peer_shifts else None
    rest = shift - (of_peers or 0.0)
    least = min(shift, rest, key=abs) if shift * rest > 0 else 0.0
    verdict, reason = "undecided", why
    if shift >= margin and low >= margin / 4 and rest >= margin / 2:
        verdict, reason = "slower", ""
    elif -shift >= margin and -high >= margin / 4 and -rest >= margin / 2:
        verdict, reason = "faster", ""
    elif least + (high - shift) <= usual and least - (shift - low) >= -usual:
        verdict, reason = "same", ""
    elif abs(shift) >= margin and (low > 0 or high < 0):
        reason = "the peers moved as well"
    step = None if of_peers is None else math.exp(-of_peers)
    return Difference(math.exp(-shift), math.exp(-high), math.exp(-low), step, verdict, reason)


def _known(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], short: bool, spread: float
) -> tuple[float, str]:
    """The half-width below which no interval is claimed, and what would narrow it."""
    runs, rows = min(len(before), len(after)), (*before, *after)
    between = BETWEEN * (SHORT_MARGIN / MARGIN if short else 1.0)
    few = f"; {runs} run{'' if runs == 1 else 's'} a side, give {ENOUGH}" if runs < ENOUGH else ""
    reason = f"its runs lie as far apart{few}"
    if spread > between:
        between, reason = spread, f"its quartiles lie {100 * spread / _OF_SPREAD:.1f} % apart{few}"
    uneven = _uneven(before, after)
    if runs < _TELLING and (uneven or any(row.get("throttled") for row in rows)) and between < _THROTTLED * BETWEEN:
        between = _THROTTLED * BETWEEN
        reason = f"{'the clocks differ' if uneven else 'the board lowered its clock'}{few}"
    return between / (runs if runs >= _TELLING else 1 + 0.25 * (runs - 1)), reason


def _quartiles_apart(row: Mapping[str, Any]) -> float:
    return (row["q3_us"] - row["q1_us"]) / row["median_us"] if row.get("q3_us") else 0.0


def _uneven(*sides: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the SM clocks of the sides differ."""
    clocks = [[row["sm_clock_mhz"] for row in side if row.get("sm_clock_mhz")] for side in sides]
    if not all(clocks):
        return False
    first, second = map(statistics.median, clocks)
    return abs(math.log(first / second)) > _CLOCKS


@functools.cache
def _left_out(runs: int, others: int) -> int:
    """How many of the sorted differences between runs stay outside their median's interval, at either end.

    The interval of Hodges and Lehmann (Estimates of location based on rank tests, Ann. Math. Stat. 34, 1963): of all
    differences between a run of one side and one of the other as many are left out as the distribution of Mann and
    Whitney's U allows.  Too few runs for the confidence leave none out.
    """
    ways = _ways(runs, others)
    total, below, k = sum(ways), 0, 0
    while k < len(ways) // 2 and 2 * (below + ways[k]) <= (1 - _CONFIDENCE) * total:
        below += ways[k]
        k += 1
    return max(k - 1, 0)


@functools.cache
def _ways(runs: int, others: int) -> tuple[int, ...]:
    """In how many orders of so many runs the statistic U is 0, 1, 2, …"""
    if not runs or not others:
        return (1,)
    first, second = _ways(runs - 1, others), _ways(runs, others - 1)
    size = runs * others + 1
    padded = (0,) * others + first + (0,) * (size - others - len(first))
    return tuple(x + y for x, y in itertools.zip_longest(padded, second, fillvalue=0))
