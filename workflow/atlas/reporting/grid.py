"""Tables of the report as plain data, and how its numbers are written; the template escapes every text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from ..results.subject import label

DASH = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the value it sorts by, a smaller second line, a class (``num``, ``bad``, ``badge ok``), the
    place of the page that its text leads to."""

    text: str
    sort: str | float = ""
    note: str = ""
    style: str = ""
    link: str = ""


@dataclass(frozen=True)
class Grid:
    """One table; without rows its place is taken by ``empty``, a sentence."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str = ""
    caption: str = ""
    numeric: frozenset[int] = field(default=frozenset())


def of_kernel(grid: Grid, kernel: str) -> Grid:
    """The rows whose first cell names this kernel, without that cell: what the kernel's own page shows."""
    rows = [row[1:] for row in grid.rows if row[0].text == kernel]
    return replace(grid, columns=grid.columns[1:], rows=rows, numeric=frozenset(place - 1 for place in grid.numeric))


def prose(words: str) -> Markup:
    """A text as HTML: escaped, and what stands between backticks as code."""
    escaped = escape(words)
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escaped))) if "`" in escaped else escaped


def markup(grid: Grid) -> Markup:
    """The table as HTML, with every text escaped; a template takes four times as long, and there are 150,000 cells."""
    if not grid.rows:
        return Markup(f'<p class="empty">{prose(grid.empty)}</p>')
    heads = "".join(
        f'<th scope="col"{" class=num" if place in grid.numeric else ""}>{escape(column)}</th>'
        for place, column in enumerate(grid.columns)
    )
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in grid.rows)
    caption = f'<p class="caption">{prose(grid.caption)}</p>' if grid.caption else ""
    return Markup(
        f'<div class="scroll"><table id="{escape(grid.name)}">\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>\n{caption}"
    )


def _cell(cell: Cell) -> str:
    words, note = prose(cell.text), f"<small>{prose(cell.note)}</small>" if cell.note else ""
    if cell.style.startswith("badge"):
        return f'<td data-sort="{escape(cell.text)}"><span class="{escape(cell.style)}">{words}</span>{note}</td>'
    style = f' class="{escape(cell.style)}"' if cell.style else ""
    sort = f' data-sort="{escape(cell.sort)}"' if cell.sort != "" else ""
    shown = f'<a href="{escape(cell.link)}">{words}</a>' if cell.link else words
    return f"<td{style}{sort}>{shown}{note}</td>"


def text(value: Any, note: str = "", style: str = "") -> Cell:
    """A cell of text; a dash for nothing."""
    return Cell(DASH if missing(value) or value == "" else str(value), note=note, style=style)


def number(value: Any, form: str = "{:.3g}", note: str = "", style: str = "") -> Cell:
    """A cell of a number written by ``form``; sorts by value, nothing first."""
    if missing(value):
        return Cell(DASH, sort=float("-inf"), note=note, style=f"num {style}".strip())
    return Cell(form.format(float(value)), sort=float(value), note=note, style=f"num {style}".strip())


def badge(status: str, note: str = "", label: str = "") -> Cell:
    """A status or kind, coloured and in words."""
    return Cell(label or status, note=note, style=f"badge {status}")


def origin(kind: str, stale: Any) -> Cell:
    """A row's kind, and that it is of other code than today's: such a row must not pass for one of today's."""
    return badge("stale", label=f"{kind}, stale") if is_true(stale) else badge("kind", label=kind)


def is_true(value: Any) -> bool:
    """Of a column of flags, where nothing is known of some rows."""
    return not missing(value) and bool(value)


def missing(value: Any) -> bool:
    """True for None, NaN and pandas' NA."""
    return value is None or (not isinstance(value, str | Mapping | list) and bool(pd.isna(value)))


def config_words(config: str | Mapping[str, Any] | None) -> str:
    """``BLOCK=128 num_warps=8`` of a config or its JSON."""
    return "" if missing(config) else label(config)
