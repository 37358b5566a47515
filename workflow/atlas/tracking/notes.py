"""The texts a person reads in the interface: the experiment's, and the description of each kernel's run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..results.subject import PassCase, label
from ..results.summary import STALE, against_peer, all_cases, evidence, microseconds, percent, rate
from ..results.verdict import figure

_MOST_CHARACTERS = 7000
"""A description is a tag, and a tag holds 8000 characters; the table artifact has every row."""

EXPERIMENT = """\
Kernels on GPUs: a run at the top is one kernel on one GPU, and its page begins with the fastest config of every case.

**Fastest config of one kernel on one GPU.** Open the run named so, for instance `softmax · h200 (recorded)`: \
description and parameters hold the answer.

**Compare.** These are in the menu "Views", too; what they filter by stands in the search field, to be narrowed \
(`AND tags.gpu = 'h200'`). If the menus speak of traces and judges, choose "Model training" at the top left.

{views}

`median_us`, `gb_per_s` and `tflop_per_s` belong to the headline case: forward, bf16 where there is, most traffic. \
`kind` says where a figure is from: measured, recorded, functional or compiled. \
All of this is made from the documents under `results/` and can be made again: `python -m atlas track --rebuild`.
"""


def kernel_note(verdict: Mapping[str, Any], best: Sequence[Mapping[str, Any]], top: Mapping[str, Any] | None) -> str:
    """The description of a (kernel, GPU): the headline case's fastest config, the verdict, then every case's config.

    The interface shows the first lines and the rest on demand, so the answer most asked for comes first.
    """
    lines = []
    if top is not None:
        roof = top.get("roof_fraction")
        lines.append(
            f"**{top['provider']} {label(top['config'])}** is the fastest config of {PassCase.of(top)}: "
            f"{microseconds(top['median_us'])}, {rate(*figure(top))}"
            + (f", {percent(roof)} of the roof" if roof else "")
            + f", {against_peer(top)}."
        )
    state = f"{verdict['kernel']} on {verdict['gpu']}: {evidence(verdict['kind'])}; status **{verdict['status']}**"
    lines.append(state + (f" ({verdict['reason']})." if verdict["reason"] else "."))
    if verdict["stale"]:
        lines.append(f"**Stale**: {STALE}.")
    if verdict["speedup_geomean"]:
        lines.append(
            f"Against the fastest peer, geometric mean over all compared cases: {all_cases(verdict)} "
            f"({PassCase.of(verdict['worst_case'])})."
        )
    return "\n\n".join([*lines, *(_best_table(best) if best else ())])


def _best_table(best: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table, and a sentence on where the rest is if it does not all fit."""
    text = "| case | fastest config | median | rate | of the roof | fastest peer |\n|---|---|---:|---:|---:|---|"
    for index, row in enumerate(best):
        line = (
            f"| {PassCase.of(row)} | `{row['provider']} {label(row['config'])}` | {microseconds(row['median_us'])} "
            f"| {rate(*figure(row))} | {percent(row.get('roof_fraction'))} | {against_peer(row)} |"
        )
        if len(text) + len(line) > _MOST_CHARACTERS:
            return [text, f"{len(best) - index} more cases are in the artifact `best_configs.json`."]
        text += f"\n{line}"
    return [text]
