"""Configs of decoding worth a trial, defaults, and which variant is for what."""

import triton
from atlas.declaration import GPU, Case, element_size

SPLIT_SPACE = {
    "BLOCK_N": (32, 64, 128),
    "PROGRAMS": (1, 2),
    "num_warps": (2, 4),
    "num_stages": (2, 3, 4),
}


LONG = 64
"""Blocks of a program from which on equal parts of all caches beat chunks of each (H200)."""


def splits(problem: Case, gpu: GPU) -> str:
    """Why ``split`` does not take a case."""
    config = split_default(problem, gpu)
    blocks = problem["batch"] * problem["kv_heads"] * triton.cdiv(problem["seq"], config["BLOCK_N"])
    return "" if blocks < LONG * gpu.sms * config["PROGRAMS"] else "`even` shares such caches out better"


def split_default(problem: Case, gpu: GPU) -> dict[str, int]:
    if _copies_asynchronously(gpu):
        block_n = min(max(8192 // triton.next_power_of_2(problem["head_dim"]), 32), 128)  # 16 KiB of K
        return {"BLOCK_N": block_n, "PROGRAMS": 2, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_N": 32, "PROGRAMS": 2, "num_warps": 4, "num_stages": 2}


def whole_default(problem: Case, gpu: GPU) -> dict[str, int]:
    return {name: value for name, value in split_default(problem, gpu).items() if name != "PROGRAMS"}


def _copies_asynchronously(gpu: GPU) -> bool:
    return gpu.backend == "cuda" and int(gpu.arch) >= 80


def fits(config, problem: Case, gpu: GPU) -> str:
    block = config["BLOCK_N"] * triton.next_power_of_2(problem["head_dim"]) * element_size(problem.dtype)
    asynchronous = _copies_asynchronously(gpu)
    # On sm_75 tl.dot is FMA, which holds its operands in registers as fp32.
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
