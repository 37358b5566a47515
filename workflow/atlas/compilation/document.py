"""The build document's rows and status, from compilations and what became of them."""

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
from .space import Compilation, Refusal, representative

Identity = tuple[str, str, str, frozenset[str], bool]


def identity(compilation: Compilation) -> Identity:
    """What decides a compilation's row but for its config: compilations with equal identities are compiled once."""
    return compilation.direction, compilation.variant, compilation.dtype, compilation.keys, compilation.default


def tasks_of(
    kernel: str, declaration: Declaration, compilations: Sequence[Compilation], gpu: GPU, listings: Path, sass: bool
) -> dict[Identity, Task]:
    """One task for each distinct compilation; those of default configs leave listings in the folder ``listings``.

    ``sass`` asks for machine code beside the PTX.
    """
    load = functools.partial(catalog.load, kernel)
    shown = _shown(declaration, compilations)
    tasks: dict[Identity, Task] = {}
    for compilation in compilations:
        task = Task(load, compilation.direction, compilation.variant, compilation.case, compilation.config, gpu)
        if identity(compilation) in shown:
            prefix = listings / f"{compilation.direction}-{compilation.variant}-{compilation.dtype}"
            task = dataclasses.replace(task, listings=prefix, sass=sass)
        tasks.setdefault(identity(compilation), task)
    return tasks


def _shown(declaration: Declaration, compilations: Sequence[Compilation]) -> set[Identity]:
    """Of each pass, variant and dtype the default whose listing is kept: that of the case with the most traffic."""
    groups: dict[tuple[str, str, str], list[Compilation]] = {}
    for compilation in compilations:
        if compilation.default:
            groups.setdefault((compilation.direction, compilation.variant, compilation.dtype), []).append(compilation)
    shown = set()
    for (direction, _, _), group in groups.items():
        case = representative(declaration.passes[direction], [case for c in group for case in c.default_for])
        shown.add(identity(next(compilation for compilation in group if case in compilation.default_for)))
    return shown


def row(compilation: Compilation, compiled: Compiled) -> dict[str, Any]:
    """The document's row of one compilation."""
    return _where(compilation.variant, compilation.direction, compilation.dtype) | {
        "sizes": dict(compilation.case.sizes),
        "config": dict(compilation.config),
        "default": compilation.default,
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
