"""The identities that the source has now: read when first asked for, and again when a file has changed.

Reading it takes about a second, which every job would pay.  So what was found is kept in the folder that Snakemake
keeps for itself, where there is one, under a digest of all that was read; nothing depends on it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import ROOT
from . import kernel, stage
from .code import Code

ATLAS = ROOT / "workflow" / "atlas"
KERNELS = ROOT / "kernels"
SCHEMAS = ROOT / "workflow" / "schemas"
KEPT = ROOT / ".snakemake" / "identities.json"


def of_kernel(kernels: Path, name: str) -> dict[str, str]:
    """The identities of the kernel ``name`` of the folder ``kernels``, by their names."""
    return dict(_known(kernels).of(name, lambda code: kernel.identities(code, name)))


def of_stage(name: str, functional: bool = False) -> str:
    """The identity of the stage's own code; ``functional``: as it runs on the interpreter."""
    known = _known(None, stage.apart(name))
    return known.of(f"{name} {functional}", lambda code: stage.identity(code, name, SCHEMAS, functional))


_looked_at: set[tuple[Path | None, tuple[str, ...]]] | None = None
"""The sources that were found as they were since :func:`held` was entered; None outside."""


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Inside, the source's files are looked at once, however many questions are asked."""
    global _looked_at
    before = _looked_at
    _looked_at = set() if before is None else before
    try:
        yield
    finally:
        _looked_at = before


def code_of(kernels: Path, atlas: Path = ATLAS) -> Code:
    """The source of a folder of kernels, and of all of the project that they may reach."""
    code = Code({"kernels": kernels, "atlas": atlas})
    code.stands_for = functools.partial(kernel.stands_for, code)
    return code


class _Known:
    """What has been found of one source, as long as it stays as it is."""

    def __init__(self, kernels: Path | None, apart: tuple[str, ...]):
        self._code = code_of(kernels) if kernels else Code({"atlas": ATLAS}, apart)
        self._folders = [folder for folder in (kernels, ATLAS, SCHEMAS) if folder is not None]
        self._stamps = _stamps(self._folders)
        self._key = hashlib.sha256(repr(apart).encode())
        for path, (_, size) in self._stamps.items():
            self._key.update(f"{os.path.relpath(path, ROOT)} {size} ".encode() + path.read_bytes())
        self._turn = threading.Lock()
        self._found: dict[str, Any] = _kept().get(self._key.hexdigest(), {})

    def current(self) -> bool:
        """Whether the source is still as it was."""
        return _stamps(self._folders) == self._stamps

    def of(self, name: str, find: Callable[[Code], Any]) -> Any:
        """What was found under a name, or is now."""
        with self._turn:  # a source is read by one thread at a time
            if name not in self._found:
                with _without_collection():
                    self._found[name] = find(self._code)
                if self._folders[0] in (KERNELS, ATLAS):
                    _keep(self._key.hexdigest(), self._found)
            return self._found[name]


_sources: dict[tuple[Path | None, tuple[str, ...]], _Known] = {}


def _known(kernels: Path | None, apart: tuple[str, ...] = ()) -> _Known:
    key = (kernels, apart)
    if _looked_at is not None and key in _looked_at:
        return _sources[key]
    if key not in _sources or not _sources[key].current():
        _sources[key] = _Known(kernels, apart)
    if _looked_at is not None:
        _looked_at.add(key)
    return _sources[key]


_SUFFIXES = (".py", ".json", ".js", ".css", ".j2")


def _stamps(folders: list[Path]) -> dict[Path, tuple[int, int]]:
    """Of every file that may count, in order, when it was written and how long it is."""
    found = {}
    for folder in folders:
        counting = _SUFFIXES if folder in (ATLAS, SCHEMAS) else (".py",)  # tuned configs lie among the kernels
        for path in sorted(folder.rglob("*")):
            if path.suffix in counting and path.is_file():
                status = path.stat()
                found[path] = status.st_mtime_ns, status.st_size
    return found


def _kept() -> dict[str, Any]:
    try:
        return json.loads(KEPT.read_text())
    except (OSError, ValueError):
        return {}


_MOST_KEPT = 8


def _keep(key: str, found: dict[str, Any]) -> None:
    """Write what is known now; a process that cannot, or that another one outruns, finds it again."""
    if not KEPT.parent.is_dir():
        return
    others = [(one, known) for one, known in _kept().items() if one != key]
    text = json.dumps(dict(others[1 - _MOST_KEPT :]) | {key: found})
    with contextlib.suppress(OSError):
        written = KEPT.with_name(f"{KEPT.name}.{os.getpid()}")
        written.write_text(text)
        written.replace(KEPT)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Syntax trees are many small objects that all stay: looking for garbage among them takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
