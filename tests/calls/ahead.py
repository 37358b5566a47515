"""Compile what the tests launch on this GPU, on several cores, into Triton's cache on disk: by running many of them.

What they find is not asked; the tests do that, one after another, with their kernels compiled.
"""

import contextlib
import functools
import multiprocessing
import os
from collections.abc import Callable

MOST_PROCESSES = 12
"""Each opens a context on the GPU, of half a GiB."""
MOST_SECONDS = 150.0
"""A process that dies takes its task along, which would be waited for."""


def compile_all() -> None:
    """Run the tasks, each in one of several processes; whatever is not done in time is left to the tests."""
    context = multiprocessing.get_context("spawn")
    processes = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))
    with context.Pool(processes) as pool:  # which ends its processes, whatever they do
        pool.map_async(_run, range(len(_tasks())), chunksize=1).wait(MOST_SECONDS)


def _run(number: int) -> None:
    """In a process of the pool: a test that fails or is skipped has compiled what it could."""
    with contextlib.suppress(BaseException):
        _tasks()[number]()


@functools.cache
def _tasks() -> list[Callable[[], None]]:
    """The tests whose kernels differ from one another's; the same list in every process."""
    import torch
    from gpu import test_precision, test_recordings

    from . import test_aliases, test_autocast, test_kinds_of_tensors, test_transforms, test_values
    from .table import DIFFERENTIABLE

    cuda, task = "cuda", functools.partial
    products = test_precision.test_gradients_are_ieee_again_after_tf32_was_allowed
    kinds = test_recordings.test_what_differs_gets_a_recording_of_its_own
    aliased = test_aliases.test_aliased_and_plain_calls_of_the_same_shapes_do_not_take_each_other_s_recordings
    cast = test_autocast.test_gradients_have_their_inputs_dtypes_and_are_near
    plain = test_values.test_gradients_are_those_of_torch_in_float64
    lazy = test_kinds_of_tensors.test_the_imaginary_part_of_a_conjugate_counts_as_what_it_stands_for
    return [
        *(task(products, name, torch.set_float32_matmul_precision) for name in test_precision.PRODUCTS),
        *(task(kinds, name, []) for name in test_recordings.FUNCTIONS),
        *(task(aliased, name, (True, False), cuda) for name in test_aliases.CASES),
        *(task(plain, call, cuda) for call in DIFFERENTIABLE),
        *(task(cast, *asked.values, low, cuda) for asked in test_autocast.ASKED for low in test_autocast.LOW.values()),
        *(task(test_values.test_a_plain_call_gives_what_torch_gives, call, cuda) for call in test_values.COMPARED),
        *(task(test_values.test_a_module_runs_forward_and_backward, made, cuda) for made in test_values.MODULES),
        *(task(lazy, *asked.values, cuda) for asked in test_kinds_of_tensors.IMAGINARY),
        *(task(test_transforms.test_vmap_is_right_or_refused, call, cuda) for call in test_transforms.BATCHED),
        *(task(test_transforms.test_jvp_is_right_or_refused, call, cuda) for call in test_transforms.FORWARD),
    ]
