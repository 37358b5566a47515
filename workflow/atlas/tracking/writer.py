"""Put trees of runs into MLflow, each once, whoever else does so: what is there by its digest is left alone."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import AtlasError
from . import views
from .calls import Calls, search
from .database import Database
from .roots import DIGEST, KEY, WRITER, named
from .runs import Tree
from .store import Store, clear, explained, prepare, writing
from .views import EXPERIMENT
from .words import BUSY, NOTE, UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as StoredRun

_POLL_SECONDS = 1.0
_WAIT_SECONDS = 600.0  # for trees that somebody else is writing


@dataclass
class Tracked:
    """What one tracking did, by tree: written anew, put in an older one's place, or found there already."""

    experiment_id: str
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    runs: int = 0


@dataclass(frozen=True)
class Selection:
    """Kernels and GPUs, None for all."""

    kernels: Collection[str] | None = None
    gpus: Collection[str] | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.kernels is None and self.gpus is None

    def has(self, key: str) -> bool:
        """Whether a tree's key is of the selection; surveys are, where it is of all kernels."""
        kernel, _, gpu = key.rpartition("/")
        return (self.kernels is None or kernel in self.kernels) and (self.gpus is None or gpu in self.gpus)


class Way(Protocol):
    """How trees get into a store."""

    def write(self, tree: Tree) -> str:
        """Write a tree unless it is there; returns ``added``, ``replaced``, ``unchanged`` or ``busy``."""

    def delete(self, roots: Sequence[str]) -> None:
        """Delete roots and all below them."""

    def close(self) -> None:
        """Let go of what it holds."""


def put(store: Store, experiment: str, trees: Iterable[Tree], rebuild: Selection | None = None) -> Tracked:
    """Write the trees that are not in the store yet, and replace those whose documents changed.

    A replaced tree is deleted as MLflow deletes: hidden, and found again in the interface under "State: Deleted".
    ``rebuild`` writes all trees anew and deletes the selection's others; of everything, the project's own database is
    made anew.  Runs of others stay.  Raises :class:`AtlasError` where the store cannot be used.
    """
    with writing(store):
        if rebuild is not None and rebuild.everything and store.folder is not None:
            clear(store)
        with explained(store):
            _spare_the_disk(store)
            prepare(store, experiment)
            client = _client(store)
            found = _experiment(client, store, experiment)
            outcome = Tracked(found.experiment_id)
            with contextlib.closing(_way(client, store, found, rebuild is not None)) as way:
                trees = list(trees)
                _write(way, client, trees, outcome)
                if rebuild is not None:
                    kept = {tree.key for tree in trees}
                    way.delete(
                        [
                            run.info.run_id
                            for run in search(client, outcome.experiment_id, f"tags.`{KEY}` LIKE '%'")
                            if rebuild.has(run.data.tags[KEY]) and run.data.tags[KEY] not in kept
                        ]
                    )
            _describe(client, outcome.experiment_id)
            return outcome


def _spare_the_disk(store: Store) -> None:
    if store.folder is not None:
        from sqlalchemy import Engine, event

        if not event.contains(Engine, "connect", _unsynchronised):
            event.listen(Engine, "connect", _unsynchronised)


def _unsynchronised(connection: Any, record: Any) -> None:
    """Spare SQLite's wait for the disk at each commit, 13-22 ms on a busy one.

    A killed process loses nothing by it; after a power cut the database can be made again.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


def _client(store: Store) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store.uri, registry_uri=store.uri)


def _way(client: MlflowClient, store: Store, experiment: Experiment, force: bool) -> Way:
    if store.direct:
        return Database(store, experiment.experiment_id, experiment.artifact_location, force)
    return Calls(client, experiment.experiment_id, force)


def _write(way: Way, client: MlflowClient, trees: Sequence[Tree], outcome: Tracked) -> None:
    """Every tree; those that somebody else is writing come last, and are there by then."""
    waiting = list(trees)
    # Two that begin together on the same documents begin at different ones, and find the other's when they get there.
    first = random.randrange(len(waiting) or 1)
    waiting = waiting[first:] + waiting[:first]
    until = time.monotonic() + _WAIT_SECONDS
    while waiting:
        busy = []
        for tree in waiting:
            done = way.write(tree)
            if done == BUSY:
                busy.append(tree)
                continue
            getattr(outcome, done).append(tree.key)
            if done != UNCHANGED:
                outcome.runs += sum(1 for _ in tree.root.walk())
                until = time.monotonic() + _WAIT_SECONDS
        if busy and time.monotonic() > until:
            raise AtlasError(f"{_holder(client, outcome.experiment_id, busy[0].key)}; end that, or track again later")
        waiting = busy
        if busy:
            time.sleep(_POLL_SECONDS)


def _holder(client: MlflowClient, experiment_id: str, key: str) -> str:
    """Who is writing a tree, in words."""
    for run in search(client, experiment_id, f"tags.`{KEY}` = '{key}'"):
        if DIGEST not in run.data.tags and WRITER in run.data.tags:
            return f"{key} has been written for ten minutes by {named(run.data.tags[WRITER])}"
    return f"{key} has been locked for ten minutes by another writer of this database"


def _experiment(client: MlflowClient, store: Store, name: str) -> Experiment:
    """The experiment; it is made where there is none, by whoever comes first."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.get_experiment(client.create_experiment(name, store.artifacts))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found.lifecycle_stage == "deleted":
        raise AtlasError(
            f"MLflow at {store.shown}: experiment {name!r} was deleted; restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or name another with --experiment"
        )
    return found


def _describe(client: MlflowClient, experiment_id: str) -> None:
    """Write the experiment's description and views: of all trees there are, whoever wrote them.

    Another may write at the same time.  What was written is read again, so the last of them has seen all trees.
    """
    for _ in range(5):
        there = client.get_experiment(experiment_id).tags
        changed = {key: value for key, value in _texts(client, experiment_id).items() if there.get(key) != value}
        if not changed:
            return
        for key, value in changed.items():
            client.set_experiment_tag(experiment_id, key, value)


def _texts(client: MlflowClient, experiment_id: str) -> dict[str, str]:
    """The experiment's tags, from what roots say of their trees."""
    roots = search(client, experiment_id, f"tags.`{DIGEST}` LIKE '%'")
    shown = views.views(_summaries(sorted(roots, key=lambda run: run.data.tags[KEY])))
    note = EXPERIMENT.format(views=views.links(experiment_id, shown))
    # The kind makes interfaces that go by it open on the list of runs rather than on traces.
    return {NOTE: note, "mlflow.experimentKind": "custom_model_development", **views.tags(shown)}


def _summaries(roots: Iterable[StoredRun]) -> Iterator[views.Columns]:
    for run in roots:
        columns = views.Columns.read(run.data.tags.get(views.COLUMNS, ""))
        if columns is not None:
            yield columns
