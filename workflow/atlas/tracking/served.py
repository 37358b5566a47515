"""MLflow's own server on a database that a team shares: what it is started with, and what it is refused.

Addresses, names and folders are arguments.  Whatever may hold a secret stays in the environment, out of the list of
processes and of every file: the database's URI, the first user's password.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import AtlasError
from .store import ARTIFACTS_VARIABLE, Store, redact

DATABASE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
PASSWORD_VARIABLE = "MLFLOW_AUTH_ADMIN_PASSWORD"
_CONFIG_VARIABLE = "MLFLOW_AUTH_CONFIG_PATH"
_KEY_VARIABLE = "MLFLOW_FLASK_SERVER_SECRET_KEY"

# Whoever has a password may read, write and replace runs; who replaces deletes, for which MLflow wants MANAGE.
_CONFIG = """\
[mlflow]
default_permission = MANAGE
database_uri = {users}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
"""


@dataclass(frozen=True)
class Place:
    """Where a server listens, by which names it may be called, and its folder for artifacts and users."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 5000
    allowed_hosts: Sequence[str] = ()

    @property
    def local(self) -> bool:
        """Whether this host's users alone reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def users(self) -> Path:
        """The database of users, with digests of their passwords."""
        return self.folder / "users.db"

    @property
    def config(self) -> Path:
        """What MLflow's basic auth is told; no secret is in it."""
        return self.folder / "basic_auth.ini"


def store_of_server() -> Store:
    """The database a server is to stand before, by the environment."""
    uri = os.environ.get(DATABASE_VARIABLE, "").strip()
    if not uri:
        raise AtlasError(
            f"{DATABASE_VARIABLE} is not set; name the database, for instance postgresql://atlas@127.0.0.1/atlas, "
            "its password in ~/.pgpass or PGPASSWORD"
        )
    if uri.startswith(("http://", "https://")):
        raise AtlasError(f"{DATABASE_VARIABLE} is {redact(uri)}, a server; name the database that stands behind it")
    return Store(uri, None)


def asks_for_passwords(place: Place, environment: Mapping[str, str]) -> bool:
    """Whether the server wants a user and a password: once there is one, always."""
    return place.users.exists() or any(environment.get(name) for name in (PASSWORD_VARIABLE, _CONFIG_VARIABLE))


def check(place: Place, environment: Mapping[str, str]) -> None:
    """Raise :class:`AtlasError` for a server that others reach without a password, or by any name."""
    if place.local:
        return
    if not asks_for_passwords(place, environment):
        raise AtlasError(
            f"a server on {place.host} is for others, too: give its first user's password in {PASSWORD_VARIABLE} "
            "(the user is admin), or stay on 127.0.0.1"
        )
    if not place.allowed_hosts:
        raise AtlasError(
            f"a server on {place.host} has to know its names: --allowed-hosts atlas.example:{place.port}, as browsers "
            "and MLFLOW_TRACKING_URI have it; make server ALLOWED_HOSTS=…"
        )


def prepare(place: Place, environment: Mapping[str, str]) -> None:
    """Make the folder, for this user alone, and in it the users' tables: several workers at once would spoil them."""
    place.folder.mkdir(parents=True, exist_ok=True)
    place.folder.chmod(0o700)
    if asks_for_passwords(place, environment) and not environment.get(_CONFIG_VARIABLE):
        try:
            from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore
        except ImportError as error:
            raise AtlasError(f"passwords need {error.name}; pip install -c constraints.txt '.[server]'") from None
        place.config.write_text(_CONFIG.format(users=_uri(place.users)))
        SqlAlchemyStore().init_db(_uri(place.users))


def command(place: Place, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command that serves, and what it adds to the environment."""
    words = [sys.executable, "-m", "mlflow", "server", "--host", place.host, "--port", str(place.port)]
    # Writers keep connections; one that the server ends, after 5 s by default, costs the call that comes just then.
    words += ["--uvicorn-opts", "--timeout-keep-alive 75"]
    if place.allowed_hosts:
        words += ["--allowed-hosts", ",".join(place.allowed_hosts)]
        origins = [f"{scheme}://{host}" for host in place.allowed_hosts for scheme in ("http", "https")]
        words += ["--cors-allowed-origins", ",".join(origins)]
    added = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    if not environment.get(ARTIFACTS_VARIABLE):
        added[ARTIFACTS_VARIABLE] = str((place.folder / "artifacts").resolve())
    if asks_for_passwords(place, environment):
        words += ["--app-name", "basic-auth"]
        added.setdefault(_CONFIG_VARIABLE, environment.get(_CONFIG_VARIABLE) or str(place.config))
        # It signs one form, for new users; a new one with each start costs a form that was open then.
        added[_KEY_VARIABLE] = environment.get(_KEY_VARIABLE) or secrets.token_hex(32)
    return words, added


def _uri(database: Path) -> str:
    return f"sqlite:///{database.resolve()}"
