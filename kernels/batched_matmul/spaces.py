"""Which configs of bmm's variants are worth a trial, which is each one's default, and what none can take."""

import triton
from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import uses_tensor_cores

from kernels.common.products import BARRIERS, buffers, fma_stages, layout_of, narrow, row_lengths, stage_bytes
from kernels.matmul.swizzled import swizzles


def fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``tiled`` cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    if Capability.TENSOR_DESCRIPTORS in gpu.capabilities and narrow(problem) and not copies(problem, gpu):
        return "`persistent` takes rows off 16 bytes, and pads them"
    if not swizzles_batch(problem, gpu) and layout_of(problem)[1] == "T":
        return "threads read B along k from one bank of shared memory, where `swizzled` does not"
    return _fits_tile(config, problem, gpu, narrow(problem))


def _fits_tile(config: Config, problem: Case, gpu: GPU, singly: bool) -> str:
    """The same for a tile, whose elements are read one by one if ``singly``."""
    shared = buffers(config, problem, gpu) * stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    if rows >= max(32, 2 * problem["m"]) or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as C"
    few = singly and _few(problem, gpu)
    least = 32 if few else 64
    if rows < min(least, problem["m"]) or columns < min(least, problem["n"]):
        return f"a tile smaller than C and than {least} rows and columns: operands are read too often"
    accumulators = rows * columns // (32 * warps)
    least = 4 if warps == 4 else 64
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if uses_tensor_cores(problem, gpu) and not singly:
        most, right_k, stages = 64 if problem.dtype == "tf32" else 128, row_bytes == 128, (3, 4)
    elif uses_tensor_cores(problem, gpu):  # blocks wait in registers: see kernels/matmul/spaces.py
        most, right_k, stages = 32 if few else 64, row_bytes == (128 if few else 64), (2,)
    else:
        least, most = 16 if warps == 8 else 4, 64 if problem.dtype == "fp32" else 32
        right_k = config["BLOCK_K"] in ((16, 32) if problem.dtype == "fp32" else (16,))
        stages = (fma_stages(problem, gpu),)
    if not least <= accumulators <= most:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if not right_k:
        return "rows of a block of K are of one length: what the swizzle fills, or registers hold"
    return "" if config["num_stages"] in stages else "too little under way, or more than is of use"


SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}


def _few(problem: Case, gpu: GPU) -> bool:
    """Whether tiles of 64 x 64 are less than two for each SM: smaller ones, read singly, have more under way."""
    return _count((64, 64), problem) < 2 * gpu.sms


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    tensor_cores = uses_tensor_cores(problem, gpu)
    small = narrow(problem) and _few(problem, gpu) and (tensor_cores or problem.dtype == "fp32")
    most = 32 if small else 128 if tensor_cores else 64
    rows = min(most, max(16, triton.next_power_of_2(problem["m"])))
    columns = min(most, max(32, triton.next_power_of_2(problem["n"])))
    single = narrow(problem) and problem.dtype == "fp32" and Capability.WGMMA in gpu.capabilities
    if not tensor_cores:
        block_k, stages = 32 if small or single else 16, fma_stages(problem, gpu)
    elif narrow(problem):
        block_k, stages = (128 if small else 64) // element_size(problem.dtype), 2
    else:
        block_k, stages = 128 // element_size(problem.dtype), 3
    # 64 x 64 in 4 warps spills a few bytes in fp32 on compute capability 10.0 (Triton 3.7.1).
    # Single elements by 4 bytes are copied asynchronously: 96 of 197, 64, 1024 TN take 86 us so, 106 in 8 warps (H200).
    warps = 8 if rows * columns == (128 * 128 if tensor_cores else 64 * 64) and not single else 4
    return dict(zip(SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))


def fits_persistent(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``persistent`` cannot launch, or cannot be the best."""
    if problem.dtype == "fp32":
        return copies(problem, gpu)
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    free = _free(config, problem, gpu)
    if free < 0:
        return f"{-free} bytes of shared memory too many"
    if config["num_stages"] < 4 and free > stage_bytes(config, problem):
        return "one more stage would fit"
    if config["PARTS"] > 1 and rows * columns < 128 * 256:
        return "the tile of C is small beside the blocks"
    if rows * columns == 128 * 256 and columns < 256:
        return "wide tiles, as matmul's"
    tile = (rows, columns, config["num_warps"], config["num_stages"])
    if tile not in _tiles(problem):
        return "other tiles spill nothing and have as much under way"
    best = min(_microseconds(other, problem, gpu) for other in _tiles(problem) if _has_room(other, 2, problem, gpu))
    if _microseconds(tile, problem, gpu) > 1.3 * best:
        return "another tile should end sooner"
    return _fits_tile(config, problem, gpu, False)


PERSISTENT_SPACE = {**SPACE, "PARTS": (1, 2)}


def default_persistent(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of the tiles that there is room for the one that ends first if SMs take tiles in step."""
    tiles = [tile for tile in _tiles(problem) if _has_room(tile, 1, problem, gpu)] or _tiles(problem)
    return _persistent_config(min(tiles, key=lambda tile: _microseconds(tile, problem, gpu)), 1, problem)


def _persistent_config(tile: tuple[int, int, int, int], parts: int, problem: Case) -> dict[str, int]:
    rows, columns, warps, stages = tile
    block_k = 128 // element_size(problem.dtype)
    return dict(zip(PERSISTENT_SPACE, (rows, columns, block_k, 8, warps, stages, parts), strict=True))


def _free(config: Config, problem: Case, gpu: GPU) -> int:
    """Bytes of shared memory that ``persistent`` leaves; less than 0 where there are too few."""
    beside = config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype) // config["PARTS"] + BARRIERS
    return gpu.shared_bytes - beside - config["num_stages"] * stage_bytes(config, problem)


def _has_room(tile: tuple[int, int, int, int], parts: int, problem: Case, gpu: GPU) -> bool:
    return _free(_persistent_config(tile, parts, problem), problem, gpu) >= 0


def _tiles(problem: Case) -> tuple[tuple[int, int, int, int], ...]:
    """BLOCK_M, BLOCK_N, num_warps, num_stages of the tiles worth a thought."""
    small = ((64, 64, 4, 4), (64, 128, 4, 4), (128, 64, 4, 4))
    if problem.dtype == "tf32":
        return (*small, (128, 128, 8, 3), (64, 256, 8, 4))
    if problem["n"] % 8:  # written through pointers: a thread with more accumulators took twice as long (H200)
        return (*small, (128, 128, 8, 4))
    return (*small, (128, 128, 4, 4), (128, 256, 8, 3), (128, 256, 8, 4))


# Microseconds of one SM on an H200: see kernels/matmul/split_spaces.py.
_MULTIPLY, _LOAD, _PROGRAM = {"fp16": 3.0e-7, "bf16": 3.0e-7, "tf32": 8.4e-7}, 6.8e-6, 0.5
_SINGLY = 0.02
"""For a step of K of a tile of 64 x 64 whose elements are read one by one."""
_LAUNCH, _COPIED = 2.6, 3.2e6
"""For a kernel that copies; bytes that all SMs copy in one."""


def _microseconds(tile: tuple[int, ...], problem: Case, gpu: GPU) -> float:
    """How long all tiles take, by the copy engine."""
    load = (tile[0] + tile[1]) * element_size(problem.dtype) * _LOAD
    step = max(tile[0] * tile[1] * _MULTIPLY[problem.dtype], load)
    return _rounds(tile, problem, gpu) * (problem["k"] * step + _PROGRAM)


def _rounds(tile: tuple[int, ...], problem: Case, gpu: GPU) -> int:
    """Tiles that an SM takes one after the other."""
    return triton.cdiv(_count(tile, problem), gpu.sms)


def _count(tile: tuple[int, ...], problem: Case) -> int:
    """Tiles of all products."""
    return problem["b"] * triton.cdiv(problem["m"], tile[0]) * triton.cdiv(problem["n"], tile[1])


_MOST_PRODUCTS = 65535


def swizzles_batch(problem: Case, gpu: GPU) -> str:
    """Why ``swizzled`` does not take a case: copies may take longer than reading single elements does."""
    if reason := swizzles(problem, gpu):
        return reason
    if problem["b"] > _MOST_PRODUCTS:
        return f"over {_MOST_PRODUCTS} products, the most that CUDA counts along that axis of a grid"
    copies, turn = _copies_of_swizzled(problem)
    if _count((64, 64), problem) < gpu.sms:
        few = copies and layout_of(problem)[1] == "N"
        return "rows off 16 bytes, and too few tiles for copies of them to pay" if few else ""
    taken = _SWIZZLED * problem["k"] * _count((64, 64), problem) * 64 * 64
    late = problem["k"] >= 128 and copies > 0.4 * taken + turn
    return "copies would take longer than `tiled` loses by reading single elements" if late else ""


_SWIZZLED = 1 / 2.6e7
"""Microseconds of all SMs for a multiplication-addition of `swizzled`, of which `tiled` takes 1.4 (fitted, H200)."""


def _copies_of_swizzled(problem: Case) -> tuple[float, float]:
    """Microseconds that `swizzled` copies operands for (``in_a_row``), and `tiled` to turn B."""
    b, m, n, k, (of_a, of_b) = *(problem[name] for name in "bmnk"), layout_of(problem)
    row_a, row_b, _ = row_lengths(problem)

    def copy(elements):
        return _LAUNCH + 2 * 4 * b * elements / _COPIED

    copied = copy(m * k) if row_a % 4 or (of_a == "T" and k % 32) else 0.0
    copied += copy(k * n) if row_b % 4 or (of_b == "N" and k % 32) else 0.0
    return copied, copy(k * n) if of_b == "T" else 0.0


def copies(problem: Case, gpu: GPU) -> str:
    """Why ``persistent`` does not take a case: copies of rows off 16 bytes must pay."""
    if problem.dtype == "fp32":
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    size, b, m, n, k = element_size(problem.dtype), *(problem[name] for name in "bmnk")
    of_a, of_b = (length * size % 16 != 0 for length in row_lengths(problem)[:2])
    if gpu.functional or problem.dtype == "tf32" or not (of_a or of_b):
        return ""
    copies = (of_a + of_b) * _LAUNCH + 2 * b * size * (of_a * m * k + of_b * k * n) / _COPIED
    singly = _rounds((64, 64), problem, gpu) * k * _SINGLY
    return "" if copies + 3 < singly else "rows off 16 bytes, and too few for copies of them to pay"
