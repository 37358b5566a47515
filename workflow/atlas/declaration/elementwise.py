"""What elementwise kernels share: cases with their tails, inputs, and how many elements a program and a thread take.

A case has ``n`` elements, or ``m`` rows of ``n``.  A program owns BLOCK neighbours, a thread whole 16-byte vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from .cases import DTYPES, Case, case, dtype_name, edge_cases, element_size, normal, sweep
from .hardware import GPU
from .rows import VECTOR_BYTES
from .types import Config, Declaration, Variant

SPACE = {"BLOCK": (512, 1024, 2048, 4096, 8192), "num_warps": (2, 4, 8)}
"""Elements and warps of a program."""

EDGE_CASES = edge_cases(
    "n",
    (
        (7, "7 elements: less than one block, not a multiple of any vector width"),
        (60_000, "60 000 elements in blocks of 8192: seven full blocks and a tail"),
        (1, "one element"),
        (4096, "whole blocks only: no tail"),
    ),
)

HUGE_CASES = (case("bf16", "offsets beyond 2^31, and a tail", n=2**31 + 7),)


def cases(tensors: int) -> Callable[[GPU], list[Case]]:
    """A sweep over sizes from 4096 elements, where the launch is the cost, to 2^28; ``tensors``: those of a pass."""
    sizes = [(2**power,) for power in (12, 16, 20, 24, 26, 28)]
    return sweep("n", dict.fromkeys(DTYPES, sizes), tensors=tensors)


def inputs(*names: str) -> Callable[..., dict[str, torch.Tensor]]:
    """``inputs`` of a pass: a vector of normal numbers for each name."""

    def drawn(problem: Case, device: Any, generator: torch.Generator | None) -> dict[str, torch.Tensor]:
        draw = normal(problem, device, generator)
        return {name: draw(problem["n"]) for name in names}

    return drawn


def check(declaration: Declaration, *tensors: torch.Tensor, function: str = "") -> None:
    """Raise TypeError or ValueError unless these are tensors of one shape, one device and one declared dtype.

    ``function`` is the public function to name, where the kernel has more than one.
    """
    function = function or declaration.function.__name__
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        found = ", ".join(type(tensor).__name__ for tensor in tensors)
        raise TypeError(f"{function} takes tensors, and no numbers: {found}")
    declaration.dtype_of(*tensors, function=function)
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape != first.shape or other.device != first.device:
            found = "; ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
            raise ValueError(f"{function} takes one shape and device: {found}; shapes are not broadcast")


def case_of(x: torch.Tensor, *_: Any) -> Case:
    """The case of an operator whose first argument has as many elements as the others."""
    return case(dtype_name(x.dtype), n=x.numel())


def default(vectors: int) -> Callable[[Case, GPU], dict[str, int]]:
    """``default`` of a variant: so many 16-byte vectors of each tensor a thread, of four warps."""
    return lambda problem, gpu: {
        "BLOCK": vectors * 4 * 32 * VECTOR_BYTES // element_size(problem.dtype),
        "num_warps": 4,
    }


def fits(least: float, most: float) -> Callable[[Config, Case, GPU], str]:
    """``fits`` of a variant whose threads take from ``least`` to ``most`` 16-byte vectors of each tensor."""

    def obstacle(config: Config, problem: Case, gpu: GPU) -> str:
        vectors = config["BLOCK"] * element_size(problem.dtype) / (32 * config["num_warps"] * VECTOR_BYTES)
        if not least <= vectors <= most:
            return f"{vectors:g} 16-byte vectors of each tensor a thread; {least:g} to {most:g} keep memory busy"
        return ""

    return obstacle


def blocks(launch: Callable[..., Any]) -> Variant:
    """The variant of a kernel whose programs own a block of consecutive elements each, with a space to tune."""
    return Variant(
        name="blocks",
        summary="one block of consecutive elements a program",
        launch=launch,
        space=SPACE,
        default=default(vectors=2),
        fits=fits(1, 4),
    )


def tiles(m: int, n: int, block: int, narrowest: int) -> tuple[tuple[int], dict[str, int]]:
    """(grid, {"BLOCK_M", "BLOCK_N"}) of tiles of ``block`` elements over [m, n], for rows that lie apart.

    As wide as the power of two in n (11008 = 43 x 256), so that columns end with a tile and none is masked; or, where
    that is less than ``narrowest`` columns, a line of memory, as the rows.
    """
    whole = n & -n
    block_n = min(block, whole if whole >= narrowest else triton.next_power_of_2(n))
    block_m = block // block_n
    return (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),), {"BLOCK_M": block_m, "BLOCK_N": block_n}
