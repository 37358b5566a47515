"""Your workload: what a program's calls take by the tuned kernels and by their peers, call by call and in all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from ..results.subject import PassCase, label
from ..results.summary import counted, microseconds
from ..results.verdict import PERFORMANCE
from ..workload.current import Workload
from ..workload.problems import Problem, unmapped
from .grid import Cell, Grid, number, text


@dataclass(frozen=True)
class Gain:
    """A problem on a GPU: medians of one call in microseconds, None where there is none."""

    gpu: str
    problem: Problem
    peer: str = ""
    peer_us: float | None = None
    default_us: float | None = None
    tuned: str = ""
    tuned_us: float | None = None

    def saved(self, other_us: float | None) -> float | None:
        """Milliseconds that all its calls are shorter than if each took ``other_us``."""
        if self.tuned_us is None or other_us is None or self.problem.part:
            return None
        return (other_us - self.tuned_us) * self.problem.count / 1e3


@dataclass(frozen=True)
class Section:
    """What the report says of a workload."""

    sentences: list[str]
    calls: Grid
    no_case: Grid


def section(tables: dict[str, pd.DataFrame], workload: Workload | None) -> Section | None:
    """The section; None for a run without a workload."""
    if workload is None:
        return None
    gains = list(gains_of(tables["benchmark"], workload))
    return Section([*_heads(workload), *_totals(gains)], _calls(gains, workload), _no_case(workload))


def gains_of(benchmark: pd.DataFrame, workload: Workload) -> Iterator[Gain]:
    """Every problem on every GPU that timed it; those that none did once, without figures.

    ``benchmark`` is the table of that name.
    """
    timed = benchmark[benchmark.kind.isin(PERFORMANCE) & (benchmark.status == "ok")]
    found: dict[tuple[str, PassCase], dict[str, list]] = {}
    for row in timed.to_dict("records"):
        found.setdefault((row["kernel"], PassCase.of(row)), {}).setdefault(row["gpu"], []).append(row)
    for problem in workload.problems:
        for gpu, rows in found.get((problem.kernel, problem.at), {}).items():
            peers = sorted(_of(rows, "peer"), key=_median)
            tuned, default = sorted(_of(rows, "variant"), key=_median), _of(rows, "default")
            yield Gain(
                gpu,
                problem,
                peers[0]["provider"] if peers else "",
                _median(peers[0]) if peers else None,
                # A call without a tuned config takes the first variant there is.
                _median(default[0]) if default else None,
                tuned[0]["provider"] if tuned else "",
                _median(tuned[0]) if tuned else None,
            )
        if (problem.kernel, problem.at) not in found:
            yield Gain("", problem)


def _of(rows: list[dict], kind: str) -> list[dict]:
    return [row for row in rows if row["provider_kind"] == kind and not pd.isna(row["median_us"])]


def _median(row: dict) -> float:
    return row["median_us"]


def _heads(workload: Workload) -> Iterator[str]:
    document = workload.document
    if document["calls"]:
        calls, programs = sum(call["count"] for call in document["calls"]), ", ".join(document["programs"])
        yield (
            f"{workload.path.name}: {counted(calls, 'call')} of {programs or 'a program'} on "
            f"{', '.join(document['devices']) or 'an unknown device'}, which come to "
            f"{counted(len({(one.kernel, one.case) for one in workload.problems}), 'case')} of "
            f"{counted(len(workload.kernels), 'kernel')}."
        )
    if document["cases"]:
        yield f"{workload.path.name}: {counted(len(document['cases']), 'case')} written by hand."


def _totals(gains: list[Gain]) -> Iterator[str]:
    """A sentence for each GPU: what all calls take, and what they would."""
    own = [gain for gain in gains if not gain.problem.part]
    for gpu in dict.fromkeys(gain.gpu for gain in own if gain.gpu):
        both = [gain for gain in own if gain.gpu == gpu and gain.saved(gain.peer_us) is not None]
        if not both:
            continue
        peers, tuned = (sum(us * gain.problem.count for gain, us in each) / 1e3 for each in (
            [(gain, gain.peer_us or 0.0) for gain in both], [(gain, gain.tuned_us or 0.0) for gain in both]
        ))  # fmt: skip
        untuned = [gain.saved(gain.default_us) for gain in both]
        less = sum(saved for saved in untuned if saved is not None)
        yield (
            f"On {gpu} its calls take {tuned:.3g} ms by the tuned kernels, and {peers:.3g} ms by the fastest peer of "
            f"each: {peers - tuned:.3g} ms ({100 * (1 - tuned / peers):.0f} %) are gained, {less:.3g} ms of them "
            "over the default configs." if peers >= tuned else
            f"On {gpu} its calls take {tuned:.3g} ms by the tuned kernels, and {peers:.3g} ms by the fastest peer of "
            f"each: {tuned - peers:.3g} ms are lost; {less:.3g} ms are gained over the default configs."
        )  # fmt: skip
    untimed = [gain for gain in own if gain.tuned_us is None or gain.peer_us is None]
    if untimed:
        yield f"{counted(len(untimed), 'problem')} of it {'has' if len(untimed) == 1 else 'have'} no figure of a GPU."


def _calls(gains: list[Gain], workload: Workload) -> Grid:
    total = sum(problem.seconds or 0.0 for problem in workload.problems if not problem.part)
    return Grid(
        "workload",
        ("called by", "kernel", "pass", "case", "calls", "share of time", "GPU", "fastest peer", "default", "tuned",
         "gained in all", "over the default"),
        [
            [
                text(", ".join(sorted(one.problem.functions)), note=f"part of {one.problem.part}" if one.problem.part
                     else "", style="name"),
                text(one.problem.kernel, style="name"), text(one.problem.at.direction),
                text(f"{one.problem.at.dtype} {label(dict(one.problem.at.sizes))}"),
                number(one.problem.count, "{:.0f}"),
                number(100 * one.problem.seconds / total if total and one.problem.seconds and not one.problem.part
                       else None, "{:.1f} %"),
                text(one.gpu), _time(one.peer_us, one.peer), _time(one.default_us), _time(one.tuned_us, one.tuned),
                _saved(one.saved(one.peer_us)), _saved(one.saved(one.default_us)),
            ]
            for one in gains
        ],
        empty="No call of the workload comes to a case.",
        caption="Gained in all: calls times what one takes less than by the fastest peer, or than by the default "
        "config; below 0 is a loss. Parts of other calls are tuned and timed, and counted with those. Share of time: "
        "on the program's own device, of all calls that were watched.",
        numeric=frozenset({4, 5, 7, 8, 9, 10, 11}),
    )  # fmt: skip


def _time(median_us: float | None, note: str = "") -> Cell:
    if median_us is None:
        return number(None)
    return Cell(microseconds(median_us), median_us, note=note, style="num")


def _saved(milliseconds: float | None) -> Cell:
    style = "" if milliseconds is None else "good" if milliseconds > 0 else "bad" if milliseconds < 0 else ""
    return number(milliseconds, "{:.3g} ms", style=style)


def _no_case(workload: Workload) -> Grid:
    return Grid(
        "workload-no-case",
        ("called", "arguments", "calls", "why it comes to no case"),
        [
            [text(one.function, style="name"), text(one.what), number(one.count, "{:.0f}"), text(one.reason)]
            for one in unmapped(workload.document)
        ],
        empty="Every call comes to a case.",
        numeric=frozenset({2}),
    )
