"""The process that compilers are forked from: it has imported torch and Triton, and has neither threads nor a GPU.

Imports neither itself, so that it can be started before anything else is.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

METHOD = "forkserver"
"""Not fork: whoever asks has threads."""

_PRELOAD = ["torch", "triton", "atlas.compilation.worker"]


def start() -> None:
    """Start it, and wait for nothing; a second time does nothing.  It ends with this process."""
    multiprocessing.set_forkserver_preload(_PRELOAD)
    forkserver.ensure_running()
