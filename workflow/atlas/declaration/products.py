"""What kernels that multiply matrices ask of operands and GPUs."""

from __future__ import annotations

import torch

from .cases import Case
from .hardware import GPU, Capability


def uses_tensor_cores(problem: Case, gpu: GPU) -> bool:
    """Whether ``tl.dot`` of this dtype reaches tensor cores on this GPU; else it becomes FMA."""
    return Capability.TENSOR_CORES in gpu.capabilities and problem.dtype != "fp32"


def fp32_precision() -> str:
    """How fp32 operands are multiplied, as torch is told to: "ieee", or "tf32" where the caller has allowed it.

    This attribute follows ``torch.set_float32_matmul_precision`` and ``allow_tf32`` too, while their own getters raise
    once it has been set itself (torch 2.13).
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def precision_of(x: torch.Tensor, *_: object) -> str | None:
    """What decides how products of ``x`` are made besides its dtype: :func:`fp32_precision`, of fp32 alone."""
    return fp32_precision() if x.dtype is torch.float32 else None


def as_interpreted(x: torch.Tensor) -> torch.Tensor:
    """On the CPU bf16 as fp32: the kernel multiplies the same values, and rounds what it writes all the same.

    The interpreter's ``tl.dot`` multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    """
    return x.float() if x.dtype == torch.bfloat16 and x.device.type == "cpu" else x


def describable(x: torch.Tensor) -> bool:
    """Whether the copy engine (TMA) can read a tensor.

    It is not empty, its last dimension is contiguous, and its other strides and its start are whole 16 bytes.
    """
    size = x.element_size()
    aligned = all(stride > 0 and stride * size % 16 == 0 for stride in x.stride()[:-1])
    return aligned and x.data_ptr() % 16 == 0 and x.numel() > 0 and x.stride(-1) == 1
