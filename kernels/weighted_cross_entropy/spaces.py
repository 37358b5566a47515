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


def default(live, vectors, of_columns):
    """``default`` of the same pass: ``vectors`` of each thread where classes lie last, else ``of_columns``' config."""
    obstacle = fits(live)

    def chosen(problem, gpu):
        size = element_size(problem.dtype)
        if problem["last"]:
            warps = 8 if problem["n"] >= 4096 else 4
            rows = max(1, min(8, 32 * warps * VECTOR_BYTES // size // triton.next_power_of_2(problem["n"])))
            wanted = [{"BLOCK_M": rows, "VECTORS": v, "num_warps": w} for v in (vectors, 2, 1) for w in (warps, 4)]
        else:
            first = of_columns(rows_of(problem), 32 * VECTOR_BYTES // size, problem, gpu)
            wanted = [first | {"VECTORS": v} for v in (first["VECTORS"], 2, 1)]
        fitting = (config for config in (*wanted, *points(SPACE)) if not obstacle(config, problem, gpu))
        return next(fitting)

    return chosen


def forward_of_columns(m, of_warp, problem, gpu):
    """A row a lane of a vector where three programs for each SM are left; else more warps, which share rows' classes.

    ``of_warp``: elements of a vector of each of a warp's threads.  Where lanes share a row, more than one vector of
    each spills: 4 x 256 x 50176 of bf16 took 264 us, and takes 86 with 512 rows by 8 warps (H100; torch.compile: 95).
    """
    if m >= 3 * gpu.sms * 4 * of_warp:
        return {"BLOCK_M": 4 * of_warp, "VECTORS": 2 if problem["probabilities"] else 4, "num_warps": 4}
    rows = 2 * of_warp
    while rows > 32 and m < 2 * gpu.sms * rows:
        rows //= 2
    return {"BLOCK_M": rows, "VECTORS": 1, "num_warps": 8}


def backward_of_columns(m, of_warp, problem, gpu):
    """Half of the rows that there is room for: programs deal out classes as well."""
    return {"BLOCK_M": min(2 * of_warp, max(32, triton.next_power_of_2(m))), "VECTORS": 2, "num_warps": 4}
