"""Choosing rows of the tables for a figure, and saying in its subtitle where they come from."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from ..results.summary import KIND_WORDS, STALE
from ..results.verdict import PERFORMANCE
from .sheet import LineStyle, hues, label_room

TIMED = ("ok", "stopped")
"""The trials that have a time; a search stops those that one sample shows to be far slower than the best."""

_SHOWN = ["kind", "gpu", "kernel", "direction", "dtype", "sizes", "status", "date", "stale"]
COLUMNS = {
    "benchmark": [
        *_SHOWN, "family", "provider", "provider_kind", "best", "peer", "weak", "median_us", "bytes", "flops",
        "gb_per_s", "tflop_per_s", "roof", "roof_fraction", "speedup", "driver", "protocol", "identity",
    ],
    "trials": [*_SHOWN, "variant", "config", "best", "median_us", "at_seconds", "driver", "protocol"],
    "build": [
        *_SHOWN, "arch", "variant", "default", "registers", "spill_bytes", "shared_bytes", "matrix_instruction",
        "reason", "scope", "triton",
    ],
    "profile": [
        "kind", "gpu", "kernel", "direction", "dtype", "sizes", "provider", "provider_kind", "identity",
        "dram_read_bytes", "dram_write_bytes",
    ],
    "survey": ["kind", "gpu", "roof", "value", "unit"],
    "beyond": ["kind", "gpu", "kernel", "mode", "ratio", "driver", "protocol", "date", "stale"],
    "coverage": ["kernel", "gpu", "stage", "kind", "status", "reason", "seconds", "stale", "date"],
}  # fmt: skip
"""What figures read of each table: the rest is twice as much, and every choice of rows would copy it."""

NO_PERFORMANCE = "No GPU was measured here and there is no record of one, so there is nothing to draw."


def performance(benchmark: pd.DataFrame, kernel: str | None = None) -> pd.DataFrame:
    """The timed rows of real GPUs, of one kernel or of all."""
    rows = benchmark[
        benchmark.kind.isin(PERFORMANCE) & benchmark.status.isin(["ok", "suspect"]) & benchmark.median_us.notna()
    ]
    return rows if kernel is None else rows[rows.kernel == kernel]


def gpu_styles(tables: dict[str, pd.DataFrame]) -> dict[str, LineStyle]:
    """A colour and a marker for each GPU, the same in the figures of every kernel."""
    return hues(sorted(tables["coverage"].gpu.unique()))


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


SIZES = {
    "m": "rows",
    "n": "columns, or elements",
    "k": "terms of a product",
    "v": "rows of the table",
    "b": "batch",
    "h": "heads",
    "q": "rows to a mask",
    "pitch": "elements from row to row",
}
"""What a size of one letter stands for, unless a kernel means something else; longer names say it."""

_OF_HEADS = {
    "g": "heads of keys",
    "l": "queries",
    "s": "keys",
    "d": "size of a head",
    "e": "size of a value's head",
    "left": "keys up to a query's own (0: all)",
    "right": "keys from it on (0: all)",
}
"""The same of sizes that stand beside ``h``; without heads these letters mean something else, or nothing known."""

_OF_CLASSES = {"s": "places behind the classes"}
"""The same beside ``b`` and ``n``, a loss's [batch, classes, places]."""


def meanings(names: Collection[str]) -> dict[str, str]:
    """What each of a case's sizes stands for, as far as that is known."""
    beside = _OF_HEADS if "h" in names else _OF_CLASSES if {"b", "n"} <= {*names} else {}
    known = SIZES | beside
    return {name: known[name] for name in names if name in known}


class Cases:
    """A kernel's cases, one below another: forward first, by dtype, then by flags, each from little traffic to much.

    ``position`` places a (direction, dtype, sizes); ``labels`` name them from the top; ``heads`` are the places of
    ``forward bf16`` and the like; ``title`` says what the sizes are, and which are the same in every case.
    """

    def __init__(self, rows: pd.DataFrame):
        keys = rows.drop_duplicates(["direction", "dtype", "sizes"])
        names = _Names([json.loads(sizes) for sizes in keys.sizes.unique()])
        ordered = sorted(
            keys.itertuples(),
            key=lambda row: (row.direction != "forward", row.dtype, flags(row.sizes), row.bytes, row.sizes),
        )
        self.title = names.title
        self.position: dict[tuple[str, str, str], float] = {}
        self.labels: list[str] = []
        self.heads: list[tuple[float, str]] = []
        place = -1.0
        for row in ordered:
            head = f"{row.direction} {row.dtype}"
            if not self.heads or self.heads[-1][1] != head:
                self.heads.append((place + 1, head))
                place += 1
            place += 1
            self.position[row.direction, row.dtype, row.sizes] = place
            self.labels.append(names.label(json.loads(row.sizes)))
        self.length = place + 1

    @property
    def room(self) -> float:
        """Inches for labels and heads left of a panel; of short labels the heads are the wider ones."""
        return label_room([*self.labels, *(words for _, words in self.heads)])

    def places(self, rows: pd.DataFrame) -> list[float]:
        """Where each of these rows is."""
        return [self.position[key] for key in zip(rows.direction, rows.dtype, rows.sizes, strict=True)]


class _Names:
    """How the sizes of a kernel's cases are written: those that differ as ``4096 x 1024``, what is rare by its name."""

    def __init__(self, cases: Sequence[Mapping[str, Any]]):
        numbers = [{k: v for k, v in case.items() if not isinstance(v, bool | str)} for case in cases]
        common = [name for name in numbers[0] if all(name in case for case in numbers)]
        fixed = [name for name in common if len({case[name] for case in numbers}) == 1 and len(cases) > 1]
        self._groups: list[list[str]] = []
        for name in common:
            if name in fixed:
                continue
            alike = [group for group in self._groups if all(case[group[0]] == case[name] for case in numbers)]
            if alike:
                alike[0].append(name)  # square problems, m = n = k, have one size
            else:
                self._groups.append([name])
        self._common = {*common}
        sizes = " \u00d7 ".join(" = ".join(group) for group in self._groups)
        everywhere = ", ".join(f"{name}={_short(numbers[0][name])}" for name in fixed)
        known = [f"{name} {meaning}" for name, meaning in meanings(common).items()]
        words = [sizes, f"everywhere {everywhere}" if everywhere else "", ", ".join(known)]
        self.title = "; ".join(filter(None, words))

    def label(self, case: Mapping[str, Any]) -> str:
        """``4096x1024 causal`` of one case."""
        sizes = "\u00d7".join(_short(case[group[0]]) for group in self._groups)
        more = [f"{k}={_short(v)}" for k, v in case.items() if not isinstance(v, bool | str) and k not in self._common]
        return " ".join(filter(None, [sizes, *more, flags(case)]))


def binding_unit(rows: pd.DataFrame) -> tuple[str, str]:
    """Column and unit of the rate to show: TFLOP/s where a matmul roof binds any of the rows, else GB/s."""
    if rows.roof.fillna("").str.startswith("matmul").any():
        return "tflop_per_s", "TFLOP/s"
    return "gb_per_s", "GB/s"


def flags(sizes: str | Mapping[str, Any]) -> str:
    """The part of a case that is a flag and no size: ``causal``, ``layout=tn``; what is not so is not said."""
    found = json.loads(sizes) if isinstance(sizes, str) else sizes
    return " ".join(
        name if value is True else f"{name}={value}"
        for name, value in found.items()
        if value is True or (isinstance(value, str) and value != "none")
    )


def _short(value: object) -> str:
    """``4Ki`` for 4096 and the like, where a binary unit is exact and shorter; other values as they are."""
    if isinstance(value, int) and value >= 2**14:
        for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return str(value)
