"""Configs of decoding worth a trial, defaults, and which variant is for what."""

import math

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES

SPLIT_SPACE = {
    "BLOCK_N": (32, 64, 128),
    "PROGRAMS": (1, 2),
    "num_warps": (2, 4),
    "num_stages": (2, 3, 4),
}


LONG = 64
"""Blocks of a program from which on equal parts of all caches beat chunks of each (H200)."""

LONG_RAGGED = 16
"""The same of caches whose lengths differ, which end at different times: of 26 to 31 blocks 0.85 to 0.98 (H200)."""

SHORT = 512
"""Rows of a cache that are sooner read by one program than by several and a second kernel: 0.76 to 0.96 (H200)."""

BUSY = 0.95
"""The share of their time that SMs are busy from which on no cache needs to be shared out."""


def _caches(problem: Case) -> int:
    return problem["batch"] * problem["kv_heads"]


def reads_whole(problem: Case, gpu: GPU) -> str:
    """Why ``whole`` does not take a case."""
    caches, on_sm = _caches(problem), triton.cdiv(_caches(problem), gpu.sms)
    apart = problem["ragged"] and (on_sm == 1 or (on_sm > 2 and problem["seq"] > 4096))  # they end far from each other
    busy = caches >= BUSY * gpu.sms * on_sm and not apart
    return "" if problem["seq"] <= SHORT or busy else "SMs would idle: `split` or `even` shares caches out"


def splits(problem: Case, gpu: GPU) -> str:
    """Why ``split`` does not take a case."""
    config = split_default(problem, gpu)
    blocks = _caches(problem) * triton.cdiv(problem["seq"], config["BLOCK_N"])
    long = LONG_RAGGED if problem["ragged"] else LONG
    return "" if blocks < long * gpu.sms * config["PROGRAMS"] else "`even` shares such caches out better"


def split_default(problem: Case, gpu: GPU) -> dict[str, int]:
    if _copies_asynchronously(problem, gpu):
        return {"BLOCK_N": _rows_of(16, problem), "PROGRAMS": 2, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_N": 32, "PROGRAMS": 2, "num_warps": 4, "num_stages": 2}


def _rows_of(kib, problem):
    """Rows of a block of so many KiB of K, 128 at most."""
    return min(max(512 * kib // triton.next_power_of_2(problem["head_dim"]), 32), 128)


def whole_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """What has enough of the caches under way, with all that an SM reads at work at once, or one after the other.

    A program alone on its SM needs blocks of 32 KiB; so do two of long caches, that read in turn.  From four on, those
    of 16 KiB in two stages leave an SM room for six programs, where with three stages the fourth waits for the others:
    0.86 to 1.01 (H200).  Of three, or long ones of different lengths, larger blocks are under way: 0.90, 0.94.

    Rows of other than whole 16 bytes are copied in smaller pieces, of which a thread has too many addresses for that.
    """
    plain = {name: value for name, value in split_default(problem, gpu).items() if name != "PROGRAMS"}
    if not _copies_asynchronously(problem, gpu) or _copied_at_once(problem) < VECTOR_BYTES:
        return plain
    on_sm, long = triton.cdiv(_caches(problem), gpu.sms), problem["seq"] > SHORT
    large = plain | {"BLOCK_N": _rows_of(32, problem)}
    if on_sm == 1 or (on_sm == 2 and long):
        config = large
    elif on_sm == 2:
        config = plain
    elif on_sm == 3 or (long and problem["ragged"]):
        config = large | {"num_stages": 2}
    else:
        config = plain | {"num_warps": 2, "num_stages": 2}
    return plain if fits(config, problem, gpu) else config


def _copied_at_once(problem: Case) -> int:
    """Bytes that the rows of a head allow a thread to copy at a time."""
    return math.gcd(VECTOR_BYTES, problem["head_dim"] * element_size(problem.dtype))


def _copies_asynchronously(problem: Case, gpu: GPU) -> bool:
    """Whether there is cp.async, which takes 4 bytes at least."""
    return gpu.backend == "cuda" and int(gpu.arch) >= 80 and _copied_at_once(problem) >= 4


def fits(config, problem: Case, gpu: GPU) -> str:
    block = config["BLOCK_N"] * triton.next_power_of_2(problem["head_dim"]) * element_size(problem.dtype)
    asynchronous = _copies_asynchronously(problem, gpu)
    # What is not copied asynchronously goes through registers; on sm_75 tl.dot is FMA, which holds it there as fp32.
    most = 64 if gpu.backend == "cuda" and not asynchronous else 256
    if block // (32 * config["num_warps"]) > most:
        return f"more than {most} bytes of a block of K a thread: registers spill"
    if gpu.functional:
        return ""
    if asynchronous and block < 16 * 1024:
        return "blocks of less than 16 KiB, which longer ones beat (H200)"
    if not asynchronous and config["num_stages"] > 2:
        return "no asynchronous copies, so further stages do nothing"
    # Blocks of K and V that are on their way while one is multiplied; without asynchronous copies one is all there is.
    shared = 2 * block * (config["num_stages"] - 1 if asynchronous else 1)
    if shared + 12 * 1024 > gpu.shared_bytes:
        return f"{shared // 1024} KiB of the cache in shared memory, beside what reductions need"
    under_way = shared * config.get("PROGRAMS", 2) // 1024
    if asynchronous and under_way < 48:  # latency times bandwidth asks for some 32 KiB
        return f"{under_way} KiB of the cache under way in an SM: too few to hide latency"
    return ""
