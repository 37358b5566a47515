"""The build document's rows and status, from candidates and what became of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import catalog
from ..declaration import GPU, Declaration
from .compiled import Compiled
from .pool import Task
from .space import Candidate, Refusal, representative

Identity = tuple[str, str, str, frozenset[str], bool]


def identity(candidate: Candidate) -> Identity:
    """What decides a candidate's row but for its config: candidates with equal identities are compiled once."""
    return candidate.direction, candidate.variant, candidate.dtype, candidate.keys, candidate.default


def tasks_of(
    kernel: str, declaration: Declaration, candidates: Sequence[Candidate], gpu: GPU, listings: Path, sass: bool
) -> dict[Identity, Task]:
    """One task for each distinct candidate; those of default configs leave listings in the folder ``listings``.

    ``sass`` asks for machine code beside the PTX.
    """
    load = functools.partial(catalog.load, kernel)
    shown = _shown(declaration, candidates)
    tasks: dict[Identity, Task] = {}
    for candidate in candidates:
        task = Task(load, candidate.direction, candidate.variant, candidate.case, candidate.config, gpu)
        if identity(candidate) in shown:
            prefix = listings / f"{candidate.direction}-{candidate.variant}-{candidate.dtype}"
            task = dataclasses.replace(task, listings=prefix, sass=sass)
        tasks.setdefault(identity(candidate), task)
    return tasks


def _shown(declaration: Declaration, candidates: Sequence[Candidate]) -> set[Identity]:
    """Of each pass, variant and dtype the default whose listing is kept: that of the case with the most traffic."""
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.default:
            groups.setdefault((candidate.direction, candidate.variant, candidate.dtype), []).append(candidate)
    shown = set()
    for (direction, _, _), group in groups.items():
        case = representative(declaration.passes[direction], [case for c in group for case in c.default_for])
        shown.add(identity(next(candidate for candidate in group if case in candidate.default_for)))
    return shown


def row(candidate: Candidate, compiled: Compiled) -> dict[str, Any]:
    """The document's row of one candidate."""
    return _where(candidate.variant, candidate.direction, candidate.dtype) | {
        "sizes": dict(candidate.case.sizes),
        "config": dict(candidate.config),
        "default": candidate.default,
        **compiled.to_json(),
    }


def refused_row(refusal: Refusal) -> dict[str, Any]:
    """The document's row of a variant that does not support this GPU, or no case of this dtype."""
    return _where(refusal.variant, refusal.direction, refusal.dtype) | {
        "sizes": {},
        "config": {},
        "default": False,
        **Compiled("unsupported", refusal.reason).to_json(),
    }


def _where(variant: str, direction: str, dtype: str) -> dict[str, str]:
    return {"variant": variant, "direction": direction, "dtype": dtype}


def status(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The document's status and reason: ``failed`` if a default config, which an untuned call runs, is of no use."""
    for bad in rows:
        if bad["default"] and bad["status"] != "ok":
            sizes = " ".join(f"{name}={value}" for name, value in bad["sizes"].items())
            what = f"{bad['direction']} {bad['variant']} {bad['dtype']}, default config for {sizes}"
            how = "does not compile" if bad["status"] == "failed" else "cannot launch"
            return {"status": "failed", "reason": f"{what} {how}: {bad['reason']}"}
    if all(row["status"] == "unsupported" for row in rows):
        return {"status": "unsupported", "reason": rows[0]["reason"] if rows else "no case fits this GPU"}
    return {"status": "ok", "reason": ""}
