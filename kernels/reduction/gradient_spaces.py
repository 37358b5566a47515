"""Tuning spaces of reduction's gradients: what fits, what a variant is written for, and where tuning starts."""

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES

from .spaces import SLACK, block_elements, covered, first

TILES_SPACE = {"VECTORS": (1, 2, 4), "BLOCK_N": (16, 64, 256, 1024, 4096), "num_warps": (4, 8)}
FLAT_SPACE = {"VECTORS": (1, 2, 4), "num_warps": (4, 8)}
FILLED_SPACE = {"VECTORS": (1, 2, 4, 8), "num_warps": (4, 8)}
"""VECTORS are of 16 bytes, each thread's."""

_FARTHEST = 2**30
"""Elements of a row whose places, with those of a program, are counted in 32 bits."""

_MOST_FILLED = 1024
"""Columns of a matrix whose results a program of ``filled`` asks for: all that share a matrix read their indices."""

_AT_ONCE = 2**16
"""Bytes of an SM that its programs write at once (65536 x 40 of fp16: 8.4 us, ``tiles`` 7.9; H100)."""

_SHORTEST_FILLED = 32
"""The shortest row of ``filled``: a program asks for the results of its rows a few hundred at a time."""


def fits_tiles(config, problem: Case, gpu: GPU) -> str:
    columns = problem["n"] if problem["inner"] == 1 else problem["inner"]
    if config["BLOCK_N"] > max(TILES_SPACE["BLOCK_N"][0], triton.next_power_of_2(columns)):
        return "a tile wider than the rows"
    if config["BLOCK_N"] > block_elements(config, problem):
        return "a tile of less than a row"
    if 4 * config["BLOCK_N"] < min(columns, 1024) and not (config["BLOCK_N"] == 64 and _covers_badly(problem)):
        return "rows cut into short pieces"
    return ""


def _covers_badly(problem: Case) -> bool:
    """Whether tiles of 256 columns of max reach far beyond what 64 cover, of 4 bytes: 256 bytes of a row, a run yet.

    264 columns 21.6 us, by 256 30.5; 328 39.5 and 48.2; 840 49.9 and 50.7, by 1024 59.8 (H200).
    """
    inner = problem["inner"]
    wide = element_size(problem.dtype) == 4 and problem["op"] == "max" and inner > 256
    return wide and covered(inner, 256) > SLACK * covered(inner, 64)


def handles_gradient(problem: Case, gpu: GPU) -> str:
    return "the gradient is a view of dout" if problem["op"] in ("sum", "mean") else ""


def handles_flat(problem: Case, gpu: GPU) -> str:
    if problem["inner"] > 1 or problem["n"] % (VECTOR_BYTES // element_size(problem.dtype)) == 0:
        return "another axis than the last was reduced, or rows are whole vectors"
    if problem["n"] >= _FARTHEST:
        return f"rows of {_FARTHEST} elements and more: places in a row are 32 bits wide"
    if problem["op"] == "max" and problem["outer"] == 1:
        return "one row: tiles ask for its index once, here each element does"
    return handles_gradient(problem, gpu)


def _reaches_far(problem: Case, gpu: GPU) -> bool:
    """Whether tiles reach far beyond columns of much to write, and a result is one of many elements.

    Of 16 bits (16 x 4000 x 520: 20.1 us, by tiles 28.5; 1 x 100000 x 648: 32.7 and 41.2; H200).
    """
    size, elements = element_size(problem.dtype), problem["outer"] * problem["n"] * problem["inner"]
    if size != 2 or problem["n"] < 1024 or elements * size < gpu.sms * _AT_ONCE:
        return False
    wide = min(tiles_default(problem, gpu)["BLOCK_N"], triton.next_power_of_2(problem["inner"]))
    return covered(problem["inner"], wide) > SLACK


def handles_filled(problem: Case, gpu: GPU) -> str:
    if problem["op"] != "max":
        return "of max alone the gradient is one element of each column, at an index that is known"
    if problem["inner"] == 1:
        size = element_size(problem.dtype)
        if problem["n"] * size % VECTOR_BYTES == 0 and problem["outer"] * problem["n"] * size < gpu.sms * _AT_ONCE:
            return "rows of whole vectors, and so few that all are written at once: here results wait for zeros"
        return "short rows: nearly as many results as elements" if problem["n"] < _SHORTEST_FILLED else ""
    whole = problem["inner"] % (VECTOR_BYTES // element_size(problem.dtype)) == 0
    if whole and not _reaches_far(problem, gpu):
        return "columns are whole vectors, which tiles cover well"
    if problem["inner"] > _MOST_FILLED:
        return f"more than {_MOST_FILLED} columns: programs that share a matrix would all read its indices"
    return ""


def filled_default(problem: Case, gpu: GPU) -> dict:
    """Eight warps that fill 16 KiB: of matrices with many columns a smaller piece would not pay for their indices.

    Where so large pieces of rows leave SMs idle, the smallest.
    """
    config = {"VECTORS": 4, "num_warps": 8}
    if problem["inner"] == 1 and problem["outer"] * problem["n"] < 2 * gpu.sms * block_elements(config, problem):
        return {"VECTORS": FILLED_SPACE["VECTORS"][0], "num_warps": FILLED_SPACE["num_warps"][0]}
    return config


def tiles_default(problem: Case, gpu: GPU) -> dict:
    """Of max more vectors a thread, since it writes alone (4096 x 32000: 61.5 us, with two 78; H200).

    Columns that wide tiles reach far beyond take narrower ones (max of 1 x 53566 x 1136 bf16: 36.9 us, by 1024 54.5;
    amax of 48 x 1186 x 1498 fp32 173 and 202; H200).
    """
    vectors, inner = 4 if problem["op"] == "max" else 2, problem["inner"]
    far = inner > 1 and covered(inner, 1024) > SLACK * covered(inner, 256)
    narrow = [64] if _covers_badly(problem) else []
    widths = (*narrow, *(1024, 256, 64, 16)[far:])
    preferred = [{"VECTORS": vectors, "BLOCK_N": n, "num_warps": 4} for n in widths]
    return first(TILES_SPACE, fits_tiles, problem, gpu, preferred)


def flat_default(problem: Case, gpu: GPU) -> dict:
    return {"VECTORS": 2 if problem["op"] == "max" else 1, "num_warps": 4}
