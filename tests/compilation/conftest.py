"""What compiles runs in a process of its own: other tests turn the interpreter on for theirs, for good."""

import pytest
from compiling_process import executor


@pytest.fixture(scope="session")
def compiling(tmp_path_factory):
    """``compiling(function, *arguments)``: what the function returns in a process where Triton compiles."""
    with executor(tmp_path_factory.mktemp("triton-cache")) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()


@pytest.fixture
def on_gpu(tmp_path):
    """Like ``compiling``, in a fresh process that may use the GPU; skips where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this host shows no GPU")
    with executor(tmp_path) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()
