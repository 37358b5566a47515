"""Tuning spaces of layer_norm: what fits, what a variant is written for, and where tuning starts."""

import triton
from atlas.declaration import GPU, Capability, Case, element_size, rows

from kernels.common.exchange import team_obstacle
from kernels.common.norms import has_residual
from kernels.common.odd_rows import fits_odd
from kernels.common.rows import ENOUGH_IN_FLIGHT, EXCHANGE_BYTES, MOST_CHUNKS, spans, tiles_of_row, tiles_of_vectors

_STREAM_BLOCKS = (1024, 2048, 4096, 8192, 16384)
_COLUMN_BLOCKS = (512, 1024)
ONE_PASS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16, 32, 64), "LATE": (False, True), "num_warps": (1, 2, 4, 8, 16, 32)}
BACKWARD_ROWS_SPACE = {
    "BLOCK_M": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 3),
    "PROGRAMS_PER_SM": (1, 2, 4),
}
STREAM_SPACE = {"BLOCK_M": (1, 2, 4), "BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32)}
TEAM_SPACE = {"TEAM": (2, 4, 8), "num_stages": (3,), "num_warps": (8, 16)}
HELPED_SPACE = {"num_warps": (8, 16), "num_stages": (1, 3), "HELPERS": (16, 20, 24)}  # of 64 programs
COLUMNS_SPACE = {
    "BLOCK_M": (1, 2, 4, 8),
    "BLOCK_N": _COLUMN_BLOCKS,
    "num_warps": (4, 8),
    "PROGRAMS_PER_SM": (4, 8),
}

LIVE = {"rows": 6.5, "helped": 2.75, "team": {2: 7, 4: 9.5}}
"""Registers for each element of a tile: row, dy, xhat, g, weight and both sums; 16-bit row, dy and weight and one sum;
two rows and dy, weight and both sums, by the size of an element (what ptxas of Triton 3.7 needs without spilling)."""


def _streams(problem: Case, streams: int) -> int:
    """Inputs of the size of x that a pass reads."""
    return streams + has_residual(problem)


def up_to(longest: int):
    """``handles`` of a variant for rows of at most ``longest`` elements."""

    def handles(problem: Case, gpu: GPU) -> str:
        return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""

    return handles


def fits_one_pass(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads = element_size(problem.dtype), 32 * config["num_warps"]
    block_n, chunks = tiles_of_row(problem["n"], size, config)
    tile = config["BLOCK_M"] * block_n * chunks
    if threads > 32 * rows.most_warps(gpu):
        return "over 1024 threads"
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    if chunks > MOST_CHUNKS:
        return f"{chunks} tiles to a row: each is unrolled, and compiling takes time"
    if threads > 32 and tile * size < threads * rows.VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    # x, and with early loads weight and bias, in their own dtype, and what is computed of a tile.
    narrow = (1 if config["LATE"] else 3) + has_residual(problem)
    needed = tile * (narrow * size / 4 + 0.25) / threads + rows.OTHER_REGISTERS
    return rows.registers_obstacle(needed, threads)


def fits_one_pass_alone(config: dict, problem: Case, gpu: GPU) -> str:
    """:func:`fits_one_pass`, and SMs are busy; layer_norm_linear, whose space is smaller, asks the former alone."""
    if config["LATE"] and problem["n"] <= 8192 and problem["m"] <= gpu.sms:
        return "few short rows: the latency of weight and bias shows"
    spread = rows.spread_obstacle(config, problem, gpu, ONE_PASS_SPACE["BLOCK_M"][-1])
    return spread or fits_one_pass(config, problem, gpu)


def handles_one_pass(problem: Case, gpu: GPU) -> str:
    """Rows of 64 KiB and more leave an SM one program, which reads nothing while it computes: ``stream`` has two.

    4096 x 32768 bf16: 202 us, ``stream`` 189 (H100); 185 and 157 (H200, Triton 3.6).  Of fp32, twice as long, what
    ``stream`` reads again has left the cache: 367 us, ``stream`` 418 (H100).
    """
    longest = 16384 if element_size(problem.dtype) == 2 else 32768
    return up_to(longest)(problem, gpu)


def _of_some_rows(problem: Case, gpu: GPU) -> dict | None:
    """The config of rows of 513 to 1280 16-bit elements of which an SM has 9 to 35; None of others.

    A warp a row asks for weight and bias beside x, not after the sums (1378 x 768 of bf16: 3.07 us, late 3.65;
    4500 x 1152: 7.83 and 9.21; but 4096 x 896, 31 an SM, 7.38 and 6.42; H200).  Rows not of whole vectors, by two, have
    16 elements a thread, each with a mask of its own (2457 x 823 of fp16: 6.54 us, with 32 late 7.39).  Rows of 1024,
    up to 16 an SM, have a warp each, which exchanges no sums (1200 x 1024 of bf16: 3.37 us, by two 3.64).
    """
    m, n, size = problem["m"], problem["n"], element_size(problem.dtype)
    if size > 2 or has_residual(problem) or not 512 < n <= 1280 or not 8 * gpu.sms < m <= 35 * gpu.sms:
        return None
    if n * size % rows.VECTOR_BYTES:
        return {"BLOCK_M": 2, "LATE": False, "num_warps": 4} if n < 1024 and m > 16 * gpu.sms else None
    if n == 1024:
        return {"BLOCK_M": 1, "LATE": True, "num_warps": 1} if m <= 16 * gpu.sms else None
    return {"BLOCK_M": 1, "LATE": False, "num_warps": 1} if n > 1024 or m <= 23 * gpu.sms else None


def one_pass_default(problem: Case, gpu: GPU) -> dict:
    """1024 elements a warp, up to four warps and a row of 8192; weight and bias late, where the rows are enough.

    Short rows by several, which share weight and bias and load them early.  (8192 x 16384 of bf16 with early loads:
    257 us, late 186 us on an H100, 237 and 145 us on an H200.)  Few rows, all of them under way at once, load early,
    too, up to four warps a row of 16 bits, which has more to read in a thread (519 x 2999 bf16: 9.3 us, 12.4 by
    eight; x 6912: 10.7 and 12.3; H200).  Where each has an SM, a warp takes 256 elements (7 x 1280 fp32: 5.7 us for
    7.3; H200), and longer rows load early as well (16 x 16384 fp32: 8.1 us for 9.8; H100).  So do rows of 513 to 1023
    elements of 32 bits, by two (7909 x 768: 17.8 us for 20.4; H200).
    Rows of whole 16-bit vectors in several tiles have no company, and half as many warps as the power of two beyond
    them would: warps exchange sums of more tiles (38302 x 1152 of fp16: 58.1 us, and 50.1 by a warp a row; H200).
    """
    n, block_n, size = problem["n"], rows.block_n(problem), element_size(problem.dtype)
    together = block_n * size < rows.LEAST_TILE
    tiled = not together and size == 2 and n < block_n and n * size % rows.VECTOR_BYTES == 0
    if together:
        block_m = rows.rows_together(problem, gpu, ONE_PASS_SPACE["BLOCK_M"][-1])
    else:
        block_m = min(2, rows.rows_apart(problem, gpu)) if block_n <= 4096 and not tiled else 1
    warps = max(1, block_m * (block_n // 2 if tiled else block_n) // 1024)
    early = {"BLOCK_M": block_m, "LATE": False, "num_warps": warps}
    late = early | {"LATE": True, "num_warps": min(warps, 4) if size == 2 else warps}
    at_once = together or (size == 4 and block_m > 1 and n < block_n <= 1024)
    configs = [early] if at_once else [late, early] if block_n <= 8192 else []
    if problem["m"] <= 8 * gpu.sms and not together:
        of_warp, most = (256, 8) if problem["m"] <= gpu.sms else (1024, 2 * size)
        configs.insert(0, {"BLOCK_M": 1, "LATE": False, "num_warps": max(1, min(most, block_n // of_warp))})
    elif some := _of_some_rows(problem, gpu):
        configs.insert(0, some)
    # With 16 warps ptxas of sm_100 spills 8 bytes of fp32 rows of 32768 elements (Triton 3.7).
    spills = gpu.backend == "cuda" and int(gpu.arch) >= 100 and problem.dtype == "fp32"
    long = (8, 16, 32) if spills or block_n <= 16384 else (16, 32, 8)
    if problem["m"] <= gpu.sms:  # a row has an SM, and the registers for weight and bias beside it
        configs.append({"BLOCK_M": 1, "LATE": False, "num_warps": 16})
    configs += [{"BLOCK_M": 1, "LATE": True, "num_warps": number} for number in long]
    return next((config for config in configs if not fits_one_pass_alone(config, problem, gpu)), configs[-1])


def fits_stream(config: dict, problem: Case, gpu: GPU) -> str:
    if config["BLOCK_M"] > 1 and (problem["n"] <= 8192 or problem["m"] == 1):
        return "short rows: whole ones in registers are read once"
    return rows.fits_stream({**config, "BLOCK_N": config["BLOCK_M"] * config["BLOCK_N"]}, problem, gpu)


def stream_default(problem: Case, gpu: GPU) -> dict:
    """As other kernels stream rows, of 16 bits with four vectors a thread (4096 x 32768: 189 us, two 208; H100).

    A long row that has an SM for itself gets all the warps of a program (2 x 20000 bf16: 9.2 us, 12.7 by 8; H200).
    """
    warps = rows.most_warps(gpu)
    of_vectors = 32 * warps * rows.VECTOR_BYTES // element_size(problem.dtype)
    if problem["m"] <= gpu.sms and problem["n"] > of_vectors:
        return {"BLOCK_M": 1, "BLOCK_N": of_vectors, "num_warps": warps}
    found = {"BLOCK_M": 1} | rows.stream_default(1, _STREAM_BLOCKS)(problem, gpu)
    if found["num_warps"] > rows.most_warps(gpu):
        found |= {"BLOCK_N": found["BLOCK_N"] // 2, "num_warps": rows.most_warps(gpu)}
    if element_size(problem.dtype) == 2 and problem["n"] >= 2 * found["BLOCK_N"]:
        found["BLOCK_N"] = min(2 * found["BLOCK_N"], _STREAM_BLOCKS[-1])
    return found


def fits_rows(live: float, streams: int):
    """``fits`` for ``live`` registers an element and ``streams`` inputs whose next rows are prefetched."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        elements = config["BLOCK_M"] * rows.block_n(problem)
        tile = elements * element_size(problem.dtype) * _streams(problem, streams)
        programs, threads = config["PROGRAMS_PER_SM"], 32 * config["num_warps"]

        def prefetched(stages: int) -> int:
            return (stages - 1) * tile + EXCHANGE_BYTES

        if config["BLOCK_M"] > 4 and config["BLOCK_M"] > 2 * rows.rows_apart(problem, gpu):
            return "so few tiles of so many rows that SMs are idle"
        if config["BLOCK_M"] > 1 and tile > ENOUGH_IN_FLIGHT:
            return f"tiles of {tile} bytes: more rows at a time bring no more bytes into flight than memory can use"
        if threads > 32 and elements < 16 * threads:
            return "under 16 elements a thread: most of its registers would hold addresses"
        if config["num_stages"] == 1 and prefetched(3) * programs <= gpu.shared_bytes:
            return "nothing prefetched, though the shared memory has room for it"
        shared = prefetched(config["num_stages"])
        if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
            return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
        registers = programs * threads * rows.registers(config, problem, live)
        if programs * config["num_warps"] > gpu.warps_per_sm or registers > rows.REGISTERS:
            return f"{programs} programs of {threads} threads exceed an SM's warps or registers"
        return rows.rows_obstacle(config, problem, live)

    return fits


def handles_rows(problem: Case, gpu: GPU) -> str:
    if problem["n"] > 4096 and problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES:
        return "over 4096 elements, not of whole 16-byte vectors: their addresses and masks spill"
    return up_to(8192)(problem, gpu)


def rows_default(live: float, streams: int, block_m: int, warps_per_sm: int):
    """``default``: 32 elements a thread, at most ``block_m`` longer rows a tile, ``warps_per_sm`` warps or one program.

    Rows not of whole 16-byte vectors get 16: each element has an address and a mask of its own.
    With two stages nothing would be prefetched a whole block ahead.  A GPU whose shared memory or registers are short
    gets fewer programs, then no prefetching.
    """
    fits = fits_rows(live, streams)

    def default(problem: Case, gpu: GPU) -> dict:
        block_n = rows.block_n(problem)
        row = block_n * element_size(problem.dtype) * _streams(problem, streams)
        apart = min(BACKWARD_ROWS_SPACE["BLOCK_M"][-1], rows.rows_apart(problem, gpu))
        most = max(block_m, min(1024 // block_n, apart))  # of short rows one warp's
        each = 1 << min(most, triton.next_power_of_2(problem["m"]), max(1, ENOUGH_IN_FLIGHT // row)).bit_length() - 1
        held = 16 if problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES else 32
        tile = {"BLOCK_M": each, "num_warps": max(1, each * block_n // (32 * held))}
        if block_n <= 64 and 2 * each <= apart:  # so few bytes a row want many rows on their way
            tile = {"BLOCK_M": 2 * each, "num_warps": 4}
        programs = [p for p in (4, 2, 1) if p * tile["num_warps"] <= warps_per_sm or p == 1]
        configs = [tile | {"num_stages": stages, "PROGRAMS_PER_SM": p} for stages in (3, 1) for p in programs]
        return next((config for config in configs if not fits(config, problem, gpu)), configs[-1])

    return default


def fits_helped(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads = element_size(problem.dtype), 32 * config["num_warps"]
    block_n, chunks = tiles_of_vectors(problem["n"], size, config)
    shared = (config["num_stages"] - 1) * block_n * chunks * size * 2 + EXCHANGE_BYTES
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of prefetched rows exceed an SM's shared memory"
    if threads > 32 * rows.most_warps(gpu):
        return "over 1024 threads"
    needed = block_n * chunks * LIVE["helped"] / threads + rows.OTHER_REGISTERS
    return rows.registers_obstacle(needed, threads)


def handles_helped(problem: Case, gpu: GPU) -> str:
    if element_size(problem.dtype) > 2:
        return "rows of 32-bit elements, of which registers do not hold enough"
    if problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    if problem.dtype == "bf16" and gpu.backend == "cuda" and Capability.BF16 not in gpu.capabilities:
        return "bf16 by other instructions, which need registers that rows fill"
    return "" if 8192 < problem["n"] <= 16384 else "not between 2^13 and 2^14 columns"


def helped_default(problem: Case, gpu: GPU) -> dict:
    """Eight warps, and the next row on its way where the shared memory has room for it; more where registers end."""
    configs = [{"num_warps": warps, "num_stages": stages, "HELPERS": 20} for stages in (3, 1) for warps in (8, 16)]
    return next((config for config in configs if not fits_helped(config, problem, gpu)), configs[-1])


def fits_team(config: dict, problem: Case, gpu: GPU) -> str:
    return team_obstacle(config, problem, gpu, LIVE["team"][element_size(problem.dtype)])


def team_default(problem: Case, gpu: GPU) -> dict:
    """The smallest team whose registers hold a row; of rows that leave SMs idle the largest, whose parts are shorter.

    (16 x 32768 bf16: 14.1 us by 8, 15.3 by 4; H200.)
    """
    fitting = [config for config in rows.points(TEAM_SPACE) if not fits_team(config, problem, gpu)]
    if problem["m"] * TEAM_SPACE["TEAM"][-1] <= gpu.sms:
        fitting.sort(key=lambda config: -config["TEAM"])
    if int(gpu.arch) >= 100:  # with 32 elements a thread ptxas of sm_100 spills 24 bytes (Triton 3.6, 3.7)
        cuts = ((config, spans(problem["n"], element_size(problem.dtype), config)) for config in fitting)
        fitting = [c for c, (_, block, chunks) in cuts if block * chunks <= 16 * 32 * c["num_warps"]] or fitting
    return fitting[0]


def fits_columns(config: dict, problem: Case, gpu: GPU) -> str:
    elements = config["BLOCK_M"] * config["BLOCK_N"] / (32 * config["num_warps"])
    if not 8 <= elements <= 16:
        return f"{elements:g} elements a thread; 8 to 16 keep memory busy without spills"
    if config["BLOCK_N"] > max(rows.block_n(problem), _COLUMN_BLOCKS[0]):
        return "a block wider than the matrix"
    return ""


def columns_default(problem: Case, gpu: GPU) -> dict:
    """Tiles of 16 elements a thread: as wide as the matrix, up to a kilobyte of a row, four warps of them."""
    return {"BLOCK_M": 4, "BLOCK_N": _COLUMN_BLOCKS[0], "num_warps": 4, "PROGRAMS_PER_SM": 4}


fits_odd_forward, fits_odd_backward = fits_odd((0.25, 3), streams=1), fits_odd((2.25, 3), streams=2)
"""Row, weight and bias; sums of dweight and dbias, x, dy and weight."""

HELD_BACKWARD = {2: 4096, 4: 4096}
"""For each element size, columns up to which `rows` reads a row of no whole 16-byte vectors once."""
