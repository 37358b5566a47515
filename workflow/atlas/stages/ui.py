"""ui: serve MLflow's interface on what was tracked, at http://127.0.0.1, for this host's browser alone."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path

from ..errors import AtlasError
from ..tracking import store as stores
from ..tracking.store import VARIABLE, Store

HOST = "127.0.0.1"
_NEXT_PORTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The port, and the results folder."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: 5000)")


def run(arguments: argparse.Namespace) -> None:
    """Become the server, so that Ctrl-C and signals reach it; does not return."""
    stores.quiet()
    words = command(stores.store_of(arguments.results), arguments.port)
    summary = arguments.results / "mlflow" / "tracked.json"
    page = json.loads(summary.read_text())["open"] if summary.exists() else ""
    print(f"MLflow, until Ctrl-C: open http://{HOST}:{arguments.port}/{page}", flush=True)
    os.execv(words[0], words)


def command(store: Store, port: int) -> list[str]:
    """The command that serves the interface at ``port``.

    Raises :class:`AtlasError` where the runs are on a server, which has its own interface, where nothing was tracked
    yet, and where the port is taken; the last names one that is free.
    """
    if store.uri.startswith(("http://", "https://")):
        raise AtlasError(f"{VARIABLE} names a server, which has the interface itself: open {store.shown}")
    if store.postgres:
        raise AtlasError(
            f"{VARIABLE} names a team's database; name it in MLFLOW_BACKEND_STORE_URI and run `make server`"
        )
    if store.database is not None and not store.database.exists():
        raise AtlasError(f"{store.database}: nothing is tracked yet; run `make reproduce` or `python -m atlas track`")
    check_port(port, HOST, "make ui")
    # Without the artifact root MLflow would make a folder in whatever folder this is started from.
    artifacts = ["--default-artifact-root", store.artifacts] if store.artifacts else []
    where = ["--host", HOST, "--port", str(port), "--workers", "1"]
    return [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store.uri, *artifacts, *where]


def check_port(port: int, host: str, made_by: str) -> None:
    """Raise :class:`AtlasError` where a port is taken, with one that is free."""
    if not _free(port, host):
        free = next((p for p in range(port + 1, min(port + 1 + _NEXT_PORTS, 65536)) if _free(p, host)), None)
        remedy = "stop what uses it" if free is None else f"port {free} is free: `{made_by} PORT={free}`"
        raise AtlasError(f"port {port} on {host} is in use; {remedy}")


def _free(port: int, host: str) -> bool:
    with socket.socket() as probe:
        # As the server does: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
