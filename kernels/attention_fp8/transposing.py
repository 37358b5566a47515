"""V^T for the Gluon kernel: wgmma takes 8-bit operands with the summed dimension contiguous only, of V the keys.

A kernel of its own transposes V; it reads and writes V once, where attention reads it once for each block of rows.
Keys are written in the order in which a thread's elements of P lie.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.attention.hopper_tiles import head_strides

GROUP = 16
"""Keys that are reordered among themselves, and what a row of the transposed V is a multiple of."""


@triton.jit
def _byte(word, number: tl.constexpr):
    return (word >> 8 * number) & 255


@triton.jit
def _transpose_kernel(
    v_ptr, out_ptr, heads, len_k, padded, stride_vb, stride_vh, stride_vs, WORDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of 4 BLOCK keys of a head V^T, [4 WORDS, padded], in the order of the Gluon kernel's P; 0 past the last.

    All is in words of four bytes: strides, ``padded``, pointers.  A thread reads four columns of four keys, and writes
    four keys of four columns: it is words, not bytes, that go through shared memory.
    """
    blocks = tl.cdiv(padded, BLOCK)
    place, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    position = block * BLOCK + tl.arange(0, BLOCK)
    keys = position // 4 * 16 + position % 4 * 2  # and the next, and those 8 and 9 behind
    columns = tl.arange(0, WORDS)
    v_ptr += (place // heads).to(tl.int64) * stride_vb + (place % heads).to(tl.int64) * stride_vh
    v_ptrs = v_ptr + keys.to(tl.int64)[:, None] * stride_vs + columns[None, :]
    a = tl.load(v_ptrs, mask=(keys < len_k)[:, None], other=0)
    b = tl.load(v_ptrs + stride_vs, mask=(keys + 1 < len_k)[:, None], other=0)
    c = tl.load(v_ptrs + 8 * stride_vs, mask=(keys + 8 < len_k)[:, None], other=0)
    d = tl.load(v_ptrs + 9 * stride_vs, mask=(keys + 9 < len_k)[:, None], other=0)
    out_ptrs = out_ptr + (place.to(tl.int64) * WORDS + columns)[None, :] * 4 * padded + position[:, None]
    for number in tl.static_range(4):
        word = _byte(a, number) | _byte(b, number) << 8 | _byte(c, number) << 16 | _byte(d, number) << 24
        tl.store(out_ptrs + number * padded, word, mask=(position < padded)[:, None])


def transposed(v):
    """V^T [b, g, d, s up to a multiple of GROUP] for the Gluon kernel; rows of v begin at 4 bytes."""
    batch, heads, length, head_dim = v.shape
    padded = -(-length // GROUP) * GROUP
    out = torch.empty((batch, heads, head_dim, padded), dtype=v.dtype, device=v.device)
    words, block = v.as_strided(v.shape, head_strides(v)).view(torch.int32), 32
    launch(
        _transpose_kernel, (batch * heads * -(-padded // (4 * block)),),
        words, out.view(torch.int32), heads, length, padded // 4, *words.stride()[:3],
        WORDS=head_dim // 4, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out
