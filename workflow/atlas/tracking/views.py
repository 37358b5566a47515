"""Saved views of the interface: which runs a person sees first, in which order, with which columns.

The interface keeps each as a tag of the experiment (MLflow 3.17: menu "Views" of the runs page), so they are there for
everyone, and its address can open one.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from .runs import Tree

_TAG = "mlflow.sharedViewState."
_WIDTHS = {"params.`case`": 200, "tags.`reason`": 500, "tags.`provider_kind`": 120}  # pixels, where the default cuts
_RATES = ("median_us", "gb_per_s", "tflop_per_s", "percent_of_roof", "speedup")


@dataclass(frozen=True)
class View:
    """One view: its name in the menu, the filter, the key it is sorted by, and the columns after the run's name."""

    name: str
    query: str
    order: str
    columns: tuple[str, ...]
    ascending: bool = True


FIRST = "atlas-kernels"
"""The view that the interface is opened with."""


def views(trees: Iterable[Tree]) -> dict[str, View]:
    """The views by key; the config columns are the parameters that the tracked kernels have."""
    params: dict[str, dict[str, None]] = {"kernel": {}, "trial": {}}
    place = ("variant", "direction", "dtype", "case")
    for tree in trees:
        for run in tree.root.walk():
            level = run.tags["level"]
            if level in params:
                params[level] |= {name: None for name in run.params if name not in place}
    metrics, configs = _columns("metrics", _RATES), {key: _columns("params", names) for key, names in params.items()}
    place = _columns("params", ("variant", "dtype", "case"))
    means = _columns("metrics", ("speedup_geomean", "speedup_worst"))
    state = _columns("tags", ("kind", "status", "stale"))
    return {
        FIRST: View(
            "Kernels: headline figure and fastest config",
            "tags.level = 'kernel'",
            "tags.`kernel`",
            (*metrics, *means, *place, *configs["kernel"], *state),
        ),
        "atlas-peers": View(
            "Kernels and their peers, fastest first",
            "tags.level = 'provider'",
            "metrics.`median_us`",
            (*_columns("tags", ("kernel", "gpu", "provider_kind")), *metrics, *place[1:], *state),
        ),
        "atlas-trials": View(
            "Tuning: best trials, fastest first",
            "tags.level = 'trial'",
            "metrics.`median_us`",
            (*_columns("tags", ("kernel", "gpu")), *metrics[:3], *place, *configs["trial"], *state),
        ),
        "atlas-not-ok": View(
            "Wrong, failed, suspect, skipped, unsupported",
            "tags.level = 'stage' AND tags.status != 'ok'",
            "tags.`kernel`",
            _columns("tags", ("kernel", "gpu", "stage", "status", "reason", "kind", "stale")),
        ),
    }


def tags(views: dict[str, View]) -> dict[str, str]:
    """The experiment tags that hold the views."""
    return {_TAG + key: _saved(view) for key, view in views.items()}


def address(experiment_id: str, key: str = FIRST) -> str:
    """What follows the server's URL to open a view of an experiment."""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={key}"


def _columns(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{kind}.`{name}`" for name in names)


def _saved(view: View) -> str:
    """A view as the interface writes it: JSON, its state deflated; the same view always gives the same text."""
    state = {
        "searchFilter": view.query,
        "orderByKey": view.order,
        "orderByAsc": view.ascending,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(view.columns),
        "columnOrder": [],
        "columnWidths": {name: width for name, width in _WIDTHS.items() if name in view.columns},
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
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": view.name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})
