"""Documents out of MLflow: those that ``python -m atlas track`` put on its runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import AtlasError
from ..reading import strict
from ..results import files, sides
from ..results.collection import Entry
from .store import Store, explained, quiet, store_of

_PARENT = "mlflow.parentRunId"


def benchmarks(named: str, results: Path) -> list[Entry]:
    """The benchmarks of a run and of the runs below it.

    ``named`` is a run's id in the store of ``results``, or ``URI/id``.  Raises :class:`~atlas.errors.AtlasError` where
    the store cannot be used, and where the run has none.
    """
    wanted = _downloaded(named, results, lambda path: files.name_of(path) == "benchmark")
    found = [entry for _, path in wanted for entry in sides.of_path(path)]
    if not found:
        raise AtlasError(
            f"mlflow:{named}: no benchmark.json on this run or below it; name a kernel's run, or its benchmark's"
        )
    return found


def artifacts(named: str, results: Path, most: int) -> Iterator[tuple[str, bytes]]:
    """The names and contents of all documents on a run and on the runs below it, of ``most`` bytes in all.

    Raises as :func:`benchmarks`, and for more.
    """
    for name, path in _downloaded(named, results, files.is_document, most):
        try:
            yield f"mlflow:{name}", strict.content(path)
        except strict.Unreadable as error:
            raise AtlasError(f"mlflow:{name}: {error}; track its document again") from None


def _downloaded(
    named: str, results: Path, wanted: Callable[[Path], bool], most: int | None = None
) -> Iterator[tuple[str, Path]]:
    """A run's artifacts that are ``wanted``: ``RUN/name``, and a file that is there until the next one is asked for."""
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
        left = most
        for one in [run, *(child.info.run_id for child in below)]:
            for file in client.list_artifacts(one):
                if file.is_dir or "/" in file.path or not wanted(Path(file.path)):
                    continue
                if left is not None:
                    left -= most + 1 if file.file_size is None else file.file_size
                    if left < 0:
                        how = "does not say how large it is" if file.file_size is None else f"is beyond {most} bytes"
                        raise AtlasError(f"mlflow:{named}: {file.path} {how}; name a kernel's run")
                with tempfile.TemporaryDirectory() as folder:
                    yield f"{one}/{file.path}", Path(client.download_artifacts(one, file.path, folder))
