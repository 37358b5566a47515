"""What of the project's own code decides a stage's documents: all that is reached from the stage's module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .code import Code
from .needs import NEEDS
from .scopes import WHOLE, Definition, Root

INCIDENTAL = (
    "atlas.__main__",
    "atlas.catalog",
    "atlas.cli",
    "atlas.results.collection",
    "atlas.reading.config",
    "atlas.host.devices",
    "atlas.results.documents",
    "atlas.host.environment",
    "atlas.errors",
    "atlas.host.gpus",
    "atlas.identity",
    "atlas.host.leases",
    "atlas.host.lifeline",
    "atlas.host.neighbours",
    "atlas.host.progress",
    "atlas.operators.interpreted",
    "atlas.reading.strict",
    "atlas.sampling",
    "atlas.workers.family",
    "atlas.workers.forked",
    "atlas.workers.forking",
    "atlas.workers.server",
    "atlas.workload",
)
"""No figure depends on them: finding kernels and documents, messages, provenance, files, finding and leasing a device,
starting and ending processes, threads that take turns; and where cases are from: a workload's are the kernel's identity
``sweep``, drawn ones stand in the document.
Their names count where a stage uses them; what they do does not."""

INCIDENTAL_TO_VIEWS = tuple(name for name in INCIDENTAL if name != "atlas.results.collection")
"""For stages that read documents: which of them they find, and what is stale, is what they show."""

INCIDENTAL_TO_REPORT = tuple(name for name in INCIDENTAL_TO_VIEWS if name != "atlas.workload")
"""Which shows what a workload comes to."""

_VIEWS = ("track", "tables", "figures", "report", "verdict")


def apart(stage: str) -> tuple[str, ...]:
    """The modules whose content is no part of a stage's identity."""
    if stage == "report":
        return INCIDENTAL_TO_REPORT
    return INCIDENTAL_TO_VIEWS if stage in _VIEWS else INCIDENTAL


def identity(code: Code, stage: str, schemas: Path, functional: bool = False) -> str:
    """A digest of the stage's code, of the files beside it that are not Python, and of its documents' schema.

    ``functional`` is that of a run on the interpreter, with what is patched of that.
    """
    hashed = hashlib.sha256(code.digest(_roots(stage, functional)).encode())
    for path in data(code, stage):
        hashed.update(path.read_bytes())
    schema = schemas / f"{stage}.schema.json"
    if schema.exists():
        hashed.update(json.dumps(_without_prose(json.loads(schema.read_text())), sort_keys=True).encode())
    return hashed.hexdigest()[:16]


def reached(code: Code, stage: str, functional: bool = False) -> set[Definition]:
    """The definitions that a stage's identity is of."""
    return code.reached(_roots(stage, functional))


def data(code: Code, stage: str) -> Iterator[Path]:
    """Files that are not Python, in the folders of the modules that the stage reaches: templates and the like."""
    modules = {module for module, _ in reached(code, stage)}
    folders = {path.parent for module in modules if (path := code.path(module)) is not None}
    for folder in sorted(folders):
        yield from sorted(path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc"))


def _roots(stage: str, functional: bool) -> list[tuple[str, Root]]:
    roots: list[tuple[str, Root]] = [("stage", (f"atlas.stages.{stage}", WHOLE))]
    if stage in NEEDS:  # declarations come from the kernels' files, and their methods with them
        roots += [("class", ("atlas.declaration.types", name)) for name in ("Declaration", "Pass")]
    if functional:
        roots.append(("interpreter", ("atlas.host.interpreter", "patch")))
    return roots


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_prose(value) for key, value in schema.items() if key not in ("description", "title")}
    return [_without_prose(item) for item in schema] if isinstance(schema, list) else schema
