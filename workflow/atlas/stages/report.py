"""``python -m atlas report``: one self-contained HTML page out of documents, tables and figures."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from ..errors import AtlasError
from ..figures.names import CAPTIONS, OVERVIEWS, PER_KERNEL
from ..reporting import beyond, comparisons, machines, outcome, work
from ..reporting import workload as workloads
from ..results.collection import Entry, collect, proofs
from ..results.documents import write_text
from ..tables.store import read
from ..workload.current import Workload, current
from . import selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    selection.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write ``results/report.html``; :class:`~atlas.errors.AtlasError` for a broken document or a missing view."""
    kernels_of, gpus = selection.selected(arguments)
    entries = collect(arguments.results, kernels_of, gpus)
    tables = read(arguments.results / "tables")
    folder = arguments.results / "figures"
    overviews = {name: picture(folder, name) for name in OVERVIEWS}
    kernels = of_kernels(folder, sorted(tables["coverage"].kernel.dropna().unique()))
    found = page(tables, entries, proofs(arguments.results, gpus), overviews, kernels, current())
    write_text(arguments.results / "report.html", found)
    print(f"{arguments.results / 'report.html'}, {len(found.encode()) / 1e6:.1f} MB")


def page(
    tables: dict[str, pd.DataFrame],
    entries: Sequence[Entry],
    proofs: Sequence[Entry],
    overviews: dict[str, Picture],
    kernels: dict[str, list[Picture]],
    workload: Workload | None = None,
) -> str:
    """The report as one HTML text that loads nothing: style, script and figures are inside it."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(
        style=Markup(_resource("report.css")),
        script=Markup(_resource("report.js")),
        date=max((entry.document["software"].get("date") or "" for entry in entries), default="")[:10],
        alarms=outcome.alarms(tables),
        summary=outcome.summary(tables),
        workload=workloads.section(tables, workload),
        verdicts=outcome.verdict_table(tables),
        gpus=machines.gpu_table(tables, entries),
        across=comparisons.across_table(tables),
        losses=outcome.case_table(tables, "slower"),
        wins=outcome.case_table(tables, "faster"),
        changed_sentences=comparisons.changed_sentences(tables),
        changed=comparisons.changed_table(tables),
        failures=outcome.stage_failures(entries),
        failed_checks=outcome.failed_checks(tables),
        untimed=outcome.untimed(tables),
        unsupported=outcome.unsupported(tables),
        compiled_only=outcome.compiled_only(tables),
        not_run=outcome.not_run(tables),
        ladder=outcome.ladder_table(tables),
        build=work.build_table(tables),
        lost_tensor_cores=work.lost_tensor_cores(tables),
        validation=work.validation_table(tables, entries),
        tuning=work.tuning_table(entries),
        best_configs=work.best_configs(entries, tables),
        counters=work.counter_table(tables),
        beyond=beyond.beyond_table(tables),
        beyond_sentences=beyond.beyond_sentences(tables),
        proofs=machines.proof_table(proofs),
        provenance=machines.provenance(entries),
        overviews=overviews,
        kernels=kernels,
        called_configs=work.called_configs(entries),
    )


def _resource(name: str) -> str:
    return files("atlas.reporting").joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Picture:
    """One figure: anchor, title, caption, and the image as a URI."""

    name: str
    title: str
    caption: str
    uri: str


def picture(folder: Path, name: str, kernel: str = "") -> Picture:
    """The figure ``name``, of ``kernel`` where each has its own; :class:`AtlasError` where it was not drawn."""
    file = f"{name}-{kernel}" if kernel else name
    path = folder / f"{file}.svg"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise AtlasError(f"{path}: no such figure; run `python -m atlas figures` first") from None
    title = f"{PER_KERNEL[name]}: {kernel}" if kernel else OVERVIEWS[name]
    return Picture(file, title, CAPTIONS[name], f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}")


def of_kernels(folder: Path, kernels: Sequence[str]) -> dict[str, list[Picture]]:
    """Each kernel's own figures."""
    return {kernel: [picture(folder, name, kernel) for name in PER_KERNEL] for kernel in kernels}
