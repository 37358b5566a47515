"""A fault planted in a kernel of the project: the edits, a copy of the kernel's file with them, the copy's declaration.

Triton reads a kernel's source through its file, and a module by its name, so every copy is a file and a module of its
own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas import catalog
from atlas.errors import AtlasError

if TYPE_CHECKING:
    from atlas.declaration import Declaration

CERTIFICATE = "certificate"
"""The name under which a refused certificate counts as a check."""


@dataclass(frozen=True)
class Mutant:
    """One fault of one kernel.

    ``edits`` are (old, new) texts; each old one stands exactly once in the kernel's file.  ``caught_by`` is the check
    that should find the fault, in ``direction`` and ``variant`` ("public": the public function; None: any), and
    ``dtype`` and ``sizes`` narrow down where it shows soonest.  ``huge`` faults show in cases of more than 2^31
    elements alone; those with a ``config`` in that one config of the variant and ``dtype``, which then must not get its
    certificate.  ``gpu_only`` says why the interpreter cannot show it, ``""`` where it can, and ``needs``
    which capabilities of a GPU it takes to show.
    """

    kernel: str
    name: str
    kind: str
    why: str
    edits: tuple[tuple[str, str], ...]
    caught_by: str
    direction: str | None = None
    variant: str | None = None
    dtype: str | None = None
    sizes: Mapping[str, int] | None = None
    huge: bool = False
    config: Mapping[str, Any] | None = None
    gpu_only: str = ""
    needs: frozenset[str] = frozenset()

    def shows(self, functional: bool) -> bool:
        """Whether the fault can be seen here: on a GPU, or with ``functional`` on the interpreter."""
        return not (functional and self.gpu_only)


def mutated(mutant: Mutant) -> str:
    """The kernel's source with the mutant's edits; :class:`AtlasError` where a text is not there exactly once."""
    source = _read(mutant.kernel)
    for old, new in mutant.edits:
        count = source.count(old)
        if count != 1:
            found = "is not" if not count else f"stands {count} times"
            raise AtlasError(
                f"kernels/{mutant.kernel}.py: the text {old!r} {found} there, so the mutant {mutant.name!r} cannot be "
                f"planted; adapt its edits in proofs/planted/{mutant.kernel}.py"
            )
        source = source.replace(old, new)
    return source


def plant(folder: Path, kernel: str, mutant: Mutant | None = None) -> Path:
    """Write a copy of a kernel's file into ``folder``, with the mutant's edits where one is given; its path."""
    source = _read(kernel) if mutant is None else mutated(mutant)
    words = re.sub(r"\W+", "_", mutant.name if mutant else "as it is")
    path = folder / f"{kernel}__{words}.py"
    # An operator's name is registered once in a process: a copy's must not take over that of the true kernel.
    path.write_text(source.replace('custom_op("kernel_atlas::', f'custom_op("kernel_atlas_planted::{words}_'))
    return path


def load(path: Path, interpret: bool) -> Declaration:
    """Import a planted copy and return its declaration; ``interpret`` as for :func:`atlas.catalog.load`."""
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        from atlas.host import interpreter

        interpreter.patch()
    name = f"atlas_planted_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module.DECLARATION


def _read(kernel: str) -> str:
    catalog.check_name(kernel)
    return (catalog.KERNELS / f"{kernel}.py").read_text()
