"""What a person sees first in MLflow's interface: texts, and saved views of the runs with their columns.

The interface keeps each view as a tag of the experiment (MLflow 3.17: menu "Views" of the runs page), so they are there
for everyone, and its address can open one.  A text is a tag, too.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..results.subject import PassCase, label
from ..results.summary import STALE, against_peer, all_cases, evidence, microseconds, percent, rate
from ..results.verdict import figure
from .of_stage import ORDER
from .roots import KEY
from .runs import Run

_NOTE_CHARACTERS = 7000
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
A trial of a higher `rung` was timed again, longer: on a warm GPU that may take more time than its first samples. \
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
        if len(text) + len(line) > _NOTE_CHARACTERS:
            return [text, f"{len(best) - index} more cases are in the artifact `best_configs.json`."]
        text += f"\n{line}"
    return [text]


_TAG = "mlflow.sharedViewState."
_BEFORE = ("1", "attributes.`Run Name`", "runDateAndNestInfo", "duration")  # the interface's own columns: box, name, …
_WIDTHS = {
    "attributes.`Run Name`": 300,
    "metrics.`percent_of_roof`": 130,
    "params.`case`": 200,
    "tags.`reason`": 500,
    "tags.`provider_kind`": 120,
}  # pixels, where the default cuts
_RATES = ("speedup", "percent_of_roof", "median_us", "gb_per_s", "tflop_per_s")
_COMPARABLE = ("percent_of_roof", "speedup", "median_us")
"""Of what the lines of all GPUs have, the first: microseconds are another thing on another GPU."""
_RUNG = "rung"
"""How often a trial's config was among the best and timed again, longer: a first time is of few samples, on a cool GPU.
So times of two rungs are no ranking, and the fastest config is one of the last."""
_ORDER = f"tags.`{ORDER}`"
_PLACE = ("gpu", "variant", "direction", "dtype", "case")  # parameters that say where a config stands


@dataclass(frozen=True)
class View:
    """One view: its name in the menu, the filter, the key it is sorted by, and the columns after the run's name."""

    name: str
    query: str
    order: str
    columns: tuple[str, ...]
    parallel: tuple[str, ...] = ()
    """Parameters of the view's parallel-coordinates chart; empty where it has none."""
    metrics: tuple[str, ...] = ("median_us",)
    """The axes behind these; the chart colours its lines by the last."""


FIRST = "atlas-kernels"
"""The view that the interface is opened with."""

COLUMNS = "atlas.columns"
"""Tag of a tree's root: its :class:`Columns`, from which views of all trees are made, whoever wrote them."""


@dataclass(frozen=True)
class Columns:
    """What views need to know of one tree.

    ``tuned`` are parameters of its root; ``trials`` those of its trials, by name up to two of their values, null first
    where a trial lacks one; ``metrics`` the comparable ones, and the rung, where all its trials have them.
    """

    kernel: str
    tuned: Sequence[str]
    trials: Mapping[str, Sequence[str | None]]
    metrics: Sequence[str]

    @property
    def text(self) -> str:
        """As a tag has it."""
        return json.dumps([self.kernel, self.tuned, self.trials, self.metrics])

    @classmethod
    def read(cls, text: str) -> Columns | None:
        """From a tag; None where somebody has put something else there."""
        try:
            return cls(*json.loads(text))
        except (TypeError, ValueError):
            return None

    @classmethod
    def of(cls, root: Run) -> Columns:
        """Of the tree below a kernel's run."""
        trials = [run for run in root.walk() if run.tags["level"] == "trial"]
        names = dict.fromkeys(("gpu", "variant", *(n for run in trials for n in run.params if n not in _PLACE)))
        values = {name: _two(run.params.get(name) for run in trials) for name in names}
        metrics = [metric for metric in (*_COMPARABLE, _RUNG) if all(metric in run.metrics for run in trials)]
        tuned = [name for name in root.params if name not in _PLACE]
        return cls(root.tags["kernel"], tuned, values if trials else {}, metrics)


def views(trees: Iterable[Columns]) -> dict[str, View]:
    """The views by key; the config columns are the parameters that the tracked kernels have."""
    trees = list(trees)
    tuned: dict[str, dict[str, None]] = {}
    trials: dict[str, dict[str, None]] = {}
    for tree in trees:
        if tree.tuned:
            tuned.setdefault(tree.kernel, {}).update(dict.fromkeys(tree.tuned))
        if tree.trials:
            own = (name for name in tree.trials if name not in _PLACE)
            trials.setdefault(tree.kernel, {}).update(dict.fromkeys(own))
    metrics, rung = _columns("metrics", _RATES), _columns("metrics", (_RUNG,))
    place = _columns("params", ("variant", "dtype", "case"))
    means = _columns("metrics", ("speedup_geomean", "speedup_worst"))
    state = _columns("tags", ("kind", "status", "stale"))
    found = {
        FIRST: View(
            "Kernels: headline figure and fastest config",
            "tags.level = 'kernel'",
            f"tags.`{KEY}`",
            (*metrics, *place, *_configs(tuned), *means, *state),
        ),
        "atlas-peers": View(
            "Kernels and their peers, fastest first",
            "tags.level = 'provider'",
            _ORDER,
            (*_columns("tags", ("kernel", "gpu", "provider_kind")), *metrics, *place[1:], *state),
        ),
        "atlas-trials": View(
            "Tuning: best trials, fastest first",
            "tags.level = 'trial'",
            _ORDER,
            (*_columns("tags", ("kernel", "gpu")), *rung, *metrics, *place, *_configs(trials), *state),
        ),
        "atlas-not-ok": View(
            "Wrong, failed, suspect, skipped, unsupported",
            "tags.level = 'stage' AND tags.status != 'ok'",
            "tags.`kernel`",
            _columns("tags", ("kernel", "gpu", "stage", "status", "reason", "kind", "stale")),
        ),
    }
    for kernel, names in sorted(trials.items()):
        own = [tree for tree in trees if tree.kernel == kernel and tree.trials]
        found[f"atlas-trials-{kernel}"] = View(
            f"Tuning of {kernel}: parallel coordinates",
            f"tags.level = 'trial' AND tags.kernel = '{kernel}'",
            _ORDER,
            (*_columns("tags", ("gpu",)), *rung, *metrics, *place, *_columns("params", names), *state),
            parallel=tuple(n for n in ("gpu", "variant", *names) if _tells(own, n)),
            metrics=(
                *((_RUNG,) if all(_RUNG in tree.metrics for tree in own) else ()),
                next(m for m in _COMPARABLE if m == "median_us" or all(m in tree.metrics for tree in own)),
            ),
        )
    return found


def tags(views: dict[str, View]) -> dict[str, str]:
    """The experiment tags that hold the views."""
    return {_TAG + key: _saved(view) for key, view in views.items()}


def address(experiment_id: str, key: str = FIRST, chart: bool = False) -> str:
    """What follows the server's URL to open a view of an experiment, as a table or as its chart."""
    mode = "&compareRunsMode=CHART" if chart else ""  # no part of what the interface saves of a view
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning{mode}&viewStateShareKey={key}"


def links(experiment_id: str, views: Mapping[str, View]) -> str:
    """The views as a list of links, for the experiment's description."""
    lines = [f"- [{view.name}]({address(experiment_id, key, bool(view.parallel))})" for key, view in views.items()]
    return "\n".join(lines)


def _two(values: Iterable[str | None]) -> list[str | None]:
    """Two different values at most; None is one of them where it is there."""
    return sorted(dict.fromkeys(values), key=lambda value: value is not None)[:2]


def _tells(trees: Iterable[Columns], name: str) -> bool:
    """Whether a parameter is an axis: the chart leaves out runs that lack one, and all in one point say nothing."""
    values = {value for tree in trees for value in tree.trials.get(name, (None,))}
    return None not in values and len(values) > 1


def _configs(params: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """The config columns of all kernels, each once."""
    return _columns("params", dict.fromkeys(name for names in params.values() for name in names))


def _columns(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{kind}.`{name}`" for name in names)


def _saved(view: View) -> str:
    """A view as the interface writes it: JSON, its state deflated; the same view always gives the same text."""
    state = {
        "searchFilter": view.query,
        "orderByKey": view.order,
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(view.columns),
        "columnOrder": [*_BEFORE, *view.columns],
        "columnWidths": _WIDTHS,
        "runsHiddenMode": "FIRST_10_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }
    if view.parallel:
        section = {"uuid": "atlas", "name": "Configs of the best trials", "display": True, "deleted": False}
        chart = {"uuid": "atlas-parallel", "type": "PARALLEL", "metricSectionId": "atlas", "runsCountToCompare": 100}
        chart |= {"selectedParams": list(view.parallel), "selectedMetrics": list(view.metrics), "showAllRuns": False}
        added = {"isReordered": False, "isGenerated": False}
        state |= {"compareRunCharts": [chart | added | {"deleted": False}]}
        state |= {"compareRunSections": [section | added | {"columns": 1, "cardHeight": 480}]}
        state |= {"runsHiddenMode": "SHOWALL"}
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": view.name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})
