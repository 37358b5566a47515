"""The chart on top: how fast every GPU is beside a chosen one, kernel by kernel, by what binds the cases.

Kinds are never averaged together.  What was measured or recorded, what is predicted and what others published are marks
of their own, so a row of any of these kinds appears by being in a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..results.differences import SHORT_US
from ..results.verdict import PERFORMANCE

Tables = dict[str, pd.DataFrame]

BOUNDS = {
    "memory": "bound by memory",
    "compute": "bound by arithmetic",
    "launch": f"under {SHORT_US:.0f} \N{MICRO SIGN}s",
}
"""What binds a case on the chosen GPU: its roof, or the launch where it takes less than 20 us there."""

_CASE = ["kernel", "direction", "dtype", "sizes"]
_TIMES = ["median_us", "gb_per_s", "tflop_per_s"]


@dataclass(frozen=True)
class Mark:
    """One GPU at one kernel's cases of one bound, all of one kind.

    ``times``: how many times as fast as the chosen GPU, geometric mean over ``cases``; of a prediction ``low`` to
    ``high``.  ``allowed``: the same of the roofs that bind these cases, NaN where either GPU has none, and of cases
    that the launch binds.
    """

    kernel: str
    bound: str
    gpu: str
    kind: str
    times: float
    low: float
    high: float
    allowed: float
    cases: int


def gpus(tables: Tables) -> list[str]:
    """The GPUs that others can be set against, the one with most kernels and then most bandwidth first."""
    timed = _timed(tables)
    kernels, roofs = timed.groupby("gpu").kernel.nunique(), _roofs(tables["survey"])
    return sorted(kernels.index, key=lambda gpu: (-kernels[gpu], -roofs.get((gpu, "copy"), 0.0), gpu))


def every_gpu(tables: Tables) -> list[str]:
    """All that have a mark, those that were timed first."""
    return list(dict.fromkeys([*gpus(tables), *sorted(_candidates(tables).gpu.unique())]))


def marks(tables: Tables, chosen: str) -> list[Mark]:
    """Every mark beside the chosen GPU, which must be of :func:`gpus`."""
    timed, roofs = _timed(tables), _roofs(tables["survey"])
    own = timed[timed.gpu == chosen]
    own = own.assign(bound=np.where(own.median_us < SHORT_US, "launch", _bound(own.roof)))
    pairs = _candidates(tables).merge(
        own[[*_CASE, "bound", "roof", *_TIMES]], on=_CASE, suffixes=("", "_chosen")
    )  # fmt: skip
    times = pairs.median_us_chosen / pairs.median_us
    for rate in ("tflop_per_s", "gb_per_s"):  # others publish rates
        times = times.fillna(pairs[rate] / pairs[f"{rate}_chosen"])
    allowed = [
        _allowed(roofs, gpu, chosen, roof if bound != "launch" else None)
        for gpu, roof, bound in zip(pairs.gpu, pairs.roof, pairs.bound, strict=True)
    ]
    logs = pd.DataFrame({
        "kernel": pairs.kernel, "bound": pairs.bound, "gpu": pairs.gpu,
        "kind": pairs.kind.replace("recorded", "measured"), "times": np.log(times.astype(float)),
        "low": np.log((pairs.median_us_chosen / pairs.high_us).astype(float)),
        "high": np.log((pairs.median_us_chosen / pairs.low_us).astype(float)),
        "allowed": np.log(np.array(allowed, float)), "cases": 1.0,
    })  # fmt: skip
    logs = logs[logs.times.notna()]
    groups = logs.groupby(["kernel", "bound", "gpu", "kind"])
    means = groups[["times", "low", "high", "allowed"]].mean().map(np.exp)
    return [
        Mark(*key, row.times, row.low, row.high, row.allowed, int(count))
        for (key, row), count in zip(means.iterrows(), groups.size(), strict=True)
    ]


def overall(found: list[Mark], gpu: str, bound: str) -> tuple[float, float, int] | None:
    """Of a GPU's measured marks of one bound: times as fast, what the roofs allow (NaN: not known), and the cases.

    Each kernel weighs the same.  None where the GPU has no such mark.
    """
    own = [mark for mark in found if (mark.gpu, mark.bound, mark.kind) == (gpu, bound, "measured")]
    if not own:
        return None
    allowed = [np.log(mark.allowed) for mark in own if not np.isnan(mark.allowed)]
    times = float(np.exp(np.mean([np.log(mark.times) for mark in own])))
    return times, float(np.exp(np.mean(allowed))) if allowed else float("nan"), sum(mark.cases for mark in own)


def _timed(tables: Tables) -> pd.DataFrame:
    """The fastest right variant of every case on every GPU that ran it."""
    rows = tables["benchmark"]
    rows = rows[rows.kind.isin(PERFORMANCE) & rows.best.fillna(False) & rows.median_us.notna()]
    return rows[["gpu", "kind", *_CASE, "roof", *_TIMES]]


def _candidates(tables: Tables) -> pd.DataFrame:
    """All that a mark is made of: the timed rows, and what the tables hold of predictions and published figures."""
    parts = [_timed(tables), *(tables[name] for name in ("predictions", "published") if name in tables)]
    columns = ["gpu", "kind", *_CASE, *_TIMES, "low_us", "high_us"]
    whole = pd.concat(
        [part.reindex(columns=columns) for part in parts if len(part)] or [parts[0].reindex(columns=columns)]
    )
    return whole.astype(dict.fromkeys([*_TIMES, "low_us", "high_us"], "float64"))


def _bound(roofs: pd.Series) -> np.ndarray:
    return np.where(roofs.fillna("").str.startswith("matmul"), "compute", "memory")


def _roofs(survey: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By GPU and roof its value: as measured, and under ``peak of <roof>`` the datasheet's."""
    rows = survey[survey.value.notna()]
    names = {"bandwidth": "copy"}
    return {
        (row.gpu, f"peak of {names.get(row.roof, row.roof)}" if row.kind == "published" else row.roof): row.value
        for row in rows.itertuples()
    }


def _allowed(roofs: dict[tuple[str, str], float], gpu: str, chosen: str, roof: str | None) -> float:
    """Quotient of two GPUs' roofs, both measured or both of the datasheet; NaN where there are none."""
    for name in (roof, f"peak of {roof}"):
        ours, theirs = roofs.get((gpu, name)), roofs.get((chosen, name))
        if ours and theirs:
            return ours / theirs
    return float("nan")
