"""Which kernels and GPUs a view is of: the options ``--kernels`` and ``--gpus`` of the commands that read documents."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import catalog
from ..host import gpus
from ..reading.config import GPUS_FILE, load_gpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The selection, as the config has it: names apart by commas or spaces, or ``all``."""
    parser.add_argument("--kernels", nargs="+", default=["all"], help="kernels to show (default: all)")
    parser.add_argument("--gpus", nargs="+", default=["all"], help="GPUs to show (default: all)")
    parser.add_argument("--gpus-file", type=Path, default=GPUS_FILE, help="default: config/gpus.yaml")


def selected(arguments: argparse.Namespace) -> tuple[list[str] | None, list[str] | None]:
    """The kernels and the GPUs, None for all; :class:`AtlasError` for an unknown name."""
    kernels, names = _names(arguments.kernels), _names(arguments.gpus)
    for kernel in kernels or ():
        catalog.check_name(kernel)
    if names is not None:
        gpus.names_of(names, load_gpus(arguments.gpus_file), "--gpus", "command line")
    return kernels, names


def _names(words: Sequence[str]) -> list[str] | None:
    names = [name for word in words for name in word.split(",") if name]
    return None if names == ["all"] else names
