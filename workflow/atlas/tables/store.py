"""Tables as files: ``results/tables/<name>.parquet`` and ``.csv``, with the same columns and types full or empty."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import AtlasError
from ..results.documents import write_text
from .columns import TABLES


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """``rows`` as the table ``name``: its columns in their order and types; KeyError for a key it has no column of."""
    columns = TABLES[name]
    rows = list(rows)
    for row in rows:
        unknown = row.keys() - columns.keys()
        if unknown:
            raise KeyError(f"table {name!r} has no column {', '.join(sorted(unknown))}")
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def write(folder: Path, name: str, table: pd.DataFrame) -> None:
    """Put a table under ``folder`` as Parquet and CSV, each by renaming a finished file into place."""
    write_text(folder / f"{name}.csv", table.to_csv(index=False))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    os.close(handle)
    table.to_parquet(temporary, index=False)
    Path(temporary).chmod((folder / f"{name}.csv").stat().st_mode)
    Path(temporary).replace(folder / f"{name}.parquet")


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Every table under ``folder`` by name; :class:`AtlasError` for one that is missing, cut off or of another form."""
    return {name: _read(folder / f"{name}.parquet", name) for name in TABLES}


def _read(path: Path, name: str) -> pd.DataFrame:
    remedy = "run `python -m atlas tables` to make it again"
    if not path.exists():
        raise AtlasError(f"{path}: no such table; {remedy}")
    try:
        return pd.read_parquet(path)[list(TABLES[name])].astype(TABLES[name])
    except KeyError as error:
        raise AtlasError(f"{path}: {error.args[0]}: another release wrote this table; {remedy}") from None
    except (OSError, ValueError) as error:
        raise AtlasError(f"{path}: not readable as Parquet ({error}); {remedy}") from None
