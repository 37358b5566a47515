"""Validation's tests run on Triton's interpreter: see tests/conftest.py."""

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost small tensors more than they bring; the stage does the same on the interpreter."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
