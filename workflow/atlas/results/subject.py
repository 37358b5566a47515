"""What a row of a document is of: a pass on a case, and a config; each with one key, one label and one JSON form.

Imports nothing, so that a view needs no torch to name a case.  Where there is torch, :class:`atlas.declaration.Case` is
the case itself, and has the same label.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..declaration import Case


def label(values: Mapping[str, Any] | str | None) -> str:
    """Sizes or a config, or their JSON, for a person: ``m=4096 n=1024``, ``BLOCK=1024 num_warps=4``; "" of None."""
    found = json.loads(values) if isinstance(values, str) else values or {}
    return " ".join(f"{name}={value}" for name, value in found.items())


def as_json(value: Any) -> str | None:
    """Sizes, a config or whatever else a row holds in one cell, as JSON without spaces; None stays None."""
    return None if value is None else json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True)
class PassCase:
    """One pass on one case; equal where pass, dtype and sizes are, so that it is its own key."""

    direction: str
    dtype: str
    sizes: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(row: Mapping[str, Any]) -> PassCase:
        """What a row of a document is of, or of a table, where sizes are JSON."""
        sizes = json.loads(row["sizes"]) if isinstance(row["sizes"], str) else row["sizes"]
        return PassCase(row["direction"], row["dtype"], tuple(sizes.items()))

    @staticmethod
    def at(direction: str, case: Case) -> PassCase:
        """A pass on a declared case."""
        return PassCase(direction, case.dtype, case.sizes)

    @property
    def case(self) -> str:
        """The sizes for a person: ``m=4096 n=1024``."""
        return label(dict(self.sizes))

    def __str__(self) -> str:
        return f"{self.direction} {self.case} {self.dtype}"

    def to_json(self) -> dict[str, Any]:
        """The fields of a document's row that name it."""
        return {"direction": self.direction, "dtype": self.dtype, "sizes": dict(self.sizes)}
