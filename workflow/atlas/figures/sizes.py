"""A kernel's cases one below another: its rate on every GPU, and every provider beside the fastest peer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from .facts import Cases, binding_unit, gpu_styles, mark, origin, performance
from .names import PER_KERNEL
from .sheet import INK, MUTED, PAPER, RULE, LineStyle, Sheet, blank, empty, providers

_ROW = 0.155
"""Inches from a case to the next."""
_COLUMNS = 4
"""GPUs beside each other; more go below."""
_FACTORS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Labelled factors; what lies beyond the last stands on the edge."""


def throughput(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """A row per case, a mark per GPU: left the rate of the fastest variant, right what it is of the GPU's roof."""
    title = f"{PER_KERNEL['throughput']}: {kernel}"
    timed = performance(tables["benchmark"], kernel)
    best = timed[timed.best.fillna(False)]
    if best.empty:
        return empty(title, _nothing(kernel, tables))
    peers = timed[(timed.provider_kind == "peer") & (timed.provider == timed.peer)]
    every = gpu_styles(tables)
    styles = {gpu: every[gpu] for gpu in sorted(best.gpu.unique())}
    cases = Cases(best)
    legend = [(_handle(style), f"{gpu}{mark(best[best.gpu == gpu])}") for gpu, style in styles.items()]
    legend.append((_handle(LineStyle(MUTED, "o", hollow=True)), "fastest peer"))
    sheet = Sheet(
        title, f"{cases.title}\n{origin(best)}", columns=2, width=3.5, height=_ROW * cases.length + 0.1,
        left=cases.room, gap_x=0.3, legend=legend, head=0.2,
    )  # fmt: skip
    column, unit = binding_unit(best)
    left, right = sheet.all()
    for axes, key, factor in ((left, column, 1.0), (right, "roof_fraction", 100.0)):
        _rows(axes, cases, named=axes is left)
        shown = pd.concat([peers[peers[key].notna()], best[best[key].notna()]])
        _spans(axes, cases, shown, factor * shown[key].astype(float))
        for rows, hollow in ((peers, True), (best, False)):
            for gpu, own in rows[rows[key].notna()].groupby("gpu"):
                if gpu in styles:
                    _marks(axes, factor * own[key].astype(float), cases.places(own), styles[gpu], hollow)
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _narrow(left) else (1,)))
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel(f"{unit}, log scale")
    right.set_xlabel("% of the GPU's measured roof")
    right.axvline(100, color=INK, lw=0.9)
    right.set_xlim(0, max(105.0, right.get_xlim()[1]))
    without = sorted(set(best[best.roof_fraction.isna()].gpu) - set(best[best.roof_fraction.notna()].gpu))
    if len(without) == len(styles):
        blank(right, "No survey of these GPUs, so no measured roof.")
        right.set_xlabel("")
    elif without:
        right.set_xlabel(f"% of the GPU's measured roof (no survey: {', '.join(without)})")
    return sheet.figure


def against_peers(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """A panel per GPU, a row per case, a mark per provider: how many times as fast as the fastest peer it is."""
    title = f"{PER_KERNEL['providers']}: {kernel}"
    timed = performance(tables["benchmark"], kernel)
    timed = _with_variants(timed[timed.provider_kind != "default"])
    if timed.empty:
        return empty(title, _nothing(kernel, tables))
    gpus = sorted(timed.gpu.unique())
    variants = sorted(timed[timed.provider_kind == "variant"].provider.unique())
    peers = sorted(timed[timed.provider_kind == "peer"].provider.unique())
    styles = providers(variants, peers)
    cases = Cases(timed)
    timed = timed.assign(factor=_factors(timed), row=cases.places(timed))
    legend = [(_handle(styles[name]), name) for name in [*variants, *(name for name in peers if name not in variants)]]
    if timed.roof_fraction.notna().any():
        legend.append((Line2D([], [], color=INK, linestyle="", marker="|", ms=8, mew=1.3), "measured roof"))
    columns = min(_COLUMNS, len(gpus))
    low = max([f for f in _FACTORS if f <= timed.factor.min()], default=_FACTORS[0])
    high = min([f for f in _FACTORS if f >= timed.factor.max()], default=_FACTORS[-1])
    low, high = min(low, 0.5), max(high, 2)
    sheet = Sheet(
        title, f"{cases.title}\n{origin(timed)}", rows=-(-len(gpus) // columns), columns=columns,
        width=7.0 if len(gpus) == 1 else 2.6, height=_ROW * cases.length + 0.1, left=cases.room,
        gap_x=0.3, gap_y=0.85, legend=legend, head=0.3,
    )  # fmt: skip
    for place, axes in enumerate(sheet.all()):
        if place >= len(gpus):
            axes.set_axis_off()
            continue
        here = timed[timed.gpu == gpus[place]]
        _rows(axes, cases, named=place % columns == 0)
        _spans(axes, cases, here, here.factor.clip(low, high))
        _roofs(axes, here, low, high)
        for kind, names, hollow in (("peer", peers, True), ("variant", variants, False)):
            for name, own in here[here.provider_kind == kind].groupby("provider"):
                if name in names:
                    _marks(axes, own.factor.clip(low, high), own.row, styles[name], hollow)
        axes.axvline(1, color=INK, lw=0.9)
        axes.set_xscale("log")
        axes.set_xlim(low / 1.06, high * 1.06)
        axes.xaxis.set_major_locator(FixedLocator([f for f in _FACTORS if low <= f <= high]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}\u00d7"))
        axes.set_xlabel("times as fast as the fastest peer")
        axes.set_title(f"{gpus[place]}{mark(here)}", loc="left", fontweight="bold", fontsize=10.5)
    return sheet.figure


def _with_variants(timed: pd.DataFrame) -> pd.DataFrame:
    """The rows of the cases that a variant was timed on, on any GPU: peers alone say nothing of the kernel.

    Of a kernel without any such case all rows.
    """
    keys = ["direction", "dtype", "sizes"]
    ours = timed[timed.provider_kind == "variant"][keys].drop_duplicates()
    return timed.merge(ours, on=keys) if len(ours) else timed


def _factors(timed: pd.DataFrame) -> pd.Series:
    """The fastest peer's time over each provider's; where no peer ran, the fastest provider's."""
    keys = [timed[name] for name in ("gpu", "direction", "dtype", "sizes")]
    peer = timed.median_us.where(timed.provider_kind == "peer").groupby(keys).transform("min")
    return (peer.fillna(timed.median_us.groupby(keys).transform("min")) / timed.median_us).astype(float)


def _roofs(axes: Axes, here: pd.DataFrame, low: float, high: float) -> None:
    """Where each case would stand at its roof, so far as that is within the panel."""
    best = here[here.best.fillna(False) & (here.roof_fraction > 0)]
    roofs = (best.factor / best.roof_fraction).astype(float)
    inside = roofs.between(low, high)
    axes.plot(roofs[inside], best.row[inside], color=INK, linestyle="", marker="|", ms=7, mew=1.2)


def _rows(axes: Axes, cases: Cases, named: bool) -> None:
    """One row a case, with its name where it is the first panel, and a heading above those of a pass and dtype."""
    axes.set_ylim(cases.length - 0.4, -0.6)
    axes.set_yticks(*((list(cases.position.values()), cases.labels) if named else ([],)))  # a tick costs 1 ms
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.grid(False, axis="y")
    for place, words in cases.heads if named else ():
        axes.annotate(
            words, (0, place), (-4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            va="center", fontsize=8, fontweight="bold",
        )  # fmt: skip


def _spans(axes: Axes, cases: Cases, rows: pd.DataFrame, values: pd.Series) -> None:
    """A pale line from the lowest to the highest mark of each case."""
    ends = values.groupby(pd.Series(cases.places(rows), index=rows.index)).agg(["min", "max"])
    lines = [[(low, place), (high, place)] for place, low, high in ends.itertuples()]
    axes.add_collection(LineCollection(lines, colors=RULE, linewidths=2.2, zorder=0.5))


def _marks(axes: Axes, x: pd.Series, y, style: LineStyle, hollow: bool) -> None:
    face = PAPER if hollow else style.color
    axes.plot(x, y, color=style.color, linestyle="", marker=style.marker, ms=4.5, mfc=face, mew=1, alpha=0.95)


def _handle(style: LineStyle) -> Line2D:
    face = PAPER if style.hollow else style.color
    return Line2D([], [], color=style.color, linestyle="", marker=style.marker, mfc=face, ms=5)


def _narrow(axes: Axes) -> bool:
    """Whether a log axis spans so little that its powers of ten alone would be too few ticks."""
    low, high = axes.get_xlim()
    return high / max(low, 1e-9) < 100


def _nothing(kernel: str, tables: dict[str, pd.DataFrame]) -> str:
    """Why a kernel has no figure of its speed."""
    coverage = tables["coverage"]
    cells = coverage[(coverage.kernel == kernel) & (coverage.stage == "benchmark") & (coverage.kind != "functional")]
    reached = cells[~cells.status.isin(["none"])]
    if reached.empty:
        return f"No GPU measured {kernel} here and there is no record of one, so there is no figure of its speed."
    said = "; ".join(f"{row.gpu}: {row.status}, {row.reason}" for row in reached.itertuples())
    return f"No row of {kernel} was timed. {said}"
