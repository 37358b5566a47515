"""The kernels there are: one file each under ``kernels/``, found by looking."""

from __future__ import annotations

import difflib
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

KERNELS = ROOT / "kernels"

_IMPORT = re.compile(r"^\s*(?:import|from) kernels\.([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_LIST = re.compile(r"^__all__ = [\[(]([^])]*)", re.MULTILINE)


def names() -> list[str]:
    """Every kernel's name, which is its file's stem; nothing is imported."""
    return sorted(path.stem for path in KERNELS.glob("*.py") if not path.stem.startswith("_"))


def check_name(name: str) -> None:
    """Raise :class:`AtlasError` for a kernel there is no file of, with the nearest name, or whose function it is."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
        owner = next((kernel for kernel in names() if name in _public(kernel)), None)
        if owner is not None:
            hint = f"it is a function of the kernel {owner!r}"
        raise AtlasError(f"unknown kernel {name!r}: no file kernels/{name}.py; {hint}")


def called(name: str) -> list[str]:
    """The kernels whose public functions this one's launches call, sorted; nothing is imported.

    They are those of which a public function is imported by its name (``from kernels.matmul import matmul``) in the
    kernel's file, in its private parts (``kernels/_part.py``, ``kernels/hopper/part.py``) or in a kernel so called.
    Such a function chooses its config itself; who imports a launcher or a helper gives it one.
    """
    found: set[str] = set()
    seen, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for other, names in _imports(_path(module)):
            if other.startswith("_") or "." in other:
                waiting.append(other)
            elif other != name and names & _public(other):
                found.add(other)
                waiting.append(other)
    return sorted(found)


def _path(module: str) -> Path:
    """The file of ``kernels.<module>``."""
    return KERNELS / f"{module.replace('.', '/')}.py"


def _imports(path: Path) -> list[tuple[str, set[str]]]:
    """What a file imports of the kernels, by its text: modules, and the names that are taken from each."""
    return [
        (module, set(re.findall(r"(\w+)(?: as \w+)?", names)))
        for module, names in _IMPORT.findall(re.sub("#.*", "", path.read_text()))
    ]


def _public(name: str) -> set[str]:
    """The names of a kernel's public functions, by its file's text, as ``kernels/__init__.py`` finds them."""
    listed = _LIST.search(_path(name).read_text())
    return set(re.findall(r"""["'](\w+)["']""", listed[1])) if listed else {name}


def identities(name: str) -> dict[str, str]:
    """The kernel's identities, by name: what its documents are true of (:mod:`atlas.identity.kernel`).

    Read from the source, importing nothing.  Raises :class:`AtlasError` for a file that is not Python.
    """
    return today.of_kernel(KERNELS, name)


def digest(name: str) -> str:
    """SHA-256 of the identities of all variants: the version of what runs, as one word."""
    return kernel.digest(identities(name))


def load(name: str, interpret: bool = False) -> Declaration:
    """Import ``kernels/<name>.py`` and return its DECLARATION.

    ``interpret`` runs its kernels in Triton's interpreter; the choice binds the whole process, since ``@triton.jit``
    reads it at import.  Raises :class:`AtlasError` for an unknown name and for a file without a fitting declaration;
    whatever the file itself raises on import passes through.
    """
    check_name(name)
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        from .host import interpreter

        interpreter.mend()
    from .declaration import Declaration

    module = importlib.import_module(f"kernels.{name}")
    declaration = getattr(module, "DECLARATION", None)
    if not isinstance(declaration, Declaration):
        raise AtlasError(f"kernels/{name}.py: no DECLARATION = Declaration(…) found; see docs/adding-a-kernel.md")
    if declaration.name != name:
        raise AtlasError(
            f"kernels/{name}.py: DECLARATION.name is {declaration.name!r}; it must be {name!r}, as the file"
        )
    if declaration.function is None:
        raise AtlasError(f"kernels/{name}.py: no public function: write @DECLARATION.public above the one that `call` "
                         "is to call")  # fmt: skip
    return declaration
