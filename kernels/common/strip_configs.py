"""What variants `strips` are for, how few lanes of a warp can hold a row, and what runs untuned."""

import math

import triton
from atlas.declaration.cases import element_size
from atlas.declaration.rows import OTHER_REGISTERS, VECTOR_BYTES, registers_obstacle

SPACE = {"LANES": (1, 2, 4, 8, 16, 32), "ROWS": (1, 2, 4), "num_warps": (2, 4, 8)}
"""Lanes of a warp that hold a row, and rows that each of them has a part of."""

_MOST = 32
"""Lanes of a warp."""


def handles(m, problem, gpu):
    """Why m rows are too long or too few, since a program each reads long rows as well (8192 x 100 of bf16: 7.6 us, and
    10.9 by ``one_pass`` of the plain loss; 65536 x 1000 48 and 52, of fp32 75 and 67; H200)."""
    row = problem["n"] * element_size(problem.dtype)
    if row > 2048:
        return f"rows of {row} bytes, over 2048"
    least = 2**13 if row <= 1024 else 2**14
    return "" if m >= least or gpu.functional else f"{m} rows, under {least}"


def fits(config, problem, live=1):
    """Why lanes cannot have ``live`` numbers of each of their elements in registers, or have none."""
    lanes, widest = config["LANES"], VECTOR_BYTES // element_size(problem.dtype)
    if lanes > 1 and lanes * math.gcd(widest, problem["n"]) >= 2 * problem["n"]:
        return "lanes with nothing of a row"
    needed = live * config["ROWS"] * triton.cdiv(problem["n"] + widest, lanes) + OTHER_REGISTERS
    return registers_obstacle(needed, 32 * config["num_warps"])


def forward_default(problem, gpu):
    """24 classes and more a lane, since fewer lanes exchange less (131072 x 257 of bf16: 36 us with 8 lanes a row, with
    16 48; 65536 x 1000 48 with 16, with 32 54; H200)."""
    return _of_lanes(min(_MOST // 2, problem["n"] // 24))


def backward_default(problem, gpu):
    """A vector a lane: those side by side then write what lies side by side (262144 x 100 of bf16: 36 us with 8 lanes a
    row, with 4 41); of narrow vectors three (10^6 x 13, weighted: 31 us with 4 lanes, with 2 48; H200)."""
    elements = min(8, 3 * math.gcd(4, problem["n"]))
    return _of_lanes(min(_MOST, problem["n"] // elements))


def _of_lanes(most):
    return {"LANES": 1 << max(most.bit_length() - 1, 0), "ROWS": 1, "num_warps": 4}
