"""What a kernel may ask about the GPU it runs on, and the one table of what each architecture can do."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch


class Capability:
    """Names of what a GPU may have; a variant lists those it needs."""

    TENSOR_CORES = "tensor cores through tl.dot"
    BF16 = "native bf16"
    TF32 = "tf32 tensor cores"
    FP8 = "fp8 tensor cores"
    INT8_DOT = "int8 tensor cores through tl.dot"
    TENSOR_DESCRIPTORS = "hardware tensor descriptors (TMA)"
    WGMMA = "wgmma"


# From this compute capability on.  Triton >= 3.4 lowers tl.dot to FMA on sm_75, so the T4's tensor cores are out of
# reach of it (seen in the PTX with 3.4, 3.6, 3.7.1; 3.2 still emitted mma.sync there).
_CUDA_SINCE = {
    Capability.TENSOR_CORES: 80,
    Capability.INT8_DOT: 80,
    Capability.BF16: 80,
    Capability.TF32: 80,
    Capability.FP8: 89,
    Capability.TENSOR_DESCRIPTORS: 90,
}

# CUDA C++ Programming Guide, table "Technical specifications per compute capability":
# (resident warps, shared memory in KiB, resident blocks) of one SM.
_CUDA_SM_LIMITS = {75: (32, 64, 16), 80: (64, 164, 32), 86: (48, 100, 16), 87: (48, 164, 16), 89: (48, 100, 24),
                   90: (64, 228, 32), 100: (64, 228, 32), 103: (64, 228, 32), 120: (48, 100, 24)}  # fmt: skip


@dataclass(frozen=True)
class GPU:
    """One GPU as kernels and stages see it: a block of ``config/gpus.yaml``, or the device at hand.

    ``shared_bytes`` is the most one block may ask for; ``arch`` is an int for CUDA (90) and a name for HIP ("gfx942").
    """

    name: str
    backend: str
    arch: int | str
    sms: int
    shared_bytes: int
    memory_bytes: int
    l2_bytes: int
    device_name: str = ""

    @property
    def functional(self) -> bool:
        """True for the CPU interpreter, which says that a kernel works and nothing of its speed."""
        return self.backend == "cpu"

    @functools.cached_property
    def capabilities(self) -> frozenset[str]:
        """What this architecture can do, out of :class:`Capability`."""
        if self.backend == "cuda":
            found = {name for name, since in _CUDA_SINCE.items() if int(self.arch) >= since}
            # wgmma exists on compute capability 9.x alone: Blackwell replaced it by tcgen05.
            return frozenset(found | ({Capability.WGMMA} if int(self.arch) // 10 == 9 else set()))
        if self.backend == "hip":
            found = {Capability.TENSOR_CORES, Capability.BF16, Capability.INT8_DOT}
            return frozenset(found | ({Capability.FP8} if self.arch in ("gfx942", "gfx950") else set()))
        return frozenset()

    @property
    def warps_per_sm(self) -> int:
        """Most resident warps of one SM; 64 for an architecture the table does not name."""
        return _CUDA_SM_LIMITS.get(self.arch, (64, 228, 32))[0]

    @property
    def shared_bytes_per_sm(self) -> int:
        """Shared memory of one SM in bytes, from which resident blocks are served."""
        return _CUDA_SM_LIMITS.get(self.arch, (64, 228, 32))[1] * 1024

    @property
    def blocks_per_sm(self) -> int:
        """Most resident blocks of one SM."""
        return _CUDA_SM_LIMITS.get(self.arch, (64, 228, 32))[2]


INTERPRETER = GPU(
    name="cpu", backend="cpu", arch="interpreter", sms=4, shared_bytes=232448, memory_bytes=2**30, l2_bytes=2**20
)
"""The Triton interpreter, shaped like a small GPU so that the same configs fit."""

_pretended: ContextVar[GPU | None] = ContextVar("pretended_gpu", default=None)


@contextlib.contextmanager
def pretend(gpu: GPU) -> Iterator[None]:
    """Inside, :func:`gpu_of` answers ``gpu`` for every device: how a build compiles for a GPU that is elsewhere."""
    token = _pretended.set(gpu)
    try:
        yield
    finally:
        _pretended.reset(token)


@functools.cache
def _cuda_gpu(index: int) -> GPU:
    properties = torch.cuda.get_device_properties(index)
    return GPU(
        name=properties.name,
        backend="hip" if torch.version.hip else "cuda",
        arch=properties.gcnArchName.split(":")[0] if torch.version.hip else properties.major * 10 + properties.minor,
        sms=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", 65536),
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        device_name=properties.name,
    )


def gpu_of(device: torch.device | Any) -> GPU:
    """The GPU behind a tensor's device; CPU tensors belong to :data:`INTERPRETER`."""
    pretended = _pretended.get()
    if pretended is not None:
        return pretended
    device = torch.device(device)
    if device.type == "cuda":
        return _cuda_gpu(device.index if device.index is not None else torch.cuda.current_device())
    return INTERPRETER
