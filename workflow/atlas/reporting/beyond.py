"""Public functions beyond the tuned cases, as the report shows them: apart from all that was tuned."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..results.subject import label
from ..results.summary import counted, microseconds
from ..results.verdict import geometric_mean
from .grid import Cell, Grid, missing, number, origin, text

SLOWER = 0.9
"""A call whose fastest peer takes less than this share of its time is a loss."""
_BEHIND = f"{100 * (1 - SLOWER):.0f} %"


def beyond_sentences(tables: dict[str, pd.DataFrame]) -> list[str]:
    """A sentence for each GPU: how many calls, by which seeds, the mean over the fastest peer, how many lose."""
    said = []
    for gpu, calls in _speeds(tables).groupby("gpu"):
        ratios = calls.ratio.dropna().tolist()
        if not ratios:
            continue
        seeds = ", ".join(map(str, sorted(calls.seed.unique())[:3])) + (", ..." if calls.seed.nunique() > 3 else "")
        said.append(
            f"{gpu}: {counted(len(ratios), 'call')} at cases that nobody tuned (seeds {seeds}) take the fastest peer's "
            f"time divided by {geometric_mean(ratios):.2f} in the geometric mean; {_losses(ratios)} lose by more than "
            f"{_BEHIND}, the worst is at {min(ratios):.2f}."
        )
    return said


def beyond_in_short(tables: dict[str, pd.DataFrame], gpu: str) -> str:
    """The same of one GPU in the words of an answer; "" where nothing was timed."""
    calls = _speeds(tables)
    ratios = calls[calls.gpu == gpu].ratio.dropna().tolist()
    if not ratios:
        return ""
    return (
        f"{counted(len(ratios), 'call')} that nobody tuned: {geometric_mean(ratios):.2f}\N{MULTIPLICATION SIGN}, "
        f"{_losses(ratios)} behind by more than {_BEHIND}."
    )


def _losses(ratios: list[float]) -> int:
    return sum(ratio < SLOWER for ratio in ratios)


def beyond_table(tables: dict[str, pd.DataFrame]) -> Grid:
    """A row per call, what loses most first."""
    calls = _speeds(tables).sort_values(["ratio", "kernel"], na_position="last")
    return Grid(
        "beyond",
        ("kernel", "GPU", "kind", "case", "call", "time", "fastest peer", "its time", "peer over ours", "host time"),
        [_row(row) for row in calls.itertuples()],
        empty="Nothing was timed beyond the tuned cases: `python -m atlas beyond KERNEL --gpu GPU` does.",
        caption="Public functions as a user calls them, with the exported configs, at cases drawn by a fresh seed that "
        "no tuner saw; step: the call and its gradient. Host time: of one call to an idle GPU. None of them enters a "
        "mean of tuned cases.",
        numeric=frozenset({5, 7, 8, 9}),
    )


def _speeds(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The interpreter's times say nothing of speed."""
    calls = tables["beyond"]
    return calls[calls.kind != "functional"]


def _row(row: Any) -> list[Cell]:
    loses = not missing(row.ratio) and row.ratio < SLOWER
    return [
        text(row.kernel, style="name"), text(row.gpu, style="name"), origin(row.kind, row.stale),
        text(label(row.sizes), note=row.dtype),
        text(row.mode, note="" if row.status == "ok" else f"{row.status}: {row.reason}"),
        _time(row.median_us), text(None if missing(row.peer) else row.peer), _time(row.peer_us),
        number(row.ratio, "{:.2f}", style="bad" if loses else ""), _time(row.call_us),
    ]  # fmt: skip


def _time(us: Any) -> Cell:
    return number(None) if missing(us) else Cell(microseconds(us), us, style="num")
