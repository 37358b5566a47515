"""The device a stage runs on: checked, named, and seeded inputs put there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from .declaration import GPU, Case, Declaration, Pass
from .errors import AtlasError


def device_of(name: str, block: Mapping[str, Any]) -> torch.device:
    """The torch device of a GPU block; :class:`AtlasError` where this host does not show that GPU."""
    if "cpu" in block["target"]:
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    shown = [torch.cuda.get_device_name(index) for index in range(count)]
    for index, device_name in enumerate(shown):
        if re.search(block["match"], device_name):
            return torch.device("cuda", index)
    raise AtlasError(
        f"GPU {name!r} is not here: no device matches {block['match']!r}; "
        f"this host shows {', '.join(shown) or 'no GPU'}"
    )


def draw(work: Pass, case: Case, device: torch.device | str, seed: int) -> dict[str, Any]:
    """The inputs of a case, drawn on ``device`` from ``seed``; the same seed and device give the same inputs."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return work.inputs(case, device, generator)


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
