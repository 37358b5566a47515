"""Heat maps: speed-up over the fastest peer, and how well configs travel between GPUs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from .facts import NO_PERFORMANCE, PERFORMANCE, TIMED, geometric_mean, mark, origin, performance
from .names import OVERVIEWS
from .sheet import DIVERGING, INK, MUTED, Sheet, empty, label_room

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
    for i, (kernel, direction) in enumerate(rows):
        for gpu in gpus:
            cell = best[(best.kernel == kernel) & (best.direction == direction) & (best.gpu == gpu)]
            compared = cell[cell.speedup.notna()]
            if compared.empty:
                words.loc[i, gpu] = "not timed" if cell.empty else "no peer"
                continue
            mean = geometric_mean(compared.speedup)
            values.loc[i, gpu] = np.log2(mean)
            count = f"{len(compared)} case{'s' if len(compared) > 1 else ''}"
            span = f"{compared.speedup.min():.2f}\u2013{compared.speedup.max():.2f}"
            words.loc[i, gpu] = f"{mean:.2f}\u00d7{mark(cell)}\n{count}, {span}"
    labels = [f"{kernel}\n{direction}" for kernel, direction in rows]
    sheet = Sheet(
        title, f"Geometric mean over a pass's cases; kinds are never averaged together.\n{origin(timed)}",
        width=1.35 * len(gpus), height=0.52 * len(rows), left=label_room(labels), right=1.25, bottom=0.25, head=0.32,
    )  # fmt: skip
    axes = sheet.axes[0, 0]
    colours = LinearSegmentedColormap.from_list("slower to faster", DIVERGING)
    _heat(axes, values, words, colours, -_SPAN, _SPAN)
    _labels(axes, labels, gpus)
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
        values.loc[tuned, run] = 100 * geometric_mean(shares)
        counted = cases if len(shares) == len(group) else f"{len(shares)} of {cases}"
        words.loc[tuned, run] = f"{values.loc[tuned, run]:.3g} %\n{counted}"
    sheet = Sheet(
        title, f"Share of the GPU's own best, geometric mean over cases.\n{origin(trials)}",
        width=1.1 * len(gpus), height=0.52 * len(gpus), left=1.0, right=0.4, bottom=0.3, head=0.5,
    )  # fmt: skip
    axes = sheet.axes[0, 0]
    colours = LinearSegmentedColormap.from_list("share of the best", DIVERGING[1:3])
    _heat(axes, values, words, colours, 50, 100)
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


def _heat(axes: Axes, values: pd.DataFrame, words: pd.DataFrame, colours, low: float, high: float) -> None:
    sns.heatmap(
        values, ax=axes, cmap=colours, vmin=low, vmax=high, annot=words.where(values.notna(), ""), fmt="", cbar=False,
        linewidths=1.5, linecolor="white", annot_kws={"fontsize": 8.5, "linespacing": 1.25},
    )  # fmt: skip
    axes.set_facecolor("#eef0f2")
    axes.grid(False)
    for (i, j), value in np.ndenumerate(values.to_numpy(dtype=float)):
        if np.isnan(value):
            axes.text(j + 0.5, i + 0.5, words.iloc[i, j], ha="center", va="center", fontsize=8, color=MUTED)


def _labels(axes: Axes, rows: list[str], columns: list[str]) -> None:
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=0, fontweight="bold")
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, rotation=0)
    axes.set_xlabel("")
    axes.set_ylabel("")
