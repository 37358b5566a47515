"""A run's tables and files, laid out as MLflow is to have them, and where a database's artifacts lie."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import AtlasError
from .runs import Run
from .store import ARTIFACTS_VARIABLE, PROXIED


@contextlib.contextmanager
def staged(run: Run) -> Iterator[str]:
    """A folder with a run's artifacts, for as long as the context lasts: tables written, files as links."""
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in run.tables.items():
            (Path(folder) / name).write_text(json.dumps(_table(rows)))
        for name, source in run.files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).symlink_to(source.resolve())
        yield folder


def located(uri: str) -> str:
    """Where to write what MLflow knows by this URI: what a server stands before is in its folder.

    Raises :class:`AtlasError` where nobody has named that folder.
    """
    if not uri.startswith(PROXIED):
        return uri
    folder = os.environ.get(ARTIFACTS_VARIABLE, "").strip()
    if not folder:
        raise AtlasError(
            f"artifacts of {uri} lie behind a server; name their folder in {ARTIFACTS_VARIABLE}, as the server has it, "
            "or track through the server"
        )
    return f"{folder.rstrip('/')}/{urlsplit(uri).path.lstrip('/')}"


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows in the layout of ``mlflow.log_table``, which the interface draws as a table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]}
