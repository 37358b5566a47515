"""Arithmetic that kernels on rows share: what fits a thread's registers, and how rows are cut into vectors and blocks.

A case here has ``m`` rows of ``n`` elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import triton

from .cases import Case, element_size
from .hardware import GPU
from .types import Config

VECTOR_BYTES = 16
"""The widest access of one thread; narrower ones spend more instructions on the same bytes."""

REGISTERS = 65_536
"""32-bit registers of one SM, on every GPU from sm_75 to sm_100: what all its programs share."""

THREAD_REGISTERS = 255
"""The most that one thread can have."""

OTHER_REGISTERS = 24
"""What a thread needs besides its elements: addresses, masks, counters (ptxas of Triton 3.7, sm_75 to sm_90)."""


def most_warps(gpu: GPU) -> int:
    """Warps of the 1024 threads that a program may have: AMD's waves are 64 wide."""
    return 16 if gpu.backend == "hip" else 32


def points(space: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every config of a tuning space, in the order of its lists."""
    return (dict(zip(space, values, strict=True)) for values in itertools.product(*space.values()))


def block_n(problem: Case) -> int:
    """The least power of two that holds a row."""
    return triton.next_power_of_2(problem["n"])


def width(x: torch.Tensor) -> int:
    """Elements of a 16-byte vector where the rows of ``x`` ([..., n]) consist of whole ones, else 1."""
    vector = VECTOR_BYTES // x.element_size()
    return 1 if x.shape[-1] % vector else vector


def widest(x: torch.Tensor) -> int:
    """The most elements, a power of two of up to 16 bytes, of which the rows of ``x`` ([..., n]) consist.

    For kernels that hold rows in registers; those that stream them in lanes lose by 8 bytes and less (rms_norm's
    `reread` of 32768 x 16778 bf16: 8 % on an H200, Triton 3.6).
    """
    return math.gcd(x.shape[-1], VECTOR_BYTES // x.element_size())


def lanes(x: torch.Tensor, block: int) -> dict[str, int]:
    """``LANES`` and ``WIDTH`` of a block of ``block`` elements of a row of ``x``."""
    return {"LANES": block // width(x), "WIDTH": width(x)}


def registers(config: Config, problem: Case, live: float) -> float:
    """Registers a thread needs for ``live`` fp32 values of each element of its tile, BLOCK_M (else 1) rows."""
    return config.get("BLOCK_M", 1) * block_n(problem) * live / (32 * config["num_warps"]) + OTHER_REGISTERS


def registers_obstacle(needed: float, threads: int) -> str:
    """Why ``threads`` threads on an SM cannot have ``needed`` registers each, or ``""``."""
    available = min(THREAD_REGISTERS, REGISTERS // threads)
    return f"{needed:.0f} registers a thread, of {available}: it would spill" if needed > available else ""


def rows_obstacle(config: Config, problem: Case, live: float) -> str:
    """``fits`` of a kernel whose programs hold BLOCK_M whole rows in registers."""
    threads = 32 * config["num_warps"]
    needed, available = registers(config, problem, live), min(THREAD_REGISTERS, REGISTERS // threads)
    if needed > available:
        return f"{needed:.0f} registers a thread, of {available}: rows would spill"
    rows = config.get("BLOCK_M", 1)
    if config["num_warps"] > 1 and rows * block_n(problem) * element_size(problem.dtype) < threads * VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    if rows > 1 and rows >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    return ""


LEAST_TILE = 2048
"""Bytes of a program's rows below which starting programs takes longer than moving them; more of short rows are no
faster (H200, Triton 3.6: softmax of 2^18 x 64 bf16 162, 21.0 and 21.5 us with 128 bytes, 2 and 4 KiB)."""


_APART = 8
"""Programs of an SM before rows get company: of a single warp so many hide each other's waiting, and to start one takes
an H200 0.6 ns."""


def spread_obstacle(config: Config, problem: Case, gpu: GPU, most_rows: int) -> str:
    """Why rows are cut too fine or too coarsely for the SMs, or ``""``; ``most_rows`` is the largest BLOCK_M."""
    rows, programs = config["BLOCK_M"], triton.cdiv(problem["m"], config["BLOCK_M"])
    tile = rows * block_n(problem) * element_size(problem.dtype)
    if tile < LEAST_TILE and rows < most_rows and programs > 2 * _APART * gpu.sms:
        return f"{programs} programs of {tile} bytes: so short rows need company"
    if rows > 1 and tile > LEAST_TILE and 2 * programs < gpu.sms:
        return f"{programs} programs for {gpu.sms} SMs: smaller tiles of rows keep more of them busy"
    if programs <= gpu.sms and config["num_warps"] < 16 and rows * block_n(problem) > 2**10 * config["num_warps"]:
        return "over 32 elements a thread of few programs: more warps are done sooner"
    return ""


def rows_apart(problem: Case, gpu: GPU, programs: int = 2) -> int:
    """The most rows for a program that leave so many programs for every SM, a power of two."""
    return 1 << max(1, problem["m"] // (programs * gpu.sms)).bit_length() - 1


def rows_together(problem: Case, gpu: GPU, most_rows: int) -> int:
    """Rows for a program: as many as fill :data:`LEAST_TILE` and leave :data:`_APART` programs for every SM."""
    filling = LEAST_TILE // (block_n(problem) * element_size(problem.dtype))
    return max(1, min(filling, most_rows, rows_apart(problem, gpu, _APART)))


def fits_stream(config: Config, problem: Case, gpu: GPU, shortest: int = 1024) -> str:
    """``fits`` of a kernel that streams rows in blocks of BLOCK_N; ``shortest`` is the least block of its space."""
    threads = 32 * config["num_warps"]
    vectors = config["BLOCK_N"] * element_size(problem.dtype) / (threads * VECTOR_BYTES)
    if not 1 <= vectors <= 4:
        return f"{vectors:g} 16-byte vectors a thread; 1 to 4 keep memory busy without spills"
    if config["BLOCK_N"] > max(block_n(problem), shortest):
        return "a block longer than the row"
    return ""


def stream_default(streams: int, blocks: Sequence[int]) -> Callable[[Case, GPU], dict[str, int]]:
    """``default`` of a kernel that streams rows of ``streams`` inputs in one of ``blocks``, an ascending list."""

    def default(problem: Case, gpu: GPU) -> dict[str, int]:
        """As many warps a row as leave the rows under way at once half of the L2, two 16-byte vectors a thread."""
        size, two_vectors = element_size(problem.dtype), 2 * 32 * VECTOR_BYTES
        under_way = gpu.sms * gpu.warps_per_sm * streams * problem["n"] * size  # with rows of one warp
        most = 16 if gpu.backend == "hip" else 32  # of 1024 threads: a warp of AMD's has 64
        warps = min(most, max(4, 2 * under_way // gpu.l2_bytes))
        longest = max(block_n(problem), blocks[0])
        block = min((1 << warps.bit_length() - 1) * two_vectors // size, longest, blocks[-1])
        return {"BLOCK_N": block, "num_warps": max(4, block * size // two_vectors)}

    return default
