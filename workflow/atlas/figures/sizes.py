"""Rates against problem size: every provider of a kernel, and the kernel on every GPU."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from .facts import CaseAxis, binding_unit, flags, mark, origin, performance
from .names import PER_KERNEL
from .sheet import INK, MUTED, LineStyle, Sheet, blank, empty, hues, providers

_PEER_DASHES = (0, (5, 2))
_ONE_MAGNITUDE = 4.0
"""GPUs whose highest rates are within this factor share a scale."""
_CHARACTER = 0.074
"""Inches that a character of a panel's title takes."""


@dataclass(frozen=True)
class _Row:
    """A row of panels: pass, dtype and flags, their benchmark rows, the x axis, and the title of each panel."""

    facet: tuple[str, str, str]
    group: pd.DataFrame
    cases: CaseAxis
    heading: str


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
    width = 3.0 if len(gpus) > 1 else 5.6
    rows, single = _rows(timed, width)
    below, more = _below(rows), _second_lines(rows)
    sheet = Sheet(
        title, _subtitle(timed, single), rows=len(rows), columns=len(gpus), bottom=below + 0.1,
        gap_y=below + 0.25 + more, gap_x=0.55, legend=[(_handle(lines[name]), name) for name in variants + peers],
        width=width, head=0.55 + more,
    )  # fmt: skip
    for j, gpu in enumerate(gpus):
        _above(sheet.axes[0, j], f"{gpu}{mark(timed[timed.gpu == gpu])}", more)
    for panels, row in zip(sheet.axes, rows, strict=True):
        column, unit = binding_unit(row.group)
        panels[0].set_ylabel(unit)
        filled = []
        for axes, gpu in zip(panels, gpus, strict=True):
            axes.set_title(row.heading, loc="left", color=INK)
            here = row.group[row.group.gpu == gpu]
            if here.empty:
                blank(axes, _why(tables["benchmark"], kernel, gpu, row.facet))
                continue
            for kind, names in (("peer", peers), ("variant", variants)):
                of_kind = here[here.provider_kind == kind]
                for name in names:
                    _line(axes, of_kind[of_kind.provider == name], row.cases, column, lines[name])
            _roofs(axes, here, tables["survey"], gpu, unit)
            row.cases.apply(axes)
            axes.set_xlabel(row.cases.title, color=MUTED)
            filled.append(axes)
        _one_scale(filled)
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
    every = hues(sorted(performance(tables["benchmark"]).gpu.unique()))  # a GPU has one colour, whatever the kernel
    lines = {gpu: every[gpu] for gpu in gpus}
    rows, single = _rows(best, width=3.4)
    below, more = _below(rows), _second_lines(rows)
    legend = [(_handle(lines[gpu]), f"{gpu}{mark(best[best.gpu == gpu])}") for gpu in gpus]
    legend.append((Line2D([], [], color=MUTED, linestyle=_PEER_DASHES, marker="o", mfc="white", ms=4), "fastest peer"))
    sheet = Sheet(
        title, _subtitle(best, single), rows=len(rows), columns=2, bottom=below + 0.1, gap_y=below + 0.25 + more,
        gap_x=0.75, legend=legend, width=3.4, head=0.3 + more, left=0.8,
    )  # fmt: skip
    fastest_peer = timed[(timed.provider_kind == "peer") & (timed.provider == timed.peer)]
    for (left, right), row in zip(sheet.axes, rows, strict=True):
        _overlaid(left, right, row, fastest_peer[_is(fastest_peer, row.facet)], lines)
    return sheet.figure


def _overlaid(left: Axes, right: Axes, row: _Row, peers: pd.DataFrame, lines: dict[str, LineStyle]) -> None:
    """One pass, dtype and flags on every GPU: the rates on the left, the shares of the roofs on the right."""
    column, unit = binding_unit(row.group)
    for gpu, style in lines.items():
        peer_style = LineStyle(style.color, style.marker, _PEER_DASHES, hollow=True)
        for axes, key, factor in ((left, column, 1), (right, "roof_fraction", 100)):
            _line(axes, peers[peers.gpu == gpu], row.cases, key, peer_style, factor, whiskers=False)
            _line(axes, row.group[row.group.gpu == gpu], row.cases, key, style, factor, whiskers=False)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_ylabel(unit)
    right.set_ylabel("% of the GPU's measured roof")
    right.axhline(100, color=INK, lw=0.9)
    right.set_ylim(0, max(105.0, right.get_ylim()[1]))
    for axes in (left, right):
        axes.set_title(row.heading, loc="left", color=INK)
        row.cases.apply(axes)
        axes.set_xlabel(row.cases.title, color=MUTED)
    surveyed = set(row.group[row.group.roof_fraction.notna()].gpu)
    if not surveyed:
        blank(right, "No survey of these GPUs, so no measured roof.")
        right.set(xlabel="", ylabel="")
    timed = set(row.group.gpu)
    _left_out(left, "not timed", [gpu for gpu in lines if gpu not in timed])
    _left_out(right, "no survey", [gpu for gpu in lines if surveyed and gpu in timed - surveyed])


def _left_out(axes: Axes, reason: str, gpus: Sequence[str]) -> None:
    """Say in a corner which GPUs have no line here, so that nobody takes a missing one for a hidden one."""
    if gpus:
        axes.text(
            0.98, 0.04, f"{reason}: {', '.join(gpus)}", transform=axes.transAxes, ha="right", fontsize=8, color=MUTED
        )


def _one_scale(panels: Sequence[Axes]) -> None:
    """From zero, and the same for GPUs that are of one magnitude: two panels side by side are read against each other.

    Where they are far apart the slower one would be a line along the axis, so each keeps a scale of its own.
    """
    tops = [1.1 * axes.get_ylim()[1] for axes in panels]
    alike = max(tops, default=0.0) <= _ONE_MAGNITUDE * min(tops, default=0.0)
    for axes, top in zip(panels, tops, strict=True):
        axes.set_ylim(0, max(tops) if alike else top)


def _nothing(kernel: str, tables: dict[str, pd.DataFrame]) -> str:
    """Why a kernel has no figure of its speed."""
    coverage = tables["coverage"]
    cells = coverage[(coverage.kernel == kernel) & (coverage.stage == "benchmark") & (coverage.kind != "functional")]
    reached = cells[~cells.status.isin(["none"])]
    if reached.empty:
        return f"No GPU measured {kernel} here and there is no record of one, so there is no figure of its speed."
    said = "; ".join(f"{row.gpu}: {row.status}, {row.reason}" for row in reached.itertuples())
    return f"No row of {kernel} was timed. {said}"


def _why(benchmark: pd.DataFrame, kernel: str, gpu: str, facet: tuple[str, str, str]) -> str:
    rows = benchmark[(benchmark.kernel == kernel) & (benchmark.gpu == gpu) & (benchmark.reason.fillna("") != "")]
    rows = rows[_is(rows, facet)]
    return f"{gpu}: {rows.iloc[0].status}. {rows.iloc[0].reason}" if len(rows) else f"not timed on {gpu}"


def _rows(timed: pd.DataFrame, width: float) -> tuple[list[_Row], list[str]]:
    """The rows of panels ``width`` inches wide, and the headings of those that are left out.

    A single size makes no curve, and is left out unless all are so.
    """
    keyed = timed.assign(flag=timed.sizes.map(flags))
    groups = sorted(
        keyed.groupby(["direction", "dtype", "flag"], sort=True),
        key=lambda item: (item[0][0] != "forward", item[0][1], item[0][2]),
    )
    curves = [item for item in groups if item[1].sizes.nunique() > 1] or groups
    drawn = {facet for facet, _ in curves}
    rows = [
        _Row(
            facet,
            group,
            CaseAxis(list(group.sizes), list(group.bytes)),
            textwrap.fill(_heading(facet), int(width / _CHARACTER)),
        )
        for facet, group in curves
    ]
    return rows, [_heading(facet) for facet, _ in groups if facet not in drawn]


def _subtitle(rows: pd.DataFrame, single: Sequence[str]) -> str:
    """Where the rows are from, and what was timed at one size and is therefore in the tables alone."""
    names = "; ".join(heading.replace(" ", "\N{NO-BREAK SPACE}") for heading in single)
    return origin(rows) + (f"\nOf one size each, so in the tables alone: {names}." if single else "")


def _is(rows: pd.DataFrame, facet: tuple[str, str, str]) -> pd.Series:
    direction, dtype, flag = facet
    return (rows.direction == direction) & (rows.dtype == dtype) & (rows.sizes.map(flags) == flag)


def _heading(facet: tuple[str, str, str]) -> str:
    return " \u00b7 ".join(filter(None, facet))


def _below(rows: Iterable[_Row]) -> float:
    """Inches below a panel: the deepest tick labels and the axis' title."""
    return 0.4 + max(row.cases.depth for row in rows)


def _second_lines(rows: Iterable[_Row]) -> float:
    """Inches above a panel that the longest heading needs beyond its first line."""
    return 0.16 * max(row.heading.count("\n") for row in rows)


def _above(axes: Axes, text: str, more: float) -> None:
    """A column's heading, clear of the panel's own title, which takes ``more`` inches than one line."""
    axes.annotate(
        text, (0, 1), (0, 22 + 72 * more), xycoords="axes fraction", textcoords="offset points", fontsize=10.5,
        fontweight="bold", color=INK,
    )  # fmt: skip


def _handle(style: LineStyle) -> Line2D:
    face = "white" if style.hollow else style.color
    return Line2D([], [], color=style.color, linestyle=style.linestyle, marker=style.marker, mfc=face, ms=5)


def _line(
    axes: Axes,
    rows: pd.DataFrame,
    cases: CaseAxis,
    column: str,
    style: LineStyle,
    factor: float = 1,
    whiskers: bool = True,
) -> None:
    """A provider's cases; the line breaks at one that it has no figure of, for nothing is known between its ends."""
    rows = rows[rows[column].notna()]
    if rows.empty:
        return
    rows = rows.assign(x=rows.sizes.map(cases.position)).sort_values("x")
    y = rows[column].astype(float) * factor
    face = "white" if style.hollow else style.color
    everywhere = range(len(cases.position))
    axes.plot(
        everywhere, pd.Series(y.to_numpy(), index=rows.x).reindex(everywhere), color=style.color,
        linestyle=style.linestyle, marker=style.marker, ms=4.5, mfc=face, mew=1,
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
