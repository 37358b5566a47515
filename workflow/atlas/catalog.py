"""The kernels there are: a file ``kernels/<name>.py`` or a package ``kernels/<name>/`` each, found by looking."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from . import ROOT
from .errors import AtlasError
from .identity import kernel, today

if TYPE_CHECKING:
    from .declaration import Declaration
    from .workload.current import Workload

KERNELS = ROOT / "kernels"

BESIDE = ("common", "cuda", "nn", "tuned")
"""Folders of ``kernels/`` that are no kernels: what families share, peers in CUDA C++, torch modules, configs."""

_IMPORT = re.compile(r"^\s*(?:import|from) kernels\.([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_FAMILY = re.compile(r"""^\s+family=["'](\w+)["']""", re.MULTILINE)
_LIST = re.compile(r"^__all__ = [\[(]([^])]*)", re.MULTILINE)


def names() -> list[str]:
    """Every kernel's name, which is that of its file or package; nothing is imported."""
    files = [path.stem for path in KERNELS.glob("*.py") if not path.stem.startswith("_")]
    packages = [path.parent.name for path in KERNELS.glob("*/__init__.py")]
    return sorted({*files, *packages}.difference(BESIDE))


def home(name: str) -> str:
    """Where a kernel is, for messages and links: ``kernels/softmax.py``, or ``kernels/matmul/`` of a package."""
    return f"kernels/{name}/" if _path(name).name == "__init__.py" else f"kernels/{name}.py"


def files(name: str) -> list[Path]:
    """A kernel's own source: its file, or all files of its package with ``__init__.py`` first."""
    first = _path(name)
    return [first] if first.stem == name else sorted(first.parent.glob("*.py"))  # "_" sorts before any letter


def public(name: str) -> list[str]:
    """A kernel's public functions, by its text: those in a literal ``__all__ = [...]``, else the one of its name."""
    listed = _LIST.search(_path(name).read_text())
    return re.findall(r"""["'](\w+)["']""", listed[1]) if listed else [name]


@functools.cache
def family(name: str) -> str:
    """The family that a kernel's declaration states, by its text, or that of the kernel it is made from; else "".

    Nothing is imported.
    """
    if name not in names():
        return ""
    if stated := next((found[1] for path in files(name) if (found := _FAMILY.search(path.read_text()))), ""):
        return stated
    made_from = {module.partition(".")[0] for path in files(name) for module, _ in _imports(path)}
    return next((found for other in sorted(made_from - {name, *BESIDE}) if (found := family(other))), "")


def check_name(name: str) -> None:
    """Raise :class:`AtlasError` for a kernel that there is none of, with the nearest name, or whose function it is."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
        owner = next((kernel for kernel in names() if name in public(kernel)), None)
        if owner is not None:
            hint = f"it is a function of the kernel {owner!r}"
        raise AtlasError(f"unknown kernel {name!r}: no file kernels/{name}.py, no package kernels/{name}/; {hint}")


def called(name: str) -> list[str]:
    """The kernels whose public functions this one's launches call, sorted; nothing is imported.

    They are those of which a public function is imported by its name (``from kernels.matmul import matmul``) in the
    kernel's files, in what it takes from ``kernels/common/``, or in a kernel so called.  Such a function chooses its
    config itself; who imports a launcher or a helper gives it one.
    """
    found: set[str] = set()
    seen, waiting = set(), files(name)
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for module, taken in _imports(path):
            family = module.partition(".")[0]
            if family.startswith("_") or family in BESIDE:
                parts = (_path(f"{module}.{name}") for name in taken)
                waiting += [_path(module), *(part for part in parts if part.exists())]
            elif family != name and taken & {*public(family)}:
                found.add(family)
                waiting += files(family)
    return sorted(found)


def _path(module: str) -> Path:
    """The file of ``kernels.<module>``."""
    base = KERNELS.joinpath(*module.split("."))
    package = base / "__init__.py"
    return package if package.exists() else base.with_name(f"{base.name}.py")


def _imports(path: Path) -> list[tuple[str, set[str]]]:
    """What a file imports of the kernels, by its text: modules, and the names that are taken from each.

    Relative imports are left out: they stay within the family.
    """
    return [
        (module, set(re.findall(r"(\w+)(?: as \w+)?", names)))
        for module, names in _IMPORT.findall(re.sub("#.*", "", path.read_text()))
    ]


def identities(name: str) -> dict[str, str]:
    """The kernel's identities, by name: what its documents are true of (:mod:`atlas.identity.kernel`).

    Read from the source, importing nothing.  In the run of a workload its cases are the sweep.  Raises
    :class:`AtlasError` for a file that is not Python.
    """
    found, workload = today.of_kernel(KERNELS, name), _workload()
    return found if workload is None else found | {kernel.SWEEP: workload.digest(name)}


def _workload() -> Workload | None:
    from .workload.current import current

    return current()


def digest(name: str) -> str:
    """SHA-256 of the identities of all variants: the version of what runs, as one word."""
    return kernel.digest(identities(name))


def load(name: str, interpret: bool = False) -> Declaration:
    """Import ``kernels.<name>`` and return its DECLARATION.

    ``interpret`` runs its kernels in Triton's interpreter; the choice binds the whole process, since ``@triton.jit``
    reads it at import.  In the run of a workload its cases stand in the place of the kernel's.  Raises
    :class:`AtlasError` for an unknown name and for a file without a fitting declaration; whatever the file itself
    raises on import passes through.
    """
    check_name(name)
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    from .host import older_triton

    if older_triton.OLDER:
        if interpret:
            raise AtlasError(f"Triton {older_triton.NAME} only compiles here: interpret with 3.6 or later")
        older_triton.fill_in()
    if interpret:
        from .host import interpreter

        interpreter.patch()
    from .declaration import Declaration

    module = importlib.import_module(f"kernels.{name}")
    declaration = getattr(module, "DECLARATION", None)
    if not isinstance(declaration, Declaration):
        raise AtlasError(f"{home(name)}: no DECLARATION = Declaration(…) found; see docs/adding-a-kernel.md")
    if declaration.name != name:
        raise AtlasError(f"{home(name)}: DECLARATION.name is {declaration.name!r}; it must be {name!r}, as the file")
    if declaration.function is None:
        raise AtlasError(f"{home(name)}: no public function: write @DECLARATION.public above the one that `call` calls")
    if older_triton.OLDER:
        from .compilation import older

        older.mark(declaration)
    workload = _workload()
    if workload is None:
        return declaration
    from .workload.mapping import narrowed

    return narrowed(declaration, workload, interpret)
