"""Rows of softmax in tiles and in lanes of 16 bytes, for both passes."""

import math

import triton
import triton.language as tl
from atlas.declaration.rows import VECTOR_BYTES


@triton.jit
def tile_of_rows(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr):
    """A program's BLOCK_M rows of n columns: (first, rows from there, columns, offsets from the first row, inside).

    All but ``first`` have 32 bits: of short rows a thread holds pieces of many, each with an address of its own.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    offs_m = tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    left = tl.minimum(m - first, BLOCK_M).to(tl.int32)
    return first, offs_m, offs_n, offs_m * n + offs_n, (offs_m < left) & (offs_n < n) | EVEN


@triton.jit
def cut_row(row, n, WIDTH: tl.constexpr):
    """A row that begins anywhere, cut for accesses of WIDTH aligned elements: (first, head, body).

    `first` is the row's first aligned element in the tensor, `head` how many lie before it (at most WIDTH - 1), `body`
    how many follow in whole lanes; up to WIDTH - 1 more remain, the tail.
    """
    first = (row * n + (WIDTH - 1)) // WIDTH * WIDTH
    head = tl.minimum(first - row * n, n).to(tl.int32)
    return first, head, (n - head) // WIDTH * WIDTH


@triton.jit
def edges(head, body, n, WIDTH: tl.constexpr):
    """The columns before and after a row's whole lanes, and whether there are such: [2 * WIDTH] each."""
    i = tl.arange(0, 2 * WIDTH)
    offs = tl.where(i < WIDTH, i, head + body + i - WIDTH)
    return offs, tl.where(i < WIDTH, i < head, offs < n)


def matrix_of(x, causal):
    """(m, n, q): rows, their length, and how many make up a matrix of causal scores (else 1)."""
    n = x.shape[-1] if x.dim() else 1
    return x.numel() // n, n, x.shape[-2] if causal else 1


def tile_shape(x, m, n, config):
    """Meta-parameters of kernels that hold BLOCK_M whole rows."""
    block_m, columns = config["BLOCK_M"], triton.next_power_of_2(n)
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": columns,
        "WIDTH": math.gcd(n, VECTOR_BYTES // x.element_size()),
        "EVEN": m % block_m == 0 and n == columns,
        "num_warps": config["num_warps"],
    }


def lane_shape(x, n, config):
    """Meta-parameters of kernels that stream rows."""
    vector = VECTOR_BYTES // x.element_size()
    return {
        "LANES": config["BLOCK_N"] // vector,
        "WIDTH": vector,
        "ALIGNED": n % vector == 0,
        "num_warps": config["num_warps"],
    }
