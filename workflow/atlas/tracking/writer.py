"""Put trees of runs into MLflow, each once: what is there already by its digest is left alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AtlasError
from . import views
from .runs import Run, Tree
from .store import Store, clear, explained, prepare, writing
from .views import EXPERIMENT

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as StoredRun

KEY, DIGEST = "atlas.key", "atlas.digest"
"""Tags of a tree's root: which (kernel, GPU) it is, and of what documents.  The digest is set last, so a tree that was
cut off has none and is written again."""

_NOTE, _PARENT, _TABLES = "mlflow.note.content", "mlflow.parentRunId", "mlflow.loggedArtifacts"
_MOST_CHARACTERS = 7900  # of a tag
_BATCH_METRICS, _BATCH_WORDS = 900, 90  # MLflow refuses more than 1000 in all, and 100 params or tags


@dataclass
class Tracked:
    """What one tracking did, by tree: written anew, put in an older one's place, or found there already."""

    experiment_id: str
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    runs: int = 0


def put(store: Store, experiment: str, trees: Iterable[Tree], rebuild: bool = False) -> Tracked:
    """Write the trees that are not in the store yet, and replace those whose documents changed.

    A replaced tree is deleted as MLflow deletes: hidden, and found again in the interface under "State: Deleted".
    With ``rebuild`` the project's own database is made anew; on any other store every tree that was written into the
    experiment is deleted first, and runs of others stay.  Raises :class:`AtlasError` where the store cannot be used.
    """
    with writing(store):
        if rebuild and store.folder is not None:
            clear(store)
        with explained(store):
            _spare_the_disk(store)
            prepare(store, experiment)
            return _put(_client(store), store, experiment, trees, rebuild)


def _client(store: Store) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store.uri, registry_uri=store.uri)


def _spare_the_disk(store: Store) -> None:
    if store.folder is not None:
        from sqlalchemy import Engine, event

        if not event.contains(Engine, "connect", _unsynchronised):
            event.listen(Engine, "connect", _unsynchronised)


def _unsynchronised(connection: Any, record: Any) -> None:
    """Spare SQLite's wait for the disk at each of some 2000 commits: 13-22 ms each on a busy one, half of all time.

    A killed process loses nothing by it; after a power cut the database can be made again.
    """
    connection.execute("PRAGMA synchronous=OFF")


def _put(client: MlflowClient, store: Store, experiment: str, trees: Iterable[Tree], rebuild: bool) -> Tracked:
    trees = list(trees)
    outcome = Tracked(_experiment(client, store, experiment, views.views(trees)))
    found: dict[str, list[StoredRun]] = {}
    for run in _search(client, outcome.experiment_id, f"tags.`{KEY}` LIKE '%'"):
        found.setdefault(run.data.tags[KEY], []).append(run)
    if rebuild:
        for roots in found.values():
            _delete(client, outcome.experiment_id, roots)
        found = {}
    for tree in trees:
        older = found.get(tree.key, [])
        if any(run.data.tags.get(DIGEST) == tree.digest for run in older):
            outcome.unchanged.append(tree.key)
            continue
        root = _write(client, outcome.experiment_id, tree.root, {KEY: tree.key})
        client.set_tag(root, DIGEST, tree.digest)
        _delete(client, outcome.experiment_id, older)
        (outcome.replaced if older else outcome.added).append(tree.key)
        outcome.runs += sum(1 for _ in tree.root.walk())
    return outcome


def _experiment(client: MlflowClient, store: Store, name: str, shown: dict[str, views.View]) -> str:
    """The experiment's id; it is made where there is none, and its description and views are today's."""
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise AtlasError(
            f"MLflow at {store.shown}: experiment {name!r} was deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or name another with --experiment"
        )
    number = client.create_experiment(name, store.artifacts) if found is None else found.experiment_id
    note = EXPERIMENT.format(views=views.links(number, shown))
    # The kind makes interfaces that go by it open on the list of runs rather than on traces.
    tags = {_NOTE: note, "mlflow.experimentKind": "custom_model_development", **views.tags(shown)}
    for key, value in tags.items():
        if found is None or found.tags.get(key) != value:
            client.set_experiment_tag(number, key, value)
    return number


def _search(client: MlflowClient, experiment_id: str, query: str) -> Iterator[StoredRun]:
    token = None
    while True:
        page = client.search_runs([experiment_id], query, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _delete(client: MlflowClient, experiment_id: str, roots: Iterable[StoredRun]) -> None:
    generation = [run.info.run_id for run in roots]
    while generation:
        below = [
            run for parent in generation for run in _search(client, experiment_id, f"tags.`{_PARENT}` = '{parent}'")
        ]
        for run_id in generation:
            client.delete_run(run_id)
        generation = [run.info.run_id for run in below]


def _write(client: MlflowClient, experiment_id: str, run: Run, extra: dict[str, str]) -> str:
    """Write a run, then its children; returns its id."""
    from mlflow.entities import Metric, Param

    start, end = run.span
    tags = run.tags | extra
    if run.note:
        tags[_NOTE] = run.note
    if run.tables:
        tags[_TABLES] = json.dumps([{"path": name, "type": "table"} for name in run.tables])
    tags = {key: value[:_MOST_CHARACTERS] for key, value in tags.items()}
    run_id = client.create_run(experiment_id, start_time=start, tags=tags, run_name=run.name).info.run_id
    metrics = [Metric(name, value, end, 0) for name, value in run.metrics.items()]
    for name, points in run.curves.items():
        metrics += [Metric(name, point.value, point.milliseconds or end, point.step) for point in points]
    params = [Param(name, value) for name, value in run.params.items()]
    while metrics or params:
        client.log_batch(run_id, metrics[:_BATCH_METRICS], params[:_BATCH_WORDS], synchronous=True)
        metrics, params = metrics[_BATCH_METRICS:], params[_BATCH_WORDS:]
    if run.tables or run.files:
        with tempfile.TemporaryDirectory() as staging:
            _stage(run, Path(staging))
            client.log_artifacts(run_id, staging)
    for child in run.children:
        _write(client, experiment_id, child, {_PARENT: run_id})
    client.set_terminated(run_id, "FAILED" if run.failed else "FINISHED", end_time=end)
    return run_id


def _stage(run: Run, folder: Path) -> None:
    """Lay out a run's artifacts as MLflow is to have them: tables written, files as links."""
    for name, rows in run.tables.items():
        (folder / name).write_text(json.dumps(_table(rows)))
    for name, source in run.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(source.resolve())


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows in the layout of ``mlflow.log_table``, which the interface draws as a table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}
