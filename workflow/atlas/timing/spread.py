"""Median, quartiles, and how well the samples at hand determine the median."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from scipy.special import bdtr

CONFIDENCE = 0.95
SETTLED = 0.005
"""The median is settled when its confidence interval lies within this fraction of it on either side."""


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """(first quartile, median, third quartile), interpolated between neighbouring samples."""
    q1, median, q3 = np.quantile(samples, (0.25, 0.5, 0.75))
    return float(q1), float(median), float(q3)


@functools.cache
def _rank(count: int) -> int:
    """The 0-based rank r such that [x(r), x(count - 1 - r)] holds the median with the confidence; -1 if none does.

    The number of samples below the true median is binomial(count, 1/2) whatever the distribution (David and Nagaraja,
    Order Statistics, section 7.1).
    """
    below = bdtr(np.arange(count // 2), count, 0.5)  # at most so many of the samples lie below the median
    return int(np.count_nonzero(below <= (1 - CONFIDENCE) / 2)) - 1


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """The distribution-free confidence interval of the median; None for too few samples (under 6 at 95 %)."""
    rank = _rank(len(samples))
    if rank < 0:
        return None
    ordered = sorted(samples)
    return ordered[rank], ordered[len(ordered) - 1 - rank]


def settled(samples: Sequence[float]) -> bool:
    """True once more samples would hardly move the median."""
    interval = median_interval(samples)
    if interval is None:
        return False
    _, median, _ = quartiles(samples)
    low, high = interval
    return max(high - median, median - low) <= SETTLED * median
