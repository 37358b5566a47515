"""Choosing rows of the tables for a figure, and saying in its subtitle where they come from."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from ..results.summary import KIND_WORDS, STALE
from ..results.verdict import PERFORMANCE

TIMED = ("ok", "stopped")
"""The trials that have a time; a search stops those that one sample shows to be far slower than the best."""

NO_PERFORMANCE = "No GPU was measured here and there is no record of one, so there is nothing to draw."


def performance(benchmark: pd.DataFrame, kernel: str | None = None) -> pd.DataFrame:
    """The timed rows of real GPUs, of one kernel or of all."""
    rows = benchmark[
        benchmark.kind.isin(PERFORMANCE) & benchmark.status.isin(["ok", "suspect"]) & benchmark.median_us.notna()
    ]
    return rows if kernel is None else rows[rows.kernel == kernel]


def mark(rows: pd.DataFrame) -> str:
    """``†`` for recorded rows, ``‡`` for stale ones, as the subtitle explains; both where both hold."""
    recorded = "†" if (rows.kind == "recorded").any() else ""
    return recorded + ("‡" if "stale" in rows and rows.stale.fillna(False).any() else "")


def origin(rows: pd.DataFrame) -> str:
    """Kind, GPU, date, driver and protocol of the rows: a subtitle, with the marks it needs explained."""
    alike: dict[str, list[str]] = {}
    for (kind, gpu), group in rows.groupby(["kind", "gpu"], sort=True):
        drivers = sorted(set(group.driver.dropna())) if "driver" in group else []
        words = f"{kind} {_span(group.date.dropna().str[:10])}".strip()
        words += f" with driver {' and '.join(drivers)}" if drivers else ""
        alike.setdefault(words, []).append(gpu)
    parts = [f"{', '.join(gpus)} {words}".replace(" ", "\N{NO-BREAK SPACE}") for words, gpus in alike.items()]
    protocols = sorted(set(rows.protocol.dropna())) if "protocol" in rows else []
    parts += [f"protocol\N{NO-BREAK SPACE}{' and '.join(protocols)}"] if protocols else []
    text = "\N{NO-BREAK SPACE}· ".join(parts)
    legend = []
    if (rows.kind == "recorded").any():
        legend.append(f"† {KIND_WORDS['recorded']}")
    if "stale" in rows and rows.stale.fillna(False).any():
        legend.append(f"‡ stale: {STALE}")
    return "\n".join([text, *(["   ".join(legend)] if legend else [])])


def _span(dates: pd.Series) -> str:
    if dates.empty:
        return ""
    first, last = dates.min(), dates.max()
    return first if first == last else f"{first} to {last}"


def binding_unit(rows: pd.DataFrame) -> tuple[str, str]:
    """Column and unit of the rate to show: TFLOP/s where a matmul roof binds any of the rows, else GB/s."""
    if rows.roof.fillna("").str.startswith("matmul").any():
        return "tflop_per_s", "TFLOP/s"
    return "gb_per_s", "GB/s"


def flags(sizes: str) -> str:
    """The part of a case that is a flag and no size, for a heading: ``causal``, ``layout=tn``."""
    found = json.loads(sizes)
    words = [
        (name if value else f"not {name}") if isinstance(value, bool) else f"{name}={value}"
        for name, value in found.items()
        if isinstance(value, bool | str)
    ]
    return ", ".join(words)


class CaseAxis:
    """The cases of one row of panels along x: numbers where a single size varies, else evenly spaced labels."""

    def __init__(self, sizes: Sequence[str], cost: Sequence[float]):
        ordered = sorted(dict.fromkeys(sizes), key=dict(zip(sizes, cost, strict=True)).get)
        cases = [{k: v for k, v in json.loads(s).items() if not isinstance(v, bool | str)} for s in ordered]
        names = [n for n in cases[0] if all(n in case for case in cases)] if cases else []
        varying = [n for n in names if len({case[n] for case in cases}) > 1]
        tied = len(varying) > 1 and all(len({case[n] for n in varying}) == 1 for case in cases)
        shown = varying[:1] if tied else varying or names  # square problems, m = n = k, have one size
        # What only some cases have, as a row's pitch, is named on these.
        more = [[f"{n}={_short(case[n])}" for n in case if n not in names] for case in cases]
        self.position = {size: float(i) for i, size in enumerate(ordered)}
        self.labels = [
            " ".join(["\u00d7".join(_short(case[n]) for n in shown), *own]).strip()
            for case, own in zip(cases, more, strict=True)
        ]
        fixed = [f"{n}={_short(cases[0][n])}" for n in names if n not in varying] if varying else []
        title = (" = " if tied else " \u00d7 ").join(varying or names)
        self.title = title + (f"   ({', '.join(fixed)})" if fixed else "")

    def apply(self, axes, show_labels: bool = True) -> None:
        """Set the ticks of a panel; labels slant where they are long or many."""
        axes.set_xlim(-0.4, max(len(self.labels) - 0.6, 0.6))
        axes.set_xticks(range(len(self.labels)))
        slant = self.slanted
        axes.set_xticklabels(
            self.labels if show_labels else [], rotation=35 if slant else 0, ha="right" if slant else "center",
            rotation_mode="anchor",
        )  # fmt: skip

    @property
    def slanted(self) -> bool:
        """True where the labels would touch if they stood level."""
        return sum(len(label) + 2 for label in self.labels) > 42

    @property
    def depth(self) -> float:
        """Inches that the labels take below the axis: a line, or as deep as the longest slanted one reaches."""
        return 0.12 + 0.045 * max(map(len, self.labels)) if self.slanted else 0.2


def _short(value: object) -> str:
    """``4Ki`` for 4096 and the like, where a binary unit is exact and shorter; other values as they are."""
    if isinstance(value, int) and value >= 2**14:
        for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return str(value)
