"""What kernels on rows share whose programs hold whole rows: cases with their tails, inputs, and the space to tune.

A case has ``m`` rows of ``n`` elements.  :mod:`.rows` is the arithmetic of what fits a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from .cases import Case, case, dtype_name, edge_cases, element_size, normal, sweep
from .hardware import GPU
from .rows import REGISTERS, VECTOR_BYTES, block_n, most_warps, rows_obstacle
from .types import Variant

SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)}
"""Rows and warps of a program."""

EDGE_CASES = edge_cases(
    "m n",
    (
        (1, 1, "one element"),
        (7, 1, "rows of one element"),
        (1, 1000, "one row, not a power of two"),
        (37, 129, "odd rows: none but the first starts on 16 bytes"),
        (33, 64, "one row more than whole tiles of rows"),
        (3, 4097, "rows one element longer than a power of two"),
        (5, 2048, "whole rows: no masked columns"),
    ),
)

HUGE_CASES = (case("bf16", "row offsets beyond 2^31", m=2**18 + 1, n=8192),)


def cases(tensors: int) -> Callable[[GPU], list[Case]]:
    """A sweep from 128 rows of 1024, where the launch is the cost, to 128 MiB a matrix; ``tensors``: those of a pass.

    Mostly in bf16: a length more is a space of configs to compile.
    """
    some = ((4096, 1024), (8192, 8192))
    table = {"bf16": ((128, 1024), *some, (8192, 4096), (1021, 10007)), "fp16": some, "fp32": some}
    return sweep("m n", table, tensors=tensors)


def inputs(*names: str) -> Callable[..., dict[str, torch.Tensor]]:
    """``inputs`` of a pass: a matrix of normal numbers for each name."""

    def drawn(problem: Case, device: Any, generator: torch.Generator | None) -> dict[str, torch.Tensor]:
        draw = normal(problem, device, generator)
        return {name: draw(problem["m"], problem["n"]) for name in names}

    return drawn


def case_of(x: torch.Tensor, *_: Any) -> Case:
    """The case of an operator whose first argument is its matrix [m, n]."""
    return case(dtype_name(x.dtype), m=x.shape[0], n=x.shape[1])


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Two 16-byte vectors a thread; short rows share the four warps that an SM's schedulers take at once."""
    size, two_vectors = element_size(problem.dtype), 2 * 32 * VECTOR_BYTES
    block_m = max(1, min(4 * two_vectors // (block_n(problem) * size), triton.next_power_of_2(problem["m"]), 16))
    warps = block_m * problem["n"] * size // two_vectors
    return {"BLOCK_M": block_m, "num_warps": 1 << max(1, min(most_warps(gpu), warps)).bit_length() - 1}


def one_pass(launch: Callable[..., Any], live: float) -> Variant:
    """The variant of a kernel that reads each row once, with a space to tune.

    ``live`` is how many fp32 values of each element a thread holds at a time.
    """
    longest = int(REGISTERS // 4 / live)
    return Variant(
        name="one_pass",
        summary="rows in registers, one block of rows a program",
        launch=launch,
        space=SPACE,
        default=default,
        fits=lambda config, problem, gpu: rows_obstacle(config, problem, live),
        handles=lambda problem, gpu: f"rows of over {longest} elements" if problem["n"] > longest else "",
    )
