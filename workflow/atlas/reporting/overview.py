"""The first page's chart: a row a kernel beside a chosen GPU, and a row a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from ..results.summary import KIND_WORDS, counted, listed
from ..results.verdict import PERFORMANCE, SEVERITY, even, geometric_mean
from . import standing
from .answers import price
from .grid import Cell, Grid, badge, missing, number, text
from .standing import BOUNDS, Mark
from .strips import Scale, axis, lane, shape, sparkline

Tables = dict[str, pd.DataFrame]

_TIMES = "{:.2f}\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Lane:
    """A kernel's marks of one bound, as drawn, and whether another GPU is among them; empty where there are none."""

    drawn: Markup
    compared: bool


@dataclass(frozen=True)
class Row:
    """A kernel: its worst status anywhere, a drawing for each bound, and how it does on the chosen GPU.

    ``stale``: what the chosen GPU timed is of other code than today's.
    """

    kernel: str
    status: str
    stale: bool
    lanes: Sequence[Lane]
    spark: Markup
    mean: str
    worst: str
    slower: bool
    roof: str


@dataclass(frozen=True)
class Chart:
    """All kernels beside one GPU."""

    chosen: str
    axes: Sequence[Markup]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Key:
    """One GPU of the legend: its colour as a class, and the kinds of its marks, each with the shape that it has."""

    hue: str
    gpu: str
    kinds: list[tuple[str, Markup]]


def marked(tables: Tables, found: Mapping[str, Sequence[Mark]]) -> list[str]:
    """The GPUs that have a mark beside any of those chosen, in the order of their lines."""
    there = {mark.gpu for marks in found.values() for mark in marks}
    return [gpu for gpu in standing.every_gpu(tables) if gpu in there]


def unmarked(tables: Tables, shown: Sequence[str]) -> list[str]:
    """The GPUs that are predicted, or of which others published figures, without a case that a timed GPU has, too."""
    return [gpu for gpu in standing.every_gpu(tables) if gpu not in shown]


def chart(tables: Tables, chosen: str, found: Sequence[Mark], shown: Sequence[str]) -> Chart:
    """Every kernel that has any document; ``found`` are the marks beside the chosen GPU, "" where none was timed."""
    order = {gpu: place for place, gpu in enumerate(shown)}
    scale = Scale.of(value for mark in found for value in (mark.times, mark.allowed) if value == value)
    groups: dict[tuple[str, str], list[Mark]] = {}
    for mark in found:
        groups.setdefault((mark.kernel, mark.bound), []).append(mark)
    verdicts, rows = tables["verdicts"], tables["benchmark"]
    best = rows[(rows.gpu == chosen) & rows.kind.isin(PERFORMANCE) & rows.best.fillna(False)]
    factors = best[best.speedup.notna() & (best.weak.fillna("") == "")].sort_values("bytes").groupby("kernel").speedup
    speeds, roofs = {kernel: list(own) for kernel, own in factors}, best.groupby("kernel").roof_fraction.median()
    statuses = {kernel: {*own.status} for kernel, own in verdicts.groupby("kernel")}
    stale = {*best[best.stale.fillna(False)].kernel}
    return Chart(
        chosen,
        [axis(scale) for _ in BOUNDS],
        [
            _row(
                kernel,
                _worst(statuses[kernel]),
                kernel in stale,
                [_lane(groups.get((kernel, bound), []), scale, order, chosen) for bound in BOUNDS],
                speeds.get(kernel, []),
                roofs.get(kernel),
            )
            for kernel in sorted(statuses)
        ],
    )


def _worst(statuses: Collection[str]) -> str:
    """Of a kernel's statuses on all GPUs; ``unsupported`` where none supports it, for else the GPU is to be named."""
    others = [status for status in SEVERITY if status in statuses and status != "unsupported"]
    return others[0] if others else "unsupported"


def _lane(own: Sequence[Mark], scale: Scale, order: Mapping[str, int], chosen: str) -> Lane:
    return (
        Lane(lane(own, scale, order, chosen), any(mark.gpu != chosen for mark in own)) if own else Lane(Markup(), False)
    )


def _row(kernel: str, status: str, stale: bool, lanes: list[Lane], factors: list[float], roof: float | None) -> Row:
    mean = geometric_mean(factors)
    return Row(
        kernel,
        status,
        stale,
        lanes,
        sparkline(factors) if factors else Markup(),
        _TIMES.format(mean) if mean else "",
        _TIMES.format(min(factors)) if factors else "",
        mean is not None and mean < 0.995,
        "" if missing(roof) else f"{100 * roof:.0f} %",
    )


def legend(tables: Tables, found: Mapping[str, Sequence[Mark]], shown: Sequence[str]) -> list[Key]:
    """Each GPU of the chart; a filled mark may be of measured and of recorded cases, which the benchmarks tell."""
    timed = tables["benchmark"]
    timed = timed[timed.kind.isin(PERFORMANCE)].groupby("gpu").kind.agg(set)
    keys = []
    for place, gpu in enumerate(shown):
        own = {mark.kind for marks in found.values() for mark in marks if mark.gpu == gpu}
        kinds = [kind for kind in PERFORMANCE if kind in timed.get(gpu, ())] + sorted(own - {"measured"})
        hue = f"g{place % 8}"
        keys.append(Key(hue, gpu, [(kind, shape(kind, hue, "6", "6")) for kind in kinds]))
    return keys


def gpu_table(tables: Tables, chosen: str, found: Sequence[Mark]) -> Grid:
    """A row per timed GPU: against its peers, against its roofs, against the chosen one, and what it costs."""
    rows, prices = tables["benchmark"], price(tables)
    best = rows[rows.kind.isin(PERFORMANCE) & rows.best.fillna(False)]
    beside = [f"{name}, beside {chosen}" for name in BOUNDS.values()]
    grid = []
    for gpu in standing.gpus(tables):
        own = best[best.gpu == gpu]
        compared = [row["speedup"] for row in even(own[own.speedup.notna()].to_dict("records"))]
        roofs = own.roof_fraction.dropna()
        speeds = [standing.overall(list(found), gpu, bound) for bound in BOUNDS]
        cells = [
            text(gpu, style="name"),
            badge("kind", label=listed([KIND_WORDS[kind] for kind in sorted(own.kind.unique())])),
            number(own.kernel.nunique(), "{:.0f}", note=counted(len(own), "case")),
            number(geometric_mean(compared), _TIMES, note=f"worst {_TIMES.format(min(compared))}" if compared else ""),
            number(100 * roofs.median() if len(roofs) else None, "{:.0f} %"),
            *(_beside(speed) for speed in speeds),
        ]
        if prices:
            cells += [number(prices.get(gpu), "{:.2f} USD"), _worth(gpu, chosen, speeds, prices)]
        grid.append(cells)
    cost = ("an hour", f"work per USD, beside {chosen}") if prices else ()
    return Grid(
        "gpus-in-short",
        ("GPU", "kind", "kernels", "against the fastest peer", "% of roof", *beside, *cost),
        grid,
        empty="No GPU was measured here, and there is no record of one.",
        caption="Against the fastest peer: geometric mean over cases. % of roof: the median case. Beside "
        f"{chosen}: times as fast, each kernel weighing the same; below it what the roofs allow. Cases under 20 "
        "\N{MICRO SIGN}s are mostly launch latency. A GPU's price is `usd_per_hour` in its block of config/gpus.yaml.",
        numeric=frozenset(range(2, 10)),
    )  # fmt: skip


def _beside(speed: tuple[float, float, int] | None) -> Cell:
    if speed is None:
        return number(None)
    return number(speed[0], _TIMES, note="" if missing(speed[1]) else f"roofs {_TIMES.format(speed[1])}")


def _worth(gpu: str, chosen: str, speeds: Sequence[tuple[float, float, int] | None], prices: dict[str, float]) -> Cell:
    """How much more work a dollar buys there, over cases that arithmetic or memory bind."""
    known = [speed[0] for speed in speeds[:2] if speed]
    if gpu not in prices or chosen not in prices or not known:
        return number(None)
    return number((geometric_mean(known) or 1.0) * prices[chosen] / prices[gpu], _TIMES)
