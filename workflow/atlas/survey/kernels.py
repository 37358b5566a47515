"""Triton kernels that do nothing but move bytes or multiply tiles, as fast as the hardware lets them.

The streams take vectors whose length is a multiple of BLOCK, so they need no masks.
"""

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """y = x."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def read(x_ptr, sums_ptr, BLOCK: tl.constexpr):
    """Sums of blocks: one written for BLOCK read."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offs), axis=0))


@triton.jit
def write(y_ptr, value, BLOCK: tl.constexpr):
    """y = value."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.full((BLOCK,), value, y_ptr.dtype.element_ty))


@triton.jit
def add(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """out = x + y: two streams read, one written."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs))


@triton.jit
def read_again(x_ptr, sums_ptr, blocks, passes, BLOCK: tl.constexpr):
    """Every program reads ``passes`` blocks of x, each program starting at another: together they read x many times.

    ``.cg`` caches in L2 alone, so that L1 cannot answer.
    """
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(passes):
        block = (program + step) % blocks
        total += tl.load(x_ptr + block * BLOCK + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(sums_ptr + program, tl.sum(total, axis=0))


@triton.jit
def multiply(
    a_ptr, b_ptr, sums_ptr, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Each program multiplies the same two pairs of tiles again and again: tensor cores at work, no memory traffic.

    Two pairs, so that the operands change from one product to the next as in real work: power, and with it the clock,
    depends on how many bits flip.
    """
    offs_m, offs_n, offs_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * BLOCK_K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] + offs_n[None, :] * BLOCK_K
    a0, a1 = tl.load(a_ptrs), tl.load(a_ptrs + BLOCK_M * BLOCK_K)
    b0, b1 = tl.load(b_ptrs), tl.load(b_ptrs + BLOCK_N * BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for _ in range(steps):
        acc = tl.dot(a0, b0, acc, out_dtype=ACC)
        acc = tl.dot(a1, b1, acc, out_dtype=ACC)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(tl.sum(acc, axis=1), axis=0))


@triton.jit
def empty():
    """Nothing: what remains is launching."""
