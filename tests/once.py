"""What all workers of one run read: made by the first that asks for it, while the others wait."""

import os
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest


def made(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of this run, after ``make(folder)`` by one of its processes."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name  # a worker's own lies in the run's
    done = folder.with_suffix(".made")
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder
