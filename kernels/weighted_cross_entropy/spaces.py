"""Spaces of the variants: what fits, and what runs untuned."""

import triton
from atlas.declaration.cases import element_size
from atlas.declaration.rows import OTHER_REGISTERS, VECTOR_BYTES, points, registers_obstacle

from .cases import rows_of
from .tiling import tile_of

SPACE = {
    "BLOCK_M": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
    "VECTORS": (1, 2, 4),
    "num_warps": (4, 8),
}
"""BLOCK_M rows of a program, VECTORS of 16 bytes of each thread."""


def _vectors(config, problem):
    """Elements of one vector of each thread."""
    return 32 * config["num_warps"] * VECTOR_BYTES // element_size(problem.dtype)


def fits(live):
    """``fits`` of a pass that keeps ``live`` numbers of each element of a block in registers."""

    def obstacle(config, problem, gpu):
        rows, vectors, smallest = config["BLOCK_M"], _vectors(config, problem), config["VECTORS"] == 1
        if rows > vectors:
            return "more rows than a vector of each thread"
        if problem["last"] != (rows < 16) and (problem["last"] or rows_of(problem) > 16):
            return "rows side by side" if problem["last"] else "rows cut into less than 32 bytes"
        _, width = tile_of(config, problem["n"], element_size(problem.dtype))
        if not smallest and width < config["VECTORS"]:
            return "a block of more classes than there are"
        if rows > 1 and rows >= 2 * triton.next_power_of_2(rows_of(problem)) and rows > 16:
            return "a block with room for twice the rows there are"
        needed = config["VECTORS"] * vectors // (32 * config["num_warps"]) * live + OTHER_REGISTERS
        return registers_obstacle(needed, 32 * config["num_warps"])

    return obstacle


def default(live, vectors, programs):
    """``default`` of the same pass: ``vectors`` of each thread, and as many rows as leave so many programs for an SM.

    With 0 ``programs``, where classes are dealt out to programs as well, half of the rows that there is room for.
    """
    obstacle = fits(live)

    def chosen(problem, gpu):
        m = rows_of(problem)
        size = element_size(problem.dtype)
        warps = 8 if problem["last"] and problem["n"] >= 4096 else 4
        room = 32 * warps * VECTOR_BYTES // size
        if problem["last"]:
            rows = max(1, min(8, room // triton.next_power_of_2(problem["n"])))
        else:
            rows = room if programs else min(room // 2, max(32, triton.next_power_of_2(m)))
            while rows > 32 and m < programs * gpu.sms * rows:
                rows //= 2
        wanted = [{"BLOCK_M": rows, "VECTORS": v, "num_warps": w} for v in (vectors, 2, 1) for w in (warps, 4)]
        fitting = (config for config in (*wanted, *points(SPACE)) if not obstacle(config, problem, gpu))
        return next(fitting)

    return chosen
