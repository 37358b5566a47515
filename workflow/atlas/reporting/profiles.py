"""What the hardware counters say of the variants and of the fastest peer."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..profiling.counters import STALLS
from .grid import Cell, Grid, badge, config_words, microseconds, missing, number, text

_ARGUMENTS = 60
"""Characters of a kernel's template arguments that are shown."""


def counter_table(tables: dict[str, pd.DataFrame]) -> Grid:
    """A row per kernel launch of a profiled call."""
    return Grid(
        "counters",
        ("kernel", "GPU", "kind", "case", "provider", "launch", "duration", "DRAM", "traffic", "L2 hits",
         "tensor cores", "issue slots", "occupancy", "bank conflicts", "warps wait for"),
        [_row(row) for row in tables["profile"].itertuples()],
        empty="Nothing was profiled: `python -m atlas profile KERNEL --gpu GPU` reads the counters after a benchmark, "
        "where ncu is installed.",
        caption="From cold caches, one launch at a time, at the clock the driver chose. DRAM: share of the memory's "
        "peak. Traffic: bytes that DRAM moved for the launch, below it over what the declaration says the whole call "
        "must move. Tensor cores, issue slots: share of the launch in which they were busy. Waits: the heaviest reason,"
        " with the warps a scheduler had waiting for it whenever it issued.",
        numeric=frozenset(range(6, 14)),
    )  # fmt: skip


def _row(row: Any) -> list[Cell]:
    return [
        text(row.kernel, style="name"), text(row.gpu, style="name"), badge("kind", label=row.kind),
        text(row.case, note=f"{row.direction} {row.dtype}"), text(row.provider, note=config_words(row.config)),
        _launch(row.launched),
        number(None) if missing(row.duration_us) else Cell(microseconds(row.duration_us), row.duration_us, style="num"),
        _percent(row.dram_percent), _traffic(row), _percent(row.l2_hit_percent), _percent(row.tensor_percent),
        _percent(row.issue_percent), _percent(row.occupancy_percent), number(row.shared_conflicts, "{:,.0f}"),
        text(None if missing(row.stall) else STALLS.get(row.stall, row.stall),
             note="" if missing(row.stall_warps) else f"{row.stall_warps:.2g} warps"),
    ]  # fmt: skip


def _launch(name: str) -> Cell:
    """A kernel without its namespaces, over the beginning of its template arguments; the table has all of it."""
    plain, bracket, arguments = name.partition("<")
    words = f"{bracket}{arguments}"
    shown = words if len(words) <= _ARGUMENTS else f"{words[:_ARGUMENTS]}\N{HORIZONTAL ELLIPSIS}"
    return text(plain.rpartition("::")[2], note=shown)


def _percent(value: Any) -> Cell:
    return number(value, "{:.0f} %")


def _traffic(row: Any) -> Cell:
    if missing(row.dram_read_bytes) or missing(row.dram_write_bytes):
        return number(None)
    moved = row.dram_read_bytes + row.dram_write_bytes
    over = "" if missing(row.bytes) or not row.bytes else f"{moved / row.bytes:.2f}\N{MULTIPLICATION SIGN} needed"
    return Cell(f"{moved / 2**20:,.{0 if moved > 100 * 2**20 else 2}f} MiB", moved, over, "num")
