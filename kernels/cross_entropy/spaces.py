"""Spaces of the variants: what fits, what each is for, and what runs untuned."""

import triton
from atlas.declaration import rows, rowwise
from atlas.declaration.cases import element_size
from atlas.declaration.rows import (
    OTHER_REGISTERS,
    REGISTERS,
    VECTOR_BYTES,
    block_n,
    fits_stream,
    most_warps,
    registers_obstacle,
    rows_obstacle,
)

from kernels.common import strip_configs

from .cases import flags_of
from .total import MOST

_LIVE = {False: 1, True: 2}
"""Registers for each element of a tile in registers: the logit; with the gradient the logit and its exponential."""


def only(gradient, problem):
    wanted = flags_of(problem)["gradient"]
    if wanted == gradient:
        return ""
    return "the forward pass computes the gradient" if wanted else "no gradient is asked for"


def handles_rows(problem, gpu):
    """Rows that fill at most half of an SM's registers: a program that fills more runs alone, and memory idles."""
    longest = REGISTERS // 4 // _LIVE[flags_of(problem)["gradient"]]
    return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""


def fits_rows(config, problem, gpu):
    return rows_obstacle(config, problem, _LIVE[flags_of(problem)["gradient"]])


_OF_WARP = 1024
"""Elements of a row that a warp reads alone."""


def one_pass_default(problem, gpu):
    """Short rows by a warp each, which exchanges nothing through shared memory, and several where they are many.

    (125 x 153 of bf16: 7.1 us, of eight rows by two warps 9.1; 8192 x 1000: 14.6 and, of two rows by two, 15.3; H200.)
    Two vectors a thread of several, and as many as fill a vector of each thread where SMs keep two programs (20000 x
    200 of bf16: 16.1 us, with four vectors 17.3; 2048 x 80: 7.7 us, one by one 8.0; H100).
    """
    if problem["n"] > _OF_WARP:
        return rowwise.default(problem, gpu)
    row = rows.block_n(problem) * element_size(problem.dtype)
    filling = min(_VECTOR_OF_WARP // row, rows.rows_apart(problem, gpu))
    block_m = max(filling, rows.rows_together(problem, gpu, rowwise.SPACE["BLOCK_M"][-1]))
    return {"BLOCK_M": block_m, "num_warps": max(1, block_m * row // (2 * _VECTOR_OF_WARP)) if block_m > 1 else 1}


_VECTOR_OF_WARP = 32 * rows.VECTOR_BYTES
"""Bytes that a warp reads at once."""
_CLASSES = 32
"""Of rows side by side in a warp: longer ones would be cut among warps, and 64 of 250 took 68 us for 10 (H200)."""
_ROOM = 4096
"""Elements of a program that holds all rows; of 16384, which one SM exchanges, it is no faster than two launches."""

WHOLE_SPACE = {"num_warps": (4, 8, 16, 32)}


def _room(problem):
    return triton.next_power_of_2(problem["m"]) * block_n(problem)


def handles_whole(problem, gpu):
    if problem["n"] > _CLASSES:
        return f"rows of {problem['n']} classes, over {_CLASSES}"
    return f"over {_ROOM} elements, with room for a power of 2 of both" if _room(problem) > _ROOM else ""


def fits_whole(config, problem, gpu):
    threads = 32 * config["num_warps"]
    if config["num_warps"] > WHOLE_SPACE["num_warps"][0] and _room(problem) < 2 * threads:
        return "less than two elements a thread"
    return registers_obstacle(_room(problem) / threads * _LIVE[True] + OTHER_REGISTERS, threads)


def whole_default(problem, gpu):
    """Two elements a thread: the more, the less each waits (35x20 bf16 with 8, 16, 32 warps: 8.0, 6.9, 6.3 us)."""
    warps = _room(problem) // (2 * 32)
    return {"num_warps": max(WHOLE_SPACE["num_warps"][0], min(most_warps(gpu), warps))}


def fits_blocks(config, problem, gpu):
    return fits_stream(config, problem, gpu, BLOCKS[0])


def stream_default(problem, gpu):
    """Two 16-byte vectors a thread of 8 warps, of more where the rows are too few to fill the SMs.

    Of 4 warps where a program for every row is then under way at once, and of 8 a few would wait for the rest (1163 x
    32000 bf16: 42.8 us, with 8 warps 51.9; H100, Triton 3.6).
    """
    many, room = max(problem["m"], 1), gpu.sms * gpu.warps_per_sm
    wanted = triton.next_power_of_2(room // many)
    warps = 4 if room // 8 < many <= room // 4 else max(8, min(most_warps(gpu), wanted))
    longest = max(block_n(problem), BLOCKS[0])
    block = min(warps * 2 * 32 * VECTOR_BYTES // element_size(problem.dtype), longest, BLOCKS[-1])
    return {"BLOCK_N": block, "num_warps": max(4, block * element_size(problem.dtype) // (2 * 32 * VECTOR_BYTES))}


def gradient_default(problem, gpu):
    """As other kernels stream rows, of 16 bits with four vectors a thread: the exponentials of a row that comes again
    from the cache hide it (4096 x 32000 bf16: 174 us, with two vectors 193; H200, Triton 3.6)."""
    found = _streamed(problem, gpu)
    if element_size(problem.dtype) == 2:
        found["num_warps"] = max(4, found["num_warps"] // 2)
    return found


_LITTLE = 2**24
"""Bytes of logits: less than this is over before a program's second vector pays."""


def backward_default(problem, gpu):
    """Four warps and four 16-byte vectors a thread (4096 x 50257 bf16: 207 us, two vectors of 8 warps 228; H200), one
    block each of the shortest where there is little to do (48 x 102400: 12.2 us for 14.4; H100, Triton 3.6)."""
    size = element_size(problem.dtype)
    little = problem["m"] * problem["n"] * size < _LITTLE
    block = BLOCKS[0] if little else 4 * 4 * 32 * VECTOR_BYTES // size
    return {"BLOCK_N": min(block, max(block_n(problem), BLOCKS[0])), "num_warps": 4}


BLOCKS = (1024, 2048, 4096, 8192, 16384)
BLOCKS_SPACE = {"BLOCK_N": BLOCKS, "num_warps": (4, 8, 16, 32)}
_streamed = rows.stream_default(1, BLOCKS)


def handles_split(problem, gpu):
    """Why ``split`` does not take a case."""
    if gpu.functional or _most_parts(problem, gpu) > 1:
        return only(False, problem)
    return "rows that are many enough for all SMs, or too short to be cut"


def fits_split(config, problem, gpu):
    parts = config["SPLITS"]
    if not gpu.functional and not _most_parts(problem, gpu) // 2 <= parts <= _most_parts(problem, gpu):
        return "as many parts as keep all SMs busy and are long enough to be worth a program"
    return fits_stream(config, problem, gpu, SPLIT_SPACE["BLOCK_N"][0])


def split_default(problem, gpu):
    """Two 16-byte vectors a thread."""
    block = min(max(1024, block_n(problem) // 2), 8 * 32 * 2 * VECTOR_BYTES // element_size(problem.dtype))
    warps = 8 if block * element_size(problem.dtype) >= 8 * 32 * VECTOR_BYTES else 4
    return {"BLOCK_N": block, "SPLITS": max(2, _most_parts(problem, gpu)), "num_warps": warps}


def _most_parts(problem, gpu):
    """Parts of a row that are worth a program each, a power of 2, and no more than give each SM two."""
    worth = problem["n"] * element_size(problem.dtype) // _WORTH
    parts = min(worth, 2 * gpu.sms // max(problem["m"], 1), SPLIT_SPACE["SPLITS"][-1])
    return 1 << (parts.bit_length() - 1) if parts else 0


_WORTH = 16 * 1024
"""Bytes of a row that a program should read at least; one SM of an H200 reads some 40 in a nanosecond."""

SPLIT_SPACE = {"BLOCK_N": (1024, 2048, 4096), "SPLITS": (2, 4, 8, 16, 32, 64), "num_warps": (4, 8)}


_SHORT = 128
"""Classes of a row of which a program's shortest block would be one sixteenth, and a whole program's start."""

FLAT_SPACE = {"VECTORS": (1, 2, 4), "num_warps": (1, 2, 4, 8)}


def handles_flat(problem, gpu):
    if problem["n"] > _SHORT:
        return f"rows of {problem['n']} classes, over {_SHORT}"
    return only(False, problem)


def _flat_programs(config, problem):
    held = config["VECTORS"] * 32 * config["num_warps"] * VECTOR_BYTES
    return triton.cdiv(problem["m"] * problem["n"] * element_size(problem.dtype), held)


def fits_flat(config, problem, gpu):
    vectors, warps = config["VECTORS"], config["num_warps"]
    if vectors * warps > 1 and _flat_programs({"VECTORS": 1, "num_warps": vectors * warps // 2}, problem) == 1:
        return "a program with room for twice the rows there are"
    return "fewer lanes than classes" if 32 * warps * vectors < problem["n"] and warps == 1 else ""


def flat_default(problem, gpu):
    """One vector a thread; of four warps where each SM has several such programs, else of as many as leave it one.

    Of rows of which two lie in one program of a warp, but none in that warp's lanes, no config of the space fits.
    """
    points = list(rows.points(FLAT_SPACE))
    fitting = [config for config in points if not fits_flat(config, problem, gpu)] or points
    wanted = 4 if _flat_programs({"VECTORS": 1, "num_warps": 4}, problem) >= 2 * gpu.sms else 1
    return min(fitting, key=lambda config: (config["VECTORS"], abs(config["num_warps"] - wanted)))


HELD_SPACE = {"ROWS": (1, 2, 4), "num_warps": (4, 8)}
"""Rows of each thread."""

_HELD = 20
"""Classes up to which a warp's loads of its rows, one class after the other, find them in L1 soon enough (10^6 x 20 of
bf16: 31 us, 156 by ``one_pass``; of 32 classes 77 and 48; H200)."""


def handles_held(problem, gpu):
    if problem["n"] > _HELD:
        return f"rows of {problem['n']} classes, over {_HELD}"
    if problem["n"] * element_size(problem.dtype) % VECTOR_BYTES == 0 and not gpu.functional:
        return "rows of whole vectors"  # 10^6 x 16 of bf16: 28 us, 22 by ``strips`` (H200)
    if problem["m"] <= MOST and not gpu.functional:
        return f"{problem['m']} rows, not over {MOST}"
    return only(False, problem)


def fits_held(config, problem, gpu):
    needed = config["ROWS"] * (problem["n"] + OTHER_REGISTERS // 2) + OTHER_REGISTERS
    return registers_obstacle(needed, 32 * config["num_warps"])


def held_default(problem, gpu):
    return {"ROWS": 1, "num_warps": 8}


def handles_strips(problem, gpu):
    return strip_configs.handles(problem["m"], problem, gpu) or only(False, problem)


def handles_strips_backward(problem, gpu):
    """Lanes of ``flat`` write whole vectors of any rows, but of rows of such read what is known of them too often."""
    if problem["n"] % 4 and problem["n"] <= _SHORT:
        return "short rows of narrow vectors"
    if 2 * problem["n"] > BLOCKS[0]:
        return f"rows of {problem['n']} classes, over half a block of `blocks`"
    return handles_strips(problem, gpu)


def fits_strips(config, problem, gpu):
    return strip_configs.fits(config, problem)
