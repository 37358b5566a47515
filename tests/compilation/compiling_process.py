"""A process in which Triton compiles."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor


def _begin(cache):
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = str(cache)


def executor(folder):
    """One spawned process with a Triton cache of its own in ``folder``."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(folder,))
