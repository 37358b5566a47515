"""Colours, marks and sizes that all figures share: safe for the colour-blind, and told apart by shape in print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RC = {
    "font.size": 9,
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
    "grid.color": "#e4e6ea",
    "grid.linewidth": 0.7,
    "xtick.color": "#3c4048",
    "ytick.color": "#3c4048",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "svg.hashsalt": "kernel-atlas",
    "svg.fonttype": "path",
}
"""matplotlib settings; the salt makes the same figure the same bytes."""

INK, MUTED = "#1d2026", "#5f6570"

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
    "benchmark": "#0072B2",
}

INSTRUCTIONS = {
    "wgmma": ("#009E73", "o", "wgmma (tensor cores)"),
    "mma": ("#0072B2", "^", "mma (tensor cores)"),
    "fma": ("#D55E00", "X", "FMA (no tensor cores)"),
    "none": ("#8a8f98", "s", "no tl.dot"),
}
"""What tl.dot became -> colour, marker, legend."""

DIVERGING = ("#B2470A", "#E79A6B", "#F6F5F3", "#7FB2D6", "#0A5C91")
"""From slower through equal to faster."""


@dataclass(frozen=True)
class Line:
    """How one provider or GPU is drawn everywhere in a figure."""

    color: str
    marker: str
    linestyle: object = "-"
    hollow: bool = False


def hues(names: Sequence[str]) -> dict[str, Line]:
    """A colour and a marker for each name, no two alike: from the ninth name on colours bear the next marker."""
    shapes = len(MARKERS)
    return {name: Line(HUES[i % len(HUES)], MARKERS[(i + i // shapes) % shapes]) for i, name in enumerate(names)}


def providers(variants: Sequence[str], peers: Sequence[str]) -> dict[str, Line]:
    """Variants coloured and solid, peers grey, dashed and hollow; a variant wins where both share a name."""
    grey = {
        name: Line(_GREYS[i % len(_GREYS)], MARKERS[-1 - i % len(MARKERS)], _DASHES[i % len(_DASHES)], hollow=True)
        for i, name in enumerate(peers)
    }
    return grey | hues(variants)
