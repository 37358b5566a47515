"""Forward: the rows that tokens name, read once if the cache holds those that recur.

`tiles` has a tile of tokens times columns in the registers of a program; `rows` the same, but each thread loads all
indices of the tile, so that none need be exchanged.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

FAR = 2**31
"""Elements of a result, whole tiles of tokens, from which on their places are counted in 64 bits."""


def vector_width(x, *strides):
    """Elements of a 16-byte vector where rows consist of whole ones, and begin with one, else 1."""
    width = VECTOR_BYTES // x.element_size()
    return 1 if any(stride % width for stride in (x.shape[-1], *strides)) else width


@triton.jit
def _first_token(BLOCK_M: tl.constexpr, NEAR: tl.constexpr):
    """The first token of a program's tile; NEAR says that all places in the result fit into 32 bits."""
    return (tl.program_id(0) if NEAR else tl.program_id(0).to(tl.int64)) * BLOCK_M


@triton.jit
def tiles_kernel(
    index_ptr, weight_ptr, out_ptr, m, v, n, stride_wv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, NEAR: tl.constexpr,
    KEPT: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M tokens times BLOCK_N columns; neighbouring programs share columns.

    So what is under way is a slice of all rows, and those that recur are found in the cache; KEPT asks it to prefer
    them, STREAM that what is written displaces none.  An index outside [0, v) reads nothing, and its row becomes NaN.
    """
    # n and the stride are multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
    n, stride_wv = n // WIDTH * WIDTH, stride_wv // WIDTH * WIDTH
    offs_m = _first_token(BLOCK_M, NEAR) + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m, mask_n = (offs_m < m) | EVEN, (offs_n < n) | EVEN
    index = tl.load(index_ptr + offs_m, mask=mask_m, other=0).to(tl.int64)
    known = (index >= 0) & (index < v)
    rows = weight_ptr + index[:, None] * stride_wv
    policy: tl.constexpr = "evict_last" if KEPT else ""
    x = tl.load(
        rows + offs_n[None, :], mask=known[:, None] & mask_n[None, :], other=float("nan"), eviction_policy=policy
    )
    out = out_ptr + offs_m[:, None] * n + offs_n[None, :]
    tl.store(out, x, mask=mask_m[:, None] & mask_n[None, :], cache_modifier=".cs" if STREAM else "")


@triton.jit
def rows_kernel(
    index_ptr, weight_ptr, out_ptr, m, v, n, stride_wv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, NEAR: tl.constexpr,
    KEPT: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """As tiles_kernel, but each thread knows all indices, so none need be exchanged."""
    n, stride_wv = n // WIDTH * WIDTH, stride_wv // WIDTH * WIDTH  # as in tiles_kernel
    first = _first_token(BLOCK_M, NEAR)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = (offs_n < n) | EVEN
    policy: tl.constexpr = "evict_last" if KEPT else ""
    indices, xs = (), ()
    for i in tl.static_range(BLOCK_M):
        indices += (tl.load(index_ptr + first + i, mask=(first + i < m) | EVEN, other=0).to(tl.int64),)
    for i in tl.static_range(BLOCK_M):
        known = (indices[i] >= 0) & (indices[i] < v)
        row = weight_ptr + indices[i] * stride_wv + offs_n
        xs += (tl.load(row, mask=mask_n & known, other=float("nan"), eviction_policy=policy),)
    for i in tl.static_range(BLOCK_M):
        out = out_ptr + (first + i) * n + offs_n
        tl.store(out, xs[i], mask=mask_n & ((first + i < m) | EVEN), cache_modifier=".cs" if STREAM else "")


def launch_gather(kernel):
    def run(index, weight, padding_idx, *, config):
        m, (v, n), stride = index.numel(), weight.shape, weight.stride(0)
        out = torch.empty((*index.shape, n), dtype=weight.dtype, device=weight.device)
        if out.numel():
            block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
            grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
            even = m % block_m == 0 and n % block_n == 0
            launch(
                kernel, grid, index, weight, out, m, v, n, stride,
                WIDTH=vector_width(weight, stride), EVEN=even, NEAR=(m + block_m) * n < FAR, **config,
            )  # fmt: skip
        return out

    return run


BLOCKS = (128, 256, 512, 1024)
_ASKED = {"KEPT": (False, True), "STREAM": (False, True)}
TILES_SPACE = {"BLOCK_M": (1, 4, 8, 16, 32, 64), "BLOCK_N": BLOCKS, "num_warps": (1, 2, 4)} | _ASKED
ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8), "BLOCK_N": BLOCKS, "num_warps": (1, 2, 4)} | _ASKED

_RESIDENT = 8
"""Tiles of four warps that an SM holds, by their registers (62 to 72 a thread on an H200)."""


def tiles_default(problem: Case, gpu: GPU) -> dict:
    """Eight 16-byte vectors a thread of four warps, 512 bytes of a row; or twice that a thread of one warp or two.

    Two have a tile as large, of 256 bytes of a row (16 bits), where tiles of four take one to four rounds on the SMs:
    an SM holds more of them at once (4096 x 3584: 15.9 us for 17.2).  One has half a tile where rows are no whole
    vectors (6000 x 777: 10.4 for 11.7), or begin a second round in 32 bits.  In few tiles or many rounds neither gains.
    """
    size = element_size(problem.dtype)
    block_n = columns(problem, 512)
    block_m, warps = 8 * 4 * 32 * VECTOR_BYTES // size // block_n, 4
    rounds = triton.cdiv(problem["m"], block_m) * triton.cdiv(problem["n"], block_n) / (_RESIDENT * gpu.sms)
    pieces = problem["n"] * size % VECTOR_BYTES != 0
    if size == 2 and not pieces and 1 < rounds <= 4 and problem["m"] > block_m:
        block_m, block_n, warps = 64, 128, 2
    elif problem["m"] > block_m // 2 and (1 < rounds <= 1.4 or (pieces and rounds > 0.5)):
        block_m, warps = block_m // 2, 1
    block_m = min(block_m, triton.next_power_of_2(problem["m"]))
    warps = max(1, min(warps, block_m * block_n * size // (32 * VECTOR_BYTES)))
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps} | _stores(problem, gpu)


def rows_default(problem: Case, gpu: GPU) -> dict:
    """Eight rows, a 16-byte vector of each a thread."""
    block_n = columns(problem, 1024)
    warps = max(1, block_n * element_size(problem.dtype) // (32 * VECTOR_BYTES))
    block_m = min(8, triton.next_power_of_2(problem["m"]))
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps} | _stores(problem, gpu)


def _stores(problem: Case, gpu: GPU) -> dict:
    """No rows kept; writes are streaming beyond twice the cache (4096 x 4096 fp32: 30.8 us, others 30.1)."""
    return {"KEPT": False, "STREAM": _written(problem) > 2 * gpu.l2_bytes}


def _written(problem: Case) -> int:
    return problem["m"] * problem["n"] * element_size(problem.dtype)


def columns(problem: Case, most: int) -> int:
    """The columns of a block of ``most`` bytes of a row, fewer if the table has fewer."""
    return max(BLOCKS[0], min(most // element_size(problem.dtype), triton.next_power_of_2(problem["n"])))


def fits_tiles(config: dict, problem: Case, gpu: GPU) -> str:
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the tokens there are"
    if config["KEPT"] and config["BLOCK_N"] * element_size(problem.dtype) > 512:
        return "a slice of which the cache holds too little"
    if config["KEPT"] and not config["STREAM"]:
        return "writes that displace rows to be kept"
    if config["STREAM"] and _written(problem) < gpu.l2_bytes:
        return "the cache holds all that is written"
    vectors = config["BLOCK_M"] * vectors_of_row(config, problem)
    if vectors > 16:
        return f"{vectors:g} 16-byte vectors a thread; up to 16 keep memory busy without spills"
    return no_use(config, problem, vectors)


def fits_rows(config: dict, problem: Case, gpu: GPU) -> str:
    if vectors_of_row(config, problem) > 1:
        return "over one 16-byte vector a thread of each row"
    return fits_tiles(config, problem, gpu)


def vectors_of_row(config: dict, problem: Case) -> float:
    """16-byte vectors that a thread has of one row of a tile."""
    return config["BLOCK_N"] * element_size(problem.dtype) / (32 * config["num_warps"] * VECTOR_BYTES)


def no_use(config: dict, problem: Case, vectors: float) -> str:
    """Why a tile of so many 16-byte vectors a thread is no use, or ``""``."""
    if vectors < 1 and config["num_warps"] > 1:
        return "less than one 16-byte vector a thread"
    if config["BLOCK_N"] > max(triton.next_power_of_2(problem["n"]), BLOCKS[0]):
        return "a block wider than the table"
    return ""
