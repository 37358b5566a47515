"""Triton's interpreter called from several threads: launches wait for one another.

The interpreter has one grid index for the whole process, and replaces functions of ``triton.language`` while a kernel
runs.  Two threads that launch at once compute each other's blocks: results are wrong without an error (Triton 3.7).  A
GPU's launches are independent, and do not come here.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any

from triton.runtime.interpreter import InterpretedFunction


def take_turns() -> None:
    """Let one thread at a time run kernels; those of a process that is forked meanwhile find the lock open."""
    run, lock = InterpretedFunction.run, threading.RLock()

    @functools.wraps(run)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return run(*args, **kwargs)

    InterpretedFunction.run = alone
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
