"""Progress of long steps, shown to a person at a terminal and to nobody else."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

TERMINAL = 3
"""The file descriptor on which the rules leave the terminal, while a job's output goes to its log."""


def console() -> Console | None:
    """A console on the terminal behind this process, or None where there is none."""
    if os.environ.get("CI"):
        return None
    if sys.stderr.isatty():
        return Console(stderr=True)
    try:
        if os.isatty(TERMINAL):
            return Console(file=os.fdopen(os.dup(TERMINAL), "w"))
    except OSError:  # not open
        pass
    return None


def progress() -> Progress:
    """A progress display that vanishes when done; it shows nothing where no terminal is."""
    shown = console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=shown or Console(stderr=True),
        transient=True,
        disable=shown is None,
    )
