"""What kernels that multiply matrices ask of operands and GPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from .cases import Case
from .hardware import GPU, Capability


def uses_tensor_cores(problem: Case, gpu: GPU) -> bool:
    """Whether ``tl.dot`` of this dtype reaches tensor cores on this GPU; else it becomes FMA."""
    return Capability.TENSOR_CORES in gpu.capabilities and problem.dtype != "fp32"


def reads_shared_memory(problem: Case, gpu: GPU) -> bool:
    """Whether tensor cores read blocks of 64 rows and more where they lie: so wgmma, and tcgen05 but for int8.

    Else a warp brings its part of the stage in work to registers (mma; int8 on sm_100 by Triton 3.7.1).
    """
    tcgen05 = gpu.backend == "cuda" and int(gpu.arch) // 10 == 10 and problem.dtype != "int8"
    return uses_tensor_cores(problem, gpu) and (Capability.WGMMA in gpu.capabilities or tcgen05)


def fp32_precision() -> str:
    """How fp32 operands are multiplied, as torch is told to: "ieee", or "tf32" where the caller has allowed it.

    This attribute follows ``torch.set_float32_matmul_precision`` and ``allow_tf32`` too, while their own getters raise
    once it has been set itself (torch 2.13).
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


_ask = getattr(torch._C, "_get_fp32_precision_getter", None)

precision_word: Callable[[], str] = functools.partial(_ask, "cuda", "matmul") if _ask else fp32_precision
"""torch's own word for :func:`fp32_precision`, past the modules in Python around it: they take 2 us of each call."""


def allows_tf32() -> bool:
    """Whether fp32 operands may be multiplied as tf32, as torch is told: :func:`fp32_precision` for every call."""
    return precision_word() == "tf32"


def precision_of(x: torch.Tensor, *_: object) -> str | None:
    """What decides how products of ``x`` are made besides its dtype: :func:`fp32_precision`, of fp32 alone."""
    return precision_word() if x.dtype is torch.float32 else None


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
