"""How much the times of two configs, and those of one config at two cases, have in common.

The logarithm of the ratio of two configs' times is taken for a Gaussian process.  It walks at random as sizes double,
a little with blocks, more with warps and stages, and says nothing across variants.  Nothing is fitted to a kernel: the
constants are the same for all.  They were chosen on the H200's records with cases left out
(``python -m proofs choice``); twice or half as much of one changes little.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .types import Config

SCALE = 0.3
"""Standard deviation of the logarithm of the times of two configs that have nothing in common."""

SATURATES = 0.2
"""Logarithm of a time over the best, from which on slow is slow: how slow says nothing of the configs near the best."""

REACH, FLAG, DTYPE, ORDER = 256.0, 128.0, 0.1, 8.0
"""Doublings over which timings lose touch; how many of them a flag, a dtype and an operand in another order count."""

ELSEWHERE = 0.5
"""How many doublings it counts that a timing is of another GPU of the same architecture.

Of 422 cases that the H200 and the H100 timed both, 2 leaves regrets of up to 6.3 % at the 95th percentile, this 4.8 %.
"""

WARPS, STAGES, NUMBER, WORD = 2.0, 4.0, 0.001, 0.5
"""How fast configs lose touch: with each doubling of warps, of stages, of other numbers; with a word or flag."""

NOISE, SHARED, TICK_US = 0.0025, 0.002, 0.4
"""Relative error of a timing; of the default's, which all of a case share; and microseconds, for short kernels."""

_NUMBERS = frozenset({int, float})
"""Types of numbers, of which a flag's is none; looked up, since a choice asks hundreds of times."""

Candidate = tuple[str, "Config"]
"""A variant's name and a config."""


class AtACase(Protocol):
    """What has a case: its dtype and sizes, and the GPU where that is another one than the call's."""

    dtype: str
    sizes: Mapping[str, Any]
    gpu: str


def alike(one: Candidate, other: Candidate) -> float:
    """How much the times of two configs have in common, from 0 to 1.

    Of a variant's older configs, whose space had another parameter, that one counts as a word.
    """
    if one[0] != other[0]:
        return 0.0
    apart = 0.0
    names = one[1] if one[1].keys() == other[1].keys() else {**one[1], **other[1]}
    for name in names:
        value, there = one[1].get(name), other[1].get(name)
        if value == there:
            continue
        if type(value) in _NUMBERS and type(there) in _NUMBERS:
            apart += _rate(name) * abs(math.log2(max(value, 0.5) / max(there, 0.5)))
        else:
            apart += WORD
    return math.exp(-apart)


def near(dtype: str, sizes: Mapping[str, Any], other: AtACase, gpu: str = "") -> float:
    """How much the times of one config have in common at two cases, from 0 to 1; ``gpu`` as in :class:`AtACase`."""
    apart, squares = (ELSEWHERE if gpu != other.gpu else 0.0), 0.0
    if sizes.get("layout") != other.sizes.get("layout"):
        orders = itertools.zip_longest(sizes.get("layout", ""), other.sizes.get("layout", ""), fillvalue="N")
        apart += ORDER * sum(mine != theirs for mine, theirs in orders)
    for name in sizes.keys() | other.sizes.keys():
        mine, theirs = sizes.get(name), other.sizes.get(name)
        if mine == theirs or name == "layout":
            continue
        if type(mine) in _NUMBERS and type(theirs) in _NUMBERS and mine and theirs:
            squares += math.log2(mine / theirs) ** 2
        else:
            apart += FLAG
    apart += math.sqrt(squares) + (DTYPE if dtype != other.dtype else 0.0)
    return math.exp(-apart / REACH)


@functools.cache
def _rate(name: str) -> float:
    """By the words in which Triton and the kernels name a config's parameters."""
    words = name.lower().split("_")
    return WARPS if "warps" in words else STAGES if "stages" in words else NUMBER
