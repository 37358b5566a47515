"""Memory roofs: copy, read, write, two reads to one write, and reads that L2 answers; and what a launch costs.

Kernels mix reads and writes, and DRAM turns around between them: the mixes have roofs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ..declaration import GPU
from ..timing import Clock
from . import kernels
from .ways import Way, best, row

SIZES = (2**26, 2**28, 2**30, 2**32)
"""Bytes of one buffer; those that fit :data:`MEMORY_SHARE` with all buffers of the roof."""
MEMORY_SHARE = 8
"""At most one in this many bytes of the device's memory is used."""

_BLOCKS = ((1024, 4), (2048, 4), (4096, 8), (8192, 8), (16384, 16))
"""(elements, warps) of the Triton kernels."""
_L2_BLOCK, _L2_WARPS, _L2_PASSES = 4096, 8, 64
_L2_PARTS = (2, 4, 8)
"""The buffer read again is this part of L2, because not all of L2 may serve one address from everywhere."""


def roofs(clock: Clock, gpu: GPU, device: torch.device) -> Iterator[dict[str, Any]]:
    """The rows ``copy read write elementwise l2_read``."""
    for name, streams, ways in (
        ("copy", 2, copy_ways),
        ("read", 1, read_ways),
        ("write", 1, write_ways),
        ("elementwise", 3, elementwise_ways),
    ):
        sizes = [size for size in SIZES if streams * size <= gpu.memory_bytes // MEMORY_SHARE] or SIZES[:1]
        yield best(clock, name, "GB/s", [partial(_of_size, ways, size, streams, device) for size in sizes])
    yield best(clock, "l2_read", "GB/s", [partial(l2_ways, gpu, part, device) for part in _L2_PARTS])


def _of_size(ways: Callable[..., list[Way]], size: int, streams: int, device: torch.device) -> list[Way]:
    buffers = [torch.randn(size // 4, device=device) for _ in range(streams)]
    label = f"{size // 2**20} MiB a buffer"
    return [Way(f"{how}, {label}", thunk, streams * size) for how, thunk in ways(*buffers)]


def _launches(kernel: Any, elements: int, *arguments: Any) -> list[tuple[str, Callable[[], Any]]]:
    def launch(block: int, warps: int) -> Callable[[], Any]:
        return lambda: kernel[(elements // block,)](*arguments, BLOCK=block, num_warps=warps)

    return [(f"Triton, blocks of {block}, {warps} warps", launch(block, warps)) for block, warps in _BLOCKS]


def copy_ways(x: torch.Tensor, y: torch.Tensor) -> list[tuple[str, Callable[[], Any]]]:
    """One buffer read, one written."""
    return [("torch copy_", lambda: y.copy_(x)), *_launches(kernels.copy, x.numel(), x, y)]


def read_ways(x: torch.Tensor) -> list[tuple[str, Callable[[], Any]]]:
    """One buffer read."""
    sums = torch.empty(x.numel() // min(block for block, _ in _BLOCKS), device=x.device)
    return [("torch sum", lambda: torch.sum(x)), *_launches(kernels.read, x.numel(), x, sums)]


def write_ways(y: torch.Tensor) -> list[tuple[str, Callable[[], Any]]]:
    """One buffer written."""
    return [
        ("torch fill_", lambda: y.fill_(1.0)),
        ("torch zero_", lambda: y.zero_()),
        *_launches(kernels.write, y.numel(), y, 1.5),
    ]


def elementwise_ways(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[tuple[str, Callable[[], Any]]]:
    """Two buffers read, one written."""
    return [("torch add", lambda: torch.add(x, y, out=z)), *_launches(kernels.add, x.numel(), x, y, z)]


def l2_ways(gpu: GPU, part: int, device: torch.device) -> list[Way]:
    """A buffer of one ``part`` of L2, read by every SM again and again; only the first pass finds it in memory."""
    blocks = max(1, gpu.l2_bytes // part // (4 * _L2_BLOCK))
    x = torch.randn(blocks * _L2_BLOCK, device=device)

    def way(programs_per_sm: int) -> Way:
        programs = programs_per_sm * gpu.sms
        sums = torch.empty(programs, device=device)
        return Way(
            f"{x.numel() * 4 / 2**20:.3g} MiB read {programs * _L2_PASSES / blocks:.3g} times past L1, "
            f"{programs_per_sm} programs an SM",
            lambda: kernels.read_again[(programs,)](x, sums, blocks, _L2_PASSES, BLOCK=_L2_BLOCK, num_warps=_L2_WARPS),
            4.0 * _L2_BLOCK * _L2_PASSES * programs,
        )

    return [way(4), way(8), way(16)]


def launch_roofs(clock: Clock, device: torch.device) -> Iterator[dict[str, Any]]:
    """The rows ``launch_latency empty_kernel event_floor``, in microseconds."""
    one = torch.zeros(1, device=device)
    yield row(
        "launch_latency",
        clock.call_us(lambda: one.add_(1.0)),
        "us",
        "host time of one of many one-element adds by torch, called one after another without waiting",
    )
    empty = clock.measure(lambda: kernels.empty[(1,)](num_warps=1))
    yield row("empty_kernel", empty.median_us, "us", "device time of a kernel that does nothing, queued ahead", empty)
    yield row("event_floor", clock.floor_us(), "us", "what two events measure with nothing between them")
