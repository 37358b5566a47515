"""The report's pages: the first, the details, and one for each kernel; they load nothing but the figures."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2
import pandas as pd
from markupsafe import Markup

from ..figures.names import CAPTIONS, OVERVIEWS, PER_KERNEL
from ..results.collection import Entry
from ..workload.current import Workload
from . import answers, beyond, comparisons, machines, outcome, overview, standing, work
from . import workload as workloads
from .grid import markup, of_kernel, prose
from .names import DETAILS, FIRST, place
from .standing import BOUNDS

Tables = dict[str, pd.DataFrame]

Sizes = Mapping[str, tuple[int, int]]
"""Width and height in pixels of figures, by file name without suffix."""

_OWN = ("benchmark", "ladder", "build")
"""The tables that a kernel's page reads."""

_MOST_CASES = 200
"""Cases of all kernels that the details name."""


@dataclass(frozen=True)
class Picture:
    """One figure: anchor, title, caption, and where it lies as seen from a page in ``report/``.

    A page that knows its ``size`` leaves room for it: what is below stays where a link found it.
    """

    name: str
    title: str
    caption: str
    uri: str
    size: tuple[int, int] | None


def picture(sizes: Sizes, name: str, kernel: str = "") -> Picture:
    """The figure ``name``, of ``kernel`` where each has its own."""
    file = f"{name}-{kernel}" if kernel else name
    title = f"{PER_KERNEL[name]}: {kernel}" if kernel else OVERVIEWS[name]
    return Picture(file, title, CAPTIONS[name], f"../figures/{file}.svg", sizes.get(file))


def pages(
    tables: Tables, entries: Sequence[Entry], proofs: Sequence[Entry], workload: Workload | None = None,
    sizes: Sizes | None = None,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Path under the results' folder, and text, of every page."""
    sizes = sizes or {}
    shared = {"style": Markup(_resource("report.css")), "script": Markup(_resource("report.js"))}
    everywhere = {"compiled_only": outcome.compiled_only(tables), "not_run": outcome.not_run(tables)}
    everywhere["summary"] = outcome.summary(tables)
    first = _environment().get_template("report.html.j2")
    yield FIRST, first.render(**shared, **everywhere, **_first(tables, entries, proofs, workload))
    second = _environment().get_template("details.html.j2")
    details = _details(tables, entries, proofs, sizes)
    yield DETAILS, second.render(**shared, **everywhere, **details)
    third = _environment().get_template("kernel.html.j2")
    kernels = sorted(tables["coverage"].kernel.dropna().unique())
    called = work.called_configs(entries)
    for kernel, own in _by_kernel(tables, kernels):
        found = [entry for entry in entries if entry.kernel == kernel]
        said = {"kernel": kernel, "beside": kernels, "called_configs": called.get(kernel, ())}
        alike = {name: of_kernel(details[name], kernel) for name in ("verdicts", "build", "validation", "tuning")}
        yield place(kernel), third.render(**shared, **said, **alike, **_kernel(own, found, kernel, sizes))


def _first(tables: Tables, entries: Sequence[Entry], proofs: Sequence[Entry], workload: Workload | None) -> dict:
    gpus = standing.gpus(tables)
    found = {gpu: standing.marks(tables, gpu) for gpu in gpus}
    chosen, marked = gpus[0] if gpus else "", overview.marked(tables, found)
    there = bool(tables["verdicts"].kernel.nunique())
    return {
        "date": max((entry.document["software"].get("date") or "" for entry in entries), default="")[:10],
        "answers": answers.answers(tables, proofs, chosen, found.get(chosen, [])),
        "alarms": [alarm for alarm in outcome.alarms(tables) if alarm.level != "good"],
        "workload": workloads.section(tables, workload),
        "bounds": list(BOUNDS.values()),
        "charts": [overview.chart(tables, gpu, found.get(gpu, []), marked) for gpu in gpus or [""]] if there else [],
        "legend": overview.legend(tables, found, marked),
        "unmarked": overview.unmarked(tables, marked),
        "gpus": overview.gpu_table(tables, chosen, found.get(chosen, [])),
    }


def _details(tables: Tables, entries: Sequence[Entry], proofs: Sequence[Entry], sizes: Sizes) -> dict:
    return {
        "verdicts": outcome.verdict_table(tables),
        "gpus": machines.gpu_table(tables, entries),
        "across": comparisons.across_table(tables),
        "losses": outcome.case_table(tables, "slower", _MOST_CASES),
        "wins": outcome.case_table(tables, "faster", _MOST_CASES),
        "changed_sentences": comparisons.changed_sentences(tables),
        "changed": comparisons.changed_table(tables),
        "failures": outcome.stage_failures(entries),
        "failed_checks": outcome.failed_checks(tables),
        "untimed": outcome.untimed(tables),
        "unsupported": outcome.unsupported(tables),
        "build": work.build_table(tables),
        "lost_tensor_cores": work.lost_tensor_cores(tables),
        "validation": work.validation_table(tables, entries),
        "tuning": work.tuning_table(entries),
        "counters": work.counter_table(tables),
        "energy": work.energy_table(tables),
        "beyond": beyond.beyond_table(tables),
        "beyond_sentences": beyond.beyond_sentences(tables),
        "proofs": machines.proof_table(proofs),
        "provenance": machines.provenance(entries),
        "overviews": {name: picture(sizes, name) for name in OVERVIEWS},
    }


def _kernel(tables: Tables, entries: Sequence[Entry], kernel: str, sizes: Sizes) -> dict:
    return {
        "pictures": [picture(sizes, name, kernel) for name in PER_KERNEL],
        "ladder": of_kernel(outcome.ladder_table(tables), kernel),
        "cases": of_kernel(outcome.case_table(tables), kernel),
        "best_configs": of_kernel(work.best_configs(entries, tables), kernel),
    }


def _by_kernel(tables: Tables, kernels: Collection[str]) -> Iterator[tuple[str, Tables]]:
    """Each kernel with the tables narrowed to its rows."""
    parts = {name: dict(list(table.groupby("kernel"))) for name, table in tables.items() if name in _OWN}
    for kernel in kernels:
        yield kernel, tables | {name: of.get(kernel, tables[name].iloc[:0]) for name, of in parts.items()}


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["grid"], environment.filters["prose"] = markup, prose
    return environment


def _resource(name: str) -> str:
    return files("atlas.reporting").joinpath(name).read_text(encoding="utf-8")
