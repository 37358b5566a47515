"""Where the time went: seconds of every stage, kernel by kernel."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .facts import mark, origin
from .names import OVERVIEWS
from .sheet import Sheet, empty, label_room
from .style import INK, MUTED, STAGE_COLOURS


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
                axes.annotate(_duration(total), (total, i), (3, 0), textcoords="offset points", va="center",
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
        axes.annotate(f"{_duration(left.sum())} in all", (0, 1), (0, 4), xycoords="axes fraction",
                      textcoords="offset points", fontsize=8, color=MUTED)  # fmt: skip
    return sheet.figure


def _duration(value: float) -> str:
    if value < 100:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 6000 else f"{value / 3600:.3g} h"
