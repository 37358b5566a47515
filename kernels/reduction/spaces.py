"""Tuning spaces of reduction: what fits, what a variant is written for, and where tuning starts."""

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import OTHER_REGISTERS, REGISTERS, VECTOR_BYTES, points, registers_obstacle

from .results import BESIDE

ROWS_SPACE = {"VECTORS": (1, 2, 4, 8), "num_warps": (1, 2, 4, 8, 16)}
STREAM_SPACE = {"VECTORS": (2, 4, 8), "num_warps": (4, 8, 16), "PER_SM": (1, 2, 4, 8)}
COLUMNS_SPACE = {"VECTORS": (2, 4, 8), "BLOCK_C": (16, 64, 128, 256, 512), "num_warps": (4, 8), "PER_SM": (1, 2, 4, 8)}

TILES_SPACE = {"VECTORS": (1, 2, 4), "BLOCK_N": (16, 64, 256, 1024, 4096), "num_warps": (4, 8)}
"""VECTORS are of 16 bytes, each thread's; PER_SM is how many programs each SM gets where results are shared."""

_UNDER_WAY = (2**15, 3 * 2**15)
"""Bytes that an SM's programs read at once: 32 KiB is what a microsecond's latency needs at an H200's 4.4 TB/s, and
beyond three times that there are only fewer warps to compute."""


def _vectors(config, problem: Case) -> int:
    """Elements of one program's block, VECTORS for each thread."""
    return config["VECTORS"] * 32 * config["num_warps"] * VECTOR_BYTES // element_size(problem.dtype)


def _spills(config, problem: Case) -> str:
    """An accumulator for each element, with ties or an index beside it, and the vectors as they are loaded."""
    live = 2 if problem["op"] in BESIDE else 1
    elements = config["VECTORS"] * VECTOR_BYTES // element_size(problem.dtype)
    needed = elements * live + 4 * config["VECTORS"] + OTHER_REGISTERS
    return registers_obstacle(needed, 32 * config["num_warps"])


def _of_axis(last: bool, problem: Case) -> str:
    if (problem["inner"] == 1) == last:
        return ""
    return "another axis than the last is reduced" if last else "the last axis is reduced"


def handles_rows(problem: Case, gpu: GPU) -> str:
    longest = _longest_row(problem)
    too_long = f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""
    return _of_axis(True, problem) or too_long


def _longest_row(problem: Case) -> int:
    """A quarter of an SM's registers: with more too few programs are there to read while one combines."""
    return REGISTERS // 4 // (2 if problem["op"] in BESIDE else 1)


def _too_many_indices(problem: Case) -> str:
    many = problem["op"] == "max" and problem["n"] >= 2**31
    return "indices of 2^31 and more: they are 32 bits wide until they are written" if many else ""


def handles_stream(problem: Case, gpu: GPU) -> str:
    return _of_axis(True, problem) or _too_many_indices(problem)


def handles_columns(problem: Case, gpu: GPU) -> str:
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
    block, longest = _vectors(config, problem), triton.next_power_of_2(problem["n"])
    if block < longest:
        return "a row longer than a program's registers"
    if config["num_warps"] * config["VECTORS"] > 1 and block >= 2 * longest * triton.next_power_of_2(problem["outer"]):
        return "a tile with room for twice the rows there are"
    return _spills(config, problem)


def _under_way(config, outputs: int, gpu: GPU) -> str:
    """Why PER_SM programs of this kind read too little or too much at once, where ``outputs`` are to be shared."""
    if not _shares(outputs, STREAM_SPACE["PER_SM"][-1], gpu):
        return "" if config["PER_SM"] == 1 else "a program for every output: PER_SM changes nothing"
    if config["num_warps"] * config["PER_SM"] > gpu.warps_per_sm:
        return "more warps than an SM holds"
    least, most = _UNDER_WAY
    read = config["VECTORS"] * config["num_warps"] * 32 * VECTOR_BYTES * config["PER_SM"]
    return "" if least <= read <= most else f"{read} bytes of an SM under way: {least} to {most} keep memory busy"


def fits_stream(config, problem: Case, gpu: GPU) -> str:
    smallest = config["VECTORS"] == STREAM_SPACE["VECTORS"][0] and config["num_warps"] == STREAM_SPACE["num_warps"][0]
    if not smallest and _vectors(config, problem) > triton.next_power_of_2(problem["n"]):
        return "a block longer than the row"
    return _spills(config, problem) or _under_way(config, problem["outer"], gpu)


def fits_columns(config, problem: Case, gpu: GPU) -> str:
    widths = COLUMNS_SPACE["BLOCK_C"]
    widest = next((width for width in widths if width >= problem["inner"]), widths[-1])
    if config["BLOCK_C"] > widest:
        return "a block wider than the rows"
    if config["BLOCK_C"] < min(widths[1], widest):
        return "rows cut into less than 128 bytes of 16-bit elements"
    smallest = config["VECTORS"] == COLUMNS_SPACE["VECTORS"][0] and config["num_warps"] == 4
    if not smallest and _vectors(config, problem) > config["BLOCK_C"] * triton.next_power_of_2(problem["n"]):
        return "a block of more rows than there are"
    outputs = problem["outer"] * triton.cdiv(problem["inner"], config["BLOCK_C"])
    return _spills(config, problem) or _under_way(config, outputs, gpu)


def fits_tiles(config, problem: Case, gpu: GPU) -> str:
    columns = problem["n"] if problem["inner"] == 1 else problem["inner"]
    if config["BLOCK_N"] > max(TILES_SPACE["BLOCK_N"][0], triton.next_power_of_2(columns)):
        return "a tile wider than the rows"
    if config["BLOCK_N"] > _vectors(config, problem):
        return "a tile of less than a row"
    if 4 * config["BLOCK_N"] < min(columns, 1024):
        return "rows cut into short pieces"
    return ""


def _first(space, fits, problem: Case, gpu: GPU, preferred) -> dict:
    """Of ``preferred`` and then all of ``space`` the first config that fits."""
    names = list(space)
    for config in preferred:
        if all(config[name] in space[name] for name in names) and not fits(config, problem, gpu):
            return config
    return next(config for config in points(space) if not fits(config, problem, gpu))


def rows_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread and the fewest warps, from four on, that hold a row."""
    sizes = ((2, 4), (2, 8), (2, 16), (4, 16), (8, 16), (1, 4), (1, 2), (1, 1))
    return _first(ROWS_SPACE, fits_rows, problem, gpu, [{"VECTORS": v, "num_warps": w} for v, w in sizes])


def stream_default(problem: Case, gpu: GPU) -> dict:
    """64 KiB of an SM under way in four programs of eight warps; of short rows fewer warps have more programs."""
    sizes = ((4, 8, 4), (2, 8, 4), (2, 8, 8), (2, 4, 8), (4, 8, 1), (2, 8, 1), (2, 4, 1))
    preferred = [{"VECTORS": v, "num_warps": w, "PER_SM": p} for v, w, p in sizes]
    return _first(STREAM_SPACE, fits_stream, problem, gpu, preferred)


def columns_default(problem: Case, gpu: GPU) -> dict:
    """256 bytes of 16-bit elements of a row, and no more programs on an SM than its registers hold at once."""
    sizes = ((4, 8, 2), (4, 8, 4), (4, 4, 8), (2, 8, 4), (2, 4, 8), (4, 8, 1), (4, 4, 1), (2, 4, 1))
    preferred = [{"VECTORS": v, "BLOCK_C": c, "num_warps": w, "PER_SM": p} for c in (128, 64, 16) for v, w, p in sizes]
    return _first(COLUMNS_SPACE, fits_columns, problem, gpu, preferred)


def tiles_default(problem: Case, gpu: GPU) -> dict:
    preferred = [{"VECTORS": 2, "BLOCK_N": n, "num_warps": 4} for n in (1024, 256, 64, 16)]
    return _first(TILES_SPACE, fits_tiles, problem, gpu, preferred)
