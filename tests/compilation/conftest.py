"""What compiles runs in a process of its own: other tests turn the interpreter on for theirs, for good."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest


def _begin(cache):
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = str(cache)


def _executor(folder):
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(folder,))


@pytest.fixture(scope="session")
def compiling(tmp_path_factory):
    """``compiling(function, *arguments)``: what the function returns in a process where Triton compiles."""
    with _executor(tmp_path_factory.mktemp("triton-cache")) as executor:
        yield lambda function, *arguments: executor.submit(function, *arguments).result(timeout=240)


@pytest.fixture
def on_gpu(tmp_path):
    """Like ``compiling``, in a fresh process that may use the GPU; skips where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this host shows no GPU")
    with _executor(tmp_path) as executor:
        yield lambda function, *arguments: executor.submit(function, *arguments).result(timeout=240)
