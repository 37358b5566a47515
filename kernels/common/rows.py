"""Rows in registers: how they are cut into tiles, loaded, and kept from taking twice their room.

A program that holds a row in several tiles wastes fewer registers where the row is no power of two long.  ``size`` is
that of an element in bytes, everywhere here; what fits a thread is arithmetic of :mod:`atlas.declaration.rows`.
"""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.rows import VECTOR_BYTES

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32.  A running maximum starts here and not at -inf: exp(-inf - LOWEST) is 0, while
exp(-inf - -inf) would be NaN and spoil rows that merely begin with -inf."""

MOST_CHUNKS = 16
"""Tiles of one row: each is unrolled, and compiling takes time."""

ENOUGH_IN_FLIGHT = 16384
"""Bytes of a tile: with two more of that size prefetched an SM has what covers memory's latency on an H200 (about
4.3 TB/s x 0.7 us / 132 SMs = 23 KB)."""

EXCHANGE_BYTES = 1024
"""Shared memory through which the warps of a program exchange their sums, at most."""


@triton.jit
def load_tiles(ptr, n, mask, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr):
    """A row as CHUNKS tiles of BLOCK_N columns, 0 (the identity of every sum) beyond n and where ``mask`` is not.

    The first WHOLE tiles do not reach beyond n.
    """
    tiles = ()
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)
        tiles += (tl.load(ptr + offs_n, mask=mask & ((offs_n < n) | (i < WHOLE)), other=0.0),)
    return tiles


@triton.jit
def still_packed(x, zero):
    """``x`` as it is, by a detour that keeps the compiler from keeping it in fp32 from one use to the next.

    16-bit elements so stay two to a register, which makes room for rows twice as long.  ``zero`` is an int16 that the
    compiler cannot know to be 0; it may be 1 where the result is NaN anyway.
    """
    if x.dtype.primitive_bitwidth == 16:
        x = (x.to(tl.int16, bitcast=True) ^ zero).to(x.dtype, bitcast=True)
    return x


def tiles_of_vectors(n, size, config):
    """(BLOCK_N, CHUNKS) of a row in tiles of one 16-byte vector a thread."""
    block = 32 * config["num_warps"] * VECTOR_BYTES // size
    return block, triton.cdiv(n, block)


def tiles_of_row(n, size, config):
    """(BLOCK_N, CHUNKS) of a row: one tile, or where n is no power of two tiles of one 16-byte vector a thread."""
    whole = triton.next_power_of_2(n)
    block = max(1, 32 * config["num_warps"] * VECTOR_BYTES // size // config["BLOCK_M"])
    chunks = triton.cdiv(n, block)
    return (whole, 1) if block * chunks >= whole else (block, chunks)


def programs_for(x, config):
    """Programs for blocks of BLOCK_M rows of x [..., n], at most PROGRAMS_PER_SM on each SM where the config says."""
    blocks = triton.cdiv(x.numel() // x.shape[-1], config.get("BLOCK_M", 1))
    return min(blocks, config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms) if "PROGRAMS_PER_SM" in config else blocks


def spans(n, size, config):
    """(span, BLOCK_N, CHUNKS): columns of one of TEAM programs, whole lines of 128 bytes, and how they are cut."""
    line = 128 // size
    span = triton.cdiv(n, line * config["TEAM"]) * line
    return span, *tiles_of_vectors(span, size, config)
