"""The variant `odd_rows` of products of 16 bits: few rows times a matrix whose rows lie off 16 bytes, read as they lie.

A copy for the copy engine would read and write the matrix once more than the product does.  Threads copy 4 or 8 bytes
at a time to shared memory instead, asynchronously.
"""

import functools
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant, element_size

from kernels.common.counting import cdiv

ODD_ROWS_SPACE = {
    "BLOCK_M": (16, 32, 64),
    "BLOCK_N": (32, 64),
    "BLOCK_K": (64, 128),
    "SPLITS": (1, 2, 4, 8),
    "num_warps": (4,),
    "num_stages": (4,),
}

_MOST_ROWS = 64
_LEAST_BYTES = 2**23
"""Of the matrix: a smaller one is copied in little more than the time of a launch."""


def odd_rows(launch: Callable, row_lengths: Callable[[Case], tuple[int, int, int]], least: int = 2) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]; ``row_lengths(case)`` are those of A, of B and of C.

    ``least``: rows.  Where nothing else multiplies a vector, one is as good as two.
    """
    return Variant(
        name="odd_rows",
        summary="few rows times a matrix off 16 bytes, copied asynchronously by 4 or 8; parts of K are added up after",
        launch=launch,
        space=ODD_ROWS_SPACE,
        default=_default,
        fits=_fits,
        handles=functools.partial(_handles, row_lengths, least),
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="split_descriptor",
    )


def _handles(row_lengths: Callable, least: int, problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    size = element_size(problem.dtype)
    if size != 2:
        return "for tensor cores' 16 bits"
    if not least <= problem["m"] <= _MOST_ROWS:
        return f"{least} to {_MOST_ROWS} rows are few"
    length = row_lengths(problem)[1]
    if length * size % 16 == 0:
        return "rows of B lie at whole 16 bytes, as the copy engine reads them"
    if length * size % 4:
        return "what lies off 4 bytes is not copied asynchronously"
    if problem["n"] * problem["k"] * size < _LEAST_BYTES and not gpu.functional:
        return "B is copied in little more than the time of a launch"
    return ""


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best."""
    rows = max(16, triton.next_power_of_2(problem["m"]))
    if config["BLOCK_M"] != rows:
        return "the tile is not as thin as C"
    stage = (rows + config["BLOCK_N"]) * config["BLOCK_K"] * element_size(problem.dtype)
    if config["num_stages"] * stage > gpu.shared_bytes:
        return f"{config['num_stages'] * stage} bytes of shared memory, {gpu.shared_bytes} at most"
    if config["SPLITS"] > 1 and problem["k"] < 2 * config["SPLITS"] * config["BLOCK_K"]:
        return "parts of less than two blocks"
    return ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    rows = max(16, triton.next_power_of_2(problem["m"]))
    tiles = cdiv(problem["n"], 64)
    splits = next((s for s in (1, 2, 4) if tiles * s >= 1.9 * gpu.sms or problem["k"] < 4 * s * 64), 8)
    return dict(zip(ODD_ROWS_SPACE, (rows, 64, 64, splits, 4, 4), strict=True))
