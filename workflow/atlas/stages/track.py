"""track: turn the documents under ``results/`` into MLflow runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..reading.config import CONFIG_FILE, load_config
from ..results import collection, documents
from ..tracking import store as stores
from ..tracking import summary
from . import selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The stage's options; what is not given comes from the section ``tracking`` of config/config.yaml."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--experiment", help="MLflow experiment (default: tracking.experiment of config.yaml)")
    parser.add_argument("--trial-runs", type=int, help="best trials that become runs (default: tracking.trial_runs)")
    selection.add_arguments(parser)
    parser.add_argument(
        "--later", action="store_true", help="where the server is away leave it to the next tracking, and end with 0"
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="track what is chosen again, and delete older runs of it"
    )


def run(arguments: argparse.Namespace) -> None:
    """Track every document of the selection once, and write ``mlflow/tracked.json``, a summary without credentials.

    Runs of other kernels and GPUs stay as they are.  With ``--later`` a server that is away is told in the summary;
    ``missed`` counts how often that was so, by which a workflow knows that there is something to catch up on.
    """
    settings = (
        load_config(CONFIG_FILE).get("tracking", {}) if None in (arguments.experiment, arguments.trial_runs) else {}
    )
    experiment = arguments.experiment or settings.get("experiment", "kernel-atlas")
    trial_runs = settings.get("trial_runs", 10) if arguments.trial_runs is None else arguments.trial_runs
    selected = selection.selected(arguments)
    entries = collection.collect(arguments.results, *selected)
    stores.quiet()
    from ..tracking.described import trees
    from ..tracking.views import address
    from ..tracking.writer import Selection, put

    described = trees(entries, trial_runs, arguments.results / "figures")
    store = stores.store_of(arguments.results)
    target = arguments.results / "mlflow" / "tracked.json"
    common = {"uri": store.shown, "experiment": experiment, "documents": len(entries), "trees": len(described)}
    missed = summary.missed(arguments.results)
    try:
        outcome = put(store, experiment, described, Selection(*selected) if arguments.rebuild else None)
    except stores.AwayError as error:
        if not arguments.later:
            raise
        _write(target, common | {"open": "", "missed": missed + 1, "away": str(error)})
        print(f"{error}; the documents stay, and the next run or `python -m atlas track` tracks them")
        return
    done = {
        "experiment_id": outcome.experiment_id,
        "open": address(outcome.experiment_id),
        "added": sorted(outcome.added),
        "replaced": sorted(outcome.replaced),
        "unchanged": len(outcome.unchanged),
        "runs_written": outcome.runs,
        "missed": missed,
    }
    _write(target, common | done)
    print(
        f"{outcome.runs} runs written: {len(outcome.added)} kernels and GPUs added, {len(outcome.replaced)} replaced, "
        f"{len(outcome.unchanged)} unchanged; {len(entries)} documents in {store.shown}, experiment {experiment!r}"
    )


def _write(target: Path, tracked: dict[str, Any]) -> None:
    documents.write_text(target, json.dumps(tracked, indent=1) + "\n")
