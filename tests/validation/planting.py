"""Import the row kernel with a fault planted in it, and inspect it on the interpreter."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

import torch
from atlas.declaration import Declaration
from atlas.declaration.hardware import INTERPRETER
from atlas.validation import Inspection, Selection
from atlas.validation.findings import Finding, worst

EXEMPLAR = Path(__file__).with_name("row_kernel.py")


def planted(folder: Path, *replacements: tuple[str, str], of: Path = EXEMPLAR) -> Declaration:
    """The declaration of a copy of the row kernel with each (old, new) text replaced, every time it occurs."""
    text = of.read_text()
    for old, new in replacements:
        assert old in text, f"{of.name} no longer holds {old!r}"
        text = text.replace(old, new)
    (folder / "planted.py").write_text(text)
    return load(folder)


def load(folder: Path, *_, **__) -> Declaration:
    """What :func:`planted` put there: once in a process, whatever else a stage tells its loader."""
    # Triton reads a kernel's source through its file, and the module by its name: both must be this copy's own.
    path = folder / "planted.py"
    name = f"planted_{hashlib.sha256(f'{folder}{path.read_text()}'.encode()).hexdigest()}"
    if name not in sys.modules:
        specification = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(sys.modules[name])
    return sys.modules[name].DECLARATION


def inspect(declaration: Declaration, seeds: int = 2, **selected) -> list[Finding]:
    """The worst finding of each check and subject."""
    inspection = Inspection(declaration, INTERPRETER, torch.device("cpu"), range(seeds), Selection(**selected))
    return worst(finding for task in inspection.tasks() for finding in inspection.run(task))
