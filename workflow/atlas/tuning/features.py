"""Configs as vectors, for a model of how long they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .candidates import Candidate

_ABSENT = -1.0
"""Stands for a parameter that a candidate's variant does not have; a logarithm of a count is never negative."""


def matrix(candidates: Sequence[Candidate]) -> np.ndarray:
    """A row for each candidate, a column for each thing in which they differ, float64.

    Block sizes, warps and stages act by their ratios, so positive numbers enter as log2; variants, words and truth
    values have a column for each value.
    """
    rows = [{"": candidate.variant, **candidate.config} for candidate in candidates]
    columns = [
        column for name in dict.fromkeys(name for row in rows for name in row) for column in _columns(name, rows)
    ]
    varying = [column for column in columns if len(set(column)) > 1]
    return np.array(varying, dtype=float).T if varying else np.zeros((len(rows), 1))


def scaled(features: np.ndarray) -> np.ndarray:
    """The columns brought to [0, 1], so that a distance weighs all parameters alike."""
    low, high = features.min(axis=0), features.max(axis=0)
    return (features - low) / np.where(high > low, high - low, 1.0)


def _columns(name: str, rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    values = [row.get(name) for row in rows]
    if all(value is None or _is_number(value) for value in values):
        positive = all(value is None or value > 0 for value in values)
        return [[_ABSENT if v is None else math.log2(v) if positive else float(v) for v in values]]
    words = list(dict.fromkeys(str(value) for value in values))
    return [[float(str(value) == word) for value in values] for word in words]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
