"""What is sampled, in which order, and what the samples come to."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr

PROTOCOL = "timing/2"
"""Name and version of the method; a change that moves figures raises the version."""

Thunk = Callable[[], Any]
"""One call of the work to be timed; its result is dropped."""


@dataclass(frozen=True)
class Timing:
    """One measurement, times in microseconds.

    ``samples_us`` are all samples in the order taken.  Clock, temperature and power are None where the board does not
    tell them.  ``throttled_by``: why the board lowered its clock meanwhile, in words; empty if it did not.  ``queued``
    is False where launch latency could not be kept out of the samples.
    """

    median_us: float
    q1_us: float
    q3_us: float
    samples_us: tuple[float, ...]
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: tuple[str, ...] = ()
    queued: bool = True

    @property
    def throttled(self) -> bool:
        """The board lowered its clock meanwhile."""
        return bool(self.throttled_by)


def rounds(names: Sequence[str]) -> Iterator[list[str]]:
    """Orders of ``names`` without end, a fresh one each round.

    What ran before a sample moves it: by up to 0.4 % where providers kept their predecessors from round to round (H200,
    softmax of 8192 x 8192).  Plain shuffles would balance that in the long run only, and a tuner's final has 15 rounds.
    So rounds come in blocks, each a Williams design (E. J. Williams, Experimental designs balanced for the estimation
    of residual effects of treatments, Aust. J. Sci. Res. A 2, 1949, 149-168): within a block of ``len(names)`` rounds
    (twice as many for an odd number of names) every name takes every place equally often and follows every other name
    equally often.  Who is who in the design, and the order of its rounds, is drawn anew for each block.

    The draw is seeded with the names in their order: the same thunks are sampled in the same order on every machine.
    """
    generator = random.Random("\n".join(names))
    design = williams(len(names))
    while True:
        drawn = generator.sample(list(names), len(names))
        for row in generator.sample(design, len(design)):
            yield [drawn[i] for i in row]


def williams(count: int) -> list[list[int]]:
    """A Williams design of ``count`` treatments, a row a round: ``count`` rows where it is even or 1, else twice."""
    zigzag = [0]
    for step in range(1, count):
        zigzag.append((zigzag[-1] + (step if step % 2 else -step)) % count)
    square = [[(i + shift) % count for i in zigzag] for shift in range(count)]
    return square if count % 2 == 0 or count == 1 else square + [row[::-1] for row in square]


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
