"""Tuning: how fast the search found its best, and how many configs come close to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .facts import PERFORMANCE, TIMED, mark, origin
from .names import PER_KERNEL
from .sheet import Sheet, blank, empty
from .style import INK, MUTED, Line, hues

_FACTORS = (1, 1.5, 2, 3, 5, 10)
"""Labelled factors; slower than the last is cut off: such configs are out of the race."""


def tuning(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """A column per GPU; above best-so-far against seconds, below the share of configs within a factor of the best."""
    title = f"{PER_KERNEL['tuning']}: {kernel}"
    trials = tables["trials"]
    trials = trials[(trials.kernel == kernel) & trials.kind.isin(PERFORMANCE)]
    if trials.empty:
        return empty(title, f"No GPU tuned {kernel} here and there is no record of one.")
    gpus = sorted(trials.gpu.unique())
    trials = trials.assign(group=trials.direction + " " + trials.dtype)
    groups = sorted(trials.group.unique(), key=lambda name: (not name.startswith("forward"), name))
    lines = hues(groups)
    timed = trials[trials.status.isin(TIMED) & trials.median_us.notna()]
    finished = timed[timed.status == "ok"]
    behind = timed.median_us / timed.groupby(["gpu", "group", "sizes"]).median_us.transform("min")
    tops = [_top(behind[finished.index]), _top(behind)]
    legend = [(Line2D([], [], color=lines[name].color, lw=1.4), name) for name in groups]
    legend.append((Line2D([], [], color=INK, lw=2.4), "geometric mean of all cases"))
    sheet = Sheet(
        title, origin(trials), rows=2, columns=len(gpus), width=2.7 if len(gpus) > 1 else 5.4, height=1.9, bottom=0.6,
        gap_y=0.75, gap_x=0.3, left=0.85, legend=legend, head=0.55,
    )  # fmt: skip
    for j, gpu in enumerate(gpus):
        here, done = trials[trials.gpu == gpu], timed[timed.gpu == gpu]
        above, below = sheet.axes[0, j], sheet.axes[1, j]
        above.annotate(
            f"{gpu}{mark(here)}", (0, 1), (0, 20), xycoords="axes fraction", textcoords="offset points",
            fontsize=10.5, fontweight="bold",
        )  # fmt: skip
        above.set_title(f"{len(here)} trials, {len(done)} timed", loc="left", color=MUTED, fontsize=8.5)
        if done.empty:
            blank(above, "no config was timed")
            blank(below, "no config was timed")
            continue
        _progress(above, finished[finished.gpu == gpu], lines, tops[0])
        _landscape(below, done, lines, tops[1])
        if j == 0:
            above.set_ylabel("best so far, \u00d7 the final best")
            below.set_ylabel("% of the timed configs")
        else:
            above.set_yticklabels([])
            below.set_yticklabels([])
    return sheet.figure


def _top(behind: pd.Series) -> float:
    """The labelled factor that an axis of these factors ends at."""
    worst = behind.max()
    return next((factor for factor in _FACTORS[2:] if factor >= worst), _FACTORS[-1])


def _progress(axes: Axes, timed: pd.DataFrame, lines: dict[str, Line], top: float) -> None:
    dated = timed[timed.at_seconds.notna()]
    if dated.empty:
        blank(axes, "the trials carry no time stamps")
        return
    curves = []
    for (name, _), case in dated.groupby(["group", "sizes"]):
        case = case.sort_values("at_seconds")
        seconds = (case.at_seconds - case.at_seconds.iloc[0]).to_numpy(float)
        behind = case.median_us.cummin().to_numpy(float) / case.median_us.min()
        curves.append((seconds, behind))
        axes.step(seconds, behind, where="post", color=lines[name].color, lw=0.8, alpha=0.55)
    grid = np.unique(np.concatenate([seconds for seconds, _ in curves]))
    logs = [np.log(behind[np.searchsorted(seconds, grid, side="right") - 1]) for seconds, behind in curves]
    axes.step(grid, np.exp(np.mean(logs, axis=0)), where="post", color=INK, lw=2.2)
    axes.set_xlabel("seconds since the case's first trial")
    _factor_axis(axes.yaxis, axes.set_yscale, axes.set_ylim, top)


def _landscape(axes: Axes, timed: pd.DataFrame, lines: dict[str, Line], top: float) -> None:
    behind = timed.median_us / timed.groupby(["group", "sizes"]).median_us.transform("min")
    for name, values in behind.groupby(timed.group):
        ordered = np.sort(values.to_numpy(float))
        axes.step(ordered, 100 * np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=lines[name].color,
                  lw=1.5)  # fmt: skip
    axes.set_ylim(0, 102)
    axes.set_xlabel("time, \u00d7 the case's best")
    _factor_axis(axes.xaxis, axes.set_xscale, axes.set_xlim, top)


def _factor_axis(axis: Axis, set_scale: Callable, set_limits: Callable, top: float) -> None:
    """A log axis of factors from 1 to ``top``, labelled where a factor is easily read."""
    set_scale("log")
    set_limits(0.98, top)
    axis.set_major_locator(FixedLocator(_FACTORS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}\u00d7"))
    axis.set_minor_locator(NullLocator())
