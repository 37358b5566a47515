"""ui: serve MLflow's interface on what was tracked, at http://127.0.0.1."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ..tracking import interface
from ..tracking import store as stores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The port, and the results folder."""
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default: 5000)")


def run(arguments: argparse.Namespace) -> None:
    """Become the server, so that Ctrl-C and signals reach it; does not return."""
    stores.quiet()
    command = interface.command(stores.store_of(arguments.results), arguments.port)
    summary = arguments.results / "mlflow" / "tracked.json"
    page = json.loads(summary.read_text())["open"] if summary.exists() else ""
    print(f"MLflow, until Ctrl-C: open http://{interface.HOST}:{arguments.port}/{page}", flush=True)
    os.execv(command[0], command)
