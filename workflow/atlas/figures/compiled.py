"""Build resources: registers, spills and shared memory of every compiled config, by GPU."""

from __future__ import annotations

import random

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..tables.columns import generation
from .names import PER_KERNEL
from .sheet import Sheet, empty
from .style import INK, INSTRUCTIONS, MUTED

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
