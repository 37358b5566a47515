"""Which configs of bmm's variants are worth a trial, which is each one's default, and what none can take."""

import triton
from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import uses_tensor_cores

from kernels.common.products import BARRIERS, buffers, fma_stages, layout_of, narrow, row_lengths, stage_bytes
from kernels.matmul.registers import goes_through_registers
from kernels.matmul.registers import microseconds as registers_microseconds
from kernels.matmul.swizzled import MULTIPLICATIONS, enough_warps, microseconds, swizzles, turns

from .estimates import count, direct_microseconds, persistent_microseconds, rounds


def fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``tiled`` cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    if Capability.TENSOR_DESCRIPTORS in gpu.capabilities and narrow(problem) and not copies(problem, gpu):
        return "`persistent` takes rows off 16 bytes, and pads them"
    if not swizzles_batch(problem, gpu) and layout_of(problem)[1] == "T":
        return "threads read B along k from one bank of shared memory, where `swizzled` does not"
    return _fits_tile(config, problem, gpu, narrow(problem))


def _fits_tile(config: Config, problem: Case, gpu: GPU, singly: bool) -> str:
    """The same for a tile, whose elements are read one by one if ``singly``."""
    shared = buffers(config, problem, gpu) * stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if _alone_in_tf32(problem, gpu) and tuple(config.values()) == _tile_alone_in_tf32(problem, gpu):
        return ""
    if _by_time(problem, gpu):
        times = _fma_times(problem, gpu)
        near = [tile for tile, microseconds in times.items() if microseconds <= 1.3 * min(times.values())]
        if config in [_fma_config(tile, problem) for tile in near]:
            return ""
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    if warps == 2:
        return "too few warps to share what they read"
    if rows >= max(32, 2 * problem["m"]) or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as C"
    few = singly and _few(problem, gpu)
    least = 32 if few else 64
    if rows < min(least, problem["m"]) or columns < min(least, problem["n"]):
        return f"a tile smaller than C and than {least} rows and columns: operands are read too often"
    accumulators = rows * columns // (32 * warps)
    least = 4 if warps == 4 else 64
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if uses_tensor_cores(problem, gpu) and not singly:
        most, right_k, stages = 64 if problem.dtype == "tf32" else 128, row_bytes == 128, (3, 4)
    elif uses_tensor_cores(problem, gpu):  # blocks wait in registers: see kernels/matmul/spaces.py
        most, right_k, stages = 32 if few else 64, row_bytes == (128 if few else 64), (2,)
    else:
        least, most = 16 if warps == 8 else 4, 64 if problem.dtype == "fp32" else 32
        right_k = config["BLOCK_K"] in ((16, 32) if problem.dtype == "fp32" else (16,))
        stages = (fma_stages(problem, gpu),)
    if not least <= accumulators <= most:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if not right_k:
        return "rows of a block of K are of one length: what the swizzle fills, or registers hold"
    return "" if config["num_stages"] in stages else "too little under way, or more than is of use"


SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64),
    "GROUP_M": (8,),
    "num_warps": (2, 4, 8),
    "num_stages": (2, 3, 4),
}


def _few(problem: Case, gpu: GPU) -> bool:
    """Whether tiles of 64 x 64 are less than two for each SM: smaller ones, read singly, have more under way."""
    return count((64, 64), problem) < 2 * gpu.sms


_FMA_TILES = {
    (64, 64, 4, 3): 0.93,
    (32, 256, 8, 3): 0.87,
    (16, 256, 4, 4): 0.77,
    (64, 32, 8, 3): 0.35,
    (32, 32, 4, 3): 0.33,
    (64, 32, 2, 4): 0.85,
}
"""BLOCK_M, BLOCK_N, num_warps, num_stages of `tiled` in fp32, and the share of an SM's best rate that they reach.

Wide ones where 64 rows would be empty in part: 24 of 197, 768, 768 take 166 us by 32 x 256, 183 by 64 x 64 of
`swizzled`.  Small ones where others leave SMs idle: 24 of 64, 128, 768 take 24 us by 64 x 32, 30 by 64 x 64.  Two warps
for short sums, where 64 columns would be half empty: 96 of 333 x 96 x 77 TN take 23.4 us so, 25.4 by 64 x 64 (H200).
"""


_SMALLEST = (32, 32, 4, 3)


def _by_time(problem: Case, gpu: GPU) -> bool:
    """Whether `tiled` goes by these estimates."""
    return problem.dtype == "fp32" and Capability.WGMMA in gpu.capabilities


def _fma_config(tile: tuple[int, ...], problem: Case) -> dict[str, int]:
    """The config of a tile; the smallest has no more rows and columns than C."""
    rows, columns, warps, stages = tile
    rows = min(rows, max(16, triton.next_power_of_2(problem["m"])))
    columns = min(columns, max(32, triton.next_power_of_2(problem["n"])))
    # Of a short sum, no empty half.
    block_k = 16 if warps == 2 or (problem["k"] < 128 and 0 < problem["k"] % 32 <= 16) else 32
    return dict(zip(SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))


def _fma_microseconds(tile: tuple[int, ...], problem: Case, gpu: GPU) -> float:
    """About how long ``tiled`` takes in fp32: elements that are read one by one make it longer.

    1.4 times, and 3.2 times where B and the end of K are, of many tiles: 24 of 333 x 333 x 77 take 56.6 us, 34.0 by
    `swizzled`, and 64 of 768 x 333 x 77 TN 257 (H200).
    """
    config = _fma_config(tile, problem)
    rows, columns, block_k, _, warps, _ = config.values()
    busy = turns(rounds((rows, columns), problem, gpu), 12 // warps, warps, enough_warps(problem["k"]))
    k = triton.cdiv(problem["k"], block_k) * block_k
    both = problem["k"] % 16 and problem["n"] % 16
    singly = 3.2 if both and not _few(problem, gpu) else 1.4 if narrow(problem) else 1.0
    return singly * busy * rows * columns * k / (MULTIPLICATIONS * _FMA_TILES[tile])


def _fma_times(problem: Case, gpu: GPU) -> dict[tuple[int, ...], float]:
    """The tiles that are not far larger than C, and how long they take."""
    rows, columns = max(16, triton.next_power_of_2(problem["m"])), max(32, triton.next_power_of_2(problem["n"]))
    tiles = (tile for tile in _FMA_TILES if tile[0] <= rows and tile[1] <= columns)
    short = problem["k"] < 128 and 0 < problem["n"] % 64 <= 32
    tiles = (tile for tile in tiles if tile[2] > 2 or short)
    return {tile: _fma_microseconds(tile, problem, gpu) for tile in (*tiles, _SMALLEST)}


_SHORT = 128
"""Elements of K up to which reading singly, tiles of 64 x 64 begin and end sooner than those of 128 x 128: 16 of
512 x 333 x 32 in bf16 take 9.0 us for 11.7, 24 of 256 x 333 x 96 13.3 for 21.1, 16 of 577 x 99 x 128 TN 10.6 for 11.4
(H200)."""


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    if _by_time(problem, gpu):
        times = _fma_times(problem, gpu)
        return _fma_config(min(times, key=times.get), problem)
    if _alone_in_tf32(problem, gpu):
        return dict(zip(SPACE, _tile_alone_in_tf32(problem, gpu), strict=True))
    tensor_cores = uses_tensor_cores(problem, gpu)
    small = narrow(problem) and _few(problem, gpu) and (tensor_cores or problem.dtype == "fp32")
    # The fewest that wgmma multiplies are 64 rows: 8 of 1024, 77, 77 take 11.3 us so, 14.3 by 32 (H200).
    many = Capability.WGMMA in gpu.capabilities and rounds((32, 32), problem, gpu) > 2
    most_rows, most_columns = (64 if many else 32, 32) if small else (128, 128) if tensor_cores else (64, 64)
    rows = min(most_rows, max(16, triton.next_power_of_2(problem["m"])))
    columns = min(most_columns, max(32, triton.next_power_of_2(problem["n"])))
    if not tensor_cores:
        block_k, stages = 32 if small else 16, fma_stages(problem, gpu)
    elif narrow(problem):
        block_k, stages = (128 if small else 64) // element_size(problem.dtype), 2
        short = problem["k"] <= _SHORT and Capability.TENSOR_DESCRIPTORS in gpu.capabilities
        if short and rows == columns == 128:
            rows = columns = 64
    else:
        block_k, stages = 128 // element_size(problem.dtype), 3
    # 64 x 64 in 4 warps spills a few bytes in fp32 on compute capability 10.0 (Triton 3.7.1).
    warps = 8 if rows * columns == (128 * 128 if tensor_cores else 64 * 64) else 4
    return dict(zip(SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))


def _tile_alone_in_tf32(problem: Case, gpu: GPU) -> tuple[int, ...]:
    """The tile of `tiled` where copies for wgmma do not pay: of fewer than 64 rows, mma takes operands in either order.

    2 of 333, 96, 77 take 7.5 us by 16 rows, 12.2 by 64, and 12.5 by `persistent` with its copies.  More than one tile
    of 16 rows an SM read too often: 12 of 577, 77, 96 TN take 13.8 us by 32 x 32, 26.7 by 16 x 64, 25.7 by 64 x 64.
    Rows at 16 bytes are copied asynchronously: 8 of 768, 96, 96 take 10.0 us by 128 x 64, 12.7 by 16 x 64 (H200).
    """
    if count((16, 64), problem) <= gpu.sms:
        return (16, 64, 64, 8, 8, 3)
    most = 32 if narrow(problem) else 128 if 2 * count((128, 64), problem) >= gpu.sms else 64
    rows = min(most, max(16, triton.next_power_of_2(problem["m"])))
    return (rows, 32, 32, 8, 4, 2) if narrow(problem) else (rows, 64, 32, 8, 4, 3)


def _alone_in_tf32(problem: Case, gpu: GPU) -> bool:
    return problem.dtype == "tf32" and Capability.WGMMA in gpu.capabilities and bool(copies(problem, gpu))


def fits_persistent(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``persistent`` cannot launch, or cannot be the best."""
    if problem.dtype == "fp32":
        return copies(problem, gpu)
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    free = _free(config, problem, gpu)
    if free < 0:
        return f"{-free} bytes of shared memory too many"
    if config["num_stages"] < 4 and free > stage_bytes(config, problem):
        return "one more stage would fit"
    if config["PARTS"] > 1 and rows * columns < 128 * 256:
        return "the tile of C is small beside the blocks"
    if rows * columns == 128 * 256 and columns < 256:
        return "wide tiles, as matmul's"
    tile = (rows, columns, config["num_warps"], config["num_stages"])
    if tile not in _tiles(problem, gpu) or config["BLOCK_K"] != _block_k(tile, problem):
        return "other tiles spill nothing and have as much under way"
    if tile == _DEEP:
        return ""
    best = min(
        _microseconds(other, problem, gpu) for other in _tiles(problem, gpu) if _has_room(other, 2, problem, gpu)
    )
    if _microseconds(tile, problem, gpu) > 1.3 * best:
        return "another tile should end sooner"
    return _fits_tile(config, problem, gpu, False)


PERSISTENT_SPACE = {**SPACE, "BLOCK_K": (16, 32, 64, 128), "num_stages": (2, 3, 4, 6), "PARTS": (1, 2)}


def default_persistent(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of the tiles that there is room for the one that ends first if SMs take tiles in step."""
    tiles = [tile for tile in _tiles(problem, gpu) if _has_room(tile, _parts(tile, problem), problem, gpu)]
    tile = min(tiles or _tiles(problem, gpu), key=lambda tile: _microseconds(tile, problem, gpu))
    return _persistent_config(tile, _parts(tile, problem), problem)


def _parts(tile: tuple[int, ...], problem: Case) -> int:
    """Halves of the largest tile leave room for a fourth stage: 16 of 1024 each way take 53 us so, 57 whole (H200).

    Where three hold all of K, a further one holds nothing.
    """
    long = problem["k"] * element_size(problem.dtype) > 3 * 128
    return 2 if long and tile[0] * tile[1] == 128 * 256 else 1


def _persistent_config(tile: tuple[int, int, int, int], parts: int, problem: Case) -> dict[str, int]:
    rows, columns, warps, stages = tile
    return dict(zip(PERSISTENT_SPACE, (rows, columns, _block_k(tile, problem), 8, warps, stages, parts), strict=True))


def _block_k(tile: tuple[int, int, int, int], problem: Case) -> int:
    return (256 if tile == _DEEP else 128) // element_size(problem.dtype)


def _free(config: Config, problem: Case, gpu: GPU) -> int:
    """Bytes of shared memory that ``persistent`` leaves; less than 0 where there are too few."""
    beside = config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype) // config["PARTS"] + BARRIERS
    return gpu.shared_bytes - beside - config["num_stages"] * stage_bytes(config, problem)


def _has_room(tile: tuple[int, int, int, int], parts: int, problem: Case, gpu: GPU) -> bool:
    return _free(_persistent_config(tile, parts, problem), problem, gpu) >= 0


_DEEP = (64, 64, 4, 6)
"""Of few tiles, each alone on its SM, with a long sum: blocks of twice the K, and 160 KiB under way.

16 of 128 x 128 x 2048 take 9.9 us so, 13.4 by four stages of 64 and 12.2 by eight; 6 of k 4096 11.1, 21.0 and 18.1;
12 of 96 x 128 x 1024 6.4, 8.0 and 8.1 (H200).
"""


def _tiles(problem: Case, gpu: GPU) -> tuple[tuple[int, int, int, int], ...]:
    """BLOCK_M, BLOCK_N, num_warps, num_stages of the tiles worth a thought."""
    few = problem["k"] >= 768 and count((64, 64), problem) <= gpu.sms
    if few and problem.dtype != "tf32" and Capability.WGMMA in gpu.capabilities:
        return (_DEEP,)
    small = ((64, 64, 4, 4), (64, 128, 4, 4), (128, 64, 4, 4))
    if problem.dtype == "tf32":
        return (*small, (128, 128, 8, 3), (64, 256, 8, 4))
    if problem["n"] % 8:  # written through pointers: a thread with more accumulators took twice as long (H200)
        return (*small, (128, 128, 8, 4))
    return (*small, (128, 128, 4, 4), (128, 256, 8, 4), (128, 256, 8, 3))


# Microseconds of one SM on an H200: see kernels/matmul/split_spaces.py.
_MULTIPLY, _LOAD, _PROGRAM = {"fp16": 3.0e-7, "bf16": 3.0e-7, "tf32": 8.4e-7}, 6.8e-6, 1.0
_SINGLY = {"fp16": 0.019, "bf16": 0.019, "tf32": 0.018}
"""For a step of K of a tile of 64 x 64 whose elements are read one by one; `_SINGLY_SMALL` of one of 64 x 32."""
_SINGLY_SMALL = 0.0155
_SINGLY_BY_COLUMNS = 0.0135
"""The same of A alone, by columns: 192 of 577 x 64 x 77 TN in bf16 take 16.7 us so, 25.2 of a copy (H200)."""
_START, _WRITE_SINGLY = 3.0, 0.35
"""For a launch of `tiled`, and for a tile that it writes where n is off 8."""
_LAUNCH, _COPIED = 2.6, 3.2e6
"""For a kernel that copies one operand, or both; bytes that all SMs copy in one."""


def _microseconds(tile: tuple[int, ...], problem: Case, gpu: GPU) -> float:
    """How long all tiles take, by the copy engine."""
    load = (tile[0] + tile[1]) * element_size(problem.dtype) * _LOAD
    step = max(tile[0] * tile[1] * _MULTIPLY[problem.dtype], load)
    return rounds(tile, problem, gpu) * (problem["k"] * step + _PROGRAM)


_MOST_PRODUCTS = 65535


def swizzles_batch(problem: Case, gpu: GPU) -> str:
    """Why ``swizzled`` does not take a case: copies may take longer than reading single elements does."""
    if reason := swizzles(problem, gpu):
        return reason
    if problem["b"] > _MOST_PRODUCTS:
        return f"over {_MOST_PRODUCTS} products, the most that CUDA counts along that axis of a grid"
    copied, turned = _copies_of_swizzled(problem)
    if turned and count((64, 64), problem) < gpu.sms:
        return ""  # few tiles do not make up for a launch that turns B
    pays = turned + min(_fma_times(problem, gpu).values()) < 0.95 * (copied + microseconds(problem, gpu))
    return "`tiled` has tiles that leave less of C's edges or of SMs idle, or copies would take longer" if pays else ""


def fma_microseconds(problem: Case, gpu: GPU) -> float:
    """About how long the sooner of `tiled` and `swizzled` takes in fp32, with the copies of either."""
    copied, turned = _copies_of_swizzled(problem)
    times = [turned + min(_fma_times(problem, gpu).values())]
    return min([*times, copied + microseconds(problem, gpu)] if not swizzles_batch(problem, gpu) else times)


_SINGLY_AT_BEST = 0.8
"""The share of its estimate that `tiled` takes at best where it reads singly: 12 of 77 x 1024 x 577 TN 38.6 us for
50.7, 64 of 197 x 256 x 77 NT 28.9 for 35.1 (H200)."""


def fma_microseconds_at_best(problem: Case, gpu: GPU) -> float:
    """About how long the one of them takes that is chosen, or a little less where that was timed."""
    copied, turned = _copies_of_swizzled(problem)
    if not swizzles_batch(problem, gpu):
        return copied + microseconds(problem, gpu)
    return turned + min(_fma_times(problem, gpu).values()) * (_SINGLY_AT_BEST if narrow(problem) else 1.0)


def _copies_of_swizzled(problem: Case) -> tuple[float, float]:
    """Microseconds that `swizzled` copies operands for (``in_a_row``), and `tiled` to turn B."""
    b, m, n, k, (of_a, of_b) = *(problem[name] for name in "bmnk"), layout_of(problem)
    row_a, row_b, _ = row_lengths(problem)

    def copy(elements):
        return _LAUNCH + 2 * 4 * b * elements / _COPIED

    copied = copy(m * k) if row_a % 4 or (of_a == "T" and k % 32) else 0.0
    copied += copy(k * n) if row_b % 4 or (of_b == "N" and k % 32) else 0.0
    return copied, copy(k * n) if of_b == "T" else 0.0


def copies(problem: Case, gpu: GPU) -> str:
    """Why ``persistent`` does not take a case: copies of rows off 16 bytes, or of tf32 not along K, must pay."""
    if problem.dtype == "fp32":
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    size, b, m, n, k = element_size(problem.dtype), *(problem[name] for name in "bmnk")
    of_a, of_b = (length * size % 16 != 0 for length in row_lengths(problem)[:2])
    if problem.dtype == "tf32" and Capability.WGMMA in gpu.capabilities:
        of_a, of_b = of_a or layout_of(problem)[0] == "T", of_b or layout_of(problem)[1] == "N"
    elif problem.dtype == "tf32":
        return ""
    if gpu.functional or not (of_a or of_b):
        return ""
    # In tf32 a copy of both is two launches.
    launches = of_a + of_b if problem.dtype == "tf32" else 1
    copies = launches * _LAUNCH + 2 * b * size * (of_a * m * k + of_b * k * n) / _COPIED
    one = _SINGLY_BY_COLUMNS if layout_of(problem)[0] == "T" and of_a and not of_b else _SINGLY[problem.dtype]
    if problem.dtype == "tf32":
        pays = copies + _START < rounds((64, 64), problem, gpu) * k * one
    else:
        pays = copies + described_microseconds(problem, gpu) < _singly_microseconds(one, problem, gpu)
    return "" if pays else "rows off 16 bytes or not along K, and too few for copies of them to pay"


_BEHIND = 1.5
"""What `tiled` takes of its estimate for tf32 read singly, in tiles of 32 x 32: 12 of 333 x 577 x 77 NT 20.8 us for
13.4, 8 of 96 x 256 x 333 TN 12.6 for 8.2 (H200)."""


def tf32_microseconds(problem: Case, gpu: GPU) -> float:
    """About how long tf32 takes whose operands are copied, or read one by one; 0 where they are neither."""
    b, m, n, k, layout = *(problem[name] for name in "bmnk"), layout_of(problem)
    of_a, of_b = (length % 4 > 0 for length in row_lengths(problem)[:2])
    if not goes_through_registers(problem, gpu):
        busy = registers_microseconds(problem, gpu)
        of_a, of_b = of_a or (layout == "TN" and m <= n), of_b or (layout == "TN" and m > n)
    elif not copies(problem, gpu):
        busy = _START + _microseconds(tuple(default_persistent(problem, gpu).values()), problem, gpu)
        of_a, of_b = of_a or layout[0] == "T", of_b or layout[1] == "N"
    elif narrow(problem) and count((16, 64), problem) > gpu.sms:
        return _BEHIND * _singly_microseconds(_SINGLY["tf32"], problem, gpu)
    else:
        return 0.0
    copied = sum(_LAUNCH + 8 * b * one / _COPIED for off, one in ((of_a, m * k), (of_b, k * n)) if off)
    return busy + copied if copied else 0.0


def described_microseconds(problem: Case, gpu: GPU) -> float:
    """How long the sooner of `persistent` and `direct` takes after copies."""
    tile = tuple(default_persistent(problem, gpu).values())
    return min(direct_microseconds(problem, gpu), persistent_microseconds(tile, problem, gpu))


def _singly_microseconds(one: float, problem: Case, gpu: GPU) -> float:
    """How long `tiled` takes that reads its elements one by one, in tiles of 64 x 64 ``one`` for a step of K."""
    tiles, k = rounds((64, 64), problem, gpu), problem["k"]
    if _few(problem, gpu):  # one or two tiles of 32 x 32 on an SM take as long as one of 64 x 32
        tiles, one = rounds((64, 32), problem, gpu) if rounds((32, 32), problem, gpu) > 2 else 1, _SINGLY_SMALL
    return _START + tiles * (k * one + (_WRITE_SINGLY if problem["n"] % 8 else 0.0))
