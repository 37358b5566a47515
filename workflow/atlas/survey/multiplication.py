"""Matmul roofs by dtype: the best of cuBLAS on large shapes and of the tensor cores fed with the same tiles.

The library alone is no ceiling, since a good kernel can be faster than it; the tensor cores' own rate is, at the clock
that the board's power permits.  What the library reaches has its own row, ``cublas_<dtype>``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton.language as tl

from ..declaration import GPU, Capability
from ..timing import Clock
from . import kernels
from .ways import Group, Way, best, missing

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (8192, 8192, 2048), (8192, 4096, 16384))
"""(m, n, k)."""
LONGEST_SECONDS = 0.1
"""Shapes that would take longer than this at the datasheet's rate are left out."""
SLOW = 10.0
"""TFLOP/s to plan with where the datasheet gives none."""

_TILES = ((128, 256, 8), (128, 128, 4), (128, 128, 8), (64, 256, 4))
"""(rows, columns, warps) of a program's product."""
_TILE_BYTES = 128
"""Bytes of a tile along k: one swizzled line of shared memory."""
_STEPS = 1000


@dataclass(frozen=True)
class Rate:
    """How one dtype is multiplied: storage, accumulator, torch's ways of doing it, and what the GPU must have."""

    storage: torch.dtype
    accumulator: torch.dtype
    library: Callable[[torch.Tensor, torch.Tensor], dict[str, Callable[[], Any]]]
    needs: str = ""
    precision: str = "highest"


def _mm(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], Any]]:
    return {"torch mm": lambda: torch.mm(a, b)}


def _int_mm(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], Any]]:
    return {"torch _int_mm": lambda: torch._int_mm(a, b)}


def _scaled_mm(a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], Any]]:
    one = torch.ones((), device=a.device)

    def way(fast: bool) -> Callable[[], Any]:
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return {"torch _scaled_mm": way(False), "torch _scaled_mm with fast accumulation": way(True)}


RATES = {
    "bf16": Rate(torch.bfloat16, torch.float32, _mm, Capability.BF16),
    "fp16": Rate(torch.float16, torch.float32, _mm),
    "tf32": Rate(torch.float32, torch.float32, _mm, Capability.TF32, "high"),
    "fp32": Rate(torch.float32, torch.float32, _mm),
    "fp8": Rate(torch.float8_e4m3fn, torch.float32, _scaled_mm, Capability.FP8),
    "int8": Rate(torch.int8, torch.int32, _int_mm),
}


def roofs(clock: Clock, gpu: GPU, device: torch.device, peaks: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """The rows ``matmul_<dtype>`` and ``cublas_<dtype>``; ``peaks`` are the datasheet's TFLOP/s, to plan with."""
    for dtype, rate in RATES.items():
        names = f"matmul_{dtype}", f"cublas_{dtype}"
        if rate.needs and rate.needs not in gpu.capabilities:
            for name in names:
                yield missing(name, "TFLOP/s", f"{gpu.name} has no {rate.needs}")
            continue
        with _float32_precision(rate.precision):
            library = best(clock, names[1], "TFLOP/s", _library(rate, gpu, device, peaks.get(dtype, SLOW)))
            cores = best(clock, names[0], "TFLOP/s", [partial(_cores, dtype, rate, gpu, device)])
        yield max((library, cores), key=lambda row: row["value"] or 0.0) | {"name": names[0]}
        yield library


@contextlib.contextmanager
def _float32_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _draw(shape: tuple[int, int], storage: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random operands: constant ones draw less power, and the clock stays higher than in real work."""
    if storage == torch.int8:
        return torch.randint(-128, 128, shape, dtype=storage, device=device)
    return torch.randn(shape, device=device, dtype=torch.float32).to(storage)


def _library(rate: Rate, gpu: GPU, device: torch.device, peak: float) -> list[Group]:
    """A group for each shape that this GPU can hold and finish in time."""
    chosen = []
    for m, n, k in SHAPES:
        held = (m * k + n * k) * (rate.storage.itemsize + 4) + m * n * 4
        if held <= gpu.memory_bytes // 8 and 2e-12 * m * n * k <= peak * LONGEST_SECONDS:
            chosen.append(partial(_of_shape, rate, m, n, k, device))
    return chosen


def _of_shape(rate: Rate, m: int, n: int, k: int, device: torch.device) -> list[Way]:
    a = _draw((m, k), rate.storage, device)
    b = _draw((n, k), rate.storage, device).t()  # columns contiguous: the one layout that fp8 takes
    return [Way(f"{how}, {m} x {n} x {k}", thunk, 2.0 * m * n * k) for how, thunk in rate.library(a, b).items()]


def _cores(dtype: str, rate: Rate, gpu: GPU, device: torch.device) -> list[Way]:
    """Tensor cores without memory traffic; nothing for what would run on ordinary cores."""
    if dtype == "fp32" or Capability.TENSOR_CORES not in gpu.capabilities:
        return []
    block_k = _TILE_BYTES // rate.storage.itemsize
    ways = []
    for block_m, block_n, warps in _TILES:
        a = _draw((2 * block_m, block_k), rate.storage, device)
        b = _draw((2 * block_n, block_k), rate.storage, device)
        for programs_per_sm in (1, 2):
            programs = programs_per_sm * gpu.sms
            sums = torch.empty(programs, dtype=rate.accumulator, device=device)
            ways.append(
                Way(
                    f"tensor cores alone, tiles {block_m} x {block_n} x {block_k}, {warps} warps, "
                    f"{programs_per_sm} programs an SM",
                    _launch(programs, a, b, sums, (block_m, block_n, block_k), warps),
                    4.0 * block_m * block_n * block_k * _STEPS * programs,
                )
            )
    return ways


def _launch(
    programs: int, a: torch.Tensor, b: torch.Tensor, sums: torch.Tensor, tile: tuple[int, int, int], warps: int
) -> Callable[[], Any]:
    block_m, block_n, block_k = tile
    accumulator = tl.int32 if sums.dtype == torch.int32 else tl.float32
    return lambda: kernels.multiply[(programs,)](
        a, b, sums, _STEPS, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, ACC=accumulator, num_warps=warps
    )
