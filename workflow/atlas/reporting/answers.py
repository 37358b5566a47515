"""The four answers on top of the report: is it right, is it fastest, which GPU, and what changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..results.collection import Entry
from ..results.summary import counted, listed
from ..results.verdict import even, geometric_mean
from . import standing
from .beyond import beyond_in_short
from .outcome import compared
from .standing import BOUNDS, Mark
from .strips import factor

Tables = dict[str, pd.DataFrame]

_TIMES = "{:.2f}\N{MULTIPLICATION SIGN}"
_NAMED = 3
"""So many GPUs are spoken of; the table below the chart has all."""


@dataclass(frozen=True)
class Answer:
    """A question, how good the answer is (``good``, ``warn``, ``bad``, ``plain``), the answer, and sentences."""

    question: str
    level: str
    headline: str
    words: Sequence[str]
    link: str


def answers(tables: Tables, proofs: Sequence[Entry], chosen: str, found: Sequence[Mark]) -> list[Answer]:
    """All four; ``chosen`` is the GPU that ``found`` are set against, "" where none was timed."""
    return [right(tables, proofs), fastest(tables, chosen), which_gpu(tables, chosen, list(found)), changed(tables)]


def right(tables: Tables, proofs: Sequence[Entry]) -> Answer:
    """Kernels that are wrong or failed, else how many checks passed and where, and of how much of today's code."""
    question, link = "Is it right?", "report/details.html#s-validation"
    verdicts, checks = tables["verdicts"], tables["validation"]
    counts = verdicts[verdicts.status.isin(["wrong", "failed", "suspect"])].groupby("status").kernel.nunique()
    passing, where = checks[checks.status == "pass"], sorted(checks.gpu.unique())
    passed, old = len(passing), int(passing.stale.fillna(False).sum())
    since = f", {old:,} of them of code that has changed since" if old else ""
    words = ["Nothing was validated."]
    if passed:
        words = [f"{passed:,} checks against float64 passed on {listed(where)}{since}."]
    claims = [claim["holds"] for entry in proofs for claim in entry.document["claims"]]
    if claims:
        words.append(f"{sum(claims)} of {counted(len(claims), 'claim')} about the measuring itself hold.")
    if len(counts):
        headline = ", ".join(f"{counts[s]} {s}" for s in ("wrong", "failed", "suspect") if s in counts)
        return Answer(question, "bad", headline, words, "report/details.html#s-failures")
    if not passed:
        return Answer(question, "warn", "Not known", words, link)
    kernels, unchecked = checks.kernel.nunique(), _unchecked(checks)
    if unchecked:
        words.insert(1, f"Part of {listed(unchecked)} was checked nowhere since it changed.")
        return Answer(question, "warn", f"{kernels - len(unchecked)} of {counted(kernels, 'kernel')}", words, link)
    return Answer(question, "good", f"Yes: {counted(kernels, 'kernel')}", words, link)


def _unchecked(checks: pd.DataFrame) -> list[str]:
    """The kernels of which a variant, or the public function, has stale checks alone, on whichever GPU."""
    parts = checks.assign(stale=checks.stale.fillna(False).astype(bool))
    stale = parts.groupby(["kernel", "variant", "direction"], dropna=False).stale.all()
    return sorted(set(stale[stale].index.get_level_values("kernel")))


def fastest(tables: Tables, chosen: str) -> Answer:
    """The mean over the cases of the chosen GPU, how many came out how, and calls at shapes that nobody tuned."""
    question, link = "Is it fastest?", "report/details.html#s-cases"
    cases = compared(tables)
    own = pd.DataFrame(even(cases[cases.gpu == chosen].to_dict("records")))
    if own.empty:
        return Answer(question, "plain", "Not known", ["No case was timed against an even peer on a GPU."], link)
    counts = own.outcome.value_counts()
    means = own.groupby("kernel").speedup.apply(lambda values: geometric_mean(list(values)))
    parts = [f"{counts.get(name, 0)} {name}" for name in ("faster", "same", "undecided", "slower")]
    words = [
        f"Of {counted(len(own), 'case')} on {chosen} beside the fastest peer: {', '.join(parts)}.",
        f"Least in the mean: {means.idxmin()}, {_TIMES.format(means.min())}.",
        *filter(None, [beyond_in_short(tables, chosen)]),
    ]
    mean = geometric_mean(list(own.speedup)) or 1.0
    level = "good" if mean > 1.005 else "warn"
    return Answer(question, level, f"{_TIMES.format(mean)} the fastest peer", words, link)


def which_gpu(tables: Tables, chosen: str, found: list[Mark]) -> Answer:
    """Every other timed GPU beside the chosen one, by what binds, with what the roofs allow."""
    question, link = "Which GPU?", "#s-gpus"
    timed = standing.gpus(tables)
    others = [gpu for gpu in timed if gpu != chosen]
    if not timed:
        return Answer(
            question, "plain", "Not known", ["No GPU was measured here, and there is no record of one."], link
        )
    if not others:
        marked = {mark.gpu for mark in found} - {chosen}
        more = f" Predicted or published of {listed(sorted(marked))}." if marked else ""
        return Answer(
            question, "plain", f"Only {chosen} was timed", [f"A second record gives a comparison.{more}"], link
        )
    words, means = [], {chosen: 1.0}
    for gpu in others:
        parts, speeds = [], []
        for bound, name in BOUNDS.items():
            if one := standing.overall(found, gpu, bound):
                roofs = "" if math.isnan(one[1]) else f" (roofs {factor(one[1])})"
                parts.append(f"{factor(one[0])}{roofs} {name}")
                if bound != "launch":
                    speeds.append(one[0])
        means |= {gpu: geometric_mean(speeds) or 0.0} if speeds else {}
        words.append(f"{gpu} is {', '.join(parts)}." if parts else f"{gpu} timed no case of {chosen}'s.")
    if len(words) > _NAMED:
        words = [*words[:_NAMED], f"The table below has {len(words) - _NAMED} more."]
    prices = price(tables)
    worth = {gpu: means[gpu] / prices[gpu] for gpu in means if gpu in prices}
    if len(worth) > 1:
        best = max(worth, key=worth.__getitem__)
        words.append(f"Most work for its price: {best}, at {prices[best]:g} USD an hour.")
    first = max(means, key=means.__getitem__)
    return Answer(question, "plain", f"{first} is fastest", [f"Beside {chosen}: {words[0]}", *words[1:]], link)


def changed(tables: Tables) -> Answer:
    """Cases that are slower or faster than their record."""
    question, link = "What changed?", "report/details.html#s-changes"
    rows = tables["changes"]
    if rows.empty:
        words = ["Nothing was measured here on a GPU that has a record of it."]
        return Answer(question, "plain", "No comparison", words, link)
    counts = rows.verdict.value_counts()
    slower, faster = int(counts.get("slower", 0)), int(counts.get("faster", 0))
    names = sorted(rows[rows.verdict == "slower"].kernel.unique())
    words = [f"Of {counted(len(rows), 'case')} since the record: {slower} slower, {faster} faster."]
    if names:
        words.append(f"Slower: {listed(names)}.")
    headline = f"{slower} slower" if slower else f"{faster} faster" if faster else "Nothing"
    return Answer(question, "bad" if slower else "good", headline, words, link)


def price(tables: Tables) -> dict[str, float]:
    """US dollars an hour of each GPU whose block of gpus.yaml says it."""
    rows = tables["survey"]
    rows = rows[rows.roof == "price"]
    return dict(zip(rows.gpu, rows.value, strict=True))
