"""A fault planted in a kernel of the project: the edits, a copy of the kernel with them, the copy's declaration.

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

    ``edits`` are (old, new) texts; each old one stands exactly once in the kernel's files.  ``caught_by`` is the check
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


def mutated(mutant: Mutant) -> dict[str, str]:
    """The kernel's sources by file name, with the mutant's edits.

    Raises :class:`AtlasError` where a text does not stand exactly once in all of them.
    """
    sources = _read(mutant.kernel)
    for old, new in mutant.edits:
        holding = [name for name, source in sources.items() for _ in range(source.count(old))]
        if len(holding) != 1:
            found = "is not" if not holding else f"stands {len(holding)} times"
            raise AtlasError(
                f"{catalog.home(mutant.kernel)}: the text {old!r} {found} there, so the mutant {mutant.name!r} cannot "
                f"be planted; adapt its edits in proofs/mutants/planted/{mutant.kernel}.py"
            )
        sources[holding[0]] = sources[holding[0]].replace(old, new)
    return sources


def plant(folder: Path, kernel: str, mutant: Mutant | None = None) -> Path:
    """Write a copy of a kernel into ``folder``, with the mutant's edits where one is given; the path to load.

    A family's modules import one another relatively, so a copy of a package is whole.
    """
    sources = _read(kernel) if mutant is None else mutated(mutant)
    words = re.sub(r"\W+", "_", mutant.name if mutant else "as it is")
    name = f"{kernel}__{words}"
    if "__init__.py" in sources:
        path = folder / name / "__init__.py"
        path.parent.mkdir(exist_ok=True)
        for file, source in sources.items():
            path.with_name(file).write_text(source)
    else:
        path = folder / f"{name}.py"
        path.write_text(sources[f"{kernel}.py"])
    return path


def load(path: Path, interpret: bool) -> Declaration:
    """Import a planted copy and return its declaration; ``interpret`` as for :func:`atlas.catalog.load`."""
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        from atlas.host import interpreter

        interpreter.patch()
    package = path.name == "__init__.py"
    name = f"atlas_planted_{path.parent.name if package else path.stem}"
    within = [str(path.parent)] if package else None
    for earlier in [known for known in sys.modules if known.startswith(f"{name}.")]:
        del sys.modules[earlier]  # of a copy that was loaded before under this name
    specification = importlib.util.spec_from_file_location(name, path, submodule_search_locations=within)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module.DECLARATION


def _read(kernel: str) -> dict[str, str]:
    catalog.check_name(kernel)
    return {path.name: path.read_text() for path in catalog.files(kernel)}
