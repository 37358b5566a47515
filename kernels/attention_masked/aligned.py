"""Masks whose rows begin anywhere, copied into rows that begin on 16 bytes.

Of a row that begins off 4 bytes a kernel reads an element at a time, with no copy under way meanwhile, and addresses
fill the registers: on an H200 that takes as long as a copy does, at each reading.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from .blocks import kind_of, mask_strides, step_of

_ROWS, _COLUMNS = 8, 256

LARGEST = 2**30
"""Bytes of a copy at most: a mask of each head's own, of 8191 tokens, would be gigabytes beside what the call has."""


@triton.jit(do_not_specialize=["heads", "len_q", "len_k"])
def _copy_kernel(
    mask_ptr, copy_ptr, heads, len_q, len_k, stride_mb, stride_mh, stride_mm, stride_cm,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS queries of one head and COLUMNS keys; behind the last key False, or 0."""
    across, down = tl.cdiv(stride_cm, COLUMNS), tl.cdiv(len_q, ROWS)
    pid = tl.program_id(0)
    place = (pid // across // down).to(tl.int64)
    rows = (pid // across % down * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (pid % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    mask_ptr += place // heads * stride_mb + place % heads * stride_mh
    there = rows < len_q
    block = tl.load(mask_ptr + rows.to(tl.int64) * stride_mm + columns, mask=there & (columns < len_k), other=0)
    copy_ptrs = copy_ptr + (place * len_q + rows) * stride_cm + columns
    tl.store(copy_ptrs, block, mask=there & (columns < stride_cm))


def aligned(mask, pairs):
    """``mask``, or a copy of rows of a multiple of 16 keys, which are read 16 bytes at a time.

    A copy is [b or 1, h or 1, l, keys]: what is the same for all is there once.  It pays from the second time on that a
    number is read; ``pairs`` of a query and a key are read in all.
    """
    if mask is None or kind_of(mask).endswith("keys") or mask.stride(3) != 1 or mask.shape[3] == 1:
        return mask
    len_q, len_k = mask.shape[2:]
    if math.gcd(step_of(mask), len_k) * mask.element_size() >= 4 and mask.data_ptr() % 16 == 0:
        return mask
    strides = mask_strides(mask)
    batch, heads = (size if stride else 1 for size, stride in zip(mask.shape[:2], strides[:2], strict=True))
    width = triton.cdiv(len_k, 16) * 16
    if pairs < 2 * batch * heads * len_q * len_k or batch * heads * len_q * width * mask.element_size() > LARGEST:
        return mask
    copy = torch.empty((batch, heads, len_q, width), dtype=mask.dtype, device=mask.device)
    launch(
        _copy_kernel, (batch * heads * triton.cdiv(len_q, _ROWS) * triton.cdiv(width, _COLUMNS),),
        mask, copy, heads, len_q, len_k, *strides[:3], width, ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4,
    )  # fmt: skip
    return copy
