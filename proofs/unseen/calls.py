"""The calls of a seed, in an order of which any beginning is a sample of all kernels; and those that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from atlas.benchmarking import beyond
from atlas.declaration import GPU, Case, Declaration
from atlas.results.pieces import Pieces
from atlas.sampling import drawing


@dataclass(frozen=True)
class Call:
    """One thing to time."""

    kernel: str
    case: Case
    mode: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.mode} {self.case}"


def failed(call: Call, why: str) -> dict[str, Any]:
    """The row of a call that gave no figure."""
    return {"kernel": call.kernel, "mode": call.mode, "case": str(call.case), "us": None, "peer": None,
            "peer_us": None, "ratio": None, "reason": why, "wrong": False}  # fmt: skip


def rounds(declarations: Mapping[str, Declaration], gpu: GPU, seed: int, cases: int) -> list[list[Call]]:
    """The first drawn case of every kernel in all modes, the second of every kernel, …; kernels in any order."""
    drawn = {name: drawing.drawn(one, gpu, seed, cases) for name, one in declarations.items()}
    found = []
    for number, turn in enumerate(itertools.zip_longest(*drawn.values())):
        here = [(name, case) for name, case in zip(drawn, turn, strict=True) if case is not None]
        Random(f"{seed} {number}").shuffle(here)
        found.append([Call(name, case, mode) for name, case in here for mode in beyond.modes(declarations[name])])
    return found


class Kept:
    """Rows of the calls that are timed, in a file a kernel of ``folder``, each there as soon as it is made.

    ``context_of(kernel)`` is what its rows hold for; rows of other seeds are others.
    """

    def __init__(self, folder: Path, kernels: Sequence[str], seed: int, context_of: Callable[[str], dict[str, Any]]):
        self._seed = seed
        self._pieces = {name: Pieces(folder / f"{name}.jsonl", context_of(name)) for name in kernels}
        self._known = {name: pieces.all() for name, pieces in self._pieces.items()}

    def __contains__(self, call: Call) -> bool:
        return self._name(call) in self._known[call.kernel]

    def put(self, call: Call, row: dict[str, Any] | None) -> None:
        """Keep the call's row; None where there is nothing to time."""
        name = self._name(call)
        self._known[call.kernel][name] = self._pieces[call.kernel].once(name, lambda: row)

    def rows(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """The rows of these calls, of those that have one."""
        found = (self._known[call.kernel].get(self._name(call)) for call in calls)
        return [row for row in found if row]

    def _name(self, call: Call) -> str:
        return f"seed {self._seed} {call.mode} {call.case}"


def seed_of(folder: Path, asked: int | None, fresh: int) -> int:
    """The seed asked for, or else the one that the folder keeps, or else ``fresh``; the folder keeps it."""
    path = folder / "seed"
    if asked is None and path.exists():
        return int(path.read_text())
    seed = fresh if asked is None else asked
    path.write_text(f"{seed}\n")
    return seed
