"""Tuning spaces of reduction: what fits, what a variant is written for, and where tuning starts."""

import math

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import OTHER_REGISTERS, REGISTERS, VECTOR_BYTES, points, registers_obstacle

from .results import BESIDE, CACHES, splits_of
from .tiling import Block, block_of

ROWS_SPACE = {"VECTORS": (1, 2, 4, 8), "num_warps": (1, 2, 4, 8, 16)}
STREAM_SPACE = {"VECTORS": (2, 4, 8), "num_warps": (4, 8, 16), "PER_SM": (1, 2, 4, 8)}
COLUMNS_SPACE = {
    "VECTORS": (2, 4, 8),
    "BLOCK_C": (8, 16, 64, 128, 256, 512),
    "num_warps": (4, 8),
    "PER_SM": (1, 2, 4, 8),
}
BLOCKS_SPACE = {
    "VECTORS": (1, 2, 4, 8),
    "BLOCK_C": (32, 64, 128),
    "num_warps": (1, 4),
    "PER_SM": (1, 2, 4, 8, 16, 32),
}
"""VECTORS are of 16 bytes, each thread's; PER_SM is how many programs each SM gets where results are shared."""

_BEGUN = 2**17
"""Bytes of x an SM from which on it does not matter how soon a program's first loads begin."""

_UNDER_WAY = (2**15, 3 * 2**15)
"""Bytes that an SM's programs read at once: 32 KiB is what a microsecond's latency needs at an H200's 4.4 TB/s, and
beyond three times that there are only fewer warps to compute."""


_FEW_COLUMNS = 64
"""Columns below which rows are so short that ``columns`` takes them only where ``blocks`` leaves SMs idle."""

SLACK = 1.13
"""So many times the lanes is hardly more."""


def block_elements(config, problem: Case) -> int:
    """Elements of one program's block, VECTORS for each thread."""
    return config["VECTORS"] * 32 * config["num_warps"] * VECTOR_BYTES // element_size(problem.dtype)


def spills(config, problem: Case) -> str:
    """An accumulator for each element, with ties or an index beside it, and the vectors as they are loaded."""
    live = 2 if problem["op"] in BESIDE else 1
    elements = config["VECTORS"] * VECTOR_BYTES // element_size(problem.dtype)
    needed = elements * live + 4 * config["VECTORS"] + OTHER_REGISTERS
    return registers_obstacle(needed, 32 * config["num_warps"])


def _of_axis(last: bool, problem: Case) -> str:
    if (problem["inner"] == 1) == last:
        return ""
    return "another axis than the last is reduced" if last else "the last axis is reduced"


def _adds(problem: Case) -> bool:
    """Whether a thread only adds: of maxima it also compares, and keeps places or ties."""
    return problem["op"] in ("sum", "mean")


def _many(outputs: int, gpu: GPU) -> bool:
    """Whether a program of one warp for each of ``outputs`` keeps memory busy."""
    return outputs >= 8 * gpu.sms


def handles_rows(problem: Case, gpu: GPU) -> str:
    """Not sums and amax of many rows that ``stream`` takes: there x leaves the cache first, and what lay in it before
    is not written back meanwhile (amax of 8192 x 4096 fp16: 28.3 us, ``rows`` 33.4, H100; 21.7 and 25.1, H200), and odd
    rows are read in whole vectors (sums of 16384 x 4154 bf16: 44.2 us, ``rows`` 52.8, of 4096 x 4099 15.3 and 21.0).

    But sums of little to read, which programs of more rows begin earlier (1200 x 2304: 8.1 us, ``rows`` 7.8), and of so
    much that x stays in no cache (65536 x 3000: 106.9, and 100.4; H200).
    """
    many = _many(problem["outer"], gpu) and not handles_stream(problem, gpu)
    if many and (problem["op"] == "amax" or (_adds(problem) and _leaves_cache_first(problem, gpu))):
        return "many long rows: stream is to keep none of them in the cache"
    longest = _longest_row(problem)
    too_long = f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""
    return _of_axis(True, problem) or too_long


def _leaves_cache_first(problem: Case, gpu: GPU) -> bool:
    """Whether x is marked to leave the cache first, or has odd rows, and is more than programs read as they begin."""
    size = element_size(problem.dtype)
    read = problem["outer"] * problem["n"] * size
    marked = read <= CACHES * gpu.l2_bytes or is_apart(problem, problem["n"])
    return marked and read >= _BEGUN * gpu.sms


def _longest_row(problem: Case) -> int:
    """A quarter of an SM's registers: with more too few programs are there to read while one combines."""
    return REGISTERS // 4 // (2 if problem["op"] in BESIDE else 1)


def _too_many_indices(problem: Case) -> str:
    many = problem["op"] == "max" and problem["n"] >= 2**31
    return "indices of 2^31 and more: they are 32 bits wide until they are written" if many else ""


def handles_stream(problem: Case, gpu: GPU) -> str:
    short = problem["n"] < 2048 or not handles_blocks(problem, gpu)
    if problem["inner"] == 1 and short and _many(problem["outer"], gpu):
        return "many short rows: a program would begin and end with each"
    return _of_axis(True, problem) or _too_many_indices(problem)


def handles_blocks(problem: Case, gpu: GPU) -> str:
    """Of rows maxima alone, many of them: a thread that compares along a row exchanges once where ``rows`` compares in
    each step of the exchange (2^17 x 291 bf16: 42.8 us, ``rows`` 81.1; sums 35.4 and 33.4; H200, Triton 3.6)."""
    if problem["inner"] > 1:
        little = _leaves_idle(problem, gpu) or _has_few_columns(problem, gpu)
        idle = little and not handles_columns(problem, gpu)
        return "so little to read that two blocks each leave SMs idle" if idle else _too_many_indices(problem)
    longest = 2**14 if problem["op"] in BESIDE else 2**11
    if _adds(problem) or not 64 < problem["n"] <= longest or not _many(problem["outer"], gpu):
        return "sums along rows, very short, long or few ones"
    return ""


def _leaves_idle(problem: Case, gpu: GPU) -> bool:
    """Whether each SM has less than two blocks of 16 KiB, which a program of ``blocks`` reads one after the other.

    Of ``columns`` they are one block or go to two programs (1024 x 416 bf16: 7.5 us, ``blocks`` 11.2; H100).  With
    indices or ties a block is half as large.
    """
    elements = problem["outer"] * problem["n"] * problem["inner"]
    return problem["op"] not in BESIDE and elements * element_size(problem.dtype) < gpu.sms * 2**15


def _has_few_columns(problem: Case, gpu: GPU) -> bool:
    """Whether rows are short and matrices more than one program of ``blocks`` reads at once, but not enough for all.

    Programs of ``blocks`` would be few and wait for one block after the other (1 x 2601 x 16 bf16: 13.2 us, in
    ``columns`` 6.4; 8 x 3000 x 32 14.6 and 7.9; 1 x 100000 x 16 13.6 and 8.6), but one that reads a matrix alone waits
    for no other (4 x 1685 x 8: 5.6, and 6.2; H200).  With indices or ties a block is half as large.
    """
    read = problem["n"] * problem["inner"] * element_size(problem.dtype)
    short = 1 < problem["inner"] < _FEW_COLUMNS and not is_apart(problem, problem["inner"])
    most = gpu.sms * (2**14 if problem["op"] in BESIDE else 2**15)
    return short and read > 2**15 and problem["outer"] * read < most


def handles_columns(problem: Case, gpu: GPU) -> str:
    """What ``blocks`` was made for is left to it: here threads that share a column exchange through shared memory."""
    line = problem["inner"] * element_size(problem.dtype)
    few = problem["inner"] < _FEW_COLUMNS or line % VECTOR_BYTES
    if problem["inner"] > 1 and (problem["n"] < 512 or (few and not _has_few_columns(problem, gpu))):
        return "few rows, few columns of much or little to read, or rows of no whole 16-byte vectors"
    return _of_axis(False, problem) or _too_many_indices(problem)


def _shares(outputs: int, per_sm: int, gpu: GPU) -> bool:
    """Whether more than one program gets a part of each of ``outputs``."""
    return 2 * outputs <= per_sm * gpu.sms


def handles_stream_twice(problem: Case, gpu: GPU) -> str:
    shared = _shares(problem["outer"], STREAM_SPACE["PER_SM"][-1], gpu)
    return handles_stream(problem, gpu) or ("" if shared else "a program for every row: nothing to combine")


def handles_columns_twice(problem: Case, gpu: GPU) -> str:
    fewest = problem["outer"] * triton.cdiv(problem["inner"], COLUMNS_SPACE["BLOCK_C"][-1])
    shared = _shares(fewest, COLUMNS_SPACE["PER_SM"][-1], gpu)
    return handles_columns(problem, gpu) or ("" if shared else "a program for every column: nothing to combine")


def fits_rows(config, problem: Case, gpu: GPU) -> str:
    block, longest = block_elements(config, problem), triton.next_power_of_2(problem["n"])
    if block < longest:
        return "a row longer than a program's registers"
    if config["num_warps"] * config["VECTORS"] > 1 and block >= 2 * longest * triton.next_power_of_2(problem["outer"]):
        return "a tile with room for twice the rows there are"
    if config["num_warps"] > 4 and block > longest and is_apart(problem, problem["n"]):
        return "rows read piece by piece lie across so many warps, which exchange through shared memory"
    return spills(config, problem)


def is_apart(problem: Case, length: int) -> bool:
    """Whether rows of ``length`` consist of no 8-byte vectors: nearly every element has an address of its own."""
    size = element_size(problem.dtype)
    return math.gcd(length, VECTOR_BYTES // size) * size < 8


def under_way(config, outputs: int, gpu: GPU, most: int = STREAM_SPACE["PER_SM"][-1]) -> str:
    """Why PER_SM programs of this kind read too little or too much at once, where ``outputs`` are to be shared."""
    if not _shares(outputs, most, gpu):
        return "" if config["PER_SM"] == 1 else "a program for every output: PER_SM changes nothing"
    if config["num_warps"] * config["PER_SM"] > gpu.warps_per_sm:
        return "more warps than an SM holds"
    least, most = _UNDER_WAY
    read = config["VECTORS"] * config["num_warps"] * 32 * VECTOR_BYTES * config["PER_SM"]
    return "" if least <= read <= most else f"{read} bytes of an SM under way: {least} to {most} keep memory busy"


def fits_stream(config, problem: Case, gpu: GPU) -> str:
    smallest = config["VECTORS"] == STREAM_SPACE["VECTORS"][0] and config["num_warps"] == STREAM_SPACE["num_warps"][0]
    if not smallest and block_elements(config, problem) > triton.next_power_of_2(problem["n"]):
        return "a block longer than the row"
    return spills(config, problem) or under_way(config, problem["outer"], gpu)


def fits_columns(config, problem: Case, gpu: GPU) -> str:
    inner, least = problem["inner"], COLUMNS_SPACE["BLOCK_C"][0]
    wide = max(least, triton.next_power_of_2(inner))
    if config["BLOCK_C"] > wide:
        return "a block wider than the rows"
    if config["BLOCK_C"] < min(wide, 16 if inner < _FEW_COLUMNS else _FEW_COLUMNS):
        return "rows cut into less than 128 bytes of 16-bit elements, short ones into less than 32"
    smallest = config["VECTORS"] == COLUMNS_SPACE["VECTORS"][0] and config["num_warps"] == 4
    if not smallest and block_elements(config, problem) > config["BLOCK_C"] * triton.next_power_of_2(problem["n"]):
        return "a block of more rows than there are"
    outputs = problem["outer"] * triton.cdiv(problem["inner"], config["BLOCK_C"])
    return spills(config, problem) or under_way(config, outputs, gpu)


def _block(config, problem: Case, gpu: GPU) -> Block:
    vector = VECTOR_BYTES // element_size(problem.dtype)
    return block_of(config, problem["outer"], problem["n"], problem["inner"], vector, gpu)


def _programs(problem: Case, gpu: GPU, config) -> int:
    """Programs of ``blocks`` where none shares its results."""
    block = _block(config, problem, gpu)
    return triton.cdiv(problem["outer"], block.matrices) * triton.cdiv(problem["inner"], block.columns)


def _sharing(values, problem: Case, gpu: GPU) -> int:
    """Programs of ``blocks`` by a config of these values: one takes two blocks at least where results are shared."""
    config = dict(zip(BLOCKS_SPACE, values, strict=True))
    programs, blocks = _programs(problem, gpu, config), problem["n"] // (2 * _block(config, problem, gpu).rows)
    return programs * splits_of(gpu, config, programs, blocks, blocks)


def fits_blocks(config, problem: Case, gpu: GPU) -> str:
    smallest = BLOCKS_SPACE["BLOCK_C"][0]
    if config["VECTORS"] == 1 and problem["inner"] > 1 and not is_apart(problem, problem["inner"]):
        return "one vector a thread: too few loads on their way"
    if config["BLOCK_C"] > smallest and config["BLOCK_C"] > triton.next_power_of_2(problem["inner"]):
        return "a block wider than the rows"
    return spills(config, problem) or under_way(config, _programs(problem, gpu, config), gpu, max(8, config["PER_SM"]))


def first(space, fits, problem: Case, gpu: GPU, preferred) -> dict:
    """Of ``preferred`` and then all of ``space`` the first config that fits."""
    names = list(space)
    for config in preferred:
        if all(config[name] in space[name] for name in names) and not fits(config, problem, gpu):
            return config
    return next(config for config in points(space) if not fits(config, problem, gpu))


def _of_one_warp(problem: Case, gpu: GPU) -> dict:
    """What a warp takes alone: of wide rows with addresses of their own eight elements a thread.

    Beyond eight the compiler waits for loads one after the other (256 x 29 x 3877 of fp16: 55.7 us with 16, 27.7 with
    eight; H200, Triton 3.7); but not for those of ``BESIDE``, nor for a program's first block.  Rows of one block are
    too short for a program to have one or two: it takes eight (32768 x 122 of fp16: 15.1 us, and 9.2).
    """
    n, inner, least = problem["n"], problem["inner"], BLOCKS_SPACE["BLOCK_C"][0]
    apart = is_apart(problem, n if inner == 1 else inner)
    columns = least if apart else max(least, min(64, triton.next_power_of_2(inner)))
    config = {"VECTORS": 2, "BLOCK_C": columns, "num_warps": 1, "PER_SM": 1}
    if inner == 1:
        config["VECTORS"] = 1 if apart else 2
        return config | {"VECTORS": 4} if _block(config, problem, gpu).rows >= n else config
    if not apart:
        return config | {"VECTORS": 8 if _adds(problem) else 2}
    if problem["op"] in BESIDE or element_size(problem.dtype) > 2 or n < 4 * _block(config, problem, gpu).rows:
        return config
    return config | {"VECTORS": 1, "BLOCK_C": max(least, min(128, 1 << inner.bit_length() - 1))}


def _reads_long(problem: Case, gpu: GPU) -> bool:
    """Whether x is so much that only the pace counts, and its columns so many that few programs share each."""
    read = problem["outer"] * problem["n"] * problem["inner"] * element_size(problem.dtype)
    return read >= _BEGUN * gpu.sms and problem["n"] >= 256 and problem["inner"] >= 64 and _sharers(problem, gpu) <= 128


def covered(columns: int, wide: int) -> float:
    """Lanes of blocks so ``wide`` for each of ``columns``."""
    return triton.cdiv(columns, wide) * wide / columns


def _sharers(problem: Case, gpu: GPU) -> int:
    """Programs that share 64 columns, where each SM gets eight."""
    return 8 * gpu.sms // (problem["outer"] * triton.cdiv(problem["inner"], 64))


def _of_words(problem: Case, gpu: GPU, programs: int) -> list:
    """What sums and amax of 4-byte elements take that read long, where ``programs`` are of one warp alone.

    Small blocks, the next of which one program asks for while another adds (1 x 32768 x 3832: 132.6 us, of 16 KiB
    160.5; 8 x 60000 x 320: 153.8 and 217.3); by single warps where fewer than three programs would share a result
    (48 x 1186 x 1498: 95.0, in one program 137.1 and 115.3; H200).
    """
    inner, whole = problem["inner"], problem["inner"] % 4 == 0
    if element_size(problem.dtype) != 4 or problem["op"] in BESIDE or not _reads_long(problem, gpu):
        return []
    if is_apart(problem, inner) or (whole and not _adds(problem) and _many(programs, gpu)):
        return []
    shared = [(2 if whole and inner >= 512 else 4, 64, 4, 8)]
    return [*shared, (4, 64, 1, 32)] if _sharers(problem, gpu) >= 3 else [(4, 64, 1, 32)]


def reads_odd_rows_long(problem: Case, gpu: GPU) -> bool:
    """Whether sums or amax read much in wide rows with an address for each element, by fewer warps than SMs hold."""
    wide = problem["inner"] >= 512 and is_apart(problem, problem["inner"]) and problem["op"] not in BESIDE
    return wide and _reads_long(problem, gpu) and _programs(problem, gpu, _of_one_warp(problem, gpu)) < 32 * gpu.sms


def _loads_halves(problem: Case) -> bool:
    """Whether each load is of two bytes."""
    return element_size(problem.dtype) == 2 and problem["inner"] % 2 == 1


def _of_odd_rows(problem: Case, gpu: GPU) -> list:
    """What those take, whose 32 columns lie in two lines of the cache each.

    A thread has some eight loads under way, whatever its block, so what counts is how many warps an SM has: single
    ones, 32 of them (20 x 3000 x 2047 of fp32: 129.6 us, of four warps 280.4; of bf16 98.8 and 360.1; 12 x 3000 x 2050
    of bf16 55.4 and 63.5).  Where each load is of two bytes two vectors are sixteen of them, and the compiler may wait
    for each pair: 14 round trips of memory a block where it was to be 3 (12 x 3000 x 1801 of bf16: 261 us, by four of
    128 columns 71.1; 16 x 2500 x 3001: 91.5 and 94.7).  Of words wide blocks of four warps where five or more of them
    share a result (1 x 32768 x 2047: 78.3, and by single ones 151.8; H200).
    """
    shared = 4 * gpu.sms // (problem["outer"] * triton.cdiv(problem["inner"], 128)) >= 5
    if not shared:
        return [(4, 128, 1, 32) if _loads_halves(problem) else (2, 64, 1, 32)]
    return [(8, 128, 4, 4)] if element_size(problem.dtype) == 4 else []


def blocks_default(problem: Case, gpu: GPU) -> dict:
    """A warp for columns of its own, of few of them with parts of the rows; four warps for fewer results than SMs use.

    Where even these leave SMs idle, of a quarter of the vectors (1 x 13394 x 56 of bf16: 52 programs and 12.5 us, 208
    and 9.0; H200); of rows with addresses of their own, where they are less than three an SM, of half (4 x 448 x 695
    of bf16: 88 programs and 12.4 us, 264 and 10.6; of fp32 264 and 11.3, 616 and 9.4; H200).  Of maxima a warp alone
    has two vectors, so where the warps are too few to keep memory busy there are four (126 x 541 x 612 bf16: 33.7 us,
    of one 47.1; 48 x 1186 x 1498 fp32 with ties 105.9, and 184.3; H200).
    """
    n, inner = problem["n"], problem["inner"]
    alone = _of_one_warp(problem, gpu)
    if inner == 1:
        return first(BLOCKS_SPACE, fits_blocks, problem, gpu, [alone])
    apart, adds, least = is_apart(problem, inner), _adds(problem), BLOCKS_SPACE["BLOCK_C"][0]
    vectors, share = (4, 16) if adds else (2, 32)  # of a thread; programs an SM, of one warp
    programs = _programs(problem, gpu, alone)
    odd = reads_odd_rows_long(problem, gpu)
    long = _of_odd_rows(problem, gpu) if odd else _of_words(problem, gpu, programs)
    preferred = []
    if programs >= 2 * gpu.sms and (inner < least or (not adds and n >= 512)):
        preferred += [(vectors, least, 1, share)]
    if apart:
        lone = [(2, least, 4, 8), (4, least, 1, 16), (4, least, 1, 1)]  # 16: two share where SMs are not full
        shared = [(4, least, 4, 8), (4, least, 4, 1)]
        few = inner >= least and _sharing(shared[0], problem, gpu) < 3 * gpu.sms
        spread = [(2, least, 4, 8)] if few else []
        preferred += [*spread, *shared] if adds else lone
    else:
        wide = 128 if inner >= 512 else least
        shared = [(8, wide, 1, 16)] if adds and inner >= 512 and n < 256 and programs >= 2 * gpu.sms else []
        halves = element_size(problem.dtype) == 2 and _reads_long(problem, gpu)
        # 1 x 53566 x 1136 bf16: 60.0 us, in blocks of 32 67.2; of which half is empty, 26 x 8663 x 80: 27.6, 23.5; H200
        snug = covered(inner, 64) <= SLACK * covered(inner, least)
        beside = (4, 64, 4, 8) if halves and snug else (4, least, 4, 4)
        whole = (8, wide, 4, 4) if problem["op"] not in BESIDE else beside
        idle = inner >= least and _sharing(whole, problem, gpu) < gpu.sms
        spread = [(2, least, 4, 8)] if idle else []
        rest = [(8, least, 4, 1)] if adds else [(4, least, 4, 4), (4, least, 1, 1)]
        preferred += [*shared, *spread, whole, *rest]
    if _many(programs, gpu):
        reads = programs * 32 * VECTOR_BYTES * alone["VECTORS"]  # bytes at once
        idle = not adds and not apart and n >= 512 and reads < _UNDER_WAY[0] * gpu.sms
        preferred = [(alone | {"num_warps": 4 if idle else 1}).values(), *preferred]
    configs = [dict(zip(BLOCKS_SPACE, values, strict=True)) for values in [*long, *preferred]]
    return first(BLOCKS_SPACE, fits_blocks, problem, gpu, configs)


def rows_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread of the fewest warps, from four on, that hold a row; of many sums four of two warps; of
    maxima with indices one vector where two leave SMs idle (128 x 1024 bf16: 5.8 us, 6.3 with two; H100).

    One warp where each element has an address of its own, with the most vectors that leave an SM four programs: rows
    lie across no warps (131072 x 67 bf16: 13.9 us for 18.0, 1251 x 67 fp16: 5.7 for 7.1; H200, Triton 3.6).
    """
    many = _adds(problem) and _many(problem["outer"] * problem["n"] // 2048, gpu)
    together = block_elements({"VECTORS": 2, "num_warps": 4}, problem) // triton.next_power_of_2(problem["n"])
    few = problem["op"] in BESIDE and problem["outer"] < gpu.sms * together
    sizes = [
        *(((4, 2),) if many else ()),
        *(((1, 4),) if few else ()),
        (2, 4),
        (2, 8),
        (2, 16),
        (4, 16),
        (8, 16),
        (1, 4),
        (1, 2),
        (1, 1),
    ]
    if is_apart(problem, problem["n"]):
        sizes = [*((v, 1) for v in (8, 4, 2) if _programs_of_rows(v, problem) >= 4 * gpu.sms),
                 *((v, 1) for v in (1, 2, 4, 8)), *sizes]  # fmt: skip
    return first(ROWS_SPACE, fits_rows, problem, gpu, [{"VECTORS": v, "num_warps": w} for v, w in sizes])


def _programs_of_rows(vectors: int, problem: Case) -> int:
    """Programs of one warp with so many vectors a thread."""
    block = block_elements({"VECTORS": vectors, "num_warps": 1}, problem)
    return triton.cdiv(problem["outer"], max(1, block // triton.next_power_of_2(problem["n"])))


def stream_default(problem: Case, gpu: GPU) -> dict:
    """64 KiB of an SM under way in four programs of eight warps; of short rows fewer warps have more programs.

    Maxima take so many registers that two vectors a thread are faster, but of amax in a program alone; with a second
    result of each program half as many are faster.  Of many rows that one program each adds up, and ``rows`` would
    hold, too, two of four warps are (8192 x 4096 bf16: 23.1 us, 26.6 with four of eight; H200).
    """
    adds = ((2, 4, 1),) if _many(problem["outer"], gpu) and problem["n"] <= _longest_row(problem) else ()
    few = {"amax": ((2, 4, 8), (4, 4, 1)), "sum": adds, "mean": adds}.get(problem["op"], ((2, 8, 4), (2, 4, 1)))
    sizes = (*few, (4, 8, 4), (2, 8, 4), (2, 8, 8), (2, 4, 8), (4, 8, 1), (2, 8, 1), (2, 4, 1))
    preferred = [{"VECTORS": v, "num_warps": w, "PER_SM": p} for v, w, p in sizes]
    return first(STREAM_SPACE, fits_stream, problem, gpu, preferred)


def columns_default(problem: Case, gpu: GPU) -> dict:
    """128 bytes of 16-bit elements of a row, 64 KiB of an SM under way; of few columns by four warps, so that more
    programs share each.

    Short rows in blocks of 4 KiB, which most programs share (1 x 2601 x 16 bf16: 6.4 us, of 8 KiB 6.7); what is more
    than they read at once in blocks of 8 KiB (1 x 100000 x 16: 9.0, and 8.6; H200).
    """
    outer, inner = problem["outer"], problem["inner"]
    if inner < _FEW_COLUMNS:
        much = outer * problem["n"] * inner * element_size(problem.dtype) >= gpu.sms * 2**14
        sizes, widths = ((4, 4, 8), (2, 4, 8)) if much and problem["op"] not in BESIDE else ((2, 4, 8),), (16, 8)
    else:
        few = outer * triton.cdiv(inner, 64) < 4
        shared = ((8, 4, 4), (8, 8, 2)) if few else ((8, 8, 2), (8, 4, 4))
        sizes = (*shared, (4, 8, 2), (4, 8, 4), (4, 4, 8), (2, 8, 4), (2, 4, 8), (8, 4, 1), (4, 4, 1), (2, 4, 1))
        widths = (64, 16)
    preferred = [{"VECTORS": v, "BLOCK_C": c, "num_warps": w, "PER_SM": p} for c in widths for v, w, p in sizes]
    return first(COLUMNS_SPACE, fits_columns, problem, gpu, preferred)
