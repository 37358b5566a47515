"""Programs launched in clusters: what Triton's launcher and a recording are told, and where there are none."""

import types

import pytest
import torch
from atlas.operators import Clustered, launch, plan
from operator_doubles import Kernel, a_cpu_that_counts_as_a_gpu, operator  # noqa: F401 - the fixture is of each test


class Compiled:
    """Triton's CompiledKernel, of 4 warps and 512 bytes; launches are kept with what the launcher is told."""

    function = "function"

    def __init__(self, kernel, scratch):
        self.kernel, self.packed_metadata = kernel, (4, 1, 512)
        self.run = Launcher(kernel.repeated, scratch)

    def __getitem__(self, grid):
        return lambda *args: self.kernel.launched.append((grid, self.packed_metadata, args))


class Launcher:
    def __init__(self, kept, scratch):
        self._kept, self.global_scratch_size = kept, scratch

    def __call__(self, *words):
        self._kept.append(words)


class ClusterKernel(Kernel):
    """Compiled once, for one program."""

    def __init__(self, scratch=0):
        super().__init__()
        self.compiled = Compiled(self, scratch)

    def warmup(self, *args, grid, **meta):
        return self.compiled


def on(backend, arch, **driver):
    target = types.SimpleNamespace(backend=backend, arch=arch)
    plan.triton.runtime.driver.active.get_current_target = lambda: target
    vars(plan.triton.runtime.driver.active).update(driver)


@pytest.fixture(autouse=True)
def a_hopper():
    on("cuda", 90)


def doubling(kernel, cluster):
    def run(x):
        out = torch.empty_like(x)
        launch(Clustered(kernel, cluster), (3, 2), x, out, n=x.numel(), num_warps=4)
        return out

    return operator(run)


def test_clusters_are_launched_and_repeated_and_the_kernel_stays_as_it_was():
    kernel = ClusterKernel()
    double, x = doubling(kernel, 3), torch.randn(4, 6)
    out = double(x)
    assert kernel.launched == [((3, 2, 1), (4, 3, 512), (x, out, 24, 0))]
    again = double(x)
    assert kernel.repeated == [
        (3, 2, 1, "stream", "function", (4, 3, 512), None, None, None, x.data_ptr(), again.data_ptr(), 24, 0)
    ]
    assert len(kernel.launched) == 1
    doubling(kernel, 2)(x)
    assert kernel.launched[1][:2] == ((3, 2, 1), (4, 2, 512)) and kernel.compiled.packed_metadata == (4, 1, 512)


def test_where_launches_only_compile_nothing_is_launched():
    on("cuda", 90, compiles_only=True)
    kernel = ClusterKernel()
    launch(Clustered(kernel, 3), (2,), torch.randn(4), torch.randn(4), 4)
    assert not kernel.launched


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 89), ("hip", "gfx942")])
def test_gpus_without_clusters_refuse(backend, arch):
    on(backend, arch)
    with pytest.raises(RuntimeError, match=f"from sm_90 on, this one is {arch}"):
        launch(Clustered(ClusterKernel(), 3), (2,), torch.randn(4), torch.randn(4), 4)


def test_the_interpreter_refuses(monkeypatch):
    monkeypatch.setattr(plan.triton.knobs.runtime, "interpret", True)
    with pytest.raises(RuntimeError, match="not interpreted in clusters"):
        launch(Clustered(ClusterKernel(), 3), (2,), torch.randn(4), torch.randn(4), 4)


def test_kernels_that_make_descriptors_are_refused():
    with pytest.raises(RuntimeError, match="counted by programs, not clusters"):
        launch(Clustered(ClusterKernel(scratch=16), 3), (2,), torch.randn(4), torch.randn(4), 4)
