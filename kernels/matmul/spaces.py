"""Which configs of matmul's tiles are worth a trial, which is each variant's default, and what none can take."""

import math

from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import uses_tensor_cores

from kernels.common.counting import cdiv
from kernels.common.products import (
    BARRIERS,
    buffers,
    describes,
    fma_stages,
    narrow,
    row_lengths,
    stage_bytes,
    tile_count,
)

from .split_spaces import ends_later


def _shape(config: Config, problem: Case, gpu: GPU) -> str:
    """``thin``: the tile is as tall or as wide as C; ``full``: C has two of the largest tiles for every SM; ``few``."""
    m, n = problem["m"], problem["n"]
    if config["BLOCK_M"] >= max(16, m) or config["BLOCK_N"] >= max(32, n):
        return "thin"
    return "full" if m * n >= 2 * gpu.sms * 128 * 256 else "few"


def fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``tiled`` cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    return ends_later(row_lengths, config, problem, gpu) or _fits_among_tiles(config, problem, gpu)


def _fits_among_tiles(config: Config, problem: Case, gpu: GPU) -> str:
    """The same, whatever other variants do."""
    shared = buffers(config, problem, gpu) * stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if problem.dtype == "tf32" and config["BLOCK_M"] * config["BLOCK_N"] > 64 * 32 * config["num_warps"]:
        return "operands of 32 bits are turned round in registers: with so many accumulators they spill"
    kind = _fits_tensor_cores if uses_tensor_cores(problem, gpu) else _fits_fma
    return _fits_problem(config, problem, gpu) or kind(config, problem, gpu)


def copied(problem: Case, gpu: GPU) -> bool:
    """Whether this GPU has a copy engine that can read the operands."""
    return Capability.TENSOR_DESCRIPTORS in gpu.capabilities and not describes(problem, gpu)


def _fits_problem(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    if rows >= max(32, 2 * problem["m"]) or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as C"
    shape = _shape(config, problem, gpu)
    if shape != "thin" and (rows < 32 or max(rows, columns) > 2 * min(rows, columns)):
        return "of two tiles of one area, the one nearer to square reads less"
    tiles = tile_count(config, problem)
    if rows * columns > 2048 and 4 * tiles < gpu.sms:
        return f"{tiles} tiles leave most of {gpu.sms} SMs idle"
    tensor_cores = uses_tensor_cores(problem, gpu)
    if shape == "few" and tiles > 4 * gpu.sms and (tensor_cores or rows * columns < 64 * 64):
        return f"{tiles} tiles, where fewer and larger ones reach every SM"
    # Programs that run together should cover a square of C.  The order does not matter where all run together, where C
    # is thin, and where FMA is the bound.
    ordered = shape == "full" and tensor_cores
    if not (1024 <= config["GROUP_M"] * rows <= 2048 if ordered else config["GROUP_M"] == 8):
        return "a group far from square, or an order that does not matter"
    return ""


def _fits_tensor_cores(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    accumulators = rows * columns // (32 * warps)
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if narrow(problem):  # a block that waits in registers: with more of either, sm_80 and sm_90 spill (Triton 3.7.1)
        if accumulators > 64 or row_bytes != 64 or config["num_stages"] > 2:
            return "elements that are read one by one take registers, and no stages"
        return ""
    if not (64 if warps > 4 else 4) <= accumulators <= 128:
        # 128 x 256 in 4 warps spills 800 bytes a thread on sm_90 (Triton 3.7.1)
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if not 128 <= row_bytes <= 256:
        return "shared memory is swizzled in rows of 128 bytes: less wastes it, more than two costs a stage"
    shape = _shape(config, problem, gpu)
    if shape == "full" and rows * columns // (rows + columns) < 64:  # multiplications with each element read from L2
        return "reads more from L2 than a larger tile, of which there are enough"
    if copied(problem, gpu):
        return _fits_copied(config, problem, gpu)
    # Latency times bandwidth asks for some 32 KiB under way in every SM.  A full GPU has one or two programs on each;
    # where tiles are small or thin several share an SM and reach it together.
    under_way = (config["num_stages"] - 1) * stage_bytes(config, problem) // 1024
    least, most = {"full": (64, 144), "few": (32, 96), "thin": (16, 96)}[shape]
    if not least <= under_way <= most:
        return f"{under_way} KiB under way: too few to hide latency, or more than that needs"
    return ""


def _fits_copied(config: Config, problem: Case, gpu: GPU) -> str:
    """What sweeps on an H200 left of ``tiled`` and ``descriptor``: deep pipelines, large tiles that still reach SMs."""
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    shape, tiles = _shape(config, problem, gpu), tile_count(config, problem)
    if shape == "few" and 16 * min(problem["m"], problem["n"]) <= max(problem["m"], problem["n"]):
        return "a tile as tall or wide as C reads the other operand once"
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if row_bytes != 128 and (shape == "full" or rows * columns > 128 * 64):
        return "a longer block of K costs a stage"
    if rows * columns > 64 * 32 and 2 * tiles < gpu.sms:
        return f"{tiles} tiles leave half of {gpu.sms} SMs idle"
    if shape == "few" and rows * columns < 128 * 128 and tiles > 2 * gpu.sms:
        return f"{tiles} tiles, where fewer and larger ones reach every SM"
    # One tile an SM may want them: 512 x 4096 x 14336 takes 82.5 us by 128 x 128 in 8 warps, as cuBLAS.
    alone = shape == "few" and rows * columns == 128 * 128
    if config["num_warps"] > 4 and rows * columns < 128 * 256 and problem.dtype != "tf32" and not alone:
        return "4 warps multiply as fast and wait for one another less"
    if config["GROUP_M"] != 8:
        return "an order that brought nothing"
    stage = stage_bytes(config, problem) // 1024
    under_way = (config["num_stages"] - 1) * stage
    least, most = {"full": (80, 144), "few": (96, 144), "thin": (64 if rows < 64 else 96, 168)}[shape]
    if not least <= under_way <= most:
        return f"{under_way} KiB under way: too few to hide latency, or more than that needs"
    deeper = next((stages for stages in SPACE["num_stages"] if stages > config["num_stages"]), math.inf)
    if shape != "full" and (deeper - 1) * stage <= most:
        return "more stages would fit"
    return ""


def _fits_fma(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    accumulators = rows * columns // (32 * warps)
    # 16-bit operands are held a second time, as fp32: 64 x 128 in 4 warps spills 570 bytes on sm_75 (Triton 3.7.1).
    most = 64 if problem.dtype == "fp32" else 32
    if not (32 if warps > 4 else 4) <= accumulators <= most or max(rows, columns) > 128:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if config["BLOCK_K"] > (32 if problem.dtype == "fp32" else 16):
        return "all of a block of A and B passes through registers, in fp32: a longer one spills"
    if config["num_stages"] != fma_stages(problem, gpu):
        return "too few stages to hide latency, or more than FMA leaves to hide"
    if _shape(config, problem, gpu) == "full" and accumulators < 32:
        return "too few multiplications for each operand read from shared memory"
    return ""


SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6, 8),
}

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that a GPU reaches with such tiles on every SM.  Estimates,
# from how often an operand is used again; the tuner replaces them.
_TENSOR_CORE_TILES = {
    (128, 256, 8): 1.0,
    (128, 128, 4): 0.9,
    (128, 128, 8): 0.85,
    (64, 128, 4): 0.7,
    (128, 64, 4): 0.7,
    (64, 64, 4): 0.5,
    (32, 64, 4): 0.3,
    (16, 64, 4): 0.2,
    (16, 32, 4): 0.1,
}

_FMA_TILES = {(128, 128, 8): 1.0, (128, 64, 8): 1.0, (64, 64, 4): 1.02, (32, 64, 4): 0.8, (16, 32, 4): 0.3}


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of a few tiles worth a trial, the one that ends first if all SMs take tiles in step.

    Compute capability 7.5 takes at most 64 x 64: the FMA form of fp16 holds both operands in registers as fp32.
    """
    tensor_cores = uses_tensor_cores(problem, gpu)
    shares = _TENSOR_CORE_TILES if tensor_cores else _FMA_TILES
    if not tensor_cores and gpu.backend == "cuda" and int(gpu.arch) < 80:
        shares = {tile: share for tile, share in shares.items() if tile[0] * tile[1] <= 64 * 64}

    def config(rows, columns, warps):
        stages = fma_stages(problem, gpu)
        block_k = 32 if stages > 2 else 16  # half the barriers; 16 takes fewer registers where loads pass through them
        if tensor_cores and narrow(problem):
            block_k, stages = 64 // element_size(problem.dtype), 2
        elif copied(problem, gpu):
            block_k = (256 if rows * columns <= 128 * 64 else 128) // element_size(problem.dtype)
            stage = (rows + columns) * block_k * element_size(problem.dtype)
            stages = next(s for s in (8, 6, 5, 4, 3) if (s - 1) * stage <= 144 * 1024)
        elif tensor_cores:
            # Rows of 128 bytes in shared memory fill the widest swizzle; a thin tile wants more of K under way.
            block_k = (256 if rows == 16 else 128) // element_size(problem.dtype)
            stages = 3 if rows == 128 else 4
        return dict(zip(SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))

    def seconds(tile):  # in units of one multiplication-addition on every SM
        waves = cdiv(tile_count(config(*tile), problem), gpu.sms)
        return waves * tile[0] * tile[1] / shares[tile]

    fitting = [tile for tile in shares if not _fits_among_tiles(config(*tile), problem, gpu)]
    return config(*min(fitting or list(shares)[-1:], key=seconds))


def copies_along_k(problem: Case, gpu: GPU) -> str:
    """Why ``descriptor`` and ``persistent`` do not take a case."""
    if problem.dtype == "tf32" and problem["k"] < 16 and problem["k"] % 4:
        return "copies along K of columns off 16 bytes, where reading single elements takes less than a launch"
    return describes(problem, gpu)


def fits_descriptor(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``descriptor`` cannot launch, or cannot be the best."""
    size = element_size(problem.dtype)
    if problem.dtype == "tf32":  # the tile of C, of 32 bits, lies beside the blocks
        shared = config["num_stages"] * stage_bytes(config, problem) + config["BLOCK_M"] * config["BLOCK_N"] * size
        if shared + BARRIERS > gpu.shared_bytes:
            return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return fits(config, problem, gpu)


def fits_persistent(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``persistent`` cannot launch, or cannot be the best."""
    beside = config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype) // config["PARTS"]
    if config["PARTS"] > 1 and config["BLOCK_M"] * config["BLOCK_N"] < 128 * 128:
        return "the tile of C is small beside the blocks"
    if _shape(config, problem, gpu) == "thin":
        return "a thin C has no more tiles than programs: `descriptor` with a loop around it"
    return _fits_loop(config, problem, gpu, beside)


def _fits_loop(config: Config, problem: Case, gpu: GPU, beside: int) -> str:
    """Why not this config of a loop over tiles whose epilogue has ``beside`` bytes of shared memory to itself."""
    if reason := ends_later(row_lengths, config, problem, gpu):
        return reason
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    stages = _stages(config, problem, gpu, beside)
    if config["num_stages"] != stages:
        return f"{stages} stages fit, no fewer should be taken"
    largest, tiles = 128 * 256, tile_count(config, problem)
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if row_bytes != 128 and not (row_bytes == 256 and rows * columns <= 128 * 64):
        return "rows of 128 bytes fill the widest swizzle; more costs stages"
    if warps != (8 if rows * columns == largest else 4) or rows * columns > largest:
        return "registers spill, or too little work a warp"
    if min(rows, columns) * 2 < max(rows, columns):
        return "of two tiles of one area, the one nearer to square reads less"
    if 2 * tiles < gpu.sms:
        return f"{tiles} tiles leave half of {gpu.sms} SMs idle"
    if tiles > gpu.sms and rows * columns < largest:
        return "a larger tile, which reads less, would reach every SM"
    if config["GROUP_M"] != 8 and tiles <= 2 * gpu.sms:
        return "an order that does not matter"
    return ""


def _stages(config: Config, problem: Case, gpu: GPU, beside: int) -> int:
    """How many stages there is shared memory for: at least 2, at most 6."""
    return max(2, min(6, (gpu.shared_bytes - BARRIERS - beside) // stage_bytes(config, problem)))


PERSISTENT_SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6),
    "PARTS": (1, 2),
}


def default_persistent(problem: Case, gpu: GPU) -> dict[str, int]:
    tile = default(problem, gpu)
    wgmma = Capability.WGMMA in gpu.capabilities
    if wgmma and problem.dtype == "tf32" and tile["BLOCK_M"] == tile["BLOCK_N"] == 128:
        tile["BLOCK_N"] = 256  # its operands lie as the tensor cores want them
    parts = 2 if tile["BLOCK_M"] * tile["BLOCK_N"] >= 128 * 128 else 1
    beside = tile["BLOCK_M"] * tile["BLOCK_N"] * element_size(problem.dtype) // parts
    if problem.dtype == "tf32" and not wgmma:
        tile["num_stages"] = 3  # compute capability 10.0 exchanges the whole tile of C through shared memory
    else:
        tile["num_stages"] = 2 if narrow(problem) else _stages(tile, problem, gpu, beside)
    return {**tile, "PARTS": parts}


def fits_specialized(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``specialized`` cannot launch, or cannot be the best."""
    # Two groups of 4 warps multiply, half a tile each.
    halves = {**config, "num_warps": 8}
    return _fits_loop(halves, problem, gpu, config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype))


def specializes(problem: Case, gpu: GPU) -> str:
    """Why ``specialized`` does not take a case."""
    if problem.dtype == "tf32":
        return "Triton 3.6 does not compile it for tf32 operands that must pass through registers"
    return describes(problem, gpu)


SPECIALIZED_SPACE = {
    "BLOCK_M": (128, 256),
    "BLOCK_N": (128, 256),
    "BLOCK_K": (64,),
    "GROUP_M": (8, 16),
    "num_warps": (4,),
    "num_stages": (2, 3, 4),
}


def default_specialized(problem: Case, gpu: GPU) -> dict[str, int]:
    full = _shape({"BLOCK_M": 128, "BLOCK_N": 256}, problem, gpu) == "full"
    return dict(zip(SPECIALIZED_SPACE, (128, 256, 64, 8, 4, 3) if full else (128, 128, 64, 8, 4, 4), strict=True))


def default_naive(problem: Case, gpu: GPU) -> dict[str, int]:
    return {name: values[0] for name, values in NAIVE_SPACE.items()}


# One fixed tile, small enough for every GPU, and no pipelining: the first rung of the ladder.
NAIVE_SPACE = {"BLOCK_M": (64,), "BLOCK_N": (64,), "BLOCK_K": (16,), "num_warps": (4,), "num_stages": (1,)}
