"""Sheets of panels, laid out in inches so that nothing overlaps whatever the data; and what all figures share.

Colours are safe for the colour-blind, and lines are told apart by shape in print.
"""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, RULE, FILL, PAPER = "#1d2026", "#5f6570", "#e4e6ea", "#eef0f2", "#fefefe"
"""Text, lesser text, lines of a grid, empty panels, and what hollow marks are filled with.  No figure uses plain white
for these: on a dark ground they change, and white text on a colour does not."""

RC = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": "#3c4048",
    "ytick.color": "#3c4048",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.hashsalt": "kernel-atlas",
    "svg.fonttype": "none",
}
"""matplotlib settings; the salt makes the same figure the same bytes, and text as text is a tenth of its outlines."""

_DARK = {
    INK: "#e7e9ec",
    MUTED: "#a2a9b4",
    RULE: "#333942",
    FILL: "#23282f",
    PAPER: "#15181d",
    "#3c4048": "#b9bfc9",
    "#222222": "#f0f0f0",
    "#474747": "#cfcfcf",
    "#6b6b6b": "#b0b0b0",
    "#0072b2": "#3f9fdb",
    "#56b4e9": "#a6dcff",
    "#6a3d9a": "#a987d8",
    "#7f5539": "#c09a7a",
}
"""What colours become where the reader's screen is dark."""

# Okabe and Ito's palette without its yellow, which white paper swallows.
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A3D9A", "#7F5539")
_GREYS = ("#222222", "#6b6b6b", "#9a9a9a", "#474747", "#b5b5b5")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)))

STAGE_COLOURS = {
    "survey": "#7F5539",
    "build": "#56B4E9",
    "validate": "#009E73",
    "autotune": "#E69F00",
    "sample": "#CC79A7",
    "benchmark": "#0072B2",
    "beyond": "#6A3D9A",
    "profile": "#D55E00",
    "energy": "#9a9a9a",
}

INSTRUCTIONS = {
    "tcgen05": ("#CC79A7", "D", "tcgen05 (tensor cores)"),
    "wgmma": ("#009E73", "o", "wgmma (tensor cores)"),
    "mma": ("#0072B2", "^", "mma (tensor cores)"),
    "fma": ("#D55E00", "X", "FMA (no tensor cores)"),
    "none": ("#8a8f98", "s", "no tl.dot"),
}
"""What tl.dot became -> colour, marker, legend."""

DIVERGING = ("#B2470A", "#E79A6B", "#F6F5F3", "#7FB2D6", "#0A5C91")
"""From slower through equal to faster."""


@dataclass(frozen=True)
class LineStyle:
    """How one provider or GPU is drawn everywhere in a figure."""

    color: str
    marker: str
    linestyle: object = "-"
    hollow: bool = False


def hues(names: Sequence[str]) -> dict[str, LineStyle]:
    """A colour and a marker for each name, no two alike: from the ninth name on colours bear the next marker."""
    shapes = len(MARKERS)
    return {name: LineStyle(HUES[i % len(HUES)], MARKERS[(i + i // shapes) % shapes]) for i, name in enumerate(names)}


def providers(variants: Sequence[str], peers: Sequence[str]) -> dict[str, LineStyle]:
    """Variants coloured and solid, peers grey, dashed and hollow; a variant wins where both share a name."""
    grey = {
        name: LineStyle(_GREYS[i % len(_GREYS)], MARKERS[-1 - i % len(MARKERS)], _DASHES[i % len(_DASHES)], hollow=True)
        for i, name in enumerate(peers)
    }
    return grey | hues(variants)


_LINE = 0.165
"""Inches between two lines of 9 pt text."""

_TALL = 6.0
"""Inches of panels from which on the legend stands above them: below, nobody would see both it and the first panel."""


class Sheet:
    """``rows`` x ``columns`` panels of ``width`` x ``height`` inches each; ``axes[row, column]`` are matplotlib's.

    ``left`` and ``bottom`` are the room for the outer panels' labels, ``gap_x`` and ``gap_y`` that between panels.  The
    legend stands below the panels, or above those that are many.
    """

    def __init__(
        self,
        title: str,
        subtitle: str,
        rows: int = 1,
        columns: int = 1,
        width: float = 3.2,
        height: float = 2.2,
        left: float = 0.75,
        right: float = 0.3,
        bottom: float = 0.6,
        gap_x: float = 0.55,
        gap_y: float = 0.6,
        head: float = 0.3,
        legend: Sequence[tuple[Artist, str]] = (),
    ):
        total = max(6.4, left + columns * width + (columns - 1) * gap_x + right)
        lines = (line for part in subtitle.split("\n") for line in textwrap.wrap(part, int(total * 14.5)))
        subtitle = "\n".join(line.removesuffix("\N{NO-BREAK SPACE}·") for line in lines)
        title = "\n".join(textwrap.wrap(title, int(total * 9.3)))
        top = 0.18 + 0.24 * (title.count("\n") + 1) + _LINE * (subtitle.count("\n") + 1) + 0.12 + head
        legend_rows, legend_columns = _legend_shape(legend, total)
        foot = 0.12 + 0.2 * legend_rows if legend_rows else 0.0
        body = rows * height + (rows - 1) * gap_y
        on_top = body > _TALL
        if on_top:
            top, foot = top + foot, 0.0
        full = top + body + bottom + foot
        self.figure = Figure(figsize=(total, full))
        self.axes = np.empty((rows, columns), dtype=object)
        for row in range(rows):
            for column in range(columns):
                x, y = left + column * (width + gap_x), full - top - row * (height + gap_y) - height
                self.axes[row, column] = self.figure.add_axes((x / total, y / full, width / total, height / full))
        self.figure.text(0.15 / total, 1 - 0.13 / full, title, fontsize=13, fontweight="bold", color=INK, va="top")
        below = 0.13 + 0.24 * (title.count("\n") + 1) + 0.03
        self.figure.text(0.15 / total, 1 - below / full, subtitle, fontsize=8.5, color=MUTED, va="top", linespacing=1.3)
        if legend:
            handles, labels = zip(*legend, strict=True)
            under = below + _LINE * (subtitle.count("\n") + 1) + 0.05
            self.figure.legend(
                handles, labels, loc="upper left" if on_top else "lower left",
                bbox_to_anchor=(0.1 / total, 1 - under / full if on_top else 0.03 / full), ncols=legend_columns,
                frameon=False, borderpad=0.2, columnspacing=1.6, handlelength=3,
            )  # fmt: skip

    def all(self) -> list[Axes]:
        """Every panel, row by row."""
        return list(self.axes.flat)


def label_room(labels: Iterable[str]) -> float:
    """Inches that 8 pt tick labels need to the left of a panel."""
    return 0.3 + 0.079 * max(len(line) for label in labels for line in label.split("\n"))


def _legend_shape(legend: Sequence[tuple[Artist, str]], width: float) -> tuple[int, int]:
    """Rows and columns of a legend that fits ``width`` inches."""
    if not legend:
        return 0, 0
    widest = max(len(label) for _, label in legend) * 0.073 + 0.62
    columns = max(1, min(len(legend), int((width - 0.2) / widest)))
    return math.ceil(len(legend) / columns), columns


def empty(title: str, sentence: str) -> Figure:
    """A figure without data: its title, and a sentence that says why there is nothing to draw."""
    sheet = Sheet(title, "", width=5.4, height=0.55, left=0.5, right=0.5, bottom=0.15, head=0)
    axes = sheet.axes[0, 0]
    axes.set_axis_off()
    axes.text(0.5, 0.5, textwrap.fill(sentence, 72), ha="center", va="center", fontsize=10, color=MUTED)
    return sheet.figure


def blank(axes: Axes, sentence: str, width: int = 34) -> None:
    """Turn a panel without data into a sentence that says why."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_facecolor(FILL)
    axes.text(
        0.5, 0.5, textwrap.fill(sentence, width), ha="center", va="center", fontsize=8.5, color=MUTED,
        transform=axes.transAxes,
    )  # fmt: skip


def save(figure: Figure, folder: Path, name: str, title: str, caption: str, png: bool = False) -> None:
    """Write ``<name>.svg``, without a ground and fit for light and dark, and ``png`` on white; neither bears a date."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Title": title, "Description": caption, "Date": None})
    (folder / f"{name}.svg").write_text(drawn.getvalue().replace("</style>", f"</style>{_dark_style()}", 1))
    if png:
        known = {"Title": title, "Description": caption, "Software": None}
        figure.savefig(folder / f"{name}.png", dpi=144, metadata=known, facecolor="white")


@functools.cache
def _dark_style() -> str:
    """A style for dark screens: matplotlib states each colour where it uses it, so these are found by their text."""
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in _DARK.items()
        for part in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
