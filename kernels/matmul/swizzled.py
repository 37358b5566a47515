"""The variant `swizzled` of products of fp32: its tiles, how long they should take, and what it takes.

Where tiles are few, K goes to several programs in parts; operands whose rows are off 16 bytes are copied first.
"""

import functools
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.parts import part_of_k

SWIZZLED_SPACE = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (64, 128),
    "BLOCK_K": (32,),
    "GROUP_M": (8,),
    "SPLITS": (1, 2, 3, 4, 6, 8, 12, 16),
    "STAGES": (3, 4),
    "num_warps": (2, 4, 8),
}

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that a GPU reaches with such tiles, once enough warps are on
# every SM.  4 x 8 elements a thread have half as many multiplications, and three quarters of the reads, as 8 x 8.  Of
# programs with 8 x 8, those of fewer warps wait less at barriers: 4096 each way takes 3.03 ms by 2 warps, 3.15 by 8.
TILES = {
    (64, 64, 2): 1.0,
    (128, 64, 4): 0.975,
    (64, 128, 4): 0.965,
    (128, 128, 8): 0.96,
    (64, 64, 4): 0.9,
    (128, 64, 8): 0.89,
    (64, 128, 8): 0.88,
}


def swizzles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype != "fp32":
        return "for FMA; tensor cores read other layouts"
    if Capability.WGMMA not in gpu.capabilities:
        return "written for Hopper"
    return "most of the smallest tile is outside C" if min(problem["m"], problem["n"]) <= 16 else ""


def swizzled(launch: Callable, handles: Callable[[Case, GPU], str] = swizzles) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="swizzled",
        summary="Gluon: fp32 by FMA, from blocks that TMA swizzles, 8 x 8 or 4 x 8 elements a thread",
        launch=launch,
        space=SWIZZLED_SPACE,
        default=_default,
        fits=_fits,
        handles=handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="tiled",
    )


def _programs(tile: tuple[int, int, int]) -> int:
    """Programs that an SM's registers hold, in every layout (ptxas of Triton 3.6).

    8 x 8 elements a thread take up to 255: 8 warps.  4 x 8 take 128 to 160 where a tile is 64 x 64: 12 warps or 16;
    and 128 to 184 where it has 8 warps: there may be room for a second program, or not.
    """
    rows, columns, warps = tile
    return (8 if rows * columns == 64 * 32 * warps else 12) // warps


# Of an SM at 1.7 GHz: 128 multiplications a clock, 85 % of them reached.
MULTIPLICATIONS = 1.9e5
"""In a microsecond."""
_SUM, _BYTES = 2.0, 2.1e4
"""Microseconds for a second kernel; bytes of memory that one SM's share of the bandwidth moves in one."""
_WAITING = 0.6
"""The power of an SM's warps that its rate goes by while they are few: 4 do two thirds of what 8 do (fitted, H200)."""


def turns(tiles: int, programs: int, warps: int, enough: int) -> float:
    """How long an SM takes for its tiles, so many at a time, in tiles at the best rate.

    Fewer warps than ``enough`` wait for what they read; so do those of the last tiles, if few are left: 24 of 197, 768,
    768 leave an SM 9 tiles of 64 x 64, and 2 warps take 22 % longer for each than 4 do.
    """
    full, rest = divmod(tiles, programs)
    return sum(
        times * together / min(1.0, together * warps / enough) ** _WAITING
        for times, together in ((full, programs), (1, rest))
        if together
    )


def enough_warps(k: int) -> int:
    """Warps of 8 x 8 or 4 x 8 elements a thread that an SM multiplies at its best rate with: more for short sums."""
    return 8 if k > 128 else 16


def _microseconds(tile: tuple[int, int, int], splits: int, problem: Case, gpu: GPU) -> float:
    """About how long a product takes: SMs take tiles in step."""
    rows, columns, warps = tile
    m, n, k = problem["m"], problem["n"], problem["k"]
    part = part_of_k(k, splits, 32)
    count = triton.cdiv(k, part) if k else 1
    batch = max(1, dict(problem.sizes).get("b", 1))
    of_one = triton.cdiv(batch * triton.cdiv(m, rows) * triton.cdiv(n, columns) * count, gpu.sms)
    busy = turns(of_one, _programs(tile), warps, enough_warps(k))
    summed = _SUM + 4 * count * m * n / (_BYTES * gpu.sms) if count > 1 else 0.0
    return busy * rows * columns * part / (MULTIPLICATIONS * TILES[tile]) + summed


def microseconds(problem: Case, gpu: GPU) -> float:
    """About how long the best tiles and parts take, copies apart."""
    return _best(problem, gpu)[0]


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, tuple[int, int, int], int]:
    """The shortest time by the estimate, and its tile and parts."""
    return min(
        (_microseconds(tile, splits, problem, gpu), tile, splits)
        for tile in TILES
        for splits in SWIZZLED_SPACE["SPLITS"]
        if not _too_many(splits, problem, gpu)
    )


def _too_many(splits: int, problem: Case, gpu: GPU) -> str:
    """Why K is not cut into so many parts."""
    if splits == 1:
        return ""
    if "b" in dict(problem.sizes):
        return "products of a batch have one part each"
    if problem["k"] < 128 * splits:
        return "parts of less than four blocks"
    tiles = triton.cdiv(problem["m"], 64) * triton.cdiv(problem["n"], 64)
    return f"{tiles} tiles of 64 x 64 reach every SM" if tiles >= gpu.sms else ""


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    tile = (rows, columns, config["num_warps"])
    if tile not in TILES:
        return "other than 8 x 8 or 4 x 8 elements a thread: registers spill, or more is read from shared memory"
    programs = _programs(tile)
    if programs * config["STAGES"] * (rows + columns) * config["BLOCK_K"] * 4 + 1024 * programs > gpu.shared_bytes:
        return "shared memory holds fewer programs than registers do"
    splits = config["SPLITS"]
    if reason := _too_many(splits, problem, gpu):
        return reason
    tiles = triton.cdiv(problem["m"], rows) * triton.cdiv(problem["n"], columns)
    batch = dict(problem.sizes).get("b", 1)
    # Of many rounds the last one weighs little; sums too short to be cut take little in any tile.
    if splits == 1 and batch * tiles >= (4 if problem["k"] >= 256 else 0.5) * gpu.sms:
        return ""
    took = _microseconds(tile, splits, problem, gpu)
    return "" if took < 1.15 * _best(problem, gpu)[0] else "other tiles and parts should end sooner"


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The tile that ends first by the estimates: one of few warps where an SM has several tiles of it, or of many."""
    _, (rows, columns, warps), splits = _best(problem, gpu)
    return dict(zip(SWIZZLED_SPACE, (rows, columns, 32, 8, splits, 3, warps), strict=True))
