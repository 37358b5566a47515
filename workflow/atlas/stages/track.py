"""track: turn the documents under ``results/`` into MLflow runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..reading.config import CONFIG_FILE, load_config
from ..results import collection, documents
from ..tracking import store as stores
from . import selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options; what is not given comes from the section ``tracking`` of config/config.yaml."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--experiment", help="MLflow experiment (default: tracking.experiment of config.yaml)")
    parser.add_argument("--trial-runs", type=int, help="best trials that become runs (default: tracking.trial_runs)")
    selection.add_arguments(parser)
    parser.add_argument("--rebuild", action="store_true", help="delete what was tracked and track everything again")


def run(arguments: argparse.Namespace) -> None:
    """Track every document of the selection once, and write ``mlflow/tracked.json``, a summary without credentials.

    Runs of other kernels and GPUs stay as they are.
    """
    settings = (
        load_config(CONFIG_FILE).get("tracking", {}) if None in (arguments.experiment, arguments.trial_runs) else {}
    )
    experiment = arguments.experiment or settings.get("experiment", "kernel-atlas")
    trial_runs = settings.get("trial_runs", 10) if arguments.trial_runs is None else arguments.trial_runs
    entries = collection.collect(arguments.results, *selection.selected(arguments))
    stores.quiet()
    from ..tracking.described import trees
    from ..tracking.views import address
    from ..tracking.writer import put

    described = trees(entries, trial_runs, arguments.results / "figures")
    store = stores.store_of(arguments.results)
    outcome = put(store, experiment, described, arguments.rebuild)
    summary = {
        "uri": store.shown,
        "experiment": experiment,
        "experiment_id": outcome.experiment_id,
        "open": address(outcome.experiment_id),
        "documents": len(entries),
        "trees": len(described),
        "added": sorted(outcome.added),
        "replaced": sorted(outcome.replaced),
        "unchanged": len(outcome.unchanged),
        "runs_written": outcome.runs,
    }
    documents.write_text(arguments.results / "mlflow" / "tracked.json", json.dumps(summary, indent=1) + "\n")
    print(
        f"{outcome.runs} runs written: {len(outcome.added)} kernels and GPUs added, {len(outcome.replaced)} replaced, "
        f"{len(outcome.unchanged)} unchanged; {len(entries)} documents in {store.shown}, experiment {experiment!r}"
    )
