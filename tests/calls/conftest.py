"""Where these tests run: in the interpreter, or with ``-m gpu`` on a GPU."""

import pytest


def pytest_generate_tests(metafunc):
    """Every test takes a ``device``: the one of this run."""
    if "device" in metafunc.fixturenames:
        on_gpu = metafunc.config.option.markexpr == "gpu"
        metafunc.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu) if on_gpu else "cpu"])


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost small tensors more than they bring."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
