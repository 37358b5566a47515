"""A gradient dC [m, n], or a batch, that two products read, dC B^T and A^T dC: copied once where each would copy it.

That is where its rows are off 16 bytes, which the copy engine (TMA) cannot read.
"""

import torch
from atlas.declaration import Capability, gpu_of
from atlas.operators import CustomOperator, Differentiable

from kernels.common.padded import padded_length, padded_rows

_LEAST = 2**23
"""Bytes of dC: a copy of fewer takes little more than its launch, and an operator more keeps the host busy.

Both products of fp16 8192 x 10001 x 512 take 323 us so, 407 with a copy each; of bf16 2048 x 2051 x 2048 74 and 83; of
16 of 2048 x 2047 x 128 in bf16 158 and 227 (H200).
"""


def copies_gradient(m: int, n: int, like: torch.Tensor, tf32: bool = False) -> bool:
    """Whether products of a gradient [m, n] with A and with B would each copy it, to rows that begin at 16 bytes."""
    size = like.element_size()
    if not (size == 2 or tf32) or n * size % 16 == 0 or m <= 64:  # of fewer rows, some are read as they lie
        return False
    gpu = gpu_of(like.device)
    return Capability.TENSOR_DESCRIPTORS in gpu.capabilities or gpu.functional


def read_twice(dc: torch.Tensor, tf32: bool) -> torch.Tensor:
    """dC for two products, or two batches: as it is, or a copy that neither of them copies again."""
    if dc.is_contiguous() and dc.numel() * dc.element_size() >= _LEAST and copies_gradient(*dc.shape[-2:], dc, tf32):
        return _padded(dc)
    return dc


def _pad(dc):
    return padded_rows(dc) if dc.dim() == 3 else padded_rows(dc[None])[0]


def _fake(dc):
    *_, m, n = dc.shape
    length = padded_length(n, dc.element_size())
    return dc.new_empty_strided(dc.shape, (m * length, length, 1)[-dc.dim() :])


_padded = Differentiable(
    CustomOperator("padded", "(Tensor dc) -> Tensor", run=_pad, fake=_fake),
    setup_context=lambda ctx, inputs, output: None,
    backward=lambda ctx, upstream: upstream,
)
