"""Public functions at cases that nobody tuned, beside the fastest peer of each call."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..results.verdict import PERFORMANCE
from .facts import mark, origin
from .names import OVERVIEWS
from .sheet import HUES, INK, MUTED, RULE, Sheet, empty, label_room

_MODES = {"forward": "o", "backward": "^", "step": "s"}
"""By mode its mark."""

_SPAN = 2.0
"""Doublings to either side that the axis has."""


def beyond(tables: dict[str, pd.DataFrame]) -> Figure:
    """A row per kernel, a column per GPU: every call's factor over its fastest peer, and their geometric mean."""
    title = OVERVIEWS["beyond"]
    calls = tables["beyond"]
    calls = calls[calls.kind.isin(PERFORMANCE) & calls.ratio.notna()]
    if calls.empty:
        return empty(title, "Nothing was timed beyond the tuned cases.")
    kernels, gpus = sorted(calls.kernel.unique()), sorted(calls.gpu.unique())
    colours = dict(zip(_MODES, HUES, strict=False))
    dot = {"linestyle": "", "ms": 5, "alpha": 0.75, "markeredgewidth": 0}
    sheet = Sheet(
        title, origin(calls), columns=len(gpus), width=2.3 if len(gpus) > 1 else 4.6, height=0.27 * len(kernels) + 0.1,
        left=label_room(kernels), gap_x=0.5, head=0.35,
        legend=[*((Line2D([], [], color=colours[mode], marker=shape, **dot), mode) for mode, shape in _MODES.items()),
                (Line2D([], [], color=INK, linestyle="", marker="|", ms=11, mew=1.6), "geometric mean")],
    )  # fmt: skip
    places = {kernel: place for place, kernel in enumerate(kernels)}
    for axes, gpu in zip(sheet.all(), gpus, strict=True):
        here = calls[calls.gpu == gpu].assign(power=lambda own: np.log2(own.ratio.astype(float)))
        for offset, (mode, shape) in zip((-0.22, 0.0, 0.22), _MODES.items(), strict=True):
            own = here[here["mode"] == mode]
            at = [places[kernel] + offset for kernel in own.kernel]
            axes.plot(own.power.clip(-_SPAN, _SPAN), at, color=colours[mode], marker=shape, clip_on=False, **dot)
        means = here.groupby("kernel").power.mean().clip(-_SPAN, _SPAN)
        axes.plot(
            means, [places[kernel] for kernel in means.index], linestyle="", marker="|", ms=13, mew=1.6, color=INK
        )
        for kernel in set(kernels) - set(means.index):
            axes.text(0.06 - _SPAN, places[kernel], "not timed", va="center", fontsize=8, color=MUTED)
        axes.axvline(0, color=INK, lw=0.9, zorder=0.6)
        axes.set_xlim(-_SPAN, _SPAN)
        axes.set_ylim(len(kernels) - 0.5, -0.5)
        axes.set_xticks(range(-2, 3), [f"{2.0**power:g}\N{MULTIPLICATION SIGN}" for power in range(-2, 3)])
        axes.set_yticks(*((range(len(kernels)), kernels) if gpu == gpus[0] else ([],)))
        axes.set_xlabel("fastest peer's time over ours")
        axes.set_title(f"{gpu}{mark(here)}", loc="left", fontweight="bold", fontsize=10.5)
        axes.tick_params(axis="y", length=0)
        axes.hlines(np.arange(1, len(kernels)) - 0.5, -_SPAN, _SPAN, color=RULE, lw=0.7, zorder=0.5)
        axes.grid(False, axis="y")
    return sheet.figure
