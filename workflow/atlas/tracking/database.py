"""A tree as rows of MLflow's own tables, in one transaction: whole or not at all, whenever the process is killed.

MLflow's calls make a run in five transactions and 30 ms; these are 2 ms, and the rows are the same (a test compares).
For SQLite and PostgreSQL; other databases and servers get MLflow's calls.
"""

from __future__ import annotations

import hashlib
import io
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .artifacts import located, staged
from .roots import DIGEST, KEY, STAMP, Root, Watch
from .runs import Run, Tree
from .store import Store
from .words import BUSY, PARENT, UNCHANGED, curves, limited, tags_of

_MANY = 500  # ids in one statement


class Database:
    """The database of a store, written without a server; for one process and thread."""

    def __init__(self, store: Store, experiment_id: str, location: str, force: bool = False):
        """``location`` is the experiment's artifact location; with ``force`` what is there is written anew."""
        from mlflow.store.db.utils import create_sqlalchemy_engine

        self._engine = create_sqlalchemy_engine(store.uri)
        self._experiment = int(experiment_id)
        self._location = location
        self._watch = Watch()
        self._force = force

    def close(self) -> None:
        """Let go of the connections."""
        self._engine.dispose()

    def write(self, tree: Tree) -> str:
        """Write a tree unless it is there; returns what was done, see :mod:`.words`."""
        with self._engine.connect() as connection:
            if not self._lock(connection, tree.key):
                return BUSY
            found = self._roots(connection, tree.key)
            state = self._watch.state(found)
            older = list(state.surplus)
            outcome = UNCHANGED
            if self._force or state.current is None or state.current.digest != tree.digest:
                if state.busy:
                    return BUSY
                outcome = "replaced" if found else "added"
                older += [state.current.run_id] if state.current else []
                extra = {KEY: tree.key, DIGEST: tree.digest, STAMP: str(state.stamp)}
                self._insert(connection, tree.root, extra)
            self._delete(connection, older)
            connection.commit()
        if outcome != UNCHANGED:
            self._settle(tree.key)
        return outcome

    def delete(self, roots: Sequence[str]) -> None:
        """Delete these roots and all below them, as MLflow deletes."""
        with self._engine.connect() as connection:
            self._delete(connection, list(roots))
            connection.commit()

    def _settle(self, key: str) -> None:
        """Look again: somebody may have written the tree through a server since."""
        with self._engine.connect() as connection:
            surplus = self._watch.state(self._roots(connection, key)).surplus
            if surplus:
                self._delete(connection, list(surplus))
                connection.commit()

    def _lock(self, connection: Any, key: str) -> bool:
        """Keep other databases' writers off this tree until the transaction ends; false where one is at it."""
        if self._engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA busy_timeout = 60000")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return True
        from sqlalchemy import func, select

        number = hashlib.sha256(f"kernel-atlas {self._experiment} {key}".encode()).digest()[:8]
        return connection.scalar(select(func.pg_try_advisory_xact_lock(int.from_bytes(number, signed=True))))

    def _roots(self, connection: Any, key: str) -> list[Root]:
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
        from sqlalchemy import select

        own = (
            select(SqlRun.run_uuid)
            .join(SqlTag, SqlTag.run_uuid == SqlRun.run_uuid)
            .where(SqlRun.experiment_id == self._experiment, SqlRun.lifecycle_stage == "active")
            .where(SqlTag.key == KEY, SqlTag.value == key)
        )
        found: dict[str, dict[str, str]] = {}
        rows = select(SqlTag.run_uuid, SqlTag.key, SqlTag.value).where(SqlTag.run_uuid.in_(own))
        for run_id, name, value in connection.execute(rows.where(SqlTag.key.like("atlas.%"))):
            found.setdefault(run_id, {})[name] = value
        return [Root(run_id, tags) for run_id, tags in found.items()]

    def _insert(self, connection: Any, root: Run, extra: Mapping[str, str]) -> None:
        """The rows of a tree, artifacts first: a file that no row knows of does no harm."""
        from mlflow.store.tracking.dbmodels import models

        rows: dict[Any, list[dict[str, Any]]] = {
            model.__table__: []
            for model in (models.SqlRun, models.SqlTag, models.SqlParam, models.SqlMetric, models.SqlLatestMetric)
        }
        for run, own in self._identified(root, extra):
            self._upload(run, own["run_uuid"])
            for table, added in zip(rows, _rows(run, own), strict=True):
                rows[table] += added
        for table, added in rows.items():
            if added and self._engine.driver == "psycopg2":
                _copy(connection, table.name, added)
            elif added:
                connection.execute(table.insert(), added)

    def _identified(self, root: Run, extra: Mapping[str, str]) -> Iterator[tuple[Run, dict[str, Any]]]:
        """Every run with its id, the folder of its artifacts, its experiment and its tags; parents first."""
        waiting = [(root, dict(extra))]
        while waiting:
            run, more = waiting.pop(0)
            number = uuid.uuid4().hex
            yield (
                run,
                {
                    "run_uuid": number,
                    "artifact_uri": self._artifacts(number),
                    "experiment_id": self._experiment,
                    "tags": tags_of(run, more),
                },
            )
            waiting += [(child, {PARENT: number}) for child in run.children]

    def _artifacts(self, run_id: str) -> str:
        return f"{self._location.rstrip('/')}/{run_id}/artifacts"

    def _upload(self, run: Run, run_id: str) -> None:
        if run.tables or run.files:
            from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

            with staged(run) as folder:
                get_artifact_repository(located(self._artifacts(run_id))).log_artifacts(folder)

    def _delete(self, connection: Any, generation: list[str]) -> None:
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
        from sqlalchemy import select, update

        gone = {"lifecycle_stage": "deleted", "deleted_time": time.time_ns() // 10**6}
        while generation:
            below: list[str] = []
            for start in range(0, len(generation), _MANY):
                some = generation[start : start + _MANY]
                connection.execute(update(SqlRun).where(SqlRun.run_uuid.in_(some)).values(gone))
                under = select(SqlTag.run_uuid).where(SqlTag.key == PARENT, SqlTag.value.in_(some))
                below += connection.scalars(under).all()
            generation = below


def _copy(connection: Any, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows by PostgreSQL's COPY, which takes half the time of INSERT."""
    columns = ", ".join(f'"{name}"' for name in rows[0])
    text = "".join("\t".join(_copied(value) for value in row.values()) + "\n" for row in rows)
    with connection.connection.cursor() as cursor:
        cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN", io.StringIO(text))


def _copied(value: Any) -> str:
    """A value in COPY's text format; no column of ours is null."""
    return str(value).translate(_ESCAPED)


_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _rows(run: Run, own: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """A run's rows, table by table: itself, tags, params, all points of its metrics, the last of each."""
    number = own["run_uuid"]
    start, end = run.span
    yield [
        {
            "run_uuid": number,
            "name": limited(run.name, 250),
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": "unknown",
            "status": "FAILED" if run.failed else "FINISHED",
            "start_time": start,
            "end_time": end,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": own["artifact_uri"],
            "experiment_id": own["experiment_id"],
        }
    ]
    tags = own["tags"] | {"mlflow.runName": limited(run.name, 250)}
    yield [{"run_uuid": number, "key": key, "value": value} for key, value in tags.items()]
    yield [{"run_uuid": number, "key": key, "value": limited(value, 6000)} for key, value in run.params.items()]
    points, last = [], {}
    for name, point in dict.fromkeys(curves(run)):
        row = {"run_uuid": number, "key": name, "value": point.value, "timestamp": point.milliseconds}
        row |= {"step": point.step, "is_nan": False}
        points.append(row)
        order = (point.step, point.milliseconds, point.value)
        if name not in last or order > last[name][0]:
            last[name] = (order, row)
    yield points
    yield [row for _, row in last.values()]
