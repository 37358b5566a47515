"""What the guided strategy expects of configs that were not measured.

A Gaussian process of log time: a Matern 5/2 kernel with a length scale for each parameter, and noise, all fitted to
what was measured.  What a config is worth is its expected improvement (Jones, Schonlau and Welch, J. Global Optim. 13,
1998).

An ensemble of extremely randomised trees was tried in its place, for the cliffs of kernel spaces: on those of
docs/tuning.md it took twice the trials to a larger regret, since between two measured configs it sees no slope.
Scikit-learn rather than Optuna: a space is a finite list of configs, each to be asked for once and in batches, while
Optuna's samplers draw from ranges and repeat themselves; and MLflow needs scikit-learn anyway.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from ..candidates import Candidate

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


def spread_out(places: np.ndarray, first: Sequence[int], count: int, luck: Sequence[float]) -> list[int]:
    """``first`` and then, one by one, what is far from all chosen so far, until ``count`` rows are chosen.

    Distance alone would pick corners, the worst of a space; so each distance is weighed by the row's luck, from 0 to 1.
    """
    chosen = list(first)
    distance = np.full(len(places), np.inf)
    for index in chosen:
        distance = np.minimum(distance, np.linalg.norm(places - places[index], axis=1))
    while len(chosen) < count:
        distance[chosen] = -1.0  # so that none is chosen twice, however near the others are
        chosen.append(int(np.argmax(distance * np.asarray(luck))))
        distance = np.minimum(distance, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return chosen


def expected_gain(
    known: np.ndarray, slowness: Sequence[float], asked: np.ndarray, kernel: Any = None
) -> tuple[list[float], Any]:
    """The improvement on the best expected of each row of ``asked``, as a fraction of it; and the fitted kernel.

    ``known`` has a row for each measured config, ``slowness`` its log time; ``kernel`` is the one fitted to the batch
    before, where this fit begins.
    """
    # Only where a space needs it: it takes a second.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from threadpoolctl import threadpool_limits

    if kernel is None:
        lengths = np.ones(known.shape[1])
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(lengths, (0.1, 20.0), nu=2.5) + WhiteKernel(
            1e-3, (1e-6, 0.1)
        )
    target = np.asarray(slowness)
    centre, scale = target.mean(), target.std() or 1.0
    # Matrices this small only lose by threads, and the other cores are the compilers'.
    with warnings.catch_warnings(), threadpool_limits(1):
        # A parameter without influence drives its length scale to the bound, as it should.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel).fit(known, (target - centre) / scale)
        mean, spread = model.predict(asked, return_std=True)
        # The best by the model, not as measured: of many noisy figures the lowest is a lucky one.
        best = model.predict(known).min()
    spread = np.sqrt(np.maximum(spread**2 - model.kernel_.k2.noise_level, 1e-12))
    z = (best - mean) / spread
    gain = scale * spread * (z * ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    return gain.tolist(), model.kernel_
