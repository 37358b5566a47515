"""The same for `split` and `vector`, which are for products with few rows or columns."""

import triton
from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import uses_tensor_cores

from kernels.common.counting import cdiv
from kernels.common.products import buffers, layout_of, narrow, stage_bytes, tile_count

from .spaces import copied


def splits_k(problem: Case, gpu: GPU) -> str:
    """Why ``split`` does not take a case."""
    thin = min(problem["m"], problem["n"])
    return f"C is {thin} wide at least: its tiles reach every SM" if thin > _THIN else ""


_THIN = 128
"""Rows or columns of C up to which K is worth splitting: one tile covers them."""


def fits_split(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``split`` cannot launch, or cannot be the best."""
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    m, n, size = problem["m"], problem["n"], element_size(problem.dtype)
    shared = buffers(config, problem, gpu) * stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if (rows if m <= n else columns) != min(_THIN, max(16, triton.next_power_of_2(min(m, n)))):
        return "the tile is not as thin as C"
    warps_per_sm = tile_count(config, problem) * config["SPLITS"] * warps / gpu.sms
    if not 10 <= warps_per_sm <= 36 and config["SPLITS"] != (1 if warps_per_sm > 36 else 16):
        return f"{warps_per_sm:.0f} warps for each SM: too few to hide latency, or more parts than that needs"
    if copied(problem, gpu) or (Capability.TENSOR_DESCRIPTORS in gpu.capabilities and narrow(problem)):
        return "blocks of the copy engine are `split_descriptor`'s"
    if not uses_tensor_cores(problem, gpu) or narrow(problem):
        if config["num_stages"] > 1 or config["BLOCK_K"] * size > 64 or not 4 <= rows * columns // (32 * warps) <= 32:
            return "all of a block passes through registers: a larger one spills"
        return ""
    if config["num_stages"] > 1:
        under_way = (config["num_stages"] - 1) * stage_bytes(config, problem) // 1024
        return "" if 32 <= under_way <= 64 and rows * columns <= 4096 else f"{under_way} KiB under way"
    if warps < 8:
        return "8 warps, or ptxas of CUDA 12.9 spills a few bytes"
    streamed = (columns if m <= n else rows) * config["BLOCK_K"] * size // (32 * warps)
    return "" if streamed == 128 else f"{streamed} bytes a thread at a time, where eight loads of 16 hide latency"


SPLIT_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "BLOCK_K": (16, 32, 64, 128),
    "SPLITS": (1, 2, 4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (1, 4),
}


def default_split(problem: Case, gpu: GPU) -> dict[str, int]:
    thin = min(_THIN, max(16, triton.next_power_of_2(min(problem["m"], problem["n"]))))
    size = element_size(problem.dtype)
    block_k, wide, warps = 256 // size, 128, 8
    if not uses_tensor_cores(problem, gpu) or narrow(problem):
        block_k, wide = (16, 32) if problem.dtype != "fp32" or thin > 32 else (16, 64)
        warps = 8 if thin * wide >= 2048 else 4
    rows, columns = (thin, wide) if problem["m"] <= problem["n"] else (wide, thin)
    tiles = cdiv(problem["m"], rows) * cdiv(problem["n"], columns)
    splits = next((s for s in (1, 2, 4, 8) if tiles * s * warps >= 12 * gpu.sms), 16)
    return dict(zip(SPLIT_SPACE, (rows, columns, block_k, splits, warps, 1), strict=True))


def has_vector(problem: Case, gpu: GPU) -> str:
    """Why ``vector`` does not take a case."""
    if min(problem["m"], problem["n"]) > 1:
        return "neither operand is a vector"
    return ""


def _along_the_sum(problem: Case) -> bool:
    """Whether the matrix that a vector is multiplied with is contiguous along K."""
    of_a, of_b = layout_of(problem)
    return of_b == "T" if problem["m"] == 1 else of_a == "N"


def fits_vector(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``vector`` cannot be the best."""
    size, block_n, warps = element_size(problem.dtype), config["BLOCK_N"], config["num_warps"]
    if block_n * config["BLOCK_K"] * size // (32 * warps) != 128:
        return "other than eight loads of 16 bytes a thread at a time"
    if block_n > 16 if _along_the_sum(problem) else not 32 <= block_n * size <= 128:
        return "rows of 32 to 128 bytes where columns are adjacent, long ones where K is"
    tiles = cdiv(max(problem["m"], problem["n"]), block_n)
    warps_per_sm = tiles * config["SPLITS"] * warps / gpu.sms
    least = 3 if config["SPLITS"] == 1 else 12  # a second kernel takes longer than fewer warps wait
    if not least <= warps_per_sm <= 40 and config["SPLITS"] != (1 if warps_per_sm > 40 else 16):
        return f"{warps_per_sm:.0f} warps for each SM: too few to hide latency, or more parts than that needs"
    return ""


VECTOR_SPACE = {
    "BLOCK_N": (2, 4, 8, 16, 32, 64),
    "BLOCK_K": (64, 128, 256, 512, 1024, 2048, 4096),
    "SPLITS": (1, 2, 4, 8, 16),
    "num_warps": (4, 8, 16),
}


def default_vector(problem: Case, gpu: GPU) -> dict[str, int]:
    """Narrower blocks rather than parts of K, which a second kernel would add up: 1 to 2 us of 8 to 12 on an H200.

    Rows of 4 KiB where K is as long: 1 x 8192 x 10244 NT takes 69.9 us so, 80.4 by twice as many of half the length.
    """
    size, warps, along = element_size(problem.dtype), 8, _along_the_sum(problem)
    length = max(problem["m"], problem["n"])

    def warps_per_sm(block_n):
        return cdiv(length, block_n) * warps / gpu.sms

    wide = (16, 8) if problem["k"] * size < 4096 else (8,)
    narrow_blocks = (4, 2) if size == 4 else (4,)
    blocks, enough = ((*wide, *narrow_blocks), 12) if along else ((128 // size, 64 // size, 32 // size), 6)
    block_n = next((block for block in blocks if warps_per_sm(block) >= enough), blocks[-1])
    alone = warps_per_sm(block_n)
    splits = 1 if alone >= 3 else next((s for s in (2, 4, 8) if alone * s >= 12), 16)
    block_k = 128 * 32 * warps // (block_n * size)
    return dict(zip(VECTOR_SPACE, (block_n, block_k, splits, warps), strict=True))
