"""What became slower or faster since the record of the same GPU."""

from __future__ import annotations

import json

import pandas as pd

from ..results.changes import MARGIN, SHORT_MARGIN, SHORT_US, sentences
from .grid import Cell, Grid, config_words, microseconds, number, text

Tables = dict[str, pd.DataFrame]

_TIMES = "{:.3f}\N{MULTIPLICATION SIGN}"


def changed_sentences(tables: Tables) -> list[str]:
    """A sentence for each kernel and GPU that has been measured here beside its record."""
    rows = tables["changes"].to_dict("records")
    return sentences([row | {"sizes": json.loads(row["sizes"])} for row in rows])


def changed_table(tables: Tables) -> Grid:
    """Every case that is beyond the margin, slower ones first and the worst of them on top."""
    rows = tables["changes"]
    rows = rows[rows.verdict.isin(["slower", "faster"])].sort_values("step")
    return Grid(
        "changes",
        ("kernel", "GPU", "pass", "dtype", "case", "now", "median now", "recorded", "median recorded", "step",
         "step of the peers"),
        [
            [
                text(row.kernel, style="name"), text(row.gpu, style="name"), text(row.direction), text(row.dtype),
                text(row.case), text(row.provider, note=config_words(row.config)),
                Cell(microseconds(row.median_us), row.median_us, style="num"),
                text(row.recorded_provider, note=config_words(row.recorded_config)),
                Cell(microseconds(row.recorded_median_us), row.recorded_median_us, style="num"),
                number(row.step, _TIMES, style="bad" if row.verdict == "slower" else "good"),
                number(row.peer_step, _TIMES),
            ]
            for row in rows.itertuples()
        ],
        empty="No case is slower or faster than its record." if len(tables["changes"]) else
        "No kernel was measured here on a GPU that has a record of it. `python -m atlas record --gpu GPU` keeps "
        "today's figures; after an edit the next run is compared with them.",
        caption=f"Step: recorded over present time of the fastest variant, below 1 is slower now. Shown where it is "
        f"over {100 * MARGIN:.0f} % ({100 * SHORT_MARGIN:.0f} % under {SHORT_US:.0f} \N{MICRO SIGN}s), and is so, too, "
        "after the step of the peers, which ran both times and show what the board and the software changed.",
        numeric=frozenset({6, 8, 9, 10}),
    )  # fmt: skip
