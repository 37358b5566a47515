"""What one compiled kernel takes of a multiprocessor, and when that is too much: the rules by which a build prunes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton

from ..declaration import GPU

REGISTERS_PER_SM = 65536
"""32-bit registers of one SM, on every CUDA architecture from 7.0 to 12.0 (CUDA C++ Programming Guide, the table of
technical specifications per compute capability)."""

# Registers are handed to a warp in units of 256, out of the file of one of the SM's four partitions; from compute
# capability 8.0 on every block takes 1 KiB of shared memory for the system, and shared memory comes in units of 128
# bytes, 256 before (NVIDIA's cuda_occupancy.h).
_REGISTER_UNIT = 256
_PARTITIONS = 4

# AMD CDNA2 and CDNA3 instruction set guides: a compute unit has 4 SIMDs, each with 512 vector registers a lane, handed
# out in eights, and up to 8 waves.  (local data share in KiB)
_CDNA_SHARED_KIB = {"gfx90a": 64, "gfx942": 64, "gfx950": 160}
_CDNA_SIMDS, _CDNA_REGISTERS, _CDNA_REGISTER_UNIT, _CDNA_WAVES = 4, 512, 8, 8


@dataclass(frozen=True)
class Resources:
    """Per thread: ``registers``, ``spill_bytes`` (local memory).  Per block: ``shared_bytes``, ``threads``."""

    registers: int | None
    spill_bytes: int | None
    shared_bytes: int
    threads: int


def resources_of(kernel: Any) -> Resources:
    """The resources of Triton's CompiledKernel, from cuobjdump or from the metadata in AMD's assembly."""
    metadata = kernel.metadata
    threads = metadata.num_warps * metadata.target.warp_size
    if metadata.target.backend == "cuda":
        registers, spill, static = _cuda_usage(kernel.asm["cubin"])
        return Resources(registers, spill, metadata.shared + static, threads)
    text = kernel.asm["amdgcn"]
    return Resources(_amd_field(text, "vgpr_count"), _amd_field(text, "private_segment_fixed_size"),
                     metadata.shared, threads)  # fmt: skip


def _cuda_usage(cubin: bytes) -> tuple[int | None, int | None, int]:
    """(registers, bytes of stack and local memory, bytes of static shared memory) as cuobjdump reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", shown)
    if usage is None:
        return None, None, 0
    registers, stack, static, local = map(int, usage.groups())
    return registers, stack + local, static


def _amd_field(text: str, name: str) -> int | None:
    found = re.search(rf"\.{name}:\s*(\d+)", text)
    return int(found[1]) if found else None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def registers_of_block(resources: Resources) -> int:
    """Registers that one block takes of an SM, with the units they are handed out in; 0 where unknown (CUDA)."""
    warps = _round_up(-(-resources.threads // 32), _PARTITIONS)
    return warps * _round_up(32 * (resources.registers or 0), _REGISTER_UNIT)


def occupancy(resources: Resources, gpu: GPU) -> float | None:
    """Resident warps over the most an SM holds, 0 to 1; None where registers or the architecture are not known.

    Bound by registers, shared memory, warps and blocks of one SM, as NVIDIA's cuda_occupancy.h computes it.
    """
    if resources.registers is None:
        return None
    if gpu.backend == "hip":
        return _cdna_occupancy(resources, gpu)
    warps = -(-resources.threads // 32)
    blocks = [gpu.blocks_per_sm, gpu.warps_per_sm // warps]
    if resources.registers:
        per_warp = _round_up(32 * resources.registers, _REGISTER_UNIT)
        blocks.append(REGISTERS_PER_SM // _PARTITIONS // per_warp * _PARTITIONS // warps)
        if registers_of_block(resources) > REGISTERS_PER_SM:
            blocks.append(0)
    recent = int(gpu.arch) >= 80
    shared = _round_up(resources.shared_bytes, 128 if recent else 256) + (1024 if recent else 0)
    if shared:
        blocks.append(gpu.shared_bytes_per_sm // shared)
    return min(blocks) * warps / gpu.warps_per_sm


def _cdna_occupancy(resources: Resources, gpu: GPU) -> float | None:
    if gpu.arch not in _CDNA_SHARED_KIB:
        return None
    waves = resources.threads // 64
    registers = _round_up(max(resources.registers or 0, 1), _CDNA_REGISTER_UNIT)
    blocks = [_CDNA_SIMDS * min(_CDNA_WAVES, _CDNA_REGISTERS // registers) // waves]
    if resources.shared_bytes:
        blocks.append(_CDNA_SHARED_KIB[gpu.arch] * 1024 // resources.shared_bytes)
    return min(blocks) * waves / (_CDNA_SIMDS * _CDNA_WAVES)


MOST_THREADS = 1024
"""Threads of a block on every CUDA and HIP architecture."""

SPILL_LIMIT_BYTES = 64
"""Local memory a thread may use before a config is pruned.

A few registers spilled outside the inner loop cost nothing that a timing shows; beyond 16 of them a tile is too large
for its warps, and the same tile with more warps, or a smaller one, is in the space as well.
"""

_TENSOR_MEMORY_COLUMNS = 512


def obstacle(name: str, resources: Resources, gpu: GPU, tensor_memory: int = 0) -> str:
    """Why ``gpu`` cannot launch this kernel, or ``""``.  ``tensor_memory``: columns, on Blackwell."""
    if resources.shared_bytes > gpu.shared_bytes:
        return (
            f"{name} asks for {resources.shared_bytes} bytes of shared memory; "
            f"a block on {gpu.name} has at most {gpu.shared_bytes}"
        )
    if resources.threads > MOST_THREADS:
        return f"{name} asks for {resources.threads} threads; a block has at most {MOST_THREADS}"
    if gpu.backend == "cuda" and registers_of_block(resources) > REGISTERS_PER_SM:
        return (
            f"{name} asks for {resources.registers} registers in each of {resources.threads} threads; "
            f"a multiprocessor has {REGISTERS_PER_SM}"
        )
    if tensor_memory > _TENSOR_MEMORY_COLUMNS:
        return f"{name} asks for {tensor_memory} columns of tensor memory; there are {_TENSOR_MEMORY_COLUMNS}"
    return ""


def excess_spill(name: str, resources: Resources) -> str:
    """Why this kernel spills too much to be timed, or ``""``."""
    if (resources.spill_bytes or 0) > SPILL_LIMIT_BYTES:
        return f"{name} spills: {resources.spill_bytes} bytes of local memory a thread, over {SPILL_LIMIT_BYTES}"
    return ""
