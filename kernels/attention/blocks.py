"""Blocks of a head's rows: where they lie, who sees what, and how kernels read and write them.

The kernels of :mod:`kernels.attention_fp8` use them, too.
"""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))


@triton.jit
def span_of(cu_ptr, batch, length):
    """(first row, rows) of a sequence: all of a tensor's, or as the cumulative lengths of a packed batch say."""
    if cu_ptr is None:
        first = 0
    else:
        first = tl.load(cu_ptr + batch)
        length = tl.load(cu_ptr + batch + 1) - first
    return first, length


@triton.jit
def keys_of(first, len_k, shift, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(whole, end): each of BLOCK_M queries sees all keys before ``whole``, none sees one from ``end`` on.

    ``first`` is the block's first query, which sees the keys up to number ``first + shift`` under a causal mask.
    ``whole`` is a multiple of BLOCK_N: only the blocks between the two need masks, those on the diagonal and the tail.
    """
    end, seen_by_all = len_k, len_k
    if CAUSAL:
        end = tl.maximum(tl.minimum(len_k, first + BLOCK_M + shift), 0)
        seen_by_all = tl.maximum(tl.minimum(len_k, first + shift + 1), 0)
    return seen_by_all // BLOCK_N * BLOCK_N, end


@triton.jit
def sees(first, n, len_k, shift, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which keys from ``n`` on each query from ``first`` on sees, [BLOCK_M, BLOCK_N] (or its columns alone)."""
    offs_n = n + tl.arange(0, BLOCK_N)[None, :]
    seen = offs_n < len_k
    if CAUSAL:
        seen = seen & (offs_n <= first + shift + tl.arange(0, BLOCK_M)[:, None])
    return seen


@triton.jit
def _rows_at(x_ptr, first, stride_xs, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr):
    """Pointers to BLOCK rows from ``first`` on, [BLOCK, BLOCK_D]; the last dimension is contiguous."""
    offs = tl.arange(0, BLOCK)[:, None] * stride_xs + tl.arange(0, BLOCK_D)[None, :]
    x_ptrs = x_ptr + tl.cast(first, tl.int64) * stride_xs + offs
    if ALIGNED:
        x_ptrs = tl.multiple_of(x_ptrs, (1, 16))  # here, for a call that is inlined keeps no hints
    return x_ptrs


@triton.jit
def read_rows(
    x, batch, head, first, rows, stride_xs,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr, ALIGNED: tl.constexpr = False,
):  # fmt: skip
    """BLOCK rows of a head from ``first`` on, [BLOCK, BLOCK_D], of which ``rows`` are there and HEAD_DIM columns.

    What is not there is 0 and adds nothing to a product; without MASKED all rows are there.  ``x`` is a descriptor of
    all heads, or a pointer to this one, with ALIGNED as of :func:`aligned_rows`.  Of packed sequences,
    :func:`described_sequences`, ``batch`` is the row behind the sequence's last.
    """
    if DESCRIPTORS:
        if len(x.block_shape) == 5:
            block = x.load([FAR, batch, head, FAR - rows, 0]).reshape(BLOCK, BLOCK_D)
        else:
            block = x.load([batch, head, first, 0]).reshape(BLOCK, BLOCK_D)
    else:
        x_ptrs = _rows_at(x, first, stride_xs, BLOCK, BLOCK_D, ALIGNED)
        mask_d = tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM
        if MASKED:
            block = tl.load(x_ptrs, mask=(tl.arange(0, BLOCK)[:, None] < rows) & mask_d, other=0.0)
        elif HEAD_DIM < BLOCK_D:
            block = tl.load(x_ptrs, mask=mask_d, other=0.0)
        else:
            block = tl.load(x_ptrs)
    return block


@triton.jit
def write_rows(
    x_ptr, x, first, rows, stride_xs,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, ALIGNED: tl.constexpr = False,
):  # fmt: skip
    """BLOCK rows of a head from ``first`` on, as far as they are there; rounded to the output's dtype.

    ALIGNED: :func:`aligned_rows`.
    """
    mask = (tl.arange(0, BLOCK)[:, None] < rows) & (tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM)
    x_ptrs = _rows_at(x_ptr, first, stride_xs, BLOCK, BLOCK_D, ALIGNED)
    tl.store(x_ptrs, x.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def head_of(x, batch, head, first, stride_xb, stride_xh, stride_xs, DESCRIPTORS: tl.constexpr):
    """What ``read_rows`` takes for a head: the descriptor, or a pointer to the sequence's first row."""
    if not DESCRIPTORS:
        x += batch * stride_xb + tl.cast(head, tl.int64) * stride_xh + tl.cast(first, tl.int64) * stride_xs
    return x


@triton.jit
def place_of(blocks, heads, REVERSED: tl.constexpr):
    """(batch, head, block) of a program; blocks of a head run together, since they read the same keys.

    Under a causal mask the last block of queries is the longest: it goes first, or SMs would wait for it in the end.
    """
    pid = tl.program_id(0)
    block = pid % blocks
    if REVERSED:
        block = blocks - 1 - block
    return pid // blocks // heads, pid // blocks % heads, block


def strides_of(x):
    """Of batch, head and row; a packed tensor (rows, heads, head_dim) has none of batch."""
    return x.stride()[:3] if x.dim() == 4 else (0, x.stride(1), x.stride(0))


def strides_of_lse(lse):
    """Of batch and head; that of a packed batch is (heads, rows)."""
    return lse.stride()[:2] if lse.dim() == 3 else (0, lse.stride(0))


def out_for(q, v):
    """Memory for out [b, h, l, e], in the order in which q [b, h, l, d] lies, as far as q leaves no gaps."""
    if v.shape[-1] == q.shape[-1]:
        return torch.empty_like(q)
    batch, heads, length, _ = q.shape
    if q.stride(1) < q.stride(2):  # a model's: heads side by side
        return q.new_empty((batch, length, heads, v.shape[-1])).transpose(1, 2)
    return q.new_empty((batch, heads, length, v.shape[-1]))


def block_d(head_dim):
    """Columns of a block: the least power of two that ``tl.dot`` takes and holds the head."""
    return max(16, triton.next_power_of_2(head_dim))


def widest(k, v):
    """K or V, whichever has the wider heads."""
    return v if v.shape[-1] > k.shape[-1] else k


def wide(head_dim):
    """Columns that a head is computed in; the copy engine fills those that it does not have with 0."""
    return 64 if head_dim <= 64 else 128 if head_dim <= 128 else 256


def described(x, rows):
    """A descriptor of blocks of ``rows`` rows of a head; a dimension of one element may have any stride."""
    strides = [x.shape[-1] if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    strides[-1] = 1
    return TensorDescriptor(x, list(x.shape), strides, [1, 1, rows, block_d(x.shape[-1])])


FAR = tl.constexpr(2**30)
"""Where a descriptor of packed sequences has the end of any of them."""


def ragged(x, rows, columns):
    """(shape, strides, block) of a descriptor of packed sequences x [rows, heads, d] that ends where a sequence does.

    Its two more dimensions shift addresses.  A block at (FAR, e, head, FAR - n) begins FAR times 2^34 elements on,
    which is the tensor's beginning again in 64 bits, and n rows before row e; rows from e on are beyond the
    descriptor's end: they are read as 0, and not written.
    """
    of_rows, of_heads = (x.stride(at) if x.shape[at] > 1 else x.shape[1] * x.shape[2] for at in (0, 1))
    shape = [0x7FFF0000, 0x7FFF0000, x.shape[1], FAR.value, x.shape[2]]
    return shape, [2**34 - of_rows, of_rows, of_heads, of_rows, 1], [1, 1, 1, rows, columns]


def described_sequences(x, rows):
    """:func:`described` of packed sequences."""
    return TensorDescriptor(x, *ragged(x, rows, block_d(x.shape[-1])))


def describable_sequences(x):
    """:func:`describable` of packed sequences."""
    return describable(x.unsqueeze(0)) and x.shape[0] < FAR.value


def describable(x):
    """Whether the copy engine can read a tensor: rows and heads of whole 16 bytes that begin on 16 bytes."""
    size = x.element_size()
    for length, stride in zip(x.shape[:3], x.stride()[:3], strict=True):
        if length > 1 and (stride <= 0 or stride * size % 16):
            return False
    return x.shape[-1] * size % 16 == 0 and x.data_ptr() % 16 == 0


def aligned_rows(*tensors):
    """Whether rows begin on 16 bytes and compilers do not know it, for they ask of strides for 16 elements alone.

    They would read and write heads of 72 of 16 bits, an odd multiple of 16 bytes, 2 bytes at a time.
    """
    return tensors[0].shape[-1] % 16 > 0 and all(map(describable, tensors))


def as_read(tensors, rows, descriptors):
    """(what kernels read, whether they are descriptors): of blocks of so many rows each, where they can be."""
    packed = tensors[0].dim() == 3
    if descriptors and all(map(describable_sequences if packed else describable, tensors)):
        make = described_sequences if packed else described
        return [make(x, block) for x, block in zip(tensors, rows, strict=True)], True
    return list(tensors), False
