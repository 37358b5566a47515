"""Where runs go: the database under ``results/mlflow``, or what MLFLOW_TRACKING_URI names; what is wrong with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import AtlasError

VARIABLE = "MLFLOW_TRACKING_URI"
ARTIFACTS_VARIABLE = "MLFLOW_ARTIFACTS_DESTINATION"
"""Where a server keeps artifacts, as MLflow names it; who writes the server's database itself needs to know it, too."""

PROXIED = "mlflow-artifacts:"
"""How a server's artifacts are addressed."""

# Before MLflow is imported, which reads them then.  Its own defaults retry a dead server for minutes.
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # two more calls a run
}

# libpq's; a host that is gone without a word is noticed in half a minute.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30000,
}

_REMEDY = f"check that the server runs and that {VARIABLE} names it, or unset {VARIABLE} to track into results/mlflow"


@dataclass(frozen=True)
class Store:
    """A tracking URI, and where artifacts go (None: where the server decides).

    ``folder`` is ``results/mlflow`` for the project's own database, else None.
    """

    uri: str
    artifacts: str | None
    folder: Path | None = None

    @property
    def shown(self) -> str:
        """The URI without user, password and query, as it may be printed."""
        return redact(self.uri)

    @property
    def database(self) -> Path | None:
        """The project's own database file."""
        return self.folder and self.folder / "mlflow.db"

    @property
    def direct(self) -> bool:
        """Whether it is a database whose tables this process writes itself."""
        return self.postgres or self.uri.startswith("sqlite:")

    @property
    def postgres(self) -> bool:
        """Whether it is a PostgreSQL."""
        return re.match(r"postgresql(\+psycopg2?)?:", self.uri) is not None


class AwayError(AtlasError):
    """A server or database that is not the project's own cannot be used; the documents stay, to be tracked later."""


def store_of(results: Path) -> Store:
    """The store that runs of this results folder go to, by the environment."""
    uri = os.environ.get(VARIABLE, "").strip()
    if uri:
        beside = re.fullmatch(r"sqlite:///(.+)", uri)
        if beside:
            return Store(uri, (Path(beside[1]).resolve().parent / "artifacts").as_uri())
        store = Store(uri, None)
        return replace(store, uri=_patient(uri), artifacts=f"{PROXIED}/kernel-atlas") if store.postgres else store
    folder = (results / "mlflow").resolve()
    return Store(f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri(), folder)


def _patient(uri: str) -> str:
    """The URI with limits to how long its driver waits, where it states none."""
    base, _, query = uri.partition("?")
    stated = {word.partition("=")[0] for word in query.split("&")}
    words = [f"{name}={value}" for name, value in _PATIENCE.items() if name not in stated]
    return f"{base}?{'&'.join([query, *words] if query else words)}"


def redact(text: str) -> str:
    """The text with the credentials of every URL in it taken out."""
    text = re.sub(r"(\w://)[^/\s@]+@", r"\1", text)
    return re.sub(r"(\w://[^\s?]+)\?\S+", r"\1", text)


def quiet() -> None:
    """Turn off MLflow's telemetry, its long retries and its chatter; to be called before MLflow is imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def writing(store: Store) -> Iterator[None]:
    """Hold the project's own database for this process alone: two that create it at once would spoil it."""
    if store.folder is None:
        yield
        return
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        file = (store.folder / ".lock").open("w")
    except OSError as error:
        raise AtlasError(
            f"{store.folder}: cannot be written: {error.strerror}; check the folder's permissions"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clear(store: Store) -> None:
    """Remove the project's own database and artifacts; they are made again from the documents."""
    assert store.folder is not None
    for path in store.folder.glob("mlflow.db*"):
        path.unlink()
    shutil.rmtree(store.folder / "artifacts", ignore_errors=True)


def prepare(store: Store, experiment: str) -> None:
    """Bring the project's own database to the schema of the MLflow at hand, or make way for a new one.

    A new one is made where the old was cut off while its tables were made, and where the project's folder was moved:
    MLflow keeps the absolute places of artifacts.  A file that is no database is refused: it is not ours to delete.
    """
    if store.postgres:
        _prepare_postgres(store)
    if store.database is None:
        return
    if not store.database.exists():
        _make(store.database)
        return
    try:
        with contextlib.closing(sqlite3.connect(store.database)) as connection:
            versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            places = connection.execute("SELECT artifact_location FROM experiments WHERE name = ?", [experiment])
            moved = any(place != store.artifacts for (place,) in places)
            empty = not connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise AtlasError(f"{store.database}: cannot be read: {error}; close what holds it and try again") from None
        versions, moved, empty = [], False, True
    except sqlite3.DatabaseError as error:
        raise AtlasError(
            f"{store.database}: not an SQLite database ({error}); run `python -m atlas track --rebuild` to replace it"
        ) from None
    if moved or not versions:
        clear(store)
        _make(store.database)
        return
    from mlflow.store.db.utils import _get_latest_schema_revision

    if versions[0][0] != _get_latest_schema_revision():
        command = [sys.executable, "-m", "mlflow", "db", "upgrade", store.uri]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and empty:  # cut off while it was made or brought up to date: nothing is lost with it
            clear(store)
            _make(store.database)
        elif done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise AtlasError(
                f"{store.database}: written by another MLflow and cannot be upgraded ({reason}); "
                "run `python -m atlas track --rebuild`"
            )


def _make(database: Path) -> None:
    """A database with its tables, put into place when it is whole: MLflow refuses one whose making was cut off."""
    from mlflow.store.db.utils import _initialize_tables, create_sqlalchemy_engine

    made = database.with_name(f"{database.name}.made")
    made.unlink(missing_ok=True)
    engine = create_sqlalchemy_engine(f"sqlite:///{made}")
    try:
        _initialize_tables(engine)
        engine.dispose()
        made.replace(database)
    finally:
        engine.dispose()
        for path in database.parent.glob(f"{made.name}*"):
            path.unlink()


def _prepare_postgres(store: Store) -> None:
    """Make MLflow's tables in an empty database, by one of those who come at once; another's schema is refused."""
    from mlflow import MlflowClient
    from mlflow.store.db.utils import _get_latest_schema_revision, _initialize_tables
    from sqlalchemy import create_engine, inspect, text

    engine = create_engine(store.uri)
    try:
        with engine.connect() as connection:
            connection.execute(text("SET lock_timeout = '60s'"))
            connection.execute(text(f"SELECT pg_advisory_lock({_TABLES_LOCK})"))
            if not inspect(connection).has_table("alembic_version"):
                _initialize_tables(engine)
                MlflowClient(store.uri).search_experiments(max_results=1)  # makes MLflow's default one
            version = connection.scalar(text("SELECT version_num FROM alembic_version"))
            connection.execute(text(f"SELECT pg_advisory_unlock({_TABLES_LOCK})"))
    finally:
        engine.dispose()
    if version != _get_latest_schema_revision():
        raise AwayError(
            f"MLflow at {store.shown}: its tables are another MLflow's; let whoever keeps it make a backup and run "
            "`mlflow db upgrade`, or install the MLflow of the server"
        )


_TABLES_LOCK = 0x6B61746C6173  # "katlas"


@contextlib.contextmanager
def explained(store: Store) -> Iterator[None]:
    """Turn what MLflow raises about the store into one sentence with its URI and a remedy.

    It is an :class:`AwayError` where the store is not the project's own.
    """
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    kind = AwayError if store.folder is None else AtlasError
    try:
        _knock(store)
        yield
    except AtlasError as error:
        raise error if isinstance(error, kind) else kind(str(error)) from None
    except requests.ConnectionError:
        raise kind(f"MLflow at {store.shown} cannot be used: nothing answers there; {_REMEDY}") from None
    except ImportError as error:
        remedy = "pip install -c constraints.txt '.[server]'" if store.postgres else "install that module"
        raise kind(f"MLflow at {store.shown} cannot be used: {error}; {remedy}") from None
    except (MlflowException, SQLAlchemyError, requests.RequestException, OSError) as error:
        raise kind(f"MLflow at {store.shown} cannot be used: {_reason(store, error)}") from None


def _knock(store: Store) -> None:
    """Ask whether the store is there: MLflow's own first request tries for a minute, and then names the wrong thing."""
    if store.uri.startswith(("http://", "https://")):
        import requests

        requests.get(f"{store.uri.rstrip('/')}/health", timeout=10)  # any answer will do
    elif store.postgres:
        from sqlalchemy import create_engine

        engine = create_engine(store.uri)
        engine.connect().close()
        engine.dispose()


def _reason(store: Store, error: Exception) -> str:
    """What was wrong, in a line without credentials, and the remedy."""
    lines = [line.strip() for line in redact(str(getattr(error, "orig", error))).splitlines() if line.strip()]
    reason = (lines or [type(error).__name__])[0].rstrip(".")
    if len(reason) > 300:
        reason = reason[:300] + "…"
    remedy = "run `python -m atlas track --rebuild`" if store.folder is not None else _REMEDY
    if store.folder is not None and re.search("disk|space|quota|too large", reason, re.IGNORECASE):
        remedy = "free space there, or raise the quota, and run again"
    return f"{reason}; {remedy}"
