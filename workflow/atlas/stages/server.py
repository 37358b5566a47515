"""server: serve MLflow to a team, from the database that MLFLOW_BACKEND_STORE_URI names."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..tracking import served
from ..tracking import store as stores
from . import ui


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Address, names and the folder."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="port (default: 5000)")
    parser.add_argument("--allowed-hosts", default="", help="names with ports by which it may be called, by commas")
    parser.add_argument(
        "--folder", type=Path, default=Path("results/server"), help="artifacts and users (default: results/server)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Become the server, so that Ctrl-C and signals reach it; does not return."""
    stores.quiet()
    names = tuple(name.strip() for name in arguments.allowed_hosts.split(",") if name.strip())
    place = served.Place(arguments.folder, arguments.host, arguments.port, names)
    os.umask(0o077)
    served.check(place, os.environ)
    store = served.store_of_server()
    ui.check_port(arguments.port, arguments.host, "make server")
    served.prepare(place, os.environ)
    with stores.explained(store):
        stores.prepare(store, "")
    words, added = served.command(place, os.environ)
    asks = "asks for passwords" if served.asks_for_passwords(place, os.environ) else "asks for no password"
    print(f"MLflow of {store.shown}, until Ctrl-C: http://{place.host}:{place.port} {asks}", flush=True)
    os.execve(words[0], words, {**os.environ, **added})
