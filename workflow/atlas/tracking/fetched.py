"""Benchmark documents out of MLflow: those that ``python -m atlas track`` put on its runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..errors import AtlasError
from ..results import sides
from ..results.collection import Entry
from .store import Store, explained, quiet, store_of

_NAME = "benchmark.json"
_PARENT = "mlflow.parentRunId"


def benchmarks(named: str, results: Path) -> list[Entry]:
    """The benchmarks of a run and of the runs below it.

    ``named`` is a run's id in the store of ``results``, or ``URI/id``.  Raises :class:`~atlas.errors.AtlasError` where
    the store cannot be used, and where the run has none.
    """
    uri, _, run = named.rpartition("/")
    store = Store(uri, None) if uri else store_of(results)
    if store.database is not None and not store.database.exists():
        raise AtlasError(f"mlflow:{named}: no {store.database}; run python -m atlas track, or give mlflow:URI/RUN")
    quiet()
    with explained(store):
        from mlflow import MlflowClient

        client = MlflowClient(store.uri)
        experiment = client.get_run(run).info.experiment_id
        below = client.search_runs([experiment], f"tags.`{_PARENT}` = '{run}'", max_results=5000)
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for one in [run, *(child.info.run_id for child in below)]:
                if any(file.path == _NAME for file in client.list_artifacts(one)):
                    target = Path(folder) / one
                    target.mkdir()
                    found += sides.of_path(Path(client.download_artifacts(one, _NAME, str(target))))
    if not found:
        raise AtlasError(f"mlflow:{named}: no {_NAME} on this run or below it; name a kernel's run, or its benchmark's")
    return found
