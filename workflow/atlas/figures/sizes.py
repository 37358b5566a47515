"""Rates against problem size: every provider of a kernel, and the kernel on every GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from .facts import CaseAxis, binding_unit, flags, mark, origin, performance
from .names import PER_KERNEL
from .sheet import Sheet, blank, empty
from .style import INK, MUTED, Line, hues, providers


def throughput(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """A column per GPU, a row per pass, dtype and flags, a line per provider."""
    title = f"{PER_KERNEL['throughput']}: {kernel}"
    timed = performance(tables["benchmark"], kernel)
    timed = timed[timed.provider_kind != "default"]
    if timed.empty:
        return empty(title, _nothing(kernel, tables))
    gpus = sorted(timed.gpu.unique())
    variants = sorted(timed[timed.provider_kind == "variant"].provider.unique())
    peers = sorted(timed[timed.provider_kind == "peer"].provider.unique())
    lines = providers(variants, peers)
    facets = _facets(timed)
    rows = [(facet, group, CaseAxis(list(group.sizes), list(group.bytes))) for facet, group in facets]
    below = _below(rows)
    sheet = Sheet(
        title, origin(timed), rows=len(rows), columns=len(gpus), bottom=below + 0.1, gap_y=below + 0.25, gap_x=0.55,
        legend=[(_handle(lines[name]), name) for name in variants + peers],
        width=3.0 if len(gpus) > 1 else 5.6, head=0.55,
    )  # fmt: skip
    every = tables["benchmark"]
    for i, ((direction, dtype, flag), group, cases) in enumerate(rows):
        column, unit = binding_unit(group)
        for j, gpu in enumerate(gpus):
            axes, here = sheet.axes[i, j], group[group.gpu == gpu]
            axes.set_title(_heading(direction, dtype, flag), loc="left", color=INK)
            if i == 0:
                _above(axes, f"{gpu}{mark(timed[timed.gpu == gpu])}")
            if here.empty:
                blank(axes, _why(every, kernel, gpu, direction, dtype))
                continue
            for name in peers + variants:
                _line(axes, here[here.provider == name], cases, column, lines[name])
            _roofs(axes, here, tables["survey"], gpu, unit)
            cases.apply(axes)
            axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
            axes.set_xlabel(cases.title, color=MUTED)
            if j == 0:
                axes.set_ylabel(unit)
    return sheet.figure


def overlay(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """A line per GPU: left the rate of the fastest variant, right what it is of the GPU's roof."""
    title = f"{PER_KERNEL['overlay']}: {kernel}"
    timed = performance(tables["benchmark"], kernel)
    best = timed[timed.best.fillna(False)]
    if best.empty:
        return empty(title, _nothing(kernel, tables))
    gpus = sorted(best.gpu.unique())
    if len(gpus) == 1:
        rates = PER_KERNEL["throughput"]
        return empty(title, f"Of {gpus[0]} alone there are figures: \N{LEFT DOUBLE QUOTATION MARK}{rates}"
                     "\N{RIGHT DOUBLE QUOTATION MARK} has them.")  # fmt: skip
    lines = hues(gpus)
    fastest_peer = timed[(timed.provider_kind == "peer") & (timed.provider == timed.peer)]
    rows = [(facet, group, CaseAxis(list(group.sizes), list(group.bytes))) for facet, group in _facets(best)]
    below = _below(rows)
    legend = [(_handle(lines[gpu]), f"{gpu}{mark(best[best.gpu == gpu])}") for gpu in gpus]
    legend.append((Line2D([], [], color=MUTED, linestyle=(0, (5, 2)), marker="o", mfc="white", ms=4), "fastest peer"))
    sheet = Sheet(
        title, origin(best), rows=len(rows), columns=2, bottom=below + 0.1, gap_y=below + 0.25, gap_x=0.75,
        legend=legend, width=3.4, head=0.3, left=0.8,
    )  # fmt: skip
    for i, (facet, group, cases) in enumerate(rows):
        column, unit = binding_unit(group)
        left, right = sheet.axes[i]
        for gpu in gpus:
            style = lines[gpu]
            peer = fastest_peer[_is(fastest_peer, facet) & (fastest_peer.gpu == gpu)]
            peer_style = Line(style.color, style.marker, (0, (5, 2)), hollow=True)
            here = group[group.gpu == gpu]
            for axes, key, factor in ((left, column, 1), (right, "roof_fraction", 100)):
                _line(axes, peer, cases, key, peer_style, factor, whiskers=False)
                _line(axes, here, cases, key, style, factor, whiskers=False)
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(ScalarFormatter())
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_ylabel(unit)
        right.set_ylabel("% of the GPU's measured roof")
        right.set_ylim(bottom=0)
        if group.roof_fraction.isna().all():
            blank(right, "No survey of these GPUs, so no measured roof.")
        for axes in (left, right):
            axes.set_title(_heading(*facet), loc="left", color=INK)
            if axes.get_xaxis().get_visible() and axes.lines:
                cases.apply(axes)
                axes.set_xlabel(cases.title, color=MUTED)
    return sheet.figure


def _nothing(kernel: str, tables: dict[str, pd.DataFrame]) -> str:
    """Why a kernel has no figure of its speed."""
    coverage = tables["coverage"]
    cells = coverage[(coverage.kernel == kernel) & (coverage.stage == "benchmark") & (coverage.kind != "functional")]
    reached = cells[~cells.status.isin(["none"])]
    if reached.empty:
        return f"No GPU measured {kernel} here and there is no record of one, so there is no figure of its speed."
    said = "; ".join(f"{row.gpu}: {row.status}, {row.reason}" for row in reached.itertuples())
    return f"No row of {kernel} was timed. {said}"


def _why(benchmark: pd.DataFrame, kernel: str, gpu: str, direction: str, dtype: str) -> str:
    rows = benchmark[
        (benchmark.kernel == kernel) & (benchmark.gpu == gpu) & (benchmark.direction == direction)
        & (benchmark.dtype == dtype) & (benchmark.reason.fillna("") != "")
    ]  # fmt: skip
    return f"{gpu}: {rows.iloc[0].status}. {rows.iloc[0].reason}" if len(rows) else f"{gpu}: no {dtype} case there"


def _facets(rows: pd.DataFrame) -> list[tuple[tuple[str, str, str], pd.DataFrame]]:
    """(pass, dtype, flags) and their rows; of flags with a single size, which make no curve, only where all are so."""
    keyed = rows.assign(flag=rows.sizes.map(flags))
    groups = sorted(
        keyed.groupby(["direction", "dtype", "flag"], sort=True),
        key=lambda item: (item[0][0] != "forward", item[0][1], item[0][2]),
    )
    return [item for item in groups if item[1].sizes.map(str).nunique() > 1] or groups


def _is(rows: pd.DataFrame, facet: tuple[str, str, str]) -> pd.Series:
    direction, dtype, flag = facet
    return (rows.direction == direction) & (rows.dtype == dtype) & (rows.sizes.map(flags) == flag)


def _heading(direction: str, dtype: str, flag: str) -> str:
    return " \u00b7 ".join(word for word in (direction, dtype, flag) if word)


def _below(rows: Iterable[tuple]) -> float:
    """Inches below a panel: the deepest tick labels and the axis' title."""
    return 0.4 + max(cases.depth for _, _, cases in rows)


def _above(axes: Axes, text: str) -> None:
    """A column's heading, clear of the panel's own title."""
    axes.annotate(
        text, (0, 1), (0, 22), xycoords="axes fraction", textcoords="offset points", fontsize=10.5, fontweight="bold",
        color=INK,
    )  # fmt: skip


def _handle(style: Line) -> Line2D:
    face = "white" if style.hollow else style.color
    return Line2D([], [], color=style.color, linestyle=style.linestyle, marker=style.marker, mfc=face, ms=5)


def _line(
    axes: Axes, rows: pd.DataFrame, cases: CaseAxis, column: str, style: Line, factor: float = 1, whiskers: bool = True
) -> None:
    rows = rows[rows[column].notna()]
    if rows.empty:
        return
    rows = rows.assign(x=rows.sizes.map(cases.position)).sort_values("x")
    y = rows[column].astype(float) * factor
    face = "white" if style.hollow else style.color
    axes.plot(
        rows.x, y, color=style.color, linestyle=style.linestyle, marker=style.marker, ms=4.5, mfc=face, mew=1,
        lw=1.2 if style.hollow else 1.7,
    )  # fmt: skip
    if whiskers and rows.q1_us.notna().all() and rows.q3_us.notna().all():
        # A rate is inverse to a time: the fast quartile of the times is the high end of the rate.
        low, high = y * rows.median_us / rows.q3_us, y * rows.median_us / rows.q1_us
        axes.vlines(rows.x, low, high, color=style.color, lw=3, alpha=0.35)


def _roofs(axes: Axes, rows: pd.DataFrame, survey: pd.DataFrame, gpu: str, unit: str) -> None:
    """Dotted lines at the measured roofs that bind this panel's cases, named at the left edge."""
    named = set(rows.roof.dropna())
    roofs = survey[(survey.gpu == gpu) & (survey.kind != "published") & survey.roof.isin(named) & (survey.unit == unit)]
    for roof in roofs[roofs.value.notna()].itertuples():
        axes.axhline(roof.value, color=INK, lw=0.9, linestyle=(0, (1, 1.5)))
        axes.annotate(
            f"{roof.roof} {roof.value:,.0f}", (0, roof.value), (2, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=7.5, color=MUTED,
        )  # fmt: skip
