"""What the stages did: how the search found its best, what the compiler made, where the time went."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..results.summary import duration
from ..results.verdict import PERFORMANCE
from ..tables.store import generation
from .facts import TIMED, mark, origin
from .names import OVERVIEWS, PER_KERNEL
from .sheet import INK, INSTRUCTIONS, MUTED, STAGE_COLOURS, LineStyle, Sheet, blank, empty, hues, label_room

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


def _progress(axes: Axes, timed: pd.DataFrame, lines: dict[str, LineStyle], top: float) -> None:
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


def _landscape(axes: Axes, timed: pd.DataFrame, lines: dict[str, LineStyle], top: float) -> None:
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


_PANELS = (
    ("registers", "registers per thread", 1),
    ("spill_bytes", "spilled bytes per thread", 1),
    ("shared_bytes", "shared memory per block, KiB", 1024),
)


def build(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """A panel per resource, a column of dots per GPU."""
    title = f"{PER_KERNEL['build']}: {kernel}"
    configs = tables["build"]
    configs = configs[configs.kernel == kernel]
    done = configs[configs.registers.notna()]
    if done.empty:
        failed = "" if configs.empty else f" {configs.iloc[0].gpu}: {configs.iloc[0].status}, {configs.iloc[0].reason}"
        return empty(title, f"No config of {kernel} was compiled.{failed}")
    gpus = sorted(configs.gpu.unique(), key=lambda gpu: (generation(_arch(configs, gpu)), gpu))
    names = [f"{gpu}\n{_arch(configs, gpu)}\n{_counts(configs, gpu)}" for gpu in gpus]
    widest = max(len(line) for name in names for line in name.split("\n"))
    present = [name for name in INSTRUCTIONS if (done.matrix_instruction.fillna("none") == name).any()]
    legend = [_entry(*INSTRUCTIONS[name]) for name in present]
    legend.append((Line2D([], [], linestyle="", marker="o", mfc="none", mec=INK, mew=1.3, ms=8), "default config"))
    sheet = Sheet(
        title, _origin(configs), columns=3, width=max(2.3, (0.1 + 0.07 * widest) * len(gpus)), height=2.6, left=0.7,
        gap_x=0.7, bottom=0.75, legend=legend, head=0.3,
    )  # fmt: skip
    for axes, (column, label, unit) in zip(sheet.all(), _PANELS, strict=True):
        for i, gpu in enumerate(gpus):
            _column(axes, done[done.gpu == gpu], i, column, unit)
        axes.set_title(label, loc="left", color=INK)
        axes.set_xticks(range(len(gpus)), names)
        axes.tick_params(axis="x", length=0, labelsize=7.5)
        axes.set_xlim(-0.6, len(gpus) - 0.4)
        top = float((done[column].astype(float) / unit).max())
        axes.set_ylim(-0.03 * max(top, 1), max(top, 1) * 1.1)
        axes.grid(False, axis="x")
        if top == 0:
            axes.set_yticks([0])
            axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=MUTED)
    return sheet.figure


def _column(axes: Axes, rows: pd.DataFrame, place: int, column: str, unit: int) -> None:
    jitter = random.Random(place)
    rows = rows[rows[column].notna()]
    x = pd.Series([place + jitter.uniform(-0.28, 0.28) for _ in range(len(rows))], index=rows.index)
    y = rows[column].astype(float) / unit
    kinds = rows.matrix_instruction.fillna("none")
    for name, (color, marker, _) in INSTRUCTIONS.items():
        chosen = kinds == name
        if chosen.any():
            axes.scatter(x[chosen], y[chosen], s=13, color=color, marker=marker, alpha=0.6, linewidths=0)
    default = rows.default.fillna(False).astype(bool)
    axes.scatter(x[default], y[default], s=40, facecolors="none", edgecolors=INK, linewidths=1.1)


def _entry(color: str, marker: str, label: str) -> tuple[Line2D, str]:
    return Line2D([], [], linestyle="", color=color, marker=marker, ms=6), label


def _arch(configs: pd.DataFrame, gpu: str) -> str:
    return str(configs[configs.gpu == gpu].arch.iloc[0])


def _counts(configs: pd.DataFrame, gpu: str) -> str:
    rows = configs[configs.gpu == gpu]
    usable = int((rows.status == "ok").sum())
    return f"{usable} of {len(rows)}"


def _origin(configs: pd.DataFrame) -> str:
    versions = ", ".join(sorted(set(configs.triton.dropna()))) or "unknown"
    dates = configs.date.dropna().str[:10]
    sampled = sorted(set(configs[configs.scope == "sample"].gpu))
    words = [f"compiled, not run \u00b7 Triton {versions}" + (f" \u00b7 {dates.max()}" if len(dates) else "")]
    words.append("Below each GPU: configs that can launch, of those compiled.")
    if sampled:
        words.append(f"A sample of the space was compiled for {', '.join(sampled)}.")
    return words[0] + "\n" + " ".join(words[1:])


def seconds(tables: dict[str, pd.DataFrame]) -> Figure:
    """A panel per GPU, a bar per kernel, a colour per stage."""
    title = OVERVIEWS["seconds"]
    spent = tables["coverage"]
    spent = spent[spent.seconds.notna()]
    if spent.empty:
        return empty(title, "No stage has run and there is no record, so no time was spent.")
    gpus = sorted(spent.gpu.unique())
    spent = spent.assign(row=spent.kernel.fillna("survey"))
    rows = sorted(spent.row.unique(), key=lambda name: (name != "survey", name))
    # Every GPU is compiled for: worth a word only of a GPU that did nothing else.
    ran = spent[(spent.kind != "compiled") | ~spent.gpu.isin(spent[spent.kind != "compiled"].gpu)]
    stages = [stage for stage in STAGE_COLOURS if (spent.stage == stage).any()]
    sheet = Sheet(
        title, origin(ran), columns=len(gpus), width=2.0 if len(gpus) > 1 else 4.6,
        height=0.26 * len(rows) + 0.15, left=label_room(rows), gap_x=0.3, bottom=0.55, head=0.5,
        right=0.45,
        legend=[(Patch(color=STAGE_COLOURS[stage]), stage) for stage in stages],
    )  # fmt: skip
    longest = spent.groupby(["gpu", "row"]).seconds.sum().max()
    for j, gpu in enumerate(gpus):
        axes, here = sheet.axes[0, j], spent[spent.gpu == gpu]
        left = pd.Series(0.0, index=rows)
        for stage in stages:
            widths = here[here.stage == stage].groupby("row").seconds.sum().reindex(rows, fill_value=0.0)
            axes.barh(range(len(rows)), widths, left=left, color=STAGE_COLOURS[stage], height=0.66)
            left += widths
        for i, total in enumerate(left):
            if total:
                axes.annotate(duration(total), (total, i), (3, 0), textcoords="offset points", va="center",
                              fontsize=7.5, color=MUTED)  # fmt: skip
        axes.set_xlim(0, max(longest, 1e-9) * 1.28)  # one scale: a second is as long on every GPU
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), rows if j == 0 else [])
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
        axes.grid(False, axis="y")
        axes.set_xlabel("seconds")
        functional = " (interpreter)" if (here.kind == "functional").any() else ""
        name = f"{gpu}{functional}{mark(here[here.kind != 'compiled'])}"
        axes.set_title(name, loc="left", fontweight="bold", fontsize=10.5, color=INK, pad=16)
        axes.annotate(f"{duration(left.sum())} in all", (0, 1), (0, 4), xycoords="axes fraction",
                      textcoords="offset points", fontsize=8, color=MUTED)  # fmt: skip
    return sheet.figure
