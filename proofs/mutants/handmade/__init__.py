"""Faults that people make in kernels like these and that no mutation operator makes, each with the check that finds it.

Each is stated by Python that stands once in the kernel, and by what takes its place
(:class:`~proofs.mutants.planting.Edit`).  ``tests/proofs/test_planting.py`` says which no longer does.
"""

from __future__ import annotations

from ..planting import Mutant
from . import attention, elementwise, products, rows

MUTANTS: tuple[Mutant, ...] = (*elementwise.MUTANTS, *rows.MUTANTS, *products.MUTANTS, *attention.MUTANTS)
"""Of all kernels."""
