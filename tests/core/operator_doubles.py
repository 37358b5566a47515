"""A kernel that remembers its launches, an operator of it, and the maps that descriptors become."""

import ctypes
import types

import pytest
import torch
from atlas.operators import CustomOperator, call, launch, plan


class Parameter(types.SimpleNamespace):
    is_constexpr = False
    do_not_specialize = False
    annotation_type = None


class Kernel:
    """Computes nothing; keeps how it was launched as a kernel, and how repeated from a recording."""

    pre_run_hooks = ()
    arg_names = ("x_ptr", "out_ptr", "n", "seed")

    def __init__(self, **seed):
        self.params = [*(Parameter(name=name) for name in self.arg_names[:3]), Parameter(name="seed", **seed)]
        self.launched, self.repeated = [], []

    @staticmethod
    def fn(x_ptr, out_ptr, n, seed=0):
        pass

    def __getitem__(self, grid):
        def run(*args, **meta):
            self.launched.append((grid, args))
            return types.SimpleNamespace(run=self._repeat, function="function", packed_metadata="metadata")

        return run

    def _repeat(self, *words):
        self.repeated.append(words)


@pytest.fixture(autouse=True)
def a_cpu_that_counts_as_a_gpu(monkeypatch):
    monkeypatch.setattr(CustomOperator, "repeats_on", ("cpu",))
    monkeypatch.setattr(call, "_current_device", lambda: -1)
    driver = types.SimpleNamespace(active=types.SimpleNamespace(get_current_stream=lambda index: "stream"))
    monkeypatch.setattr(plan.triton, "runtime", types.SimpleNamespace(driver=driver), raising=False)


_count = iter(range(1000))


def operator(run, schema="(Tensor x) -> Tensor", fake=torch.empty_like, **options):
    return CustomOperator(f"trial_{next(_count)}", schema, run=run, fake=fake, **options)


def doubling(kernel):
    def run(x):
        out = torch.empty_like(x)
        launch(kernel, (3,), x, out, x.numel())
        return out

    return run


REPLACE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@REPLACE
def replace(tensor_map, address):
    ctypes.c_uint64.from_address(tensor_map + 16).value = address
    return 0 if tensor_map % 64 == 0 else 1


def a_map(address):
    made = bytearray(range(128))
    made[16:24] = address.to_bytes(8, "little")
    return bytes(made)
