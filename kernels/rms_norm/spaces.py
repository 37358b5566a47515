"""Tuning spaces of rms_norm: what fits, what a variant is written for, and where tuning starts."""

import math
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import (
    OTHER_REGISTERS,
    REGISTERS,
    VECTOR_BYTES,
    points,
    registers_obstacle,
    rows_apart,
    spread_obstacle,
)

from kernels.common.exchange import team_obstacle
from kernels.common.odd_rows import fits_odd
from kernels.common.rows import ENOUGH_IN_FLIGHT, EXCHANGE_BYTES, MOST_CHUNKS, tiles_of_row

ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16, 32, 64), "num_warps": (1, 2, 4, 8, 16)}
LATE_SPACE = {"BLOCK_M": (1,), "num_warps": (8, 16, 32), "AGAIN": (True, False)}
STREAM_SPACE = {"BLOCK_N": (1024, 2048, 4096, 8192, 16384), "num_warps": (4, 8, 16, 32)}
BACKWARD_SPACE = {
    "BLOCK_M": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 3, 4),
    "PROGRAMS_PER_SM": (1, 2, 4),
}
TEAM_SPACE = {"TEAM": (2, 4, 8), "num_warps": (8, 16), "num_stages": (3,)}
REREAD_SPACE = {
    "BLOCK_N": (1024, 2048, 4096, 8192),
    "num_warps": (8, 16, 32),
    "PROGRAMS_PER_SM": (1, 2),
    "KEEP": (False, True),
}
COLUMNS_SPACE = {"BLOCK_M": (2, 4), "BLOCK_N": (512, 1024), "num_warps": (4,), "PROGRAMS_PER_SM": (4, 8)}

_FORWARD_LIVE, _BACKWARD_LIVE = (0.25, 2), (1.75, 3)
"""Row and weight; sum of dweight, x, dy and weight (what ptxas of Triton 3.7 needs without spilling, with some to spare
for what is computed of them)."""

_TEAM_LIVE = (2.5, 6)
"""Sum of dweight and what is computed of an element; two rows of x and dy, and weight."""

_REREAD_VALUES = 5.0


def _live(problem: Case, wide: float, narrow: int) -> float:
    """Registers for each element of a tile: ``wide`` values in fp32 and ``narrow`` ones in the case's dtype."""
    return wide + narrow * element_size(problem.dtype) / 4


def handles_what_fits(space: dict, fits: Callable, longest: float = math.inf):
    """``handles``: rows of at most ``longest`` elements for which some config of the space fits."""

    def handles(problem: Case, gpu: GPU) -> str:
        if problem["n"] > longest:
            return f"rows of {problem['n']} elements, over {longest}"
        if any(not fits(config, problem, gpu) for config in points(space)):
            return ""
        return f"rows of {problem['n']} elements fit no config"

    return handles


def least(space: dict, fits: Callable, penalty: Callable[[dict, Case, GPU], tuple]):
    """``default``: of the configs that fit the one of least ``penalty``."""

    def default(problem: Case, gpu: GPU) -> dict:
        fitting = [config for config in points(space) if not fits(config, problem, gpu)]
        return min(fitting, key=lambda config: penalty(config, problem, gpu))

    return default


def away_from(elements: int):
    """``penalty``: doublings away from ``elements`` a thread and one row a tile; lanes beyond the row count twice.

    Of long rows not of whole 16-byte vectors half as many: each element has an address and a mask of its own.  Forward
    16 of short rows that are: a program that prefetches nothing is done sooner.  Nor more of others with a residual,
    which is loaded beside them (16384 x 389 bf16: 22.1 us for 25.0; H200).
    """

    def penalty(config: dict, problem: Case, gpu: GPU) -> tuple:
        long, odd = problem["n"] > 512, problem["n"] * element_size(problem.dtype) % VECTOR_BYTES
        many = long or (odd and not problem["residual"])
        wanted = elements / 2 if long and odd else elements if many else 16
        return _misfit(config, problem, wanted) + math.log2(config["BLOCK_M"]) / 4, -config["num_warps"]

    return penalty


def _misfit(config: dict, problem: Case, wanted: float) -> float:
    """Doublings away from ``wanted`` elements a thread, and twice those by lanes beyond the row."""
    block, chunks = tiles_of_row(problem["n"], element_size(problem.dtype), config)
    held = config["BLOCK_M"] * block * chunks / (32 * config["num_warps"])
    return abs(math.log2(held / wanted)) + 2 * math.log2(block * chunks / problem["n"])


def one_pass_default(problem: Case, gpu: GPU) -> dict:
    """24 elements a thread; of many rows of 65 to 128 16-bit elements sixteen rows by two warps, half as many programs,
    while half of the L2 holds x and out.

    (65536 x 80 of fp16: 6.94 us, 7.53 by eight; 40000 x 96 of bf16: 5.44 and 6.12; 32768 x 128: 5.20 and 5.63; H200.)
    """
    m, n, size = problem["m"], problem["n"], element_size(problem.dtype)
    short = size == 2 and 64 < n <= 128 and n * size % VECTOR_BYTES == 0 and not problem["residual"]
    if short and 8 * 16 * gpu.sms <= m <= gpu.l2_bytes // (4 * n * size):
        return {"BLOCK_M": 16, "num_warps": 2}
    return least(ROWS_SPACE, fits_one_pass, away_from(elements=24))(problem, gpu)


def prefetching(elements: int):
    """``penalty`` of programs that prefetch rows and sum up dweight: as :func:`away_from`, doublings of bytes on their
    way to an SM that are lacking, and what one more program an SM writes.

    48 KiB are enough, and half of what an SM reads in all.  Each program leaves a row of dweight in fp32 to be read
    again: of few rows that takes as long as rows themselves (529 x 2834 bf16: 15.2 us by a program an SM, by a program
    a row 19.6; H100, Triton 3.6), and longer where a few columns leave few programs to read them (22488 x 96: 18.2 us
    with 528 rows of dweight, 14.3 with 264; H200).  A program alone writes dweight itself, which saves a launch.
    """

    def penalty(config: dict, problem: Case, gpu: GPU) -> tuple:
        m, row, per_sm = problem["m"], 2 * problem["n"] * element_size(problem.dtype), config["PROGRAMS_PER_SM"]
        ahead, lacking = (config["num_stages"] - 1) * config["BLOCK_M"] * row * per_sm, 0.0
        if ahead:
            enough = 3 * ENOUGH_IN_FLIGHT if m <= gpu.sms else min(3 * ENOUGH_IN_FLIGHT, m * row / gpu.sms / 2)
            lacking = max(0.0, math.log2(enough / ahead))
        programs = min(triton.cdiv(m, config["BLOCK_M"]), per_sm * gpu.sms)
        sums = 2 * (programs > 1) + 4 * (1 + 256 / problem["n"]) * max(0, programs - gpu.sms) / m
        return (
            _misfit(config, problem, elements) + math.log2(config["BLOCK_M"]) / 8 + 1.5 * lacking + sums,
            abs(config["num_stages"] - 3),
            -per_sm * config["num_warps"],
        )

    return penalty


def _rows_obstacle(config: dict, problem: Case, live: tuple, programs: int = 1) -> str:
    """Why the registers of an SM do not hold the rows of ``programs`` programs, or ``""``; ``live`` as for _live."""
    threads, size = 32 * config["num_warps"], element_size(problem.dtype)
    block, chunks = tiles_of_row(problem["n"], size, config)
    tile = config["BLOCK_M"] * block
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    if chunks > MOST_CHUNKS:
        return f"{chunks} tiles to a row"
    if threads > 32 and tile * size < threads * VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    needed = tile * chunks * _live(problem, *live) / threads + OTHER_REGISTERS
    return registers_obstacle(needed, threads * programs)


def fits_one_pass(config: dict, problem: Case, gpu: GPU) -> str:
    spread = spread_obstacle(config, problem, gpu, ROWS_SPACE["BLOCK_M"][-1])
    return spread or _rows_obstacle(config, problem, (_FORWARD_LIVE[0], _FORWARD_LIVE[1] + problem["residual"]))


def fits_late(config: dict, problem: Case, gpu: GPU) -> str:
    if config["AGAIN"] and problem["residual"]:
        return "the sum with a residual is in registers alone"
    return _rows_obstacle(config, problem, (_FORWARD_LIVE[0], 1 + problem["residual"]))


def handles_late(problem: Case, gpu: GPU) -> str:
    if gpu.backend != "cuda":
        return "warps of 64 lanes: programs of 32 of them are too large"
    if problem["n"] < 8192:
        return "short rows: registers hold weight beside them, and its latency does not show"
    if problem["n"] * element_size(problem.dtype) % VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    return handles_what_fits(LATE_SPACE, fits_late, longest=32768)(problem, gpu)


def _fits_persistent(live: tuple, streams: int):
    """``fits`` for ``live`` registers and ``streams`` inputs (and a residual) whose next rows are prefetched."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        size, programs = element_size(problem.dtype), config["PROGRAMS_PER_SM"]
        block, chunks = tiles_of_row(problem["n"], size, config)
        tile = config["BLOCK_M"] * block * chunks * size * (streams + problem["residual"])

        def prefetched(stages: int) -> int:
            return (stages - 1) * tile + EXCHANGE_BYTES

        if config["BLOCK_M"] > 4 and config["BLOCK_M"] > 2 * rows_apart(problem, gpu):
            return "so few tiles of so many rows that SMs are idle"
        if config["BLOCK_M"] > 1 and tile > 2 * ENOUGH_IN_FLIGHT:
            return f"tiles of {tile} bytes: more rows at a time bring no more bytes into flight than memory can use"
        shared = prefetched(config["num_stages"])
        if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
            return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
        if config["num_stages"] == 1 and prefetched(3) * programs <= gpu.shared_bytes:
            return "nothing prefetched, though the shared memory has room for it"
        if not 4 <= programs * config["num_warps"] <= 32:
            return f"{programs} programs of {config['num_warps']} warps: 4 to 32 on an SM are worth trying"
        held = config["BLOCK_M"] * block * chunks / (32 * config["num_warps"])
        if held > 64 or (held < 16 and config["num_warps"] > 1):
            return f"{held:g} elements a thread: 16 to 64 are worth trying"
        if held > 32 and config["num_stages"] == 1:
            return "long rows with nothing prefetched: no better than streamed ones"
        return _rows_obstacle(config, problem, (live[0], live[1] + problem["residual"]), programs)

    return fits


def fits_team(config: dict, problem: Case, gpu: GPU) -> str:
    return team_obstacle(config, problem, gpu, _live(problem, *_TEAM_LIVE))


def fits_reread(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads, block = element_size(problem.dtype), 32 * config["num_warps"], config["BLOCK_N"]
    chunks = triton.cdiv(problem["n"], block)
    vectors = block * size / (threads * VECTOR_BYTES)
    if not 1 <= vectors <= 2:
        return f"{vectors:g} 16-byte vectors a thread"
    if not 2 <= chunks <= MOST_CHUNKS:
        return f"{chunks} chunks to a row"
    if config["PROGRAMS_PER_SM"] * config["num_warps"] > gpu.warps_per_sm:
        return "more warps than an SM has"
    if size == 4 and block * chunks > REGISTERS // 4:
        return "ptxas gives up, with 2 KB of spills (Triton 3.7, sm_75 to sm_100)"
    # dweight; chunks of x and dy of three rows, weight and what is computed of them.
    needed = (block * chunks + block * _REREAD_VALUES) / threads + OTHER_REGISTERS
    return registers_obstacle(needed, threads * config["PROGRAMS_PER_SM"])


def fits_columns(config: dict, problem: Case, gpu: GPU) -> str:
    elements = config["BLOCK_M"] * config["BLOCK_N"] / (32 * config["num_warps"])
    if not 8 <= elements <= 16:
        return f"{elements:g} elements a thread; 8 to 16 keep memory busy without spills"
    return ""


fits_backward_rows = _fits_persistent(_BACKWARD_LIVE, streams=2)
fits_odd_forward, fits_odd_backward = fits_odd((0.25, 2), streams=1), fits_odd((1.25, 3), streams=2)
"""Row and weight; sum of dweight, x, dy and weight."""

HELD_BACKWARD = {2: 16384, 4: 8192}
"""For each element size, columns up to which `rows` reads a row of no whole 16-byte vectors once."""
