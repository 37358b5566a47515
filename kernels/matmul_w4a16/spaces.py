"""Which configs of the products with packed weights are worth a trial, the default of each, and what none can take."""

import triton
from atlas.declaration import GPU, Capability, Case, Config
from atlas.declaration.products import reads_shared_memory

from kernels.common.packed import ROWS

from .direct_space import FEWEST_ROWS, best_direct
from .fragments import ring_stages, stage_bytes
from .shared import shared_bytes

FEW_ROWS = 32
"""The most rows of x for which a group's sums are scaled, and that `shared` takes on Hopper."""


def _foreign(gpu: GPU) -> str:
    """Why neither ``fragments`` nor ``shared`` runs on a GPU."""
    if gpu.backend == "cuda":
        return ""
    return "written in instructions of NVIDIA's tensor cores, which Triton's interpreter and other GPUs lack"


def decodes(problem: Case, gpu: GPU) -> str:
    """Why ``fragments`` does not take a case."""
    if problem["m"] > (8 if problem["n"] * problem["k"] <= 2**22 else 3):
        return "rows of which one reading serves more columns in `shared`"
    return _foreign(gpu)


FRAGMENTS_SPACE = {"ROW_TILES": (1, 2), "DEPTH": (2, 4), "num_warps": (4, 8), "RING": (24, 40, 72)}
"""RING: KiB of the ring, of which whole steps are used."""

# By bits: what was fastest at one of the benchmark's sizes on an H200, or beside it.
_FRAGMENTS = {
    4: ((1, 2, 4, 24), (1, 2, 8, 40), (1, 4, 4, 40), (2, 2, 4, 24), (2, 2, 4, 40), (2, 2, 8, 72)),
    8: ((1, 4, 4, 24), (1, 4, 4, 40), (1, 2, 8, 24), (1, 4, 8, 72), (2, 2, 8, 72)),
}


def fits_fragments(bits, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``fragments`` cannot launch or be the best."""
    if tuple(config[name] for name in FRAGMENTS_SPACE) not in _FRAGMENTS[bits]:
        return "too few bytes under way, too many registers, or x read too often"
    if 2 * stage_bytes(bits, problem["group"], config) > config["RING"] * 1024:
        return "the ring holds no two steps"
    _, _, shared = ring_stages(bits, problem["m"], problem["group"], config)
    return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most" if shared > gpu.shared_bytes else ""


def fragments_default(bits, problem: Case, gpu: GPU) -> dict[str, int]:
    """What was fastest of a few configs on an H200: more bytes a warp where there are few programs.

    5 x 1152 x 3584 in groups of 64: 9.2 us; 10.8 by eight warps, 10.2 with 24 KiB.  Of 8 bits 24 KiB hold three steps,
    with groups' scales but two: 1 x 1152 x 5376 takes 20.6 us then, 11.2 with 40 KiB.
    """
    few = triton.cdiv(problem["n"], ROWS) < 3 * gpu.sms
    deep = bool(problem["group"]) if bits == 8 else few
    shape = (1, 4 if few or bits == 8 else 2, 4, 40 if deep else 24)
    return dict(zip(FRAGMENTS_SPACE, shape, strict=True))


SHARED_SPACE = {
    "ROW_TILES": (1, 2, 4),
    "DEPTH": (2, 4),
    "num_warps": (4, 8),
    "STAGES": (3, 4, 5),
    "SPLITS": (1, 2, 4, 8, 16),
}

SHARED_ROWS = 64
"""The most rows of x that `shared` takes: four row tiles' accumulators of 64 rows are half of a lane's registers."""

# By bits and most rows of x: steps of 128 columns, for 8 bits of 64 too, with two to four programs an SM.  More rows
# want more row tiles a warp, for which x is read from shared memory once.
_SHARED = {
    (4, 16): ((1, 2, 4, 4), (1, 2, 4, 5), (1, 2, 8, 4), (2, 2, 4, 4), (2, 2, 8, 4), (2, 4, 4, 3)),
    (4, 32): ((1, 2, 8, 4), (2, 2, 4, 4), (2, 2, 8, 4), (2, 4, 4, 3), (4, 2, 4, 3), (4, 2, 8, 3)),
    (4, 64): ((2, 2, 4, 3), (2, 2, 4, 4), (2, 2, 8, 4), (4, 2, 4, 3), (4, 2, 8, 3)),
    (8, 16): ((1, 4, 4, 4), (2, 2, 4, 5), (2, 4, 4, 4), (2, 4, 8, 4)),
    (8, 32): ((2, 2, 4, 5), (2, 4, 4, 3), (2, 4, 4, 4), (2, 4, 8, 4), (4, 2, 4, 4), (4, 4, 4, 3)),
    (8, 64): ((2, 2, 4, 5), (2, 4, 4, 3), (2, 4, 8, 3), (4, 2, 4, 4), (4, 4, 4, 3), (4, 2, 8, 4)),
}
_WARPS_OF_SM = (6, 16)
"""Warps for each SM that programs have in all: fewer wait for memory, more do not fit at once."""


def shares(bits, problem: Case, gpu: GPU) -> str:
    """Why ``shared`` does not take a case."""
    if Capability.WGMMA in gpu.capabilities and problem["n"] % 8 == 0:
        if problem["m"] > FEW_ROWS:
            return f"more than {FEW_ROWS} rows, of which `specialized` multiplies more at a time"
        if _directly(bits, problem, gpu):
            return "`direct` should end sooner"
    return _foreign(gpu) or ("" if problem["m"] <= SHARED_ROWS else f"more than {SHARED_ROWS} rows")


def _shared_shapes(bits, problem: Case):
    """Shapes worth a trial, for the rows that accumulators are made for."""
    return _SHARED[bits, next(rows for rows in (16, 32, SHARED_ROWS) if problem["m"] <= rows)]


def _steps_and_warps(bits, config: Config, problem: Case):
    """(steps of k, warps of all programs that share it)."""
    rows = ROWS * config["ROW_TILES"] * config["num_warps"]
    steps = triton.cdiv(problem["k"] * bits, 256 * config["DEPTH"])
    return steps, triton.cdiv(problem["n"], rows) * config["num_warps"]


def fits_shared(bits, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``shared`` cannot launch or be the best."""
    *shape, splits = (config[name] for name in SHARED_SPACE)
    if tuple(shape) not in _shared_shapes(bits, problem):
        return "too few bytes under way, too many registers, or programs too large to run beside each other"
    if problem["group"] and config["DEPTH"] * 256 // bits % problem["group"]:
        return "a group is longer than a step"
    if bits == 4 and problem["group"] == 32 and problem["m"] > FEW_ROWS and config["ROW_TILES"] == 4:
        return "two groups' scales beside the sums of 64 rows spill"
    steps, warps = _steps_and_warps(bits, config, problem)
    fewest, most = (gpu.sms * number for number in _WARPS_OF_SM)
    if splits > 1 and splits * warps > most:
        return "more parts than run at once"
    if 2 * splits in SHARED_SPACE["SPLITS"] and 8 * splits <= steps and splits * warps < fewest:
        return "SMs without work"
    _, bytes_ = shared_bytes(bits, problem["m"], problem["group"], problem["zeros"], config)
    return f"{bytes_} bytes of shared memory, {gpu.shared_bytes} at most" if bytes_ > gpu.shared_bytes else ""


def shared_default(bits, problem: Case, gpu: GPU) -> dict[str, int]:
    """As many parts of k as give each SM its warps, unless they get short."""
    shape = (1, 4, 4, 4) if bits == 8 else (2, 2, 4, 4)
    if problem["m"] > 16:
        shape = (2, 4, 4, 3) if bits == 8 else (2, 2, 4, 4 if problem["m"] <= 32 else 3)
    config = dict(zip(SHARED_SPACE, (*shape, 1), strict=True))
    steps, warps = _steps_and_warps(bits, config, problem)
    fewest = _WARPS_OF_SM[0] * gpu.sms
    while config["SPLITS"] < 16 and 8 * config["SPLITS"] <= steps and config["SPLITS"] * warps < fewest:
        config["SPLITS"] *= 2
    return config


_SHARED_US = {4: 7.3, 8: 9.1}
"""What `shared` takes by bits, without its steps, for more than 16 rows; for fewer it is 7.3."""


def shared_us(bits, problem: Case, gpu: GPU) -> float:
    """When the default of ``shared`` should end for 9 to 32 rows, in microseconds.

    Steps and programs of the busiest SM, and parts, which the last program adds: 18 times of an H200, 4 % off at most;
    of up to 16 rows five times, 6 %.
    """
    config = shared_default(bits, problem, gpu)
    splits = config["SPLITS"]
    steps, warps = _steps_and_warps(bits, config, problem)
    programs = triton.cdiv(warps * splits // config["num_warps"], gpu.sms)
    if problem["m"] <= 16:
        return 7.3 + programs * 0.25 * triton.cdiv(steps, splits) + 0.28 * splits
    return _SHARED_US[bits] + programs * (1.4 + 0.475 * triton.cdiv(steps, splits)) + 0.28 * splits


_FOR_DIRECT = {4: (6e6, 30e6), 8: (6e6, 36e6)}
"""By bits the least and the most weights that `direct` multiplies by 17 to 32 rows.

With less it was not timed; 34.9 million of 4 bits are even (32x9728x3584: 19.9 us, by `shared` 19.5), 67 million late
(32x8192x8192: 24.2, 22.7).
"""


def _directly(bits, problem: Case, gpu: GPU) -> bool:
    """Whether ``direct`` should be sooner on a GPU that has it."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    least, most = _FOR_DIRECT[bits]
    if m < FEWEST_ROWS or not least <= n * k <= most:
        return False
    return best_direct(bits, problem["group"], m, n, k, gpu.sms)[0] < shared_us(bits, problem, gpu)


TILES_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (64,),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3),
}


def fits_tiles(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``tiles`` cannot launch or be the best."""
    if config == tiles_default(problem, gpu):
        return ""
    rows, columns, warps = (config[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps"))
    if not _tensor_cores(gpu):
        return "without tensor cores operands lie in registers, as fp32: a larger tile spills"
    if problem["m"] <= FEW_ROWS:
        return "few rows are better left to `fragments`: one config shows by how much"
    if rows < 64 or config["num_stages"] < 3:
        return "many rows want each weight, once it is brought to 16 bits, to be used often"
    if not 16 <= columns * 64 // (32 * warps) <= 32 or rows * columns // (32 * warps) > 64:
        return "weights or accumulators that spill, or too few for so many warps"
    if rows >= 2 * problem["m"] or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as y"
    return ""


def _tensor_cores(gpu: GPU) -> bool:
    return Capability.TENSOR_CORES in gpu.capabilities


def tiles_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The tallest tile that y fills; small ones where there are no tensor cores."""
    shape = (16, 32, 64, 4, 2)
    if _tensor_cores(gpu):
        tall = {16: (16, 64, 64, 4, 3), 32: (32, 64, 64, 4, 3), 64: (64, 64, 64, 4, 3)}
        height = next((rows for rows in tall if rows >= problem["m"]), 128)
        # 128 rows spill 8 bytes a thread on sm_80 (Triton 3.7.1)
        tallest = (128, 64, 64, 8, 3) if reads_shared_memory(problem, gpu) else tall[64]
        shape = tall.get(height, tallest)
        if problem["n"] <= 32:
            shape = (shape[0], 32, 64, 4, 3)
    rows, columns, k, warps, stages = shape
    return {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": k, "GROUP_M": 8, "num_warps": warps, "num_stages": stages}
