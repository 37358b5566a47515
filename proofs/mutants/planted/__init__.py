"""The mutants: faults that people make in kernels like these, each with the check that should find it.

A module for each kernel, named as its file, with a tuple ``MUTANTS``.  An edit names text of the kernel as it is;
``tests/validation/test_mutants.py`` says which no longer does.
"""

from __future__ import annotations

import importlib
import pkgutil

from ..planting import Mutant

MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for module in pkgutil.iter_modules(__path__)
    for mutant in importlib.import_module(f"{__name__}.{module.name}").MUTANTS
)
"""The mutants of all kernels."""
