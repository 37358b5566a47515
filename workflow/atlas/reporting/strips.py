"""Small drawings in the page's own tables, as SVG in per cents of a cell's width: lanes of GPUs, and sparklines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ..results.summary import counted
from .standing import Mark

_LANE, _STEP = 24, 5
"""Pixels that the GPUs of a lane share, and the most from one to the next."""
_WORDS = {"predicted": ", predicted", "published": ", published by others"}


@dataclass(frozen=True)
class Scale:
    """A log axis of factors, from ``low`` to ``high`` as powers of two."""

    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Scale:
        """One that holds all of these factors, and a little on both sides of 1."""
        powers = [math.log2(value) for value in values if value > 0]
        return Scale(min([-0.6, *(p - 0.25 for p in powers)]), max([0.6, *(p + 0.25 for p in powers)]))

    def place(self, value: float) -> float:
        """Per cent of the width; what is beyond an end stands on it."""
        share = (math.log2(value) - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 1)

    @property
    def ticks(self) -> list[float]:
        """Powers of two, or of its root, so few that their names stay apart."""
        step = next(step for step in (0.5, 1, 2, 4, 8, 99) if (self.high - self.low) / step <= 5)
        return [2.0 ** (i * step) for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def factor(value: float) -> str:
    """``1.23x``, and ``0.0042x`` of what is less than a hundredth."""
    return f"{value:.2f}\N{MULTIPLICATION SIGN}" if value >= 0.095 else f"{value:.2g}\N{MULTIPLICATION SIGN}"


def axis(scale: Scale) -> Markup:
    """The names of an axis' ticks, for the head of a column."""
    names = "".join(
        f'<text x="{scale.place(tick)}%" y="10">{_name(tick)}\N{MULTIPLICATION SIGN}</text>' for tick in scale.ticks
    )
    return Markup(f'<svg class="axis" height="13" aria-hidden="true">{names}</svg>')


def _name(tick: float) -> str:
    return f"{tick:.2g}" if tick > 0.3 else f"1/{1 / tick:.2g}"


def lane(marks: Sequence[Mark], scale: Scale, order: Mapping[str, int], chosen: str) -> Markup:
    """One kernel's marks: a line of its own for each GPU, a bar for its roofs; filled, hollow, or a diamond by kind."""
    step = min(_STEP, (_LANE - 8) / max(1, len(order) - 1))
    height = round(step * (len(order) - 1)) + 8
    parts = [_line(scale.place(tick), 0, height, "one" if tick == 1 else "tick") for tick in {*scale.ticks, 1.0}]
    for mark in sorted(marks, key=lambda mark: order[mark.gpu]):
        place, y, hue = scale.place(mark.times), round(4 + step * order[mark.gpu], 1), f"g{order[mark.gpu] % 8}"
        said = f"{mark.gpu} {factor(mark.times)}{_WORDS.get(mark.kind, '')}, {counted(mark.cases, 'case')}"
        if not math.isnan(mark.allowed) and mark.gpu != chosen:
            said += f"; roofs {factor(mark.allowed)}"
            parts.append(_line(scale.place(mark.allowed), round(y - 3.5, 1), round(y + 3.5, 1), f"roof {hue}"))
        if mark.kind == "predicted" and mark.low == mark.low:
            ends = f'x1="{scale.place(mark.low)}%" x2="{scale.place(mark.high)}%" y1="{y}" y2="{y}"'
            parts.append(f'<line class="span {hue}" {ends}/>')
        parts.append(shape(mark.kind, hue, f"{place}%", f"{y}", said))
    return Markup(f'<svg class="lane" height="{height}" role="img">{"".join(parts)}</svg>')


def shape(kind: str, hue: str, x: str, y: str, said: str = "") -> Markup:
    """A mark: a diamond where it is published, hollow where predicted, else filled; ``said`` where it is pointed at."""
    title = f"<title>{escape(said)}</title>" if said else ""
    if kind == "published":
        return Markup(f'<use href="#diamond" class="{hue}" x="{x}" y="{y}">{title}</use>')
    hollow = " hollow" if kind == "predicted" else ""
    return Markup(f'<circle class="{hue}{hollow}" cx="{x}" cy="{y}" r="3.2">{title}</circle>')


def sparkline(factors: Sequence[float]) -> Markup:
    """A bar for each case, up where it is faster than the fastest peer, down where slower: 2x and 0.5x fill it."""
    width, height, middle = 4 * len(factors), 20, 10
    paths = {"up": "", "down": ""}
    for place, factor in enumerate(factors):
        power = max(-1.0, min(1.0, math.log2(factor)))
        paths["up" if power >= 0 else "down"] += f"M{4 * place + 2} {middle}v{-9 * power or -0.1:.1f}"
    bars = "".join(f'<path class="{name}" d="{path}"/>' for name, path in paths.items() if path)
    head = f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    slower = sum(factor < 0.995 for factor in factors)
    title = f"<title>{counted(len(factors), 'case')} by traffic, {slower} slower than the fastest peer</title>"
    return Markup(f'{head}{title}<path class="base" d="M0 {middle}h{width}"/>{bars}</svg>')


def _line(place: float, top: float, bottom: float, style: str) -> str:
    return f'<line class="{style}" x1="{place}%" x2="{place}%" y1="{top}" y2="{bottom}"/>'
