"""log: what each step of each kernel's optimisation brought, as Markdown: the kernel log."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..host import gpus
from ..profiling.ncu import STALLS
from ..reading.config import GPUS_FILE, load_gpus
from ..results import counters
from ..results.collection import Entry, collect
from ..results.documents import write_text
from ..results.stacks import told_apart
from ..results.subject import PassCase
from ..results.summary import counted
from ..results.verdict import even, geometric_mean
from ..tables import rows, store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which GPU's, and where to."""
    parser.add_argument("--gpu", help="a block of gpus.yaml (default: every GPU that was benchmarked)")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--output", type=Path, help="a file to write (default: print)")


def run(arguments: argparse.Namespace) -> None:
    """Print or write the log; :class:`~atlas.errors.AtlasError` for a broken document or an unknown GPU."""
    asked = [arguments.gpu] if arguments.gpu else None
    if asked:
        gpus.names_of(asked, load_gpus(arguments.gpus_file), "--gpu", "command line")
    text = page(told_apart(collect(arguments.results, gpus=asked)))
    if arguments.output:
        write_text(arguments.output, text + "\n")
    else:
        print(text)


def page(entries: Sequence[Entry]) -> str:
    """The log of these documents, as Markdown."""
    profiled = {(entry.kernel, entry.gpu): entry for entry in entries if entry.stage == "profile"}
    tables = _dicts("ladder", rows.ladder(entries)), _dicts("benchmark", rows.benchmark(entries))
    return "\n".join(_page(*tables, profiled))


def _dicts(name: str, made: Iterable[rows.Row]) -> list[rows.Row]:
    table = store.frame(name, made)
    return table.astype(object).where(table.notna(), None).to_dict("records")


Profiled = Mapping[tuple[str | None, str], Entry]
"""Documents of counters, by kernel and GPU."""


def _page(ladder: list[rows.Row], timed: list[rows.Row], profiled: Profiled) -> Iterator[str]:
    yield from (
        "# Kernel log",
        "",
        "What each step of each kernel's optimisation brought, out of the benchmarks: made by `python -m atlas log`.",
        "*Step*: time of the variant it was made from over its own, geometric mean (least to most) over the cases both",
        "were timed on, each with the faster of its tuned and its default config. *Fastest*: cases at which it beats",
        "all other variants. *Figure*: on its case with the most traffic. Reasons, dead ends: `docs/kernels/`.",
        "Counters are ncu's of one call from cold caches, in brackets against the step it was made from.",
    )
    if not ladder:
        yield from ("", "No benchmark of a kernel was found.")
    for kernel in sorted({row["kernel"] for row in ladder}):
        yield from ("", f"## {kernel}")
        own = [row for row in ladder if row["kernel"] == kernel]
        yield from _unread_counters(kernel, profiled)
        for (gpu, direction), rungs in itertools.groupby(own, lambda row: (row["gpu"], row["direction"])):
            rungs = list(rungs)
            changed = [f"`{row['variant']}`" for row in rungs if row["stale"]]
            stale = f", of an earlier version of {', '.join(changed)}" if changed else ""
            every = [row for row in timed if (row["kernel"], row["gpu"], row["direction"]) == (kernel, gpu, direction)]
            best = [row for row in every if row["best"] and row["speedup"]]
            yield from ("", f"**{direction}, {gpu}{stale}**: {_against_peers(even(best))}{_left_out(best)}", "")
            yield from ("| variant | what it does | over | step | fastest | figure |", "|---|---|---|---|---|---|")
            yield from map(_line, rungs)
            yield from _failures(every)
            if entry := profiled.get((kernel, gpu)):
                yield from _counters(entry, direction, rungs)
    yield from _without_counters(ladder, profiled)


def _without_counters(ladder: Iterable[rows.Row], profiled: Profiled) -> Iterator[str]:
    """At the end: of which kernels on which GPUs nobody has read counters."""
    absent: dict[str, list[str]] = {}
    for kernel, gpu in sorted({(row["kernel"], row["gpu"]) for row in ladder} - profiled.keys()):
        absent.setdefault(gpu, []).append(kernel)
    if absent:
        yield from ("", "## Without counters", "", "`python -m atlas profile KERNEL --gpu GPU` reads them.", "")
        yield from (f"- {gpu}: {', '.join(kernels)}" for gpu, kernels in absent.items())


def _unread_counters(kernel: str, profiled: Profiled) -> Iterator[str]:
    """A line for each GPU whose counters could not be read, with the reason."""
    for (name, gpu), entry in profiled.items():
        if name == kernel and entry.document["status"] != "ok":
            yield from ("", f"No counters of {gpu}: {entry.document['status']}, {entry.document['reason']}")


def _counters(entry: Entry, direction: str, rungs: Sequence[rows.Row]) -> Iterator[str]:
    """A line for each rung that was profiled: its counters, and the steps from those of the rung that it follows."""
    calls: dict[str, dict[PassCase, dict[str, Any]]] = {}
    old = []
    for row in entry.document["rows"]:
        if row["direction"] == direction and row["provider_kind"] != "peer":
            calls.setdefault(row["provider"], {})[PassCase.of(row)] = counters.of_call(row["launches"])
            old += [f"`{row['provider']}`"] if entry.stale_row(row) else []
    if not calls:
        return
    stale = f", of an earlier version of {', '.join(dict.fromkeys(old))}" if old else ""
    yield from ("", f"Counters, {direction}, {entry.gpu}{stale}:", "")
    heads = ["variant", "over", "case", *(column.head for column in counters.COLUMNS), "waits for"]
    yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
    for rung in rungs:
        own, before = calls.get(rung["variant"], {}), calls.get(rung["follows"], {})
        both = [case for case in own if case in before]
        for case in both[:1] or list(own)[:1]:
            cells = [column.cell(own[case], before.get(case)) for column in counters.COLUMNS]
            over = f"`{rung['follows']}`" if both else ""
            waits = STALLS.get(own[case]["stall"], own[case]["stall"]) or ""
            name, at = f"`{rung['variant']}`", f"{case.case} {case.dtype}"
            yield f"| {' | '.join((name, over, at, *cells, waits))} |"


def _against_peers(best: list[rows.Row]) -> str:
    """How the fastest variant of each case stands against the fastest peer, in words."""
    if not best:
        return "no case was timed against a peer."
    best = sorted(best, key=lambda row: row["speedup"])
    mean = geometric_mean([row["speedup"] for row in best])
    least, most = (
        f"{row['speedup']:.2f} at {row['case']} {row['dtype']} ({row['peer']})" for row in (best[0], best[-1])
    )
    return f"{mean:.2f} times the fastest peer over {len(best)} cases, from {least} to {most}."


def _left_out(best: list[rows.Row]) -> str:
    """A sentence for each reason why the peers of some cases are no even match."""
    found: dict[str, list[rows.Row]] = {}
    for row in best:
        if row["weak"]:
            found.setdefault(row["weak"], []).append(row)
    means = {why: geometric_mean([row["speedup"] for row in own]) for why, own in found.items()}
    return "".join(
        f" Left out: {counted(len(own), 'case')} of weak peers alone, {means[why]:.2f} times {own[0]['peer']} ({why})."
        for why, own in found.items()
    )


def _failures(timed: Sequence[rows.Row]) -> Iterator[str]:
    """A line for each variant, config and reason that should have given a figure and gave none, or one in doubt."""
    groups: dict[tuple[str, str, str], list[rows.Row]] = {}
    for row in timed:
        if row["provider_kind"] != "peer" and row["status"] not in ("ok", "unsupported"):
            config = "default" if row["provider_kind"] == "default" else "tuned"
            subject = f"`{row['provider']}` with its {config} config"
            groups.setdefault((subject, row["status"], row["reason"] or ""), []).append(row)
    for position, ((subject, status, reason), own) in enumerate(groups.items()):
        others = f" (one of {len(own)} cases)" if len(own) > 1 else ""
        said = f": {' '.join(reason.split())}" if reason else ""
        yield from ([""] if not position else [])
        yield f"- **{status}**: {subject} at {own[0]['case']} {own[0]['dtype']}{others}{said}"


def _line(row: rows.Row) -> str:
    step = ""
    if row["compared"]:
        step = f"{row['step_geomean']:.2f} ({row['step_least']:.2f} to {row['step_most']:.2f})"
    value = row["figure"]
    figure = f"{value:,.0f} {row['unit']} ({row['case']} {row['dtype']})" if value is not None else "not timed"
    cells = (f"`{row['variant']}`", row["summary"], row["follows"] or "", step, f"{row['fastest']} of {row['cases']}")
    return f"| {' | '.join((*cells, figure))} |"
