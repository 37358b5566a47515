"""Launches with tensor descriptors: repeated over new tensors, each map filled once for an address."""

import types

import pytest
import torch
from atlas.operators import descriptors, launch, plan
from operator_doubles import Kernel, a_cpu_that_counts_as_a_gpu, doubling, operator  # noqa: F401 - the fixture is of each test
from triton.backends.nvidia import driver as nvidia
from triton.tools.tensor_descriptor import TensorDescriptor


class Launcher:
    """Takes descriptors as Triton's launcher for CUDA does, in Triton's own code, and keeps what comes of them."""

    global_scratch_size = 0

    def __init__(self, kept, metadata):
        signature = {"x_ptr": "tensordesc<fp32[4,4]>", "out_ptr": "tensordesc<fp32[4,4]>", "n": "i32", "seed": "i32"}
        # Triton 3.6 hands a kernel's arguments over after 13 others, 3.7 as one, the last
        self.spread = hasattr(nvidia, "_BASE_ARGS_FORMAT")
        self.launch = nvidia.wrap_handle_tensordesc(
            lambda *words: kept.append(tuple(words[13:] if self.spread else words[-1])), signature, metadata
        )

    def __call__(self, *words):
        arguments = words[9:]
        self.launch(*words[:9], *[None] * 4, *(arguments if self.spread else (arguments,)))


class DescriptorKernel(Kernel):
    def __init__(self, metadata):
        super().__init__()
        self.run = Launcher(self.repeated, metadata)

    def __getitem__(self, grid):
        def run(*args, **meta):
            self.launched.append((grid, args))
            return types.SimpleNamespace(run=self.run, function="function", packed_metadata="metadata")

        return run


def described(kernel):
    def run(x):
        out = torch.empty_like(x)
        rows = x[2:]
        launch(kernel, (3,), TensorDescriptor.from_tensor(rows, [4, 4]), TensorDescriptor.from_tensor(out, [4, 4]), 7)
        return out

    return operator(run)


MAP = {"swizzle": 3, "elem_size": 4, "elem_type": 7, "block_size": [4, 4], "fp4_padded": False}


@pytest.fixture
def filled(monkeypatch):
    """The maps that are filled: addresses, shapes and strides of what they are of."""
    maps = []

    def fill(address, swizzle, size, dtype, block, shape, strides, padding):
        maps.append((address, tuple(shape), tuple(strides)))
        return f"map of {address}"

    utils = types.SimpleNamespace(fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill)
    monkeypatch.setattr(plan.triton.runtime.driver.active, "utils", utils, raising=False)
    return maps


def test_a_descriptor_is_repeated_over_the_new_tensors_and_its_map_filled_once_for_each_address(filled):
    kernel = DescriptorKernel([MAP, MAP])
    copied, x = described(kernel), torch.randn(6, 8)
    copied(torch.randn(6, 8))
    for _ in range(3):
        out = copied(x)
        rows = x.data_ptr() + 64
        assert kernel.repeated[-1] == (
            f"map of {rows}", 4, 8, 8, 1, f"map of {out.data_ptr()}", 6, 8, 8, 1, 7, 0
        )  # fmt: skip
    assert len(kernel.launched) == 1 and filled.count((x.data_ptr() + 64, (4, 8), (8, 1))) == 1


def test_a_descriptor_that_the_kernel_reads_through_an_address_is_repeated_as_one():
    kernel = DescriptorKernel(None)
    copied, x = described(kernel), torch.randn(6, 8)
    copied(torch.randn(6, 8))
    copied(x)
    words = kernel.repeated[-1]
    assert len(kernel.launched) == 1
    assert words[:5] == (x.data_ptr() + 64, 4, 8, 8, 1) and words[-2:] == (7, 0)


def test_maps_of_addresses_that_never_return_do_not_fill_the_memory():
    made = []
    maps = descriptors.Maps(lambda address: made.append(address) or address)
    for address in range(3 * descriptors._MOST_MAPS):
        assert maps[address] == address == maps[address]
    assert len(made) == 3 * descriptors._MOST_MAPS and len(maps) <= descriptors._MOST_MAPS


def test_a_launcher_that_takes_descriptors_in_an_unknown_way_is_run_each_time():
    kernel = DescriptorKernel(None)
    kernel.run = types.SimpleNamespace(launch=lambda *words: None)
    copied = described(kernel)
    for _ in range(3):
        copied(torch.randn(6, 8))
    assert len(kernel.launched) == 3 and "TensorDescriptor" in " ".join(copied.obstacles)
