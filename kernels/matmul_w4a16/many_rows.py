"""Products with packed weights of many rows: configs worth a trial, defaults, and which variant is for what.

What tells `direct`, `specialized`, `converted` and `separate` apart is when they should end, by estimates fitted to
timings of an H200.
"""

import functools
import math

import triton
from atlas.declaration import GPU, Capability, Case, Config

from .direct_space import FEWEST_ROWS, best_direct
from .spaces import FEW_ROWS, shared_us

SPECIALIZED_SPACE = {
    "BLOCK_M": (64, 128, 256),
    "GROUP_M": (1, 4, 16),
    "AHEAD": (0, 16),
    "SPLITS": (1, 2, 3, 4, 6, 8),
}
"""AHEAD: how many packed tiles ahead the copy engine brings weights to L2; 0: it does not.
SPLITS: parts of k, each a program's."""

STEPS_AHEAD = {64: 4, 128: 4, 256: 2}
"""Steps of 64 columns that weights are loaded ahead, by BLOCK_M: as many as registers hold."""

CONVERTED_SPACE = {"ROWS": (64, 128), "GROUP_M": (4, 8, 16), "SPLITS": (1, 2, 3, 4, 6, 8)}
"""ROWS: of each of two groups of warps.  SPLITS: as above."""

SEPARATE_SPACE = {"BLOCK_N": (32,), "BLOCK_K": (64, 128, 256), "num_warps": (4, 8)}
DEQUANTISE = {"BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4}

LITTLE = 2**26
"""Multiplications of a case that all variants take, whatever the estimates say, so that all are checked."""

_LARGE = 2**30
"""Multiplications from which on `specialized` gives way to others."""

_UNRECORDED_US = 30
"""What a call of `separate` takes the host, which repeats no recording of it: shorter ones are left to others.

1024 x 2048 x 1152 takes the device 17.0 us, 19.2 by `specialized`."""


# --- When variants should end, in microseconds -----------------------------------------------------------------------

_STEP_US = {64: 0.367, 128: 0.451, 256: 0.687}
"""What a step of `specialized` takes, by BLOCK_M: with the constants below a fit to 112 times, 3 % off on average."""

_CONVERTED_US = {64: 0.512, 128: 0.749}
"""What a step of `converted` takes, by ROWS."""

_LATE = 1.1
"""Configs whose estimates are so many times the best one are no worth a trial.

Nor shall a call take them for having won elsewhere: 128 x 8192 x 1280 ran 64 programs of 128 rows (18.7 us; 128 of 64
rows: 17.2)."""


def _sum_us(m: int, n: int, splits: int) -> float:
    """To write the parts of [m, n], and the kernel that adds them."""
    return 0.4 + splits * (0.4 + m * n * 8 / 5e6) if splits > 1 else 0.0


def _specialized_us(rows: int, splits: int, m: int, n: int, k: int, sms: int) -> float:
    """Launches, the reordering of x, rounds of programs and the sum of the parts."""
    programs, turn = triton.cdiv(m, rows) * triton.cdiv(n, 128) * splits, STEPS_AHEAD[rows]
    steps = triton.cdiv(triton.cdiv(k, 64 * turn), splits) * turn
    rounds = triton.cdiv(programs, sms)
    return 8.4 + 0.7 * m * k / 1e6 + 1.6 * (rounds - 1) + rounds * steps * _STEP_US[rows] + _sum_us(m, n, splits)


def _converted_us(rows: int, splits: int, m: int, n: int, k: int, sms: int) -> float:
    """The same of `converted`: 59 times, 1.4 % off."""
    programs = triton.cdiv(m, 2 * rows) * triton.cdiv(n, 128) * splits
    steps = triton.cdiv(triton.cdiv(k, 64), splits)
    return 9 + triton.cdiv(programs, sms) * steps * _CONVERTED_US[rows] + _sum_us(m, n, splits)


def _separate_us(m: int, n: int, k: int, sms: int) -> float:
    """Launches, weights on their way, and cuBLAS's product in tiles of 128 x 128.

    Of few tiles k is taken to be cut into up to four parts.  6 % off on average at 21 products.
    """
    weights, tiles = n * k / 1e6, triton.cdiv(m, 128) * triton.cdiv(n, 128)
    busy = max(tiles * parts / (triton.cdiv(tiles * parts, sms) * sms) for parts in (1, 2, 3, 4)) if tiles < sms else 1
    return 9 + 0.67 * weights + max(0.6 * weights, 2 * 128 * triton.cdiv(m, 128) * weights / 800 / busy)


def _much_higher(rows: int, m: int) -> bool:
    """Whether tiles of so many rows are not for y's m: 136x4608x3072 takes 30 us by 256 rows, 26 by 64."""
    return rows > 64 and rows >= (1.6 if rows > 128 else 2) * m


@functools.lru_cache(maxsize=1024)
def _best_specialized(m: int, n: int, k: int, sms: int) -> tuple[float, int, int]:
    """(us, BLOCK_M, SPLITS) of the config of `specialized` that should end first."""
    found = []
    for rows in STEPS_AHEAD:
        if _much_higher(rows, m):
            continue
        tiles, turns = triton.cdiv(m, rows) * triton.cdiv(n, 128), triton.cdiv(k, 64 * STEPS_AHEAD[rows])
        for splits in SPECIALIZED_SPACE["SPLITS"]:
            if splits == 1 or (turns >= splits and tiles * splits <= 2 * sms):
                found.append((_specialized_us(rows, splits, m, n, k, sms), rows, splits))
    return min(found)


@functools.lru_cache(maxsize=1024)
def best_converted(m: int, n: int, k: int, sms: int) -> tuple[float, int, int]:
    """(us, ROWS, SPLITS) of the config of `converted` for [m, k] times [k, n] that should end first."""
    found = []
    for rows in CONVERTED_SPACE["ROWS"]:
        if rows > 64 and (rows >= m or n % 8):
            continue
        tiles = triton.cdiv(m, 2 * rows) * triton.cdiv(n, 128)
        for splits in CONVERTED_SPACE["SPLITS"]:
            if splits == 1 or (triton.cdiv(k, 64) >= splits and tiles * splits <= 2 * sms):
                found.append((_converted_us(rows, splits, m, n, k, sms), rows, splits))
    return min(found)


def _sizes(problem: Case) -> tuple[int, int, int]:
    return problem["m"], problem["n"], problem["k"]


def beyond_gluon(problem: Case, gpu: GPU, few: int = FEW_ROWS) -> str:
    """Why no kernel in Gluon writes the case's rows, more than a ``few``, by TMA."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem["m"] <= few:
        return f"no more than {few} rows"
    return "TMA writes rows of whole 16 bytes" if problem["n"] % 8 else ""


# --- direct ----------------------------------------------------------------------------------------------------------

_SURELY = 0.95
"""Of the estimate of `separate`, which is up to a tenth too long: 89 us for 80 (900x2560x9728)."""

_BRIGHT = 1.1
"""Times the estimate of others: that of `specialized` is 5 % short on average, 35 at 800x4096x4096 (74 us)."""

_TIMED_ROWS = 4096
"""The most rows that `direct` is timed at."""


def directs(bits: int, problem: Case, gpu: GPU) -> str:
    """Why ``direct`` does not take a case."""
    if reason := beyond_gluon(problem, gpu, FEWEST_ROWS - 1):
        return reason
    if problem["m"] > _TIMED_ROWS:
        return f"more than {_TIMED_ROWS} rows: not timed beside `specialized`"
    sizes = _sizes(problem)
    if math.prod(sizes) < LITTLE:
        return ""
    own = best_direct(bits, problem["group"], *sizes, gpu.sms)[0]
    if problem["m"] <= FEW_ROWS:
        return "`shared` should end sooner" if own > _BRIGHT * shared_us(bits, problem, gpu) else ""
    if own > _SURELY * _separate_us(*sizes, gpu.sms) > _UNRECORDED_US:
        return "to write all weights out should cost less"
    others = min(_best_specialized(*sizes, gpu.sms)[0], best_converted(*sizes, gpu.sms)[0])
    return "`specialized` or `converted` should end sooner" if own > _BRIGHT * others else ""


def _behind(bits: int, own: float, problem: Case, gpu: GPU) -> bool:
    """Whether `direct` should be a third sooner, and so leaves others nothing, not even what was tuned before it."""
    sizes = _sizes(problem)
    if math.prod(sizes) < LITTLE or directs(bits, problem, gpu):
        return False
    return own > 1.33 * best_direct(bits, problem["group"], *sizes, gpu.sms)[0]


# --- specialized -----------------------------------------------------------------------------------------------------


def specialises(bits: int, problem: Case, gpu: GPU) -> str:
    """Why ``specialized`` does not take a case."""
    if reason := beyond_gluon(problem, gpu):
        return reason
    sizes = _sizes(problem)
    own = _best_specialized(*sizes, gpu.sms)[0]
    if _behind(bits, own, problem, gpu):
        return "`direct` should end sooner"
    if math.prod(sizes) < _LARGE:
        return ""
    if own > _separate_us(*sizes, gpu.sms) > _UNRECORDED_US:
        return "to bring weights to 16 bits for each tile of x costs more than to write them out"
    return "`converted` should end sooner" if own > best_converted(*sizes, gpu.sms)[0] else ""


def fits_specialized(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``specialized`` cannot be the best."""
    m, n, k = _sizes(problem)
    rows, splits = config["BLOCK_M"], config["SPLITS"]
    if _much_higher(rows, m):
        return "a tile much higher than y"
    tiles = triton.cdiv(m, rows)
    if config["GROUP_M"] >= 2 * tiles:
        return "more than there are tiles of x"
    if triton.cdiv(k, 64 * STEPS_AHEAD[rows]) < splits > 1:
        return "fewer turns of the loop than parts"
    if splits > 1 and (config["GROUP_M"] > 1 or not config["AHEAD"]):
        return "orders and prefetches that matter to many tiles, or not at all"
    if splits > 1 and tiles * triton.cdiv(n, 128) * splits > 2 * gpu.sms:
        return "more parts than run at once"
    late = _specialized_us(rows, splits, m, n, k, gpu.sms) > _LATE * _best_specialized(m, n, k, gpu.sms)[0]
    return "far from the fastest by an estimate" if late else ""


def specialized_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The fastest by an estimate; of many tiles four rows before the next column.

    4096 rows of 8192 x 8192 weights: 746 to 763 us, 768 to 817 by 16 on an H200; 751 and 790 on an H100.
    """
    _, rows, splits = _best_specialized(*_sizes(problem), gpu.sms)
    band = 1 if splits > 1 or triton.cdiv(problem["m"], rows) <= 2 else 4
    return {"BLOCK_M": rows, "GROUP_M": band, "AHEAD": 16, "SPLITS": splits}


# --- converted -------------------------------------------------------------------------------------------------------


def converts(bits: int, problem: Case, gpu: GPU) -> str:
    """Why ``converted`` does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem["m"] <= FEW_ROWS:
        return f"no more than {FEW_ROWS} rows"
    sizes = _sizes(problem)
    if math.prod(sizes) < LITTLE:
        return ""
    if problem["n"] % 8:
        return "rows of y off 16 bytes: this was not timed beside `separate`"
    own = best_converted(*sizes, gpu.sms)[0]
    if _behind(bits, own, problem, gpu):
        return "`direct` should end sooner"
    if own > _separate_us(*sizes, gpu.sms) > _UNRECORDED_US:
        return "to write all weights out costs less"
    return "`specialized` should end sooner" if own > 1.2 * _best_specialized(*sizes, gpu.sms)[0] else ""


def fits_converted(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``converted`` cannot be the best."""
    m, n, k = _sizes(problem)
    rows, splits = config["ROWS"], config["SPLITS"]
    if rows > 64 and (rows >= m or n % 8):
        return "a tile twice as high as y, or rows of y off 16 bytes: their writing spills"
    tiles_m, tiles_n = triton.cdiv(m, 2 * rows), triton.cdiv(n, 128)
    if triton.cdiv(k, 64) < splits > 1:
        return "fewer steps than parts"
    if splits > 1 and tiles_m * tiles_n * splits > 2 * gpu.sms:
        return "more parts than run at once"
    if config["GROUP_M"] != 8 and (tiles_m <= 4 or tiles_m * tiles_n <= 2 * gpu.sms):
        return "an order that does not matter"
    late = _converted_us(rows, splits, m, n, k, gpu.sms) > _LATE * best_converted(m, n, k, gpu.sms)[0]
    return "far from the fastest by an estimate" if late else ""


def converted_config(rows: int, splits: int) -> dict[str, int]:
    """A config, of tiles in the order that serves many shapes."""
    return {"ROWS": rows, "GROUP_M": 8, "SPLITS": splits}


def converted_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The fastest by an estimate."""
    return converted_config(*best_converted(*_sizes(problem), gpu.sms)[1:])


# --- separate --------------------------------------------------------------------------------------------------------


def separates(bits: int, problem: Case, gpu: GPU) -> str:
    """Why ``separate`` does not take a case."""
    if problem["m"] <= FEW_ROWS:
        return f"no more than {FEW_ROWS} rows"
    m, n, k = _sizes(problem)
    if Capability.WGMMA in gpu.capabilities and m * n * k >= LITTLE:
        best = min(_best_specialized(m, n, k, gpu.sms)[0], best_converted(m, n, k, gpu.sms)[0])
        if n % 8 == 0 and _separate_us(m, n, k, gpu.sms) > 1.1 * best:
            return "to write all weights out costs more than to bring them to 16 bits on their way"
        if _behind(bits, _separate_us(m, n, k, gpu.sms), problem, gpu):
            return "`direct` should end sooner"
    return ""


def in_fragments(gpu: GPU) -> bool:
    """Whether weights are written out as fragments, in Gluon."""
    return gpu.backend == "cuda" and Capability.TENSOR_CORES in gpu.capabilities


def fits_separate(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``separate`` is not the best; a lane has 32 weights of a fragment or more."""
    weights = config["BLOCK_N"] * config["BLOCK_K"] // (32 * config["num_warps"])
    fewest = 32 if in_fragments(gpu) else 16
    return "" if fewest <= weights <= 2 * fewest else f"{weights} weights a thread"
