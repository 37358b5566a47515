"""The page: every section's data put into the template."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import jinja2
import pandas as pd
from markupsafe import Markup

from ..results.collection import Entry
from . import across, changed, evidence, machines, outcome, profiles, work
from .pictures import Picture


def page(
    tables: dict[str, pd.DataFrame],
    entries: Sequence[Entry],
    proofs: Sequence[Entry],
    overviews: dict[str, Picture],
    kernels: dict[str, list[Picture]],
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
        verdicts=outcome.verdict_table(tables),
        gpus=machines.gpu_table(tables, entries),
        across=across.across_table(tables),
        losses=outcome.case_table(tables, "slower"),
        wins=outcome.case_table(tables, "faster"),
        changed_sentences=changed.changed_sentences(tables),
        changed=changed.changed_table(tables),
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
        counters=profiles.counter_table(tables),
        proofs=evidence.proof_table(proofs),
        provenance=machines.provenance(entries),
        overviews=overviews,
        kernels=kernels,
        called_configs=work.called_configs(entries),
    )


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
