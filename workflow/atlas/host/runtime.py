"""The device a stage runs on: checked, named, described, and seeded inputs put there."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..declaration import GPU, Case, Declaration, Pass
from ..errors import AtlasError
from . import gpus
from .devices import VISIBLE_VARIABLE


def device_of(name: str, block: Mapping[str, Any]) -> torch.device:
    """The torch device of a GPU block, the first visible one that matches.

    Raises :class:`AtlasError` where this process sees no such GPU, RuntimeError where it sees another one than
    ``CUDA_VISIBLE_DEVICES`` names by its UUID.
    """
    if gpus.functional(block):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    shown = [torch.cuda.get_device_name(index) for index in range(count)]
    for index, device_name in enumerate(shown):
        if gpus.matches(block, device_name):
            _check_visibility(index)
            return torch.device("cuda", index)
    raise AtlasError(
        f"GPU {name!r} is not here: no device matches {block['match']!r}; "
        f"this host shows {', '.join(shown) or 'no GPU'}"
    )


def _check_visibility(index: int) -> None:
    """CUDA reads its variable once: a lease that came later would be of one device, and the work on another."""
    named = os.environ.get(VISIBLE_VARIABLE, "")
    found = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    if len(named) == len("GPU-") + len(found) and named != f"GPU-{found}":
        raise RuntimeError(f"CUDA was initialised before {VISIBLE_VARIABLE}={named} was set: it shows GPU-{found}")


def draw(work: Pass, case: Case, device: torch.device | str, seed: int) -> dict[str, Any]:
    """The inputs of a case, drawn on ``device`` from ``seed``; the same seed and device give the same inputs."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return work.inputs(case, device, generator)


class _Undrawn(TorchFunctionMode):
    """Random tensors left empty: for meta tensors torch would load its compiler to draw nothing (2 s a process)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.randn, torch.rand):
            kwargs.pop("generator", None)
            func = torch.empty
        return func(*args, **kwargs)


def meta_inputs(work: Pass, case: Case) -> dict[str, Any]:
    """The inputs of a case as meta tensors: shapes, strides and dtypes, no memory.

    The tensors of a case are the same each time: there is nothing in them to change, and to derive attention's saved
    ones head by head takes half a second.
    """
    return dict(_meta_inputs(work, case))


@functools.lru_cache(maxsize=512)
def _meta_inputs(work: Pass, case: Case) -> Mapping[str, Any]:
    with _Undrawn():
        return work.inputs(case, "meta", None)


def exact(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with every floating tensor in float64, for a reference."""
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def as_tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of a launch, reference or peer, as a tuple also where there is only one."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def sweep(declaration: Declaration, gpu: GPU) -> list[Case]:
    """The cases that are tuned and benchmarked: the declared sweep, or on the interpreter the smallest edge cases.

    The interpreter takes seconds for what a GPU does in microseconds, so it gets the two cheapest cases of each dtype
    that are not empty.
    """
    if not gpu.functional:
        return declaration.cases(gpu)
    chosen: list[Case] = []
    for dtype in declaration.dtypes:
        cases = [c for c in declaration.edge_cases if c.dtype == dtype]
        costs = {c: sum(declaration.forward.bytes(c).values()) for c in cases}
        chosen += sorted((c for c in cases if costs[c]), key=costs.get)[:2]
    return chosen


def properties(device: torch.device) -> dict[str, Any]:
    """Name, SMs, memory, cache and shared memory in bytes, compute capability."""
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "compute_capability": f"{found.major}.{found.minor}",
        "sms": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": found.L2_cache_size,
        "shared_bytes": getattr(found, "shared_memory_per_block_optin", None),
        "threads_per_sm": found.max_threads_per_multi_processor,
        "registers_per_sm": getattr(found, "regs_per_multiprocessor", None),
        "warp_size": found.warp_size,
    }
