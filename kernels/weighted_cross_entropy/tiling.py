"""How a program's block of rows and classes is cut: arithmetic alone."""

import triton
from atlas.declaration.rows import VECTOR_BYTES


def tile_of(config, n: int, size: int) -> tuple[int, int]:
    """(LANES, WIDTH): classes side by side, each with sums of its own, and classes of each that a thread holds.

    A thread has VECTORS 16-byte vectors, of elements of ``size`` bytes.
    """
    vectors = 32 * config["num_warps"] * VECTOR_BYTES // size
    longest = triton.next_power_of_2(n)
    lanes = min(max(1, vectors // config["BLOCK_M"]), longest)
    return lanes, max(1, min(vectors * config["VECTORS"] // (config["BLOCK_M"] * lanes), longest // lanes))
