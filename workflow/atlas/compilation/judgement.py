"""Which compiled configs are not worth a launch: the rules by which a build prunes."""

from __future__ import annotations

from ..declaration import GPU
from .resources import REGISTERS_PER_SM, Resources, registers_of_block

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
