"""What a figure was drawn of, marked at the end of its SVG: one whose rows and code are the same is left as it is."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from ..identity import today


class Rows:
    """Digests of the rows that figures are drawn of, and of the code that draws them."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]):
        self._tables = tables
        self._rows = {name: pd.util.hash_pandas_object(table, index=False) for name, table in tables.items()}
        # A kernel's figures show its own rows; of the others' what matters is which GPUs there are, for their colours.
        shared = [table[["gpu", "kind"]].drop_duplicates() for table in tables.values() if "kind" in table]
        self._shared = [_code(), *(table.to_csv(index=False) for table in shared)]

    def digest(self, kernel: str = "") -> str:
        """Of a kernel's figures, or of those about all kernels."""
        hashed = hashlib.sha256("".join(self._shared).encode())
        for name, table in self._tables.items():
            rows = self._rows[name]
            own = rows[table.kernel == kernel] if kernel and "kernel" in table else rows
            hashed.update(name.encode() + own.to_numpy().tobytes())
        return hashed.hexdigest()[:16]


@functools.cache
def _code() -> str:
    return " ".join([today.of_stage("figures"), *map(version, ("matplotlib", "seaborn"))])


def mark(folder: Path, name: str, digest: str) -> None:
    """Write at the end of a figure's SVG what it was drawn of."""
    with (folder / f"{name}.svg").open("a") as file:
        file.write(_mark(digest))


def keep(folder: Path, name: str, digest: str, png: bool = False) -> bool:
    """Whether a figure is there that was drawn of the same, as PNG, too, if wanted; it then gets today's date.

    That is what Snakemake goes by.
    """
    files = [folder / f"{name}.{suffix}" for suffix in ("svg", "png")[: 2 if png else 1]]
    if not all(file.exists() for file in files) or not files[0].read_text().endswith(_mark(digest)):
        return False
    for file in files:
        file.touch()
    return True


def _mark(digest: str) -> str:
    return f"<!-- drawn of {digest} -->\n"
