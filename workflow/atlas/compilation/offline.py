"""Triton without a GPU: a driver that only names a target, and a context in which launches compile and do not run.

Of Triton this uses the driver's ``set_active``, ``knobs.runtime.jit_cache_hook`` and ``knobs.compilation.listener``,
and reaches into ``JITFunction.run`` and ``JITFunction.device_caches``; the same in Triton 3.6 and 3.7.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from ..declaration import GPU
from ..declaration.hardware import pretend
from ..errors import AtlasError


@dataclass(frozen=True)
class OfflineDriver:
    """Stands where Triton expects the driver of a device: names the target, and offers nothing to run on."""

    target: GPUTarget
    compiles_only = True  # so that launches on meta tensors are let through

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass
class Request:
    """One kernel that a launcher asked for.

    ``key`` names the compilation: function, signature, alignments, constants and options; requests with equal keys
    give the same binary for one target.  ``kernel`` is Triton's CompiledKernel, None where nothing was to be compiled.
    ``cached`` says that Triton's cache on disk had it; ``seconds`` then is the time of the lookup.
    """

    key: str
    kernel: Any = None
    seconds: float = 0.0
    cached: bool = False


class _PlainEmptyLike(TorchFunctionMode):
    """Spares compilations sympy: torch imports it, for a second or two, at the first ``empty_like`` of a meta tensor.

    An output like a contiguous tensor is contiguous; of others torch has to say how it lies.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if function is torch.empty_like and len(args) == 1 and given.keys() <= {"dtype"} and args[0].is_contiguous():
            like = args[0]
            return torch.empty(like.shape, dtype=given.get("dtype") or like.dtype, device=like.device)
        return function(*args, **given)


def target_of(gpu: GPU) -> GPUTarget:
    """Triton's name for a GPU's architecture; waves of 64 on AMD's gfx9, else warps of 32."""
    return GPUTarget(gpu.backend, gpu.arch, 64 if str(gpu.arch).startswith("gfx9") else 32)


@contextlib.contextmanager
def compile_only(gpu: GPU, compiling: bool = True) -> Iterator[list[Request]]:
    """Inside, every ``kernel[grid](…)`` compiles for ``gpu`` and returns unlaunched; yields the requests, as they come.

    With ``compiling=False`` not even that: the keys alone are noted, in about 0.1 ms each.  Driver, hooks and the
    kernels' compilations in memory are as before afterwards, also where a real GPU is at work.  The change is seen by
    all threads of the process.  Raises :class:`AtlasError` where kernels go to the interpreter, and whatever the
    launcher or the compiler raises.
    """
    if triton.knobs.runtime.interpret:
        raise AtlasError("TRITON_INTERPRET is set, so kernels are interpreted and not compiled: unset it to build")
    requests: list[Request] = []
    caches: dict[int, tuple[JITFunction, Any]] = {}
    hits: list[bool] = []
    driver, runtime, compilation = triton.runtime.driver, triton.knobs.runtime, triton.knobs.compilation
    # Not `driver.active`, which would look for a GPU and raise without one.
    before = driver._active, runtime.jit_cache_hook, compilation.listener
    run = JITFunction.run

    def note(*, key: str, fn: Any, **_: Any) -> bool:
        requests.append(Request(f"{fn.module}.{fn.name}{key}"))
        return not compiling  # True: Triton leaves it uncompiled

    def compile_instead(self: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if id(self) not in caches:  # what is there may be for the same device index and another target
            caches[id(self)] = self, self.device_caches
            self.device_caches = defaultdict(self.create_binder)
        known, start = len(requests), time.perf_counter()
        hits.clear()
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if len(requests) > known:  # else the launcher asked for the same kernel before
            requests[-1].kernel = kernel
            requests[-1].seconds = time.perf_counter() - start
            requests[-1].cached = any(hits)
        return kernel

    driver.set_active(OfflineDriver(target_of(gpu)))
    runtime.jit_cache_hook = note
    compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    JITFunction.run = compile_instead
    try:
        with pretend(gpu), _PlainEmptyLike():
            yield requests
    finally:
        JITFunction.run = run
        driver.set_active(before[0])
        runtime.jit_cache_hook, compilation.listener = before[1:]
        for function, cache in caches.values():
            function.device_caches = cache
