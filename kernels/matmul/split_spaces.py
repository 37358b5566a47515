"""The variant `split_descriptor` of products: how long its tiles and parts should take, and which of them fit by that.

Shapes with few tiles, or with rows off 16 bytes, are many and tuned cases few: one estimate serves them all.  Its
constants were fitted to 270 timings of 39 shapes in bf16 on an H200: what it takes for the best is 2 % slower than the
best in the geometric mean, and 16 % at worst.
"""

import functools
import math
from collections.abc import Callable

from atlas.declaration import GPU, Capability, Case, Config, Variant, element_size

from kernels.common.counting import cdiv
from kernels.common.parts import part_of_k
from kernels.common.products import layout_of

from .hopper_spaces import few_columns, few_rows, multiplies_by_groups, rounds_end_later
from .less_waste import OF_64_COLUMNS, few_tiles, is_tall, of_less_waste
from .swizzled import swizzles, turns

SPLIT_DESCRIPTOR_SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128, 256),
    "GROUP_M": (1, 8),
    "SPLITS": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "num_warps": (4, 8),
    "num_stages": (3, 4, 5),
}

_OF_16_BITS = (
    (16, 64, 256, 4, 4),
    (16, 128, 128, 4, 5),
    (32, 128, 128, 4, 4),
    (64, 32, 128, 4, 5),
    (64, 64, 128, 4, 5),
    (64, 128, 128, 4, 4),
    (128, 32, 128, 4, 4),
    (128, 128, 64, 4, 5),
    (128, 256, 64, 8, 4),
)
_TILES = {
    "tf32": ((16, 64, 128, 4, 4), (32, 64, 64, 4, 5), (64, 64, 64, 4, 5), (64, 128, 32, 4, 5), (128, 128, 32, 8, 4)),
    "fp32": ((16, 64, 32, 4, 3), (32, 64, 32, 4, 3), (64, 32, 32, 4, 3), (64, 64, 16, 4, 3)),
}
"""BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages of the tiles worth a thought: some 160 KiB under way on an SM."""

_ODD_ROWS = (*_OF_16_BITS[:-2], (128, 128, 64, 8, 4))
"""The same where rows of C are off 16 bytes: a thread has half as many elements to write, or it spills."""

_WIDE = ((16, 256, 64, 4, 5), (64, 256, 64, 4, 5))
"""Beside those, of few rows and so many columns that 128 at a time are more tiles than SMs.

14 x 18944 x 1152 NT takes 21.1 us by 74 tiles of 16 x 256, 23.7 by 148 of 16 x 128, and `gluon` 28.6 (H200).  Beside a
residual the larger one spills.
"""

_LONG = 8192
"""Elements of K beyond which those of 16 rows are left out where B lies along it, of which they read 128 bytes a row.

2 x 28672 x 18944 NT takes 278 us so, 261 by tiles of 16 x 128 with 256 bytes, 275 by such with 128; 4 x 28672 x 8192 by
rows 117 and 120 (H200).
"""

_SHORT = 1024
"""Elements of K beyond which tiles of 32 rows are for at most 64 rows of C.

Tensor cores take a tile of 64 rows at once, from shared memory (wgmma); one of 32 goes through registers (mma.sync),
with a stage less under way, and costs more than it gains by reaching more SMs: 135 x 2048 x 3072 NT takes 15.3 us by 80
tiles of 32 x 128, 11.3 by 96 of 64 x 64; 256 x 2048 x 2048 NT 11.6 by 128, 7.9 by as many of 64 x 64 (H200).  A short
sum is begin and end for the most part.
"""

# Microseconds on an H200, of one SM or of all.
_MULTIPLY = {"bf16": 3.0e-7, "fp16": 3.0e-7, "tf32": 8.4e-7, "fp32": 1.5e-5}
"""For one multiplication-addition of a tile."""
_LOAD = 6.8e-6
"""For each byte of A's and B's blocks."""
_LOAD_ONE = 3e-4
"""For each element where rows are off 16 bytes and are read through pointers."""
_PROGRAM, _CALL, _SUM, _COPY = 2.3, 1.0, 0.7, 2.6
"""For a program's begin and end, for a call, for the kernel that sums, for one that copies."""
_READ, _PASS = 4.0e4, 2.4e4
"""Bytes that one SM's share of memory moves in one: read by the copy engine; written and read again."""
_ENOUGH_WARPS = 10
"""Of fp32, whose threads have few elements each, on an SM: fewer wait for what they read."""
_HIDDEN = 0.3
"""The share of reading memory that multiplying hides, or the other way round."""

_PAYS = 1.15
"""How much sooner the best should end for a config to be passed over."""

_AHEAD, _WHOLE = 1.05, 64
"""How much sooner parts should end than tiles with all of K, of 16 bits and at least so many rows and columns.

Where the estimate has them alike, tiles end sooner: 384 x 1536 x 3072 takes 12.5 us by 72 of 64 x 128, 13.4 by three
parts of 128 x 128; 192 x 2048 x 4608 14.0 by 96 of 64 x 64, 15.0 by two parts of 64 x 128 (H200).  Timed of more than
128 rows and columns; a tall C has tiles of its own.
"""

_STRIP = (128, 128, 64, 4, 5)
"""The tile with all of K of 65 to 128 rows whose columns make one for most SMs, but no two.

More parts read the rows more often, and the same at once: 80 x 11008 x 4096 takes 35.1 us by 86 of them, 39.2 by three
parts of 128 x 256; 128 x 14336 x 4096 40.1, by groups of warps of their own 41.5 (H200).  At 64 of them 64 x 128 reach
every SM: 96 x 8192 x 4096 26.9 us for 32.2.
"""


def split_descriptor(launch: Callable, row_lengths: Callable[[Case], tuple[int, int, int]]) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]; ``row_lengths(case)`` are those of A, of B and of C."""
    return Variant(
        name="split_descriptor",
        summary="`descriptor` for any shape: K in parts where tiles are few, operands off 16 bytes copied first",
        launch=launch,
        space=SPLIT_DESCRIPTOR_SPACE,
        default=functools.partial(_default, row_lengths),
        fits=functools.partial(_fits, row_lengths),
        handles=functools.partial(_handles, row_lengths),
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="descriptor",
    )


def ends_later(row_lengths: Callable, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of another variant, with all of K in each program, is not the best by the estimate.

    Other tiles should end sooner, whose last round leaves fewer SMs idle; or ``split_descriptor`` should.
    """
    if Capability.TENSOR_DESCRIPTORS not in gpu.capabilities:
        return ""
    if not swizzles(problem, gpu):
        return _left_to_swizzled(row_lengths, config, problem, gpu)
    tile = (config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"])
    single = any(off_16_bytes(row_lengths(problem)[:2], problem))
    if _microseconds(tile, 1, problem, gpu, single) >= _PAYS * _best(row_lengths, problem, gpu)[0]:
        return "other tiles, or parts, should end sooner"
    return rounds_end_later(config["BLOCK_M"], config["BLOCK_N"], problem, gpu)


def _left_to_swizzled(row_lengths: Callable, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config that reads fp32 through pointers is left to ``swizzled``."""
    if layout_of(problem)[1] == "T":
        return "threads read B along k from one bank of shared memory, where `swizzled` does not"
    if any(off_16_bytes(row_lengths(problem)[:2], problem)):
        return "`swizzled` copies rows off 16 bytes first"
    tiles = cdiv(problem["m"], config["BLOCK_M"]) * cdiv(problem["n"], config["BLOCK_N"])
    few = 2 * tiles < gpu.sms
    return f"{tiles} tiles leave half of {gpu.sms} SMs idle, where `swizzled` splits K" if few else ""


def off_16_bytes(lengths: tuple[int, ...], problem: Case) -> tuple[bool, ...]:
    """Of each row length, whether rows of so many elements begin off 16 bytes."""
    return tuple(length * element_size(problem.dtype) % 16 != 0 for length in lengths)


def _handles(row_lengths: Callable, problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if not swizzles(problem, gpu):
        return "fp32 by FMA is `swizzled`'s"
    least = min(_shared_bytes(tile, problem) for tile in _tiles(row_lengths, problem, gpu))
    if least > gpu.shared_bytes:
        return f"{least} bytes of shared memory at least, {gpu.shared_bytes} at most"
    if gpu.functional or few_tiles(problem, gpu) or few_rows(problem) or few_columns(problem):
        return ""
    if not any(off_16_bytes(row_lengths(problem), problem)):
        return "tiles reach every SM, and the copy engine reads rows as they lie"
    flags = dict(problem.sizes)
    if Capability.WGMMA not in gpu.capabilities or multiplies_by_groups(problem, gpu) or flags.get("residual"):
        return ""
    return "tiles reach every SM, and kernels in Gluon copy rows off 16 bytes, too"


def _programs(tile: tuple[int, ...], splits: int, problem: Case) -> int:
    return cdiv(problem["m"], tile[0]) * cdiv(problem["n"], tile[1]) * splits


def _microseconds(tile: tuple[int, ...], splits: int, problem: Case, gpu: GPU, single: bool = False) -> float:
    """How long a product takes in tiles of BLOCK_M x BLOCK_N x BLOCK_K and K in ``splits`` parts, copies apart.

    ``single``: elements are read one by one.
    """
    rows, columns, block_k = tile[:3]
    m, n, k, size = problem["m"], problem["n"], problem["k"], element_size(problem.dtype)
    part = part_of_k(k, splits, block_k)
    count = cdiv(k, part) if k else 1
    rounds = cdiv(_programs(tile, count, problem), gpu.sms)
    if problem.dtype == "fp32":  # an SM has room for three programs of 4 warps, and FMA for all of them
        rounds = turns(rounds, 3, 4, _ENOUGH_WARPS)
    load = (rows + columns) * (_LOAD_ONE if single else size * _LOAD)
    step = max(rows * columns * _MULTIPLY[problem.dtype], load)
    moved = (m * k + k * n + m * n) * size / (_READ * gpu.sms)
    summed = _SUM + 4 * count * m * n / (_PASS * gpu.sms) if count > 1 else 0.0
    busy = rounds * (part * step + _PROGRAM)
    return max(busy, moved) + (1 - _HIDDEN) * min(busy, moved) + summed + _CALL


def _copies(row_lengths: Callable, problem: Case, gpu: GPU) -> float:
    """Microseconds for the copies of operands whose rows are off 16 bytes."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    elements = (m * k, k * n)
    return sum(
        _COPY + 2 * count * element_size(problem.dtype) / (_PASS * gpu.sms)
        for count, off in zip(elements, off_16_bytes(row_lengths(problem)[:2], problem), strict=True)
        if off
    )


@functools.lru_cache(maxsize=4096)
def _best(row_lengths: Callable, problem: Case, gpu: GPU) -> tuple[float, tuple[int, ...], int]:
    """The shortest time by the estimate, and its tile and parts: one, where the variant does not take the case.

    Of equal times that of fewer programs, and of about equal ones that of one part.  It is infinite where shared memory
    has room for no tile, as on compute capability 12.0.
    """
    taken = not _handles(row_lengths, problem, gpu)
    copies = _copies(row_lengths, problem, gpu)
    most = _most_programs(problem, gpu)
    found = [
        (copies + _microseconds(tile, splits, problem, gpu), tile, splits)
        for tile in _tiles(row_lengths, problem, gpu)
        for splits in (_splits(tile, most, problem) if taken else (1,))
        if _shared_bytes(tile, problem) <= gpu.shared_bytes
    ]
    if fills_most(row_lengths, problem, gpu):
        found = [one for one in found if one[1:] == (_STRIP, 1)] or found
    best = _first(found, problem)
    timed = problem.dtype in ("bf16", "fp16") and min(problem["m"], problem["n"]) > 128
    if best[2] == 1 or not timed or (is_tall(problem) and of_less_waste(problem, gpu)):
        return best
    whole = _first([one for one in found if one[2] == 1 and min(one[1][:2]) >= _WHOLE], problem)
    return whole if whole[0] <= _AHEAD * best[0] else best


def _first(found: list[tuple[float, tuple[int, ...], int]], problem: Case) -> tuple[float, tuple[int, ...], int]:
    """Of times, tiles and parts the shortest, and of equal ones that of fewer programs."""
    return min(found, key=lambda one: (one[0], _programs(*one[1:], problem)), default=(math.inf, (), 1))


def times_of_split(row_lengths: Callable, problem: Case, gpu: GPU) -> tuple[float, int, int] | None:
    """(how long ``split_descriptor`` should take, rows of its tiles, parts of K), where it takes a case."""
    if _handles(row_lengths, problem, gpu):
        return None
    best, tile, splits = _best(row_lengths, problem, gpu)
    return best, tile[0], splits


def _tiles(row_lengths: Callable, problem: Case, gpu: GPU) -> tuple[tuple[int, ...], ...]:
    if problem.dtype not in ("bf16", "fp16"):
        return _TILES[problem.dtype]
    residual, odd = dict(problem.sizes).get("residual"), _writes_elements(row_lengths, problem)
    tiles = _ODD_ROWS if odd else _OF_16_BITS
    if problem["m"] > 64 and problem["k"] > _SHORT:
        tiles = tuple(tile for tile in tiles if tile[0] != 32)
    if 32 < problem["n"] <= 64 < problem["m"]:
        tiles = (*tiles, OF_64_COLUMNS)
    if few_tiles(problem, gpu):
        return (*tiles, *of_less_waste(problem, gpu))
    if odd or not few_rows(problem):
        return tiles
    if problem["m"] <= 16 and problem["k"] > _LONG and layout_of(problem)[1] == "T":
        return tiles
    return (*tiles, *(_WIDE[:1] if residual else _WIDE))


def _writes_elements(row_lengths: Callable, problem: Case) -> bool:
    return any(off_16_bytes(row_lengths(problem)[2:], problem))


def fills_most(row_lengths: Callable, problem: Case, gpu: GPU) -> bool:
    """Whether C is one row of tiles of 128 x 128, one for most SMs, with a long sum."""
    tiles = cdiv(problem["n"], _STRIP[1])
    if not 3 * gpu.sms <= 5 * tiles <= 5 * gpu.sms or not 64 < problem["m"] <= _STRIP[0]:
        return False
    wide = problem.dtype in ("bf16", "fp16") and not _writes_elements(row_lengths, problem)
    return wide and problem["k"] >= _SHORT


def _group(problem: Case) -> int:
    """Rows of tiles in a group: of a tall C one, so that programs beside each other read the same rows of A.

    4096 x 384 x 4096: 30.1 us for 32.0, 3072 x 520 x 3072: 28.9 for 31.6 (H200).
    """
    return 1 if is_tall(problem) else 8


def _most_programs(problem: Case, gpu: GPU) -> float:
    """How many programs parts of K may make.

    Where tiles are chosen to be few, more than SMs take longer than by the estimate: of 4096 x 264 x 8192 three parts
    of 256 x 64 64 us, one 53, two of 64 x 128 98 (H200).
    """
    return gpu.sms if of_less_waste(problem, gpu) else math.inf


def _splits(tile: tuple[int, ...], most: float, problem: Case) -> tuple[int, ...]:
    """Numbers of parts that leave each at least two blocks, and ``most`` programs; always one part."""
    blocks = cdiv(problem["k"], tile[2])
    return tuple(
        splits
        for splits in SPLIT_DESCRIPTOR_SPACE["SPLITS"]
        if splits == 1 or (2 * splits <= blocks and _programs(tile, splits, problem) <= most)
    )


def _shared_bytes(tile: tuple[int, ...], problem: Case) -> int:
    rows, columns, block_k, _, stages = tile
    return (rows + columns) * block_k * stages * element_size(problem.dtype)


def _fits(row_lengths: Callable, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    tile, splits = tuple(config[name] for name in names), config["SPLITS"]
    if tile not in _tiles(row_lengths, problem, gpu):
        return "other tiles have as many bytes under way and spill nothing"
    if config["GROUP_M"] != _group(problem):
        return "an order in which programs beside each other share less"
    shared = _shared_bytes(tile, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if splits not in _splits(tile, _most_programs(problem, gpu), problem):
        return "parts of less than two blocks, or too many"
    best = _best(row_lengths, problem, gpu)[0] - _copies(row_lengths, problem, gpu)
    return "" if _microseconds(tile, splits, problem, gpu) < _PAYS * best else "other tiles and parts should end sooner"


def _default(row_lengths: Callable, problem: Case, gpu: GPU) -> dict[str, int]:
    _, (rows, columns, block_k, warps, stages), splits = _best(row_lengths, problem, gpu)
    values = (rows, columns, block_k, _group(problem), splits, warps, stages)
    return dict(zip(SPLIT_DESCRIPTOR_SPACE, values, strict=True))
