"""Figures of all kernels on all GPUs: against the fastest peer, against the hardware, and how well configs travel."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.surveyed import matmuls_of
from ..results.verdict import PERFORMANCE, geometric_mean
from .facts import NO_PERFORMANCE, TIMED, mark, origin, performance
from .names import OVERVIEWS
from .sheet import DIVERGING, FILL, INK, MUTED, PAPER, RULE, Sheet, empty, hues, label_room

_SPAN = 1.0
"""The colours of a speed-up saturate at 2^-1 and 2^1."""


def speedup(tables: dict[str, pd.DataFrame]) -> Figure:
    """Kernel and pass by GPU: geometric mean of the speed-up over the fastest peer, on a log scale around 1."""
    title = OVERVIEWS["speedup"]
    timed = performance(tables["benchmark"])
    if timed.empty:
        return empty(title, NO_PERFORMANCE)
    best = timed[timed.best.fillna(False)]
    rows = sorted({(r.kernel, r.direction) for r in best.itertuples()}, key=lambda row: (row[0], row[1] != "forward"))
    gpus = sorted(timed.gpu.unique())
    if not rows:
        return empty(title, "No variant of any kernel was timed: every benchmark row failed or is unsupported.")
    values = pd.DataFrame(np.nan, index=range(len(rows)), columns=gpus)
    words = pd.DataFrame("", index=range(len(rows)), columns=gpus)
    cells = dict(list(best.groupby(["kernel", "direction", "gpu"])))
    heads = {gpu: mark(own.assign(stale=False)) for gpu, own in timed.groupby("gpu")}
    for i, (kernel, direction) in enumerate(rows):
        for gpu in gpus:
            cell = cells.get((kernel, direction, gpu), best.iloc[:0])
            weak = cell.weak.fillna("") != ""
            compared = cell[cell.speedup.notna() & ~weak]
            if compared.empty:
                words.loc[i, gpu] = "not timed" if cell.empty else "weak peers" if weak.any() else "no peer"
                continue
            mean = geometric_mean(list(compared.speedup))
            values.loc[i, gpu] = np.log2(mean)
            span = f"{compared.speedup.min():.2f}\u2013{compared.speedup.max():.2f}"
            left_out = f", {weak.sum()} weak" if weak.any() else ""
            words.loc[i, gpu] = f"{mean:.2f}\u00d7{mark(cell).removeprefix(heads[gpu])}  ({span}{left_out})"
    labels = [f"{kernel} {direction}" for kernel, direction in rows]
    width = max(1.45, 0.3 + 0.068 * words.map(len).to_numpy().max())
    sheet = Sheet(
        title, "Geometric mean over a pass's cases (least to most), without those whose peers are weak. Kinds are "
        f"never averaged together.\n{origin(timed)}",
        width=width * len(gpus), height=0.25 * len(rows), left=label_room(labels), right=1.25, bottom=0.25, head=0.32,
    )  # fmt: skip
    axes = sheet.axes[0, 0]
    colours = LinearSegmentedColormap.from_list("slower to faster", DIVERGING)
    _heat(axes, values, words, colours, -_SPAN, _SPAN)
    _labels(axes, labels, [gpu + heads[gpu] for gpu in gpus])
    box = axes.get_position()
    inch = 1 / sheet.figure.get_figwidth()
    bar = sheet.figure.add_axes((box.x1 + 0.18 * inch, box.y0, 0.13 * inch, box.height))
    ticks = [-1, -0.5, 0, 0.5, 1] if len(rows) > 2 else [-1, 0, 1]
    sheet.figure.colorbar(axes.collections[0], cax=bar, ticks=ticks)
    ends = {-1: "\nor slower", 1: "\nor faster"}
    bar.set_yticklabels([f"{2**tick:.2g}\u00d7{ends.get(tick, '')}" for tick in ticks])
    bar.tick_params(length=2)
    bar.grid(False)
    return sheet.figure


def transfer(tables: dict[str, pd.DataFrame]) -> Figure:
    """GPU by GPU: what the row's best configs reach on the column, of what the column's own best ones reach."""
    title = OVERVIEWS["transfer"]
    trials = tables["trials"]
    trials = trials[trials.kind.isin(PERFORMANCE) & trials.status.isin(TIMED) & trials.median_us.notna()]
    gpus = sorted(trials.gpu.unique())
    if not gpus:
        return empty(title, NO_PERFORMANCE)
    if len(gpus) == 1:
        return empty(title, f"Only {gpus[0]} has tuning results; a second GPU is needed to compare with.")
    values = pd.DataFrame(np.nan, index=gpus, columns=gpus)
    words = pd.DataFrame("no case\nin common", index=gpus, columns=gpus)
    for (tuned, run), group in _carried(trials).groupby(["gpu_tuned", "gpu_run"]):
        shares = group.share.dropna()
        cases = f"{len(group)} case{'s' if len(group) > 1 else ''}"
        if shares.empty:
            words.loc[tuned, run] = f"none timed\nof {cases}"
            continue
        values.loc[tuned, run] = 100 * geometric_mean(list(shares))
        counted = cases if len(shares) == len(group) else f"{len(shares)} of {cases}"
        words.loc[tuned, run] = f"{values.loc[tuned, run]:.3g} %\n{counted}"
    sheet = Sheet(
        title, f"Share of the GPU's own best, geometric mean over cases.\n{origin(trials)}",
        width=1.1 * len(gpus), height=0.52 * len(gpus), left=1.0, right=0.4, bottom=0.3, head=0.5,
    )  # fmt: skip
    axes = sheet.axes[0, 0]
    colours = LinearSegmentedColormap.from_list("share of the best", DIVERGING[:3])
    _heat(axes, values, words, colours, 70, 100)
    marked = [gpu + mark(trials[trials.gpu == gpu]) for gpu in gpus]
    _labels(axes, marked, marked)
    axes.set_ylabel("tuned on")
    axes.set_xlabel("run on")
    axes.xaxis.set_label_position("top")
    return sheet.figure


def _carried(trials: pd.DataFrame) -> pd.DataFrame:
    """A row for every case that two GPUs tuned: ``gpu_tuned gpu_run``, and ``share``, what the first one's best config
    reaches of the second one's own best there; NaN where the second did not time that config."""
    problem = ["kernel", "direction", "dtype", "sizes"]
    best = trials[trials.best.fillna(False)][["gpu", *problem, "variant", "config", "median_us"]]
    own = best.drop(columns=["variant", "config"]).rename(columns={"median_us": "own_us"})
    pairs = best.drop(columns="median_us").merge(own, on=problem, suffixes=("_tuned", "_run"))
    timed = trials[["gpu", *problem, "variant", "config", "median_us"]].rename(columns={"gpu": "gpu_run"})
    pairs = pairs.merge(timed, how="left", on=["gpu_run", *problem, "variant", "config"])
    return pairs.assign(share=pairs.own_us / pairs.median_us)


def _heat(axes: Axes, values: pd.DataFrame, words: pd.DataFrame, colours: Colormap, low: float, high: float) -> None:
    """A coloured cell for each value, its words in ink that is read on it; seaborn's draws the figure to lay it out."""
    shown = values.to_numpy(dtype=float)
    axes.pcolormesh(shown, cmap=colours, vmin=low, vmax=high, edgecolors=PAPER, linewidth=1.5)
    axes.set_ylim(len(shown), 0)
    axes.set_facecolor(FILL)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for (i, j), value in np.ndenumerate(shown):
        color = MUTED
        if not np.isnan(value):
            light = np.dot(colours((value - low) / (high - low))[:3], (0.2126, 0.7152, 0.0722)) > 0.45
            color = "#262626" if light else "#ffffff"
        axes.text(
            j + 0.5, i + 0.5, words.iloc[i, j], ha="center", va="center", fontsize=8, color=color, linespacing=1.25
        )


def _labels(axes: Axes, rows: list[str], columns: list[str]) -> None:
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=0, fontweight="bold")
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, rotation=0)
    axes.set_xlabel("")
    axes.set_ylabel("")


_OURS, _PEER = "#0072B2", "#8a8f98"
_NAMES_APART = 2.2
"""Plateaus closer than this share a label, on an axis of eight decades."""


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
                (Line2D([], [], color=_PEER, mfc=PAPER, **dot), "fastest peer"),
                (Line2D([], [], color=INK, linestyle="", marker="|", ms=11, mew=1.6), "median case of the variant")],
    )  # fmt: skip
    right = max(105.0, 105 * float(pd.concat([best, peers]).roof_fraction.max()))
    places = {row: i for i, row in enumerate(rows)}
    for j, gpu in enumerate(gpus):
        axes = sheet.axes[0, j]
        own, here = best[best.gpu == gpu], every[every.gpu == gpu]
        beside = peers[peers.gpu == gpu]
        for cells, offset, color, face in ((beside, 0.17, _PEER, PAPER), (own, -0.12, _OURS, _OURS)):
            _fractions(axes, cells, _places(cells, places) + offset, color, face)
        middles = own.groupby(["kernel", "direction"]).roof_fraction.median()
        at = [places[row] - 0.12 for row in middles.index]
        axes.plot(100 * middles, at, linestyle="", marker="|", ms=15, mew=1.6, color=INK)
        timed_here = {*zip(here.kernel, here.direction, strict=True)}
        shown = {*zip(own.kernel, own.direction, strict=True), *zip(beside.kernel, beside.direction, strict=True)}
        for row in rows:
            if row not in shown:
                reason = "no survey" if row in timed_here else "not timed"
                axes.text(2, places[row], reason, va="center", fontsize=8, color=MUTED)
        axes.axvline(100, color=INK, lw=0.9)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, right)
        axes.set_yticks(*((range(len(rows)), labels) if j == 0 else ([],)))
        axes.set_xticks([tick for tick in (0, 25, 50, 75, 100, 150, 200, 300, 400) if tick <= right])
        axes.set_xlabel("% of the measured roof")
        axes.set_title(f"{gpu}{mark(here)}", loc="left", fontweight="bold", fontsize=10.5)
        axes.tick_params(axis="y", length=0)
        axes.hlines(np.arange(1, len(rows)) - 0.5, 0, right, color=RULE, lw=0.7, zorder=0.5)
        axes.grid(False, axis="y")
    return sheet.figure


def _places(cells: pd.DataFrame, places: dict[tuple[str, str], int]) -> np.ndarray:
    """The row of each cell."""
    return np.array([places[key] for key in zip(cells.kernel, cells.direction, strict=True)], float)


def _fractions(axes: Axes, cells: pd.DataFrame, y: np.ndarray, color: str, face: str) -> None:
    """A dot a case, in three sizes by its bytes."""
    x, powers = 100 * cells.roof_fraction.to_numpy(float), np.log2(cells.bytes.to_numpy(float))
    for size, low, high in ((2.6, 0, 20), (4.0, 20, 28), (5.6, 28, 99)):
        chosen = (powers >= low) & (powers < high)
        axes.plot(x[chosen], y[chosen], linestyle="", marker="o", ms=size, color=color, mfc=face, mew=0.9, alpha=0.8)


def rooflines(tables: dict[str, pd.DataFrame]) -> Figure:
    """A panel per GPU, all of one scale: its roofs, and the fastest variant of every case at its intensity."""
    title = OVERVIEWS["rooflines"]
    timed = performance(tables["benchmark"])
    best = timed[timed.best.fillna(False) & (timed.flops > 0) & (timed.bytes > 0)]
    if best.empty:
        return empty(title, NO_PERFORMANCE)
    best = best.assign(intensity=best.flops / best.bytes, rate=best.flops / best.median_us / 1e6)
    best = best.assign(family=best.family.fillna("").replace("", "other"), moved=_moved(best, tables["profile"]))
    gpus = sorted(best.gpu.unique())
    families = sorted(best.family.unique())
    lines = hues(families)
    columns = min(3, len(gpus))
    legend = [(Line2D([], [], linestyle="", color=lines[k].color, marker=lines[k].marker, ms=6), k) for k in families]
    if (best.direction == "backward").any():
        plain = {"linestyle": "", "color": MUTED, "marker": "o", "ms": 6}
        legend.append((Line2D([], [], **plain), "filled: forward"))
        legend.append((Line2D([], [], mfc=PAPER, **plain), "hollow: backward"))
    if best.moved.notna().any():
        legend.append((Line2D([], [], color=MUTED, lw=0.9, marker="D", mfc=PAPER, ms=4), "by the bytes DRAM moved"))
    low = 2.0 ** np.floor(np.log2(best[["intensity", "moved"]].min(axis=None)) - 1)
    high = max(2.0 ** np.ceil(np.log2(best[["intensity", "moved"]].max(axis=None)) + 1), 256.0)
    roofs = {gpu: _Roofs(tables["survey"], gpu, set(best[best.gpu == gpu].dtype)) for gpu in gpus}
    beside = 0.2 + 0.062 * max((len(name) for own in roofs.values() for name, _ in own.labels), default=0)
    sheet = Sheet(
        title, origin(best), rows=-(-len(gpus) // columns), columns=columns, width=3.9 if columns > 1 else 5.6,
        height=2.9, bottom=0.65, gap_y=0.95, gap_x=0.75 + beside, right=beside, legend=legend, head=0.35,
    )  # fmt: skip
    panels = sheet.all()[: len(gpus)]
    for axes, gpu in zip(panels, gpus, strict=True):
        here = best[best.gpu == gpu]
        for (family, direction), cell in here.groupby(["family", "direction"]):
            face = lines[family].color if direction == "forward" else PAPER
            axes.plot(
                cell.intensity, cell.rate, linestyle="", marker=lines[family].marker, ms=4.5, color=lines[family].color,
                mfc=face, mew=1, alpha=0.9,
            )  # fmt: skip
            _join_moved(axes, cell[cell.moved.notna()], lines[family].color)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_xlabel("flops per byte of least traffic")
        axes.set_ylabel("TFLOP/s")
        axes.set_title(f"{gpu}{mark(here)}", loc="left", fontweight="bold", fontsize=10.5)
        _draw_roofs(axes, roofs[gpu], low, high)
    bottom = 10.0 ** np.floor(np.log10(max(best.rate.min() / 1.5, 1e-4)))
    top = 2.2 * max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(bottom, top)
    for axes in sheet.all()[len(gpus) :]:
        axes.set_axis_off()
    return sheet.figure


def _moved(best: pd.DataFrame, profile: pd.DataFrame) -> pd.Series:
    """Operations per byte that DRAM moved for each row of a benchmark; NaN where no counters of the same code tell."""
    ours = profile[profile.provider_kind == "variant"]
    keys = ["gpu", "kernel", "direction", "dtype", "sizes", "provider", "identity"]
    launches = ours.assign(dram=ours.dram_read_bytes + ours.dram_write_bytes)
    calls = launches.groupby(keys).dram.agg(lambda moved: moved.sum(skipna=False))
    dram = calls[calls > 0].reindex(pd.MultiIndex.from_frame(best[keys]))
    return pd.Series(best.flops.to_numpy(float) / dram.to_numpy(float), index=best.index)


def _join_moved(axes: Axes, cell: pd.DataFrame, color: str) -> None:
    """A line from each case at its least traffic to a diamond at what DRAM moved."""
    for row in cell.itertuples():
        axes.plot([row.intensity, row.moved], [row.rate] * 2, color=color, lw=0.9, alpha=0.9)
    axes.plot(cell.moved, cell.rate, linestyle="", marker="D", ms=4, color=color, mfc=PAPER, mew=0.9, alpha=0.9)


class _Roofs:
    """A GPU's memory roof and the matmul rates of the dtypes timed there: measured, or of its datasheet if it has none.

    ``labels`` name the plateaus for the room right of the panel, for inside they would hide cases; near ones share one.
    """

    def __init__(self, survey: pd.DataFrame, gpu: str, dtypes: set[str]):
        rows = survey[(survey.gpu == gpu) & survey.value.notna()]
        measured = rows[rows.kind != "published"]
        self.measured = not measured.empty
        rows = measured if self.measured else rows
        self.bandwidth = rows[(rows.unit == "GB/s") & rows.roof.isin(["copy", "bandwidth"])]
        wanted = {roof for name in dtypes for roof in matmuls_of(name)}
        self.plateaus = rows[rows.roof.isin(wanted) & (rows.unit == "TFLOP/s")].sort_values("value")
        self.labels: list[tuple[str, float]] = []
        groups: list[list] = []
        for roof in self.plateaus.itertuples() if len(self.bandwidth) else ():
            if groups and roof.value / groups[-1][0].value < _NAMES_APART:
                groups[-1].append(roof)
            else:
                groups.append([roof])
        for group in groups:
            names = (f"{roof.roof.removeprefix('matmul_')} {roof.value:,.0f}" for roof in reversed(group))
            self.labels.append((", ".join(names), float(np.sqrt(group[0].value * group[-1].value))))


def _draw_roofs(axes: Axes, roofs: _Roofs, low: float, high: float) -> None:
    """The memory roof's slope and a plateau for each matmul rate."""
    corner = {"xy": (0.02, 0.97), "xycoords": "axes fraction", "fontsize": 7.5, "color": MUTED, "va": "top"}
    if roofs.bandwidth.empty:
        axes.annotate("neither survey nor datasheet: no roof", **corner)
        return
    line = {"color": INK, "linestyle": "-" if roofs.measured else (0, (5, 2))}
    slope = float(roofs.bandwidth.value.iloc[0]) / 1e3  # TB/s: TFLOP/s per flop per byte
    top = float(roofs.plateaus.value.max()) if len(roofs.plateaus) else slope * high
    knee = min(high, top / slope)
    axes.plot([low, knee], [low * slope, knee * slope], lw=1.3, **line)
    source = "" if roofs.measured else "datasheet "
    axes.annotate(f"{source}{roofs.bandwidth.roof.iloc[0]} {slope * 1e3:,.0f} GB/s", **corner)
    for value in roofs.plateaus.value:
        axes.plot([min(value / slope, high), high], [value] * 2, lw=1.0, **line)
    for name, middle in roofs.labels:
        axes.annotate(name, (high, middle), (4, 0), textcoords="offset points", fontsize=7, color=MUTED, va="center")
