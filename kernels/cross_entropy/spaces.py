"""Spaces of the variants: what fits, what each is for, and what runs untuned."""

import triton
from atlas.declaration.cases import element_size
from atlas.declaration.rows import REGISTERS, VECTOR_BYTES, block_n, fits_stream, most_warps, rows_obstacle

from .cases import flags_of

_LIVE = {False: 1, True: 2}
"""Registers for each element of a tile in registers: the logit; with the gradient the logit and its exponential."""


def only(gradient, problem):
    wanted = flags_of(problem)["gradient"]
    if wanted == gradient:
        return ""
    return "the forward pass computes the gradient" if wanted else "no gradient is asked for"


def handles_rows(problem, gpu):
    """Rows that fill at most half of an SM's registers: a program that fills more runs alone, and memory idles."""
    longest = REGISTERS // 4 // _LIVE[flags_of(problem)["gradient"]]
    return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""


def fits_rows(config, problem, gpu):
    return rows_obstacle(config, problem, _LIVE[flags_of(problem)["gradient"]])


def fits_blocks(config, problem, gpu):
    return fits_stream(config, problem, gpu, BLOCKS[0])


def blocks_default(problem, gpu):
    """Two 16-byte vectors a thread of 8 warps, of more where the rows are too few to fill the SMs."""
    wanted = triton.next_power_of_2(gpu.sms * gpu.warps_per_sm // max(problem["m"], 1))
    warps = max(8, min(most_warps(gpu), wanted))
    longest = max(block_n(problem), BLOCKS[0])
    block = min(warps * 2 * 32 * VECTOR_BYTES // element_size(problem.dtype), longest, BLOCKS[-1])
    return {"BLOCK_N": block, "num_warps": max(4, block * element_size(problem.dtype) // (2 * 32 * VECTOR_BYTES))}


BLOCKS = (1024, 2048, 4096, 8192, 16384)
BLOCKS_SPACE = {"BLOCK_N": BLOCKS, "num_warps": (4, 8, 16, 32)}
