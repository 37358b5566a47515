"""How close to the hardware: the share of the measured roof, and the roofline."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .facts import NO_PERFORMANCE, mark, origin, performance
from .names import OVERVIEWS
from .sheet import INK, MUTED, Sheet, blank, empty, hues, label_room

_OURS, _PEER = "#0072B2", "#8a8f98"
_ROOF_NAMES = 1.1
"""Inches right of a panel for the names of its roofs, which would hide cases inside it."""


def roof_fraction(tables: dict[str, pd.DataFrame]) -> Figure:
    """A row per kernel and pass, a column per GPU: every case of the fastest variant, and of the fastest peer."""
    title = OVERVIEWS["roof-fraction"]
    every = performance(tables["benchmark"])
    if every.empty:
        return empty(title, NO_PERFORMANCE)
    timed = every[every.roof_fraction.notna()]
    if timed.empty:
        return empty(title, "No GPU that was timed has a survey, so no measured roof is known.")
    best = timed[timed.best.fillna(False)]
    peers = timed[(timed.provider_kind == "peer") & (timed.provider == timed.peer)]
    rows = sorted({(r.kernel, r.direction) for r in every.itertuples()}, key=lambda r: (r[0], r[1] != "forward"))
    gpus = sorted(every.gpu.unique())
    labels = [f"{kernel}\n{direction}" for kernel, direction in rows]
    dot = {"linestyle": "", "marker": "o", "ms": 6}
    sheet = Sheet(
        title, origin(timed), columns=len(gpus), width=2.3 if len(gpus) > 1 else 4.6, height=0.46 * len(rows) + 0.2,
        left=label_room(labels), gap_x=0.25, bottom=0.6,
        head=0.35,
        legend=[(Line2D([], [], color=_OURS, **dot), "fastest variant, one dot a case"),
                (Line2D([], [], color=_PEER, mfc="white", **dot), "fastest peer"),
                (Line2D([], [], color=INK, linestyle="", marker="|", ms=11, mew=1.6), "median case of the variant")],
    )  # fmt: skip
    right = max(105.0, 105 * float(pd.concat([best, peers]).roof_fraction.max()))
    for j, gpu in enumerate(gpus):
        axes = sheet.axes[0, j]
        for i, (kernel, direction) in enumerate(rows):
            cells = [
                table[(table.gpu == gpu) & (table.kernel == kernel) & (table.direction == direction)]
                for table in (best, peers, every)
            ]
            _fractions(axes, i, *cells)
        axes.axvline(100, color=INK, lw=0.9)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, right)
        axes.set_yticks(range(len(rows)), labels if j == 0 else [])
        axes.set_xticks([tick for tick in (0, 25, 50, 75, 100, 150, 200, 300, 400) if tick <= right])
        axes.set_xlabel("% of the measured roof")
        axes.set_title(f"{gpu}{mark(every[every.gpu == gpu])}", loc="left", fontweight="bold", fontsize=10.5)
        axes.tick_params(axis="y", length=0)
        for i in range(1, len(rows)):
            axes.axhline(i - 0.5, color="#e4e6ea", lw=0.7)
        axes.grid(False, axis="y")
    return sheet.figure


def _fractions(axes: Axes, place: int, best: pd.DataFrame, peers: pd.DataFrame, every: pd.DataFrame) -> None:
    """A kernel's pass on one GPU: a dot a case for the fastest variant and the fastest peer, or why there is none."""
    if best.empty and peers.empty:
        reason = "not timed" if every.empty else "no survey"
        axes.text(2, place, reason, va="center", fontsize=8, color=MUTED)
    for cell, offset, color, face in ((peers, 0.17, _PEER, "white"), (best, -0.12, _OURS, _OURS)):
        area = 10 + 45 * (np.log2(cell.bytes) - 10).clip(0, 24) / 24
        axes.scatter(100 * cell.roof_fraction, np.full(len(cell), place + offset), s=area, color=face,
                     edgecolors=color, linewidths=0.9, alpha=0.85)  # fmt: skip
    if not best.empty:
        axes.plot([100 * best.roof_fraction.median()], [place - 0.12], marker="|", ms=15, mew=1.6, color=INK)


def rooflines(tables: dict[str, pd.DataFrame]) -> Figure:
    """A panel per GPU, all of one scale: its roofs, and the fastest variant of every case at its intensity."""
    title = OVERVIEWS["rooflines"]
    timed = performance(tables["benchmark"])
    best = timed[timed.best.fillna(False) & (timed.flops > 0) & (timed.bytes > 0)]
    if best.empty:
        return empty(title, NO_PERFORMANCE)
    best = best.assign(intensity=best.flops / best.bytes, rate=best.flops / best.median_us / 1e6)
    gpus = sorted(best.gpu.unique())
    kernels = sorted(best.kernel.unique())
    lines = hues(kernels)
    columns = min(3, len(gpus))
    legend = [(Line2D([], [], linestyle="", color=lines[k].color, marker=lines[k].marker, ms=6), k) for k in kernels]
    if (best.direction == "backward").any():
        plain = {"linestyle": "", "color": MUTED, "marker": "o", "ms": 6}
        legend.append((Line2D([], [], **plain), "filled: forward"))
        legend.append((Line2D([], [], mfc="white", **plain), "hollow: backward"))
    low = 2.0 ** np.floor(np.log2(best.intensity.min()) - 1)
    high = max(2.0 ** np.ceil(np.log2(best.intensity.max()) + 1), 256.0)
    sheet = Sheet(
        title, origin(best), rows=-(-len(gpus) // columns), columns=columns, width=3.9 if columns > 1 else 5.6,
        height=2.9, bottom=0.65, gap_y=0.95, gap_x=0.75 + _ROOF_NAMES, right=_ROOF_NAMES, legend=legend, head=0.35,
    )  # fmt: skip
    panels = sheet.all()[: len(gpus)]
    for axes, gpu in zip(panels, gpus, strict=True):
        here = best[best.gpu == gpu]
        for (kernel, direction), cell in here.groupby(["kernel", "direction"]):
            face = lines[kernel].color if direction == "forward" else "white"
            axes.plot(
                cell.intensity, cell.rate, linestyle="", marker=lines[kernel].marker, ms=5, color=lines[kernel].color,
                mfc=face, mew=1, alpha=0.9,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_xlabel("flops per byte of least traffic")
        axes.set_ylabel("TFLOP/s")
        axes.set_title(f"{gpu}{mark(here)}", loc="left", fontweight="bold", fontsize=10.5)
        _draw_roofs(axes, tables["survey"], gpu, set(here.dtype), low, high)
    bottom = 10.0 ** np.floor(np.log10(max(best.rate.min() / 1.5, 1e-4)))
    top = 2.2 * max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(bottom, top)
    for axes in sheet.all()[len(gpus) :]:
        axes.set_axis_off()
    return sheet.figure


def _draw_roofs(axes: Axes, survey: pd.DataFrame, gpu: str, dtypes: set[str], low: float, high: float) -> None:
    """The memory roof's slope and a plateau for the matmul rate of each dtype timed; near ones share a label."""
    rows = survey[(survey.gpu == gpu) & survey.value.notna()]
    measured = rows[rows.kind != "published"]
    rows, dashes = (rows, (0, (5, 2))) if measured.empty else (measured, "-")
    bandwidth = rows[rows.unit == "GB/s"]
    bandwidth = bandwidth[bandwidth.roof.isin(["copy", "bandwidth"])]
    wanted = [f"matmul_{'fp8' if name.startswith('fp8') else name}" for name in dtypes]  # fp8e4m3 and fp8e5m2: one roof
    plateaus = rows[rows.roof.isin(wanted) & (rows.unit == "TFLOP/s")]
    plateaus = plateaus.sort_values("value")
    if bandwidth.empty:
        blank(axes, f"{gpu} has no roof: neither survey nor datasheet")
        return
    slope = float(bandwidth.value.iloc[0]) / 1e3  # TB/s: TFLOP/s per flop per byte
    top = float(plateaus.value.max()) if len(plateaus) else slope * high
    knee = min(high, top / slope)
    axes.plot([low, knee], [low * slope, knee * slope], color=INK, lw=1.3, linestyle=dashes)
    source = "" if len(measured) else "datasheet "
    axes.annotate(f"{source}{bandwidth.roof.iloc[0]} {slope * 1e3:,.0f} GB/s", (0.02, 0.97), xycoords="axes fraction",
                  fontsize=7.5, color=MUTED, va="top")  # fmt: skip
    for roof in plateaus.itertuples():
        axes.plot([min(roof.value / slope, high), high], [roof.value] * 2, color=INK, lw=1.0, linestyle=dashes)
    groups: list[list] = []  # plateaus whose names would overlap, on an axis of eight decades
    for roof in plateaus.itertuples():
        if groups and roof.value / groups[-1][0].value < 1.9:
            groups[-1].append(roof)
        else:
            groups.append([roof])
    for group in groups:
        text = ", ".join(f"{roof.roof.removeprefix('matmul_')} {roof.value:,.0f}" for roof in reversed(group))
        middle = float(np.sqrt(group[0].value * group[-1].value))
        axes.annotate(text, (high, middle), (4, 0), textcoords="offset points", fontsize=7, color=MUTED, va="center")
