"""Kernels launched in clusters: programs that run at once and reach one another's shared memory (sm_90 on)."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton

from .launching import compiles_only


@dataclass(frozen=True)
class Clustered:
    """A kernel that :func:`.launch` launches in clusters of ``size`` programs; its grid counts the clusters.

    They are neighbours along the first dimension.  Triton's ``num_ctas`` would share each tensor out among them.  So
    the kernel is compiled for one program, and only its launcher, which asks ``packed_metadata``, is told of others.
    What programs tell each other the kernel says in PTX: see ``kernels/common/clusters.py``.
    """

    kernel: Any
    size: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def run(*args: Any, **meta: Any) -> Any:
            return self._launch(grid, args, meta)

        return run

    def _launch(self, grid: tuple[int, ...], args: tuple, meta: dict[str, Any]) -> Any:
        """Launch it; returns the compiled kernel with the size of its clusters, as recordings keep it."""
        if triton.knobs.runtime.interpret:
            raise RuntimeError("programs are not interpreted in clusters, whose shared memory they reach")
        target = triton.runtime.driver.active.get_current_target()
        if target.backend != "cuda" or target.arch < 90:
            raise RuntimeError(f"clusters of programs are for NVIDIA's GPUs from sm_90 on, this one is {target.arch}")
        compiled = self.kernel.warmup(*args, grid=grid, **meta)
        if compiles_only():
            return compiled
        if hasattr(compiled, "result"):  # it is being compiled beside others
            compiled = compiled.result()
        if compiled.run.global_scratch_size:  # this loads the kernel, too
            raise RuntimeError("memory for descriptors that a kernel makes itself is counted by programs, not clusters")
        clustered = copy.copy(compiled)  # it may be launched in others as well
        warps, _, shared = compiled.packed_metadata
        clustered.packed_metadata = warps, self.size, shared
        own = {name: value for name, value in meta.items() if name in self.kernel.arg_names}
        bound = inspect.signature(self.kernel.fn).bind(*args, **own)
        bound.apply_defaults()
        clustered[(*grid, 1, 1)[:3]](*bound.arguments.values())
        return clustered
