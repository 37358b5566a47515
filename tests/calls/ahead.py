"""Compile what the table's calls launch on this GPU, on several cores, into Triton's cache on disk."""

import contextlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed

MOST_PROCESSES = 12
"""Each opens a context on the GPU, of half a GiB."""


def compile_all() -> None:
    """All calls, forward and backward, in the dtypes that the tests use; what fails is left to the tests."""
    from .table import CALLS

    context = multiprocessing.get_context("spawn")
    processes = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        asked = [pool.submit(_compile, number, dtype) for number in range(len(CALLS)) for dtype in range(3)]
        for done in as_completed(asked):
            with contextlib.suppress(Exception):
                done.result()


def _compile(number: int, place: int) -> None:
    """In a process of the pool."""
    from .table import BF16, CALLS, FP16, weighted

    call = CALLS[number]
    dtype = (call.dtype, FP16, BF16)[place]
    with contextlib.suppress(TypeError, ValueError, NotImplementedError):
        inputs = call.leaves(call.draw("cuda", dtype))
        results = call.run(inputs)
        if call.wanting:
            weighted(results).backward()
