"""The kernels there are: one file each under ``kernels/``, found by looking."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from . import ROOT
from .errors import AtlasError

if TYPE_CHECKING:
    from .declaration import Declaration

KERNELS = ROOT / "kernels"


def names() -> list[str]:
    """Every kernel's name, which is its file's stem; nothing is imported."""
    return sorted(path.stem for path in KERNELS.glob("*.py") if not path.stem.startswith("_"))


def check_name(name: str) -> None:
    """Raise :class:`AtlasError` for a kernel there is no file of, with the nearest name there is."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names())}"
        raise AtlasError(f"unknown kernel {name!r}: no file kernels/{name}.py; {hint}")


def files(name: str) -> list[Path]:
    """The kernel's file, and those that it imports and so builds upon.

    They are other kernels' (``from kernels.other import …``) and those of one architecture (``import
    kernels.hopper.part``).
    """
    found, waiting = [], [name]
    while waiting:
        path = KERNELS / f"{waiting.pop().replace('.', '/')}.py"
        if path not in found:
            found.append(path)
            waiting += re.findall(r"^\s*(?:import|from) kernels\.([\w.]+)", path.read_text(), re.MULTILINE)
    return found


def digest(name: str) -> str:
    """SHA-256 of the kernel's file, and of those it builds upon: what a record of it is true of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files(name))).hexdigest()


def load(name: str, interpret: bool = False) -> Declaration:
    """Import ``kernels/<name>.py`` and return its DECLARATION.

    ``interpret`` runs its kernels in Triton's interpreter; the choice binds the whole process, since ``@triton.jit``
    reads it at import.  Raises :class:`AtlasError` for an unknown name and for a file without a fitting declaration;
    whatever the file itself raises on import passes through.
    """
    check_name(name)
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        from . import interpreter

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
    return declaration
