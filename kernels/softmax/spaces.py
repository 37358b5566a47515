"""Tuning spaces of softmax: what fits, what a variant is written for, and where tuning starts."""

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import (
    OTHER_REGISTERS,
    REGISTERS,
    VECTOR_BYTES,
    block_n,
    fits_stream,
    most_warps,
    registers_obstacle,
    rows_apart,
    rows_obstacle,
    rows_together,
    spread_obstacle,
    stream_default,
)

_STREAM_BLOCKS = (1024, 2048, 4096, 8192, 16384, 32768)
ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "num_warps": (1, 2, 4, 8, 16, 32)}
HELD_SPACE = {"CHUNKS": (4, 8), "num_warps": (16, 32)}
HELD_CONFIGS = [{"CHUNKS": 4, "num_warps": warps} for warps in (32, 16)]
ONLINE_SPACE = {"BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32)}
SPLIT_SPACE = {"BLOCK_N": (1024, 2048, 4096, 8192), "SPLITS": (2, 4, 8, 16, 32, 64), "num_warps": (4, 8)}
STREAM_SPACE = ONLINE_SPACE | {"SPLITS": (1, 2), "PROGRAMS_PER_SM": (0, 1)}  # 0: a program for each share of a row

_LIVE = {"one_pass": 1.0, "backward": 2.0}
"""fp32 registers for each element of a tile (what ptxas of Triton 3.7 needs without spilling); 16-bit rows of the
backward pass take half."""


def _live(problem: Case, kind: str) -> float:
    packed = "backward" in kind and element_size(problem.dtype) == 2
    return _LIVE[kind] / (2 if packed else 1)


def fits_rows(kind: str):
    """``fits`` of the variants that hold a block of rows a program."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        if config["num_warps"] > most_warps(gpu):
            return "over 1024 threads"
        if config["BLOCK_M"] > 1 and config["BLOCK_M"] * block_n(problem) > 8192:
            return "rows that need no company to keep memory busy"
        if config["BLOCK_M"] * block_n(problem) > 64 * 32 * config["num_warps"]:
            return "over 64 elements a thread"
        odd = problem["n"] * element_size(problem.dtype) % VECTOR_BYTES
        if odd and config["BLOCK_M"] > 1 and config["num_warps"] > 2:
            return "rows read piece by piece lie across so many warps, which exchange their sums through shared memory"
        spread = spread_obstacle(config, problem, gpu, ROWS_SPACE["BLOCK_M"][-1])
        return spread or rows_obstacle(config, problem, _live(problem, kind))

    return fits


def handles_rows(kind: str, streams: int):
    """``handles`` of the same: rows of up to 2^14 elements of ``streams`` inputs, and those of 128 KiB that fit.

    A program that fills more than half of an SM's registers runs alone, and memory idles while it exchanges its sums,
    the less the more bytes it has asked for.  On an H200 (Triton 3.6) rows of 2^15 bf16 in registers reach 2.9 TB/s
    forward, and 4.1 TB/s in fp32, where the row is 128 KiB.  Few rows have an SM each: what fits half of its registers
    is read in one round trip to memory, and streamed in several.
    """

    def handles(problem: Case, gpu: GPU) -> str:
        n, columns = problem["n"], block_n(problem)
        alone = problem["m"] <= gpu.sms and gpu.warps_per_sm > 32  # sm_75 spills with as many elements a thread
        vectors = n * element_size(problem.dtype) % VECTOR_BYTES == 0 and "mask" not in dict(problem.sizes)
        if alone and vectors and columns * _live(problem, kind) <= REGISTERS // 2:
            return ""
        long = columns * element_size(problem.dtype) * streams == 2**17
        if columns * streams <= 2**14 or (long and columns * _live(problem, kind) <= REGISTERS // 2):
            return ""
        return f"rows of {n} elements, over {2**14 // streams}"

    return handles


_WARP = 32 * VECTOR_BYTES
"""What a warp reads at once."""

_NARROW = 128
"""Bytes of a line: of shorter rows the most that fill a warp are together, for two programs an SM (8192 x 12 of bf16:
6.2 us with four, 5.5 with 16; H200; 1418 x 56 of bf16: 6.1 alone, 5.7 with four; H100)."""


def one_pass_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread; short rows share the two warps that this makes of :data:`LEAST_TILE`.

    One vector of short rows that SMs hold all at once: more warps wait at the same time (9856 x 77 of bf16: 8.7 us, and
    8.4; H200; 8.1 and 7.8; H100).  Of few rows, which have an SM each, one vector by up to 16 warps, and more by them
    or, from four, by 32 (1 x 4496 of fp16: 5.9 us by eight, 5.6 by 16; H200).
    """
    size, block_m = element_size(problem.dtype), rows_together(problem, gpu, ROWS_SPACE["BLOCK_M"][-1])
    row = block_n(problem) * size
    if row <= _NARROW:
        block_m = max(block_m, min(_WARP // row, rows_apart(problem, gpu)))
    read = block_m * problem["n"] * size
    if block_m == 1 and row > _WARP and problem["m"] <= gpu.sms:
        most = 16 if row <= 16 * 4 * _WARP else 32
        return {"BLOCK_M": 1, "num_warps": min(most, most_warps(gpu), triton.next_power_of_2(triton.cdiv(read, _WARP)))}
    held_at_once = triton.cdiv(problem["m"], block_m) * (read // _WARP) <= gpu.sms * gpu.warps_per_sm
    warps = read // (_WARP if block_m > 1 and held_at_once else 2 * _WARP)
    return {"BLOCK_M": block_m, "num_warps": 1 << max(1, min(most_warps(gpu), warps)).bit_length() - 1}


def _many_causal(problem: Case, gpu: GPU) -> bool:
    """Whether half of what is there is not read, and SMs have rows enough to wait for one while others are read."""
    return bool(dict(problem.sizes).get("causal")) and problem["m"] >= 8 * gpu.sms


def forward_default(problem: Case, gpu: GPU) -> dict:
    """As :func:`one_pass_default`; of many long causal rows a quarter of the warps, where these hold a row.

    65536 x 2048 bf16: 106 us by one warp, 117 by two, 127 by four (H200); 144 and 145 (H100).
    """
    config = one_pass_default(problem, gpu)
    if _many_causal(problem, gpu) and config["BLOCK_M"] == 1:
        for share in (4, 2):
            fewer = config | {"num_warps": config["num_warps"] // share}
            if fewer["num_warps"] and not fits_rows("one_pass")(fewer, problem, gpu):
                return fewer
    return config


def backward_rows_default(problem: Case, gpu: GPU) -> dict:
    """As :func:`one_pass_default`; of few long rows of no whole 16-byte vectors eight warps at most.

    128 x 6268 bf16: 6.7 us, by 16 warps 7.5 (forward 6.7 and 6.4); H200.
    """
    config = one_pass_default(problem, gpu)
    if problem["m"] <= gpu.sms and problem["n"] * element_size(problem.dtype) % VECTOR_BYTES:
        config["num_warps"] = min(config["num_warps"], 8)
    return config


def handles_backward_rows(problem: Case, gpu: GPU) -> str:
    """Not many causal rows of two blocks of ``stream``, which passes over half of them (65536 x 2048 bf16: 186 us, in
    registers 204, H100; 145 and 174, H200).
    """
    if _many_causal(problem, gpu) and _STREAM_BLOCKS[0] < problem["n"] <= 2 * _STREAM_BLOCKS[0]:
        return "causal rows of two blocks: stream neither reads nor waits for what is beyond the diagonal"
    return handles_rows("backward", streams=2)(problem, gpu)


def handles_long(problem: Case, gpu: GPU) -> str:
    """``handles`` of the variants that stream rows."""
    return "" if problem["n"] > _STREAM_BLOCKS[0] // 2 else "rows of less than a block: registers hold many of them"


def fits_online(config: dict, problem: Case, gpu: GPU) -> str:
    if config["num_warps"] > most_warps(gpu):
        return "over 1024 threads"
    if problem["n"] >= 2**15 and config["num_warps"] < 8:
        return "so few warps a row that the rows under way crowd the L2"
    return fits_stream(config, problem, gpu)


def online_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread."""
    config = stream_default(1, _STREAM_BLOCKS)(problem, gpu)
    return config | {"num_warps": min(config["num_warps"], most_warps(gpu))}


_WORTH = 8 * 1024
"""Bytes of a row that a program of ``split`` should read at least."""

_FEWEST_PARTS = 4
"""Parts of a row from which on two launches take less than one program that reads the row twice."""


_INTERPRETED = 64
"""Rows of which the interpreter, to which each program is a loop of Python, runs parts."""


def _most_parts(problem: Case, gpu: GPU) -> int:
    """Parts of a row that are worth a program each, a power of 2, and no more than give each SM two."""
    worth = problem["n"] * element_size(problem.dtype) // _WORTH
    parts = min(worth, 2 * gpu.sms // max(problem["m"], 1), SPLIT_SPACE["SPLITS"][-1])
    return 1 << (parts.bit_length() - 1) if parts else 0


def handles_split(problem: Case, gpu: GPU) -> str:
    """Why ``split`` does not take a case."""
    sizes = dict(problem.sizes)
    if "mask" in sizes or sizes.get("causal"):
        return "rows under a mask"
    few = problem["m"] <= _INTERPRETED if gpu.functional else _most_parts(problem, gpu) >= _FEWEST_PARTS
    return "" if few else "rows that are many enough for all SMs, or too short to be cut"


def fits_split(config: dict, problem: Case, gpu: GPU) -> str:
    if gpu.functional:  # a program is a loop of Python there, and a few of them show what all do
        few = split_default(problem, gpu) | {"SPLITS": min(config["SPLITS"], _FEWEST_PARTS)}
        return "" if config == few else "interpreted: the default's blocks, in two parts or four"
    most = _most_parts(problem, gpu)
    if not most // 2 <= config["SPLITS"] <= most:
        return "as many parts as keep all SMs busy and are long enough to be worth a program"
    return fits_stream(config, problem, gpu)


def split_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread of eight warps, four of a row's few."""
    two_vectors = 2 * 32 * VECTOR_BYTES // element_size(problem.dtype)
    block = min(max(SPLIT_SPACE["BLOCK_N"][0], block_n(problem) // 2), 8 * two_vectors)
    warps = 8 if block >= 8 * two_vectors else 4
    return {"BLOCK_N": block, "SPLITS": max(SPLIT_SPACE["SPLITS"][0], _most_parts(problem, gpu)), "num_warps": warps}


def _overflow(problem: Case, gpu: GPU) -> float:
    """What the rows of y and dy of one program on each SM take, in units of the L2."""
    return gpu.sms * 2 * problem["n"] * element_size(problem.dtype) / gpu.l2_bytes


def fits_backward_stream(config: dict, problem: Case, gpu: GPU) -> str:
    if config["SPLITS"] > 1 or config["PROGRAMS_PER_SM"]:
        if _overflow(problem, gpu) < 0.5:
            return "the L2 holds the rows under way"
        if config["num_warps"] < most_warps(gpu) or config["BLOCK_N"] * element_size(problem.dtype) < 2**15:
            return "so few bytes in flight that one program does not keep an SM's share of memory busy"
    return fits_online(config, problem, gpu)


def backward_stream_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread of y and dy together; where rows under way crowd the L2, as many of each as registers hold,
    so that a row is soon done, and two programs a row where half of the rows fit or SMs would be idle.  Alone
    on an SM a program reads as many elements of fp32 at once as of 16 bits (8 x 262144: 38.2 us, of half 44.6; H100).

    4096 x 128256 bf16: 1211 us by two programs a row, 1373 by one, 1581 by one with a quarter of the vectors; 1024 x
    262144, of which half does not fit: 978, 817 and 870 (H100, Triton 3.6).
    """
    config = stream_default(2, _STREAM_BLOCKS)(problem, gpu)
    config["BLOCK_N"] = max(_STREAM_BLOCKS[0], config["BLOCK_N"] // 2)
    config["num_warps"] = min(config["num_warps"], most_warps(gpu))
    config |= {"SPLITS": 1, "PROGRAMS_PER_SM": 0}
    overflow, few = _overflow(problem, gpu), problem["m"] <= gpu.sms
    if overflow <= 0.5 or gpu.warps_per_sm <= 32:  # sm_75 spills with as many elements a thread
        return config
    whole = config | {"BLOCK_N": 2**16 // element_size(problem.dtype), "num_warps": most_warps(gpu)}
    block = _STREAM_BLOCKS[-2] if few else whole["BLOCK_N"] // 2
    split = whole | {"BLOCK_N": block, "SPLITS": 2, "PROGRAMS_PER_SM": int(few)}
    idle = 2 * problem["m"] <= gpu.sms
    halved = idle or (overflow > 0.75 and (overflow < 1.5 or few))
    preferred = split if halved else config if few else whole
    return config if fits_backward_stream(preferred, problem, gpu) else preferred


def fits_held(config: dict, problem: Case, gpu: GPU) -> str:
    threads, held = 32 * config["num_warps"], block_n(problem) * element_size(problem.dtype)
    if config["num_warps"] > most_warps(gpu):
        return "over 1024 threads"
    if held < config["CHUNKS"] * threads * VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    return registers_obstacle(held / 4 / threads + OTHER_REGISTERS, threads)


def handles_held(problem: Case, gpu: GPU) -> str:
    """Rows of which dy alone fits half of an SM's registers."""
    size = element_size(problem.dtype)
    if block_n(problem) * size != 2 * REGISTERS:
        return f"rows of {problem['n']} elements: padded to a power of two not 128 KiB"
    if problem["n"] * size % VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    return "" if any(not fits_held(c, problem, gpu) for c in HELD_CONFIGS) else "no program of 128 KiB of registers"
