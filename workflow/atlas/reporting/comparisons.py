"""The same kernel at two times and on two GPUs: against the record, and against what the roofs would give."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..results.changes import sentences
from ..results.differences import MARGIN, SHORT_MARGIN, SHORT_US
from ..results.summary import microseconds
from ..results.verdict import PERFORMANCE
from .grid import Cell, Grid, config_words, number, origin, text

Tables = dict[str, pd.DataFrame]

_STEPS = "{:.3f}\N{MULTIPLICATION SIGN}"


def changed_sentences(tables: Tables) -> list[str]:
    """A sentence for each kernel and GPU that has been measured here beside its record."""
    return sentences(tables["changes"].to_dict("records"))


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
                number(row.step, _STEPS, style="bad" if row.verdict == "slower" else "good"),
                number(row.peer_step, _STEPS),
            ]
            for row in rows.itertuples()
        ],
        empty="No case is slower or faster than its record." if len(tables["changes"]) else
        "No kernel was measured here on a GPU that has a record of it. `python -m atlas record --gpu GPU` keeps "
        "today's figures; after an edit the next run is compared with them.",
        caption=f"Step: recorded over present time of the fastest variant, below 1 is slower now. Shown where it is "
        f"over {100 * MARGIN:.0f} % ({100 * SHORT_MARGIN:.0f} % under {SHORT_US:.0f} \N{MICRO SIGN}s), and is so, too, "
        "by half as much after the step of the peers, which ran both times and show what board and software changed.",
        numeric=frozenset({6, 8, 9, 10}),
    )  # fmt: skip


_CASE = ["kernel", "direction", "dtype", "sizes"]
_TIMES = "{:.2f}\N{MULTIPLICATION SIGN}"


def across_table(tables: dict[str, pd.DataFrame]) -> Grid:
    """A row per kernel, pass and pair of GPUs, the one with more bandwidth first."""
    pairs = _pairs(tables["benchmark"], tables["survey"])
    keys = ["kernel", "backward", "gpu", "gpu_other"]
    groups = pairs.assign(
        backward=pairs.direction != "forward",
        log=np.log(pairs.step.astype(float)),
        log_allowed=np.log(pairs.allowed.astype(float)),
    ).groupby(keys)
    means = groups.agg(
        direction=("direction", "first"), kind=("kind", "first"), kind_other=("kind_other", "first"),
        stale=("stale", "any"), stale_other=("stale_other", "any"),
        cases=("step", "size"), step=("log", "mean"), allowed=("log_allowed", "mean"), known=("log_allowed", "count"),
        least=("step", "min"), most=("step", "max"), same=("same", "sum"),
    )  # fmt: skip
    rows = [
        [
            text(kernel, style="name"), text(row.direction),
            text(gpu, note=origin(row.kind, row.stale).text, style="name"),
            text(other, note=origin(row.kind_other, row.stale_other).text, style="name"), number(row.cases, "{:.0f}"),
            number(np.exp(row.step), _TIMES),
            number(np.exp(row.allowed), _TIMES,
                   note="" if row.known in (0, row.cases) else f"of {row.known} cases"),
            number(row.least, _TIMES), number(row.most, _TIMES),
            number(row.same / row.cases, f"{row.same} of {row.cases}"),
        ]
        for (kernel, _, gpu, other), row in zip(means.index, means.itertuples(), strict=True)
    ]  # fmt: skip
    return Grid(
        "across",
        ("kernel", "pass", "GPU", "against", "cases", "times as fast", "by the roofs", "least", "most", "same config"),
        rows,
        empty="No two GPUs timed the same case of a kernel, so there is nothing to compare.",
        caption="Times as fast: time of the fastest variant on the second GPU over that on the first, geometric mean "
        "over the cases both timed, each with the config tuned there. By the roofs: the same of the measured roofs "
        "that bind these cases on each. A kernel that gains less is bound by something else, as short cases are by "
        "launch latency. Same config: cases at which both came to one variant and config.",
        numeric=frozenset(range(4, 10)),
    )  # fmt: skip


def _pairs(benchmark: pd.DataFrame, survey: pd.DataFrame) -> pd.DataFrame:
    """Every case of every two GPUs: ``step``, how many times as fast the first is; ``allowed``, the quotient of the
    roofs, NaN where one is not known; ``same``, whether variant and config are."""
    best = benchmark[benchmark.kind.isin(PERFORMANCE) & benchmark.best.fillna(False)]
    best = best[["gpu", "kind", *_CASE, "provider", "config", "median_us", "roof", "stale"]]
    best = best.assign(stale=best.stale.fillna(False).astype(bool))
    measured = survey[survey.kind != "published"][["gpu", "roof", "value", "unit"]]
    best = best.merge(measured, how="left", on=["gpu", "roof"])
    pairs = best.merge(best, on=_CASE, suffixes=("", "_other"))
    bandwidth = measured[measured.roof == "copy"].set_index("gpu").value.to_dict()
    order = sorted(best.gpu.unique(), key=lambda gpu: (-bandwidth.get(gpu, 0.0), gpu))
    place = {gpu: i for i, gpu in enumerate(order)}
    pairs = pairs[pairs.gpu.map(place) < pairs.gpu_other.map(place)]
    alike = (pairs.unit == pairs.unit_other).fillna(False)
    return pairs.assign(
        step=pairs.median_us_other / pairs.median_us,
        allowed=(pairs.value / pairs.value_other).where(alike),
        same=(pairs.provider == pairs.provider_other) & (pairs.config == pairs.config_other),
    )
