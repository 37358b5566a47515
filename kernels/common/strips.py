"""Rows of up to a thousand elements, of which a few lanes of a warp hold each, in strips of a vector of each lane.

What is summed over a row is exchanged between those lanes alone, by a few shuffles, and a warp has several rows under
way.  Rows that are no whole vectors are read in whole ones from the 16 bytes on in which they begin.
"""

import math

import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES


@triton.jit
def begin_of(first, VECTOR: tl.constexpr, ANYWHERE: tl.constexpr):
    """(base, shift): where the first vector of rows begins whose first elements are number ``first`` of the tensor, and
    how many elements before those; ANYWHERE: rows may begin within a vector."""
    base = first
    if ANYWHERE:
        base = first // VECTOR * VECTOR
    return base, (first - base).to(tl.int32)


@triton.jit
def columns_of(shift, i, WIDTH: tl.constexpr):
    """Of strip i of WIDTH elements: their columns, beyond the row's either end where they are not its own."""
    return i * WIDTH + tl.arange(0, WIDTH)[None, :] - shift[:, None]


@triton.jit
def strip_of(
    x_ptr, base, shift, mask_m, end, stride_n, i,
    N: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    """Strip i of rows in fp32, -inf where an element is not the row's; the tensor has ``end`` elements.

    A vector in which the tensor ends is read element by element.
    """
    offs = i * WIDTH + tl.arange(0, WIDTH)[None, :]
    ptrs = x_ptr + (base[:, None] + offs.to(tl.int64) * stride_n)
    mask = mask_m[:, None]
    if ANYWHERE:
        column = offs - shift[:, None]
        lead = offs // VECTOR * VECTOR
        left = tl.minimum(end - base, N + 2 * VECTOR).to(tl.int32)[:, None]
        mask = mask & (lead < shift[:, None] + N)
        x = tl.load(ptrs, mask=mask & (lead + VECTOR <= left), other=-float("inf")).to(tl.float32)
        if (i + 1) * WIDTH > N:
            if tl.program_id(0) == tl.num_programs(0) - 1:
                rest = mask & (lead + VECTOR > left) & (offs < left)
                x = tl.where(rest, tl.load(ptrs, mask=rest, other=0.0).to(tl.float32), x)
            x = tl.where(column < N, x, -float("inf"))
        if i == 0:
            x = tl.where(column >= 0, x, -float("inf"))
    else:
        if (i + 1) * WIDTH > N:
            mask = mask & (offs < N)
        x = tl.load(ptrs, mask=mask, other=-float("inf")).to(tl.float32)
    return x


def cut(n, size, width, neighbours, config):
    """What kernels are launched with for rows of n elements of ``size`` bytes, of which ``width`` are accessed at once
    where all rows begin alike; ``neighbours``: rows may be read from anywhere on, since elements lie side by side."""
    vector = VECTOR_BYTES // size
    anywhere = neighbours and width * size < VECTOR_BYTES // 2 and n > vector
    vector = vector if anywhere else width
    strip = config["LANES"] * vector
    return {
        "WIDTH": strip, "VECTOR": vector, "ANYWHERE": anywhere,
        "STRIPS": triton.cdiv(n + (vector - 1 if anywhere else 0), strip),
        "BLOCK_M": 32 // config["LANES"] * config["num_warps"] * config["ROWS"],
    }  # fmt: skip


def widest(size, *counts):
    """Elements of the widest access that divides all ``counts`` of elements."""
    return math.gcd(VECTOR_BYTES // size, *counts)
