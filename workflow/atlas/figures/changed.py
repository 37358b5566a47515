"""What changed between two sides, and a case's history: the figures of ``python -m atlas compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.subject import PassCase
from .sheet import HUES, INK, MUTED, RC, Sheet, blank, label_room

COLOURS = {"slower": HUES[1], "faster": HUES[2], "undecided": HUES[5], "same": "#8a8f98"}
_MOST = 60
"""Cases that one figure shows: those with the greatest difference."""
_ROW = 0.2

Rows = Sequence[Mapping[str, Any]]


def steps(rows: Rows, before: str, after: str) -> Figure:
    """A line a case, the slowest on top: how many times as fast it is, with its interval, and the peers' step."""
    chosen = sorted(sorted(rows, key=lambda row: -abs(row["step"] - 1))[:_MOST], key=lambda row: row["step"])
    labels = [f"{row['kernel']} {PassCase.of(row)}" for row in chosen]
    left = f"; the {_MOST} of {len(rows)} that differ most" if len(rows) > _MOST else ""
    handles = [(Line2D([], [], color=colour, marker="o", linestyle="-"), name) for name, colour in COLOURS.items()]
    handles.append((Line2D([], [], color=MUTED, marker="|", linestyle=""), "peers"))
    with matplotlib.rc_context(RC):
        sheet = Sheet(
            f"{before} to {after}", f"Time before over time after, with its interval: below 1 is slower{left}.",
            width=4.6, height=max(0.6, _ROW * len(chosen)), left=label_room(labels), bottom=0.5, head=0.1,
            legend=handles,
        )  # fmt: skip
        axes = sheet.axes[0, 0]
        for place, row in enumerate(chosen):
            colour = COLOURS[row["verdict"]]
            axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=1.6)
            axes.plot(row["step"], place, "o", color=colour, markersize=4)
            if row["peer_step"] is not None:
                axes.plot(row["peer_step"], place, "|", color=MUTED, markersize=7)
        axes.axvline(1.0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(chosen)), labels)
        axes.set_ylim(len(chosen) - 0.5, -0.5)
        axes.set_xlabel("times as fast", color=MUTED)
    return sheet.figure


def history(rows: Rows) -> Figure:
    """A panel for each kernel and GPU, a line a case: its time over that of its first record, against the date."""
    frame = pd.DataFrame(
        [
            {"panel": f"{row['kernel']} on {row['gpu']}", "case": str(PassCase.of(row)), "date": row["date"],
             "median": row["median_us"], "variant": row["provider"], "verdict": row["verdict"]}
            for row in rows
        ]
    )  # fmt: skip
    frame["date"] = pd.to_datetime(frame.date, utc=True)
    if frame.duplicated(["panel", "case", "date"]).any():  # each variant by itself, instead of the fastest
        frame["case"] = frame.case + " " + frame.variant
    frame["relative"] = frame["median"] / frame.groupby(["panel", "case"])["median"].transform("first")
    panels = list(dict.fromkeys(frame.panel))
    handles = [(Line2D([], [], color=COLOURS[name], marker="o", linestyle=""), name) for name in COLOURS]
    with matplotlib.rc_context(RC):
        sheet = Sheet(
            "History", "A case's fastest variant over its first record: above 1 is slower. A dot is coloured by its "
            "verdict against the record before.", rows=len(panels), width=5.6, height=2.2, head=0.2, legend=handles,
        )  # fmt: skip
        for axes, panel in zip(sheet.all(), panels, strict=True):
            own = frame[frame.panel == panel]
            if own.date.nunique() < 2:
                blank(axes, f"{panel}: one record, which nothing is compared with")
                continue
            lines = {"units": "case", "estimator": None, "color": "#c3c7ce", "linewidth": 0.8}
            sns.lineplot(own, x="date", y="relative", ax=axes, **lines)
            for name, colour in COLOURS.items():
                dots = own[own.verdict == name]
                axes.plot(dots.date, dots.relative, "o", color=colour, markersize=3.5)
            axes.axhline(1.0, color=INK, linewidth=0.8)
            axes.set_title(panel, loc="left", color=INK)
            axes.set_xlabel("")
            axes.set_ylabel("time over the first", color=MUTED)
            axes.tick_params(axis="x", rotation=20)
    return sheet.figure
