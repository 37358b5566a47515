"""What the stages did: how the search found its best, what the compiler made, where the time went."""

from __future__ import annotations

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
from .facts import TIMED, gpu_styles, mark, origin
from .names import OVERVIEWS, PER_KERNEL
from .sheet import INK, INSTRUCTIONS, MUTED, STAGE_COLOURS, LineStyle, Sheet, blank, empty, hues, label_room

_FACTORS = (1, 1.1, 1.2, 1.5, 2, 3, 5, 10)
"""Factors that an axis may end at and bears; slower than the last is cut off: such configs are out of the race."""


def tuning(tables: dict[str, pd.DataFrame], kernel: str) -> Figure:
    """Left best-so-far against seconds, right the share of configs near the best: a line per GPU, of one per pass."""
    title = f"{PER_KERNEL['tuning']}: {kernel}"
    trials = tables["trials"]
    trials = trials[(trials.kernel == kernel) & trials.kind.isin(PERFORMANCE)]
    if trials.empty:
        return empty(title, f"No GPU tuned {kernel} here and there is no record of one.")
    timed = trials[trials.status.isin(TIMED) & trials.median_us.notna()]
    if timed.empty:
        return empty(title, f"Of the {len(trials)} trials of {kernel} none was timed.")
    several = timed.gpu.nunique() > 1
    timed = timed.assign(line=timed.gpu if several else timed.direction + " " + timed.dtype)
    timed = timed.assign(behind=timed.median_us / timed.groupby(["gpu", *_PROBLEM]).median_us.transform("min"))
    names = sorted(timed.line.unique(), key=lambda name: (not name.startswith("forward"), name))
    lines = gpu_styles(tables) if several else hues(names)
    counts = timed.line.value_counts()
    sheet = Sheet(
        title, f"{len(trials)} trials, {len(timed)} timed.\n{origin(trials)}", columns=2, width=3.6, height=2.6,
        bottom=0.55, gap_x=0.8, left=0.75, head=0.1,
        legend=[(Line2D([], [], color=lines[name].color, lw=1.8), f"{name}: {counts[name]} timed") for name in names],
    )  # fmt: skip
    left, right = sheet.all()
    finished = timed[(timed.status == "ok") & timed.at_seconds.notna()]
    for name in names:
        _progress(left, finished[finished.line == name], lines[name])
        ordered = np.sort(timed[timed.line == name].behind.to_numpy(float))
        right.step(ordered, 100 * np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=lines[name].color)
    if finished.empty:
        blank(left, "the trials carry no time stamps")
    else:
        left.set_xlabel("seconds since a case's first trial")
        left.set_ylabel("best so far, \u00d7 the final best")
        _factor_axis(left.yaxis, left.set_yscale, left.set_ylim, _top(left.dataLim.y1))
    right.set_ylim(0, 102)
    right.set_ylabel("% of the timed configs")
    right.set_xlabel("time, \u00d7 the case's best")
    _factor_axis(right.xaxis, right.set_xscale, right.set_xlim, _top(timed.behind.max()))
    return sheet.figure


_PROBLEM = ["direction", "dtype", "sizes"]


def _top(worst: float) -> float:
    """The labelled factor that an axis of these factors ends at."""
    return next((factor for factor in _FACTORS[1:] if factor >= worst), _FACTORS[-1])


def _progress(axes: Axes, timed: pd.DataFrame, style: LineStyle) -> None:
    """The geometric mean over cases of the best time up to each second, over the best at the end."""
    curves = []
    for _, case in timed.groupby(["gpu", *_PROBLEM]):
        case = case.sort_values("at_seconds")
        seconds = (case.at_seconds - case.at_seconds.iloc[0]).to_numpy(float)
        curves.append((seconds, case.median_us.cummin().to_numpy(float) / case.median_us.min()))
    if curves:
        grid = np.unique(np.concatenate([seconds for seconds, _ in curves]))
        logs = [np.log(behind[np.searchsorted(seconds, grid, side="right") - 1]) for seconds, behind in curves]
        axes.step(grid, np.exp(np.mean(logs, axis=0)), where="post", color=style.color, lw=1.6)


def _factor_axis(axis: Axis, set_scale: Callable, set_limits: Callable, top: float) -> None:
    """A log axis of factors from 1 to ``top``, labelled where a factor is easily read."""
    set_scale("log")
    set_limits(top**-0.03, top)
    fine = top <= 1.5  # else the labels of small factors would run into each other
    axis.set_major_locator(FixedLocator([factor for factor in _FACTORS if fine or factor == 1 or factor >= 1.5]))
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
    done = done.assign(
        place=done.gpu.map({gpu: place for place, gpu in enumerate(gpus)}).astype(float),
        made=done.matrix_instruction.fillna("none"),
        default=done.default.fillna(False).astype(bool),
    )
    for axes, (column, label, unit) in zip(sheet.all(), _PANELS, strict=True):
        _values(axes, done.assign(value=done[column].astype(float) / unit), present)
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


def _values(axes: Axes, rows: pd.DataFrame, present: list[str]) -> None:
    """A mark for each value there is, larger where more configs have it; a GPU's instructions stand side by side."""
    shift = dict(zip(present, np.linspace(-0.2, 0.2, len(present)) if len(present) > 1 else [0.0], strict=True))
    rows = rows[rows.value.notna()].assign(x=lambda frame: frame.place + frame.made.map(shift).astype(float))
    for name in present:
        counts = rows[rows.made == name].groupby(["x", "value"]).size()
        color, marker, _ = INSTRUCTIONS[name]
        axes.scatter(
            counts.index.get_level_values("x"), counts.index.get_level_values("value"), color=color, marker=marker,
            s=10 * (1 + np.log2(counts.to_numpy(float))), alpha=0.7, linewidths=0,
        )  # fmt: skip
    default = rows[rows.default][["x", "value"]].drop_duplicates()
    axes.scatter(default.x, default.value, s=44, facecolors="none", edgecolors=INK, linewidths=1.1)


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
        axes.set_yticks(*((range(len(rows)), rows) if j == 0 else ([],)))
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
