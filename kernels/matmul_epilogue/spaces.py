"""Which configs of the linear layer's kernels are worth a trial, which is each one's default, what each cannot take."""

import torch
import triton
from atlas.declaration import GPU, Capability, Case, Config, element_size, torch_dtype
from atlas.declaration.products import reads_shared_memory, uses_tensor_cores

from kernels.common.counting import cdiv
from kernels.common.products import narrow_by_rows, stage_bytes
from kernels.matmul.hopper_spaces import few_columns, few_rows, microseconds
from kernels.matmul.less_waste import covers_with_fewer, few_tiles
from kernels.matmul.split_spaces import ends_later, fills_most
from kernels.matmul.swizzled import swizzles

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that a GPU reaches with such tiles on every SM.  Estimates,
# from how often an operand is used again; the tuner replaces them.
_TENSOR_CORE_TILES = {
    (128, 256, 8): 1.0,
    (256, 128, 8): 0.95,
    (128, 128, 4): 0.9,
    (128, 128, 8): 0.85,
    (64, 128, 4): 0.7,
    (64, 64, 4): 0.5,
    (32, 64, 4): 0.3,
    (16, 64, 4): 0.2,
    (16, 32, 4): 0.1,
}

_FMA_TILES = {(128, 64, 8): 0.9, (64, 64, 8): 0.85, (64, 64, 4): 0.8, (32, 64, 4): 0.6, (16, 32, 4): 0.3}


def _shares(problem: Case, gpu: GPU) -> dict[tuple[int, int, int], float]:
    """The tiles worth a thought, by what they compute with; larger ones spill (ptxas of Triton 3.6 and 3.7)."""
    if uses_tensor_cores(problem, gpu):
        # A residual waits in registers beside the accumulator; operands that are read one by one do so, too.
        # 4096 accumulators a warp beside gelu by tanh spill on sm_100 (Triton 3.6, 3.7).
        many = problem["residual"] or (gpu.backend == "cuda" and int(gpu.arch) >= 100)
        most = 1024 if narrow_by_rows(problem) else 2048 if many else 4096
        return {tile: share for tile, share in _TENSOR_CORE_TILES.items() if tile[0] * tile[1] // tile[2] <= most}
    if problem.dtype != "fp32":  # held a second time, as fp32: 64 x 128 in 4 warps spills on sm_75 (Triton 3.7.1)
        return {tile: share for tile, share in _FMA_TILES.items() if tile[0] * tile[1] // tile[2] <= 1024}
    return _FMA_TILES


def _seconds(tile: tuple[int, int, int], problem: Case, gpu: GPU) -> float:
    """How long all tiles take if SMs take them in step, in units of one multiplication-addition on every SM."""
    tiles = cdiv(problem["m"], tile[0]) * cdiv(problem["n"], tile[1])
    return cdiv(tiles, gpu.sms) * tile[0] * tile[1] / _shares(problem, gpu)[tile]


def fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    if not swizzles(problem, gpu):
        return "threads read W along k from one bank of shared memory, where `swizzled` does not"
    return ends_later(row_lengths, config, problem, gpu) or _fits_among_tiles(config, problem, gpu)


def _fits_among_tiles(config: Config, problem: Case, gpu: GPU) -> str:
    """The same, whatever other variants do."""
    tile, shares = (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]), _shares(problem, gpu)
    if tile not in shares:
        return "registers spill, or too little work a warp"
    if config["BLOCK_K"] != _block_k(problem, gpu):
        return "rows of 128 bytes fill the widest swizzle of shared memory; what passes through registers is shorter"
    stages = config["num_stages"]
    pipelined = uses_tensor_cores(problem, gpu) and not narrow_by_rows(problem)
    if not pipelined and stages != 2:
        return "the loop is bound by FMA or by reading single elements, not by latency"
    if pipelined and stages < 3:
        return "too few bytes under way to hide latency"
    shared = stage_bytes(config, problem) * _buffers(stages, problem, gpu)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if pipelined and stages == 3 and tile[:2] != (128, 128) and shared // 3 * 4 <= gpu.shared_bytes:
        return "leaves room for a further stage, and not for a second program"
    best = min(_seconds(other, problem, gpu) for other in shares)
    return (
        "" if _seconds(tile, problem, gpu) <= 1.5 * best else "tiles of another size keep all SMs busier, or read less"
    )


def _buffers(stages: int, problem: Case, gpu: GPU) -> int:
    """Blocks of x and of W in shared memory at a time."""
    if gpu.backend == "cuda" and int(gpu.arch) < 80:
        return 1  # no asynchronous copies: the loop is not pipelined
    return stages if reads_shared_memory(problem, gpu) else stages - 1


def _block_k(problem: Case, gpu: GPU) -> int:
    if not uses_tensor_cores(problem, gpu):
        return 16
    return (64 if narrow_by_rows(problem) else 128) // element_size(problem.dtype)


def fits_persistent(config: Config, problem: Case, gpu: GPU) -> str:
    """The same for `persistent`, whose stages and epilogue are in shared memory together."""
    if reason := ends_later(row_lengths, config, problem, gpu):
        return reason
    blocks = config["BLOCK_M"] * config["BLOCK_N"] // config["PARTS"] * (1 + problem["residual"])
    stage = stage_bytes(config, problem)
    shared = config["num_stages"] * stage + blocks * element_size(problem.dtype)
    return _room(shared, stage, gpu)


def _room(shared: int, stage: int, gpu: GPU) -> str:
    """Why so many bytes are too many, or not all there is room for."""
    most = gpu.shared_bytes - _BARRIERS
    if shared > most:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return "leaves room for a further stage" if shared + stage <= most else ""


def fits_specialized(config: Config, problem: Case, gpu: GPU, alternate: bool = False) -> str:
    """The same for the variants in Gluon, whose residual has to lie in shared memory as a whole."""
    groups, columns = config.get("GROUPS", 2), config["BLOCK_N"]
    tile = _ALTERNATING if alternate else (groups, 64, columns)
    if tile not in _GLUON_TILES:
        return "three groups have registers for 128 columns each, and two read less as 256"
    if microseconds(tile, problem, gpu) > 1.1 * min(microseconds(other, problem, gpu) for other in _GLUON_TILES):
        return "other tiles leave fewer SMs idle in the last round"
    # One leaves while the next is filled; where that hides behind another group, a further stage is worth more.
    parts = columns // 64 if problem["residual"] else 2 if tile == (2, 64, 256) else 1
    if config["BUFFERS"] != parts:
        return "a residual is fetched whole while the tile is multiplied; else stages make more of the room"
    rows = 128 if alternate else 64  # of a group, and so of each of its buffers
    stage = stage_bytes({**config, "BLOCK_M": tile[0] * tile[1]}, problem)
    shared = config["STAGES"] * stage + groups * config["BUFFERS"] * rows * 64 * element_size(problem.dtype)
    return _room(shared, stage, gpu)


_ALTERNATING = (1, 128, 128)
_GLUON_TILES = (_ALTERNATING, (2, 64, 256), (3, 64, 128))
"""Groups that share a tile, rows of each, columns."""

_BARRIERS = 1024
"""Bytes that barriers and the like may take of the shared memory."""

SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}

PERSISTENT_SPACE = {
    "BLOCK_M": (128,),
    "BLOCK_N": (256,),
    "BLOCK_K": (64,),
    "GROUP_M": (8, 16),
    "PARTS": (1, 2),
    "num_warps": (8,),
    "num_stages": (3, 4),
}

SPECIALIZED_SPACE = {
    "GROUPS": (2, 3),
    "BLOCK_N": (128, 256),
    "BLOCK_K": (64,),
    "GROUP_M": (8, 16),
    "STAGES": (3, 4, 5),
    "BUFFERS": (1, 2, 4),
}

ALTERNATING_SPACE = {
    "BLOCK_N": (128,),
    "BLOCK_K": (64,),
    "GROUP_M": (4, 8, 16),
    "STAGES": (5, 6),
    "BUFFERS": (1, 2),
}

PULL_SPACE = {
    "ROWS": (16, 32, 64, 128),
    "BLOCK_M": (8, 16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "num_warps": (4, 8),
}


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of the tiles that fit, the one that ends first by the estimate."""
    configs = []
    for rows, columns, warps in _shares(problem, gpu):
        for stages in (4, 3, 2):
            values = (rows, columns, _block_k(problem, gpu), 8, warps, stages)
            configs.append(dict(zip(SPACE, values, strict=True)))
    fitting = [config for config in configs if not _fits_among_tiles(config, problem, gpu)]
    return min(
        fitting or configs[-1:], key=lambda c: _seconds((c["BLOCK_M"], c["BLOCK_N"], c["num_warps"]), problem, gpu)
    )


def default_persistent(problem: Case, gpu: GPU) -> dict[str, int]:
    stages = 3 if problem["residual"] else 4
    return dict(zip(PERSISTENT_SPACE, (128, 256, 64, 16, 2, 8, stages), strict=True))


def default_specialized(problem: Case, gpu: GPU) -> dict[str, int]:
    tile = min(_GLUON_TILES[1:], key=lambda tile: microseconds(tile, problem, gpu))
    stages, buffers = (3, 4) if problem["residual"] else (4, 2)
    if tile[0] == 3:
        stages, buffers = (4, 2) if problem["residual"] else (5, 1)
    return dict(zip(SPECIALIZED_SPACE, (tile[0], tile[2], 64, 8, stages, buffers), strict=True))


def default_alternating(problem: Case, gpu: GPU) -> dict[str, int]:
    room = (5, 2) if problem["residual"] else (6, 1)
    return dict(zip(ALTERNATING_SPACE, (128, 64, 8, *room), strict=True))


def row_lengths(problem: Case) -> tuple[int, int, int]:
    """Elements of a row of x, of W and of y."""
    return problem["k"], problem["k"], problem["n"]


def describes(problem: Case, gpu: GPU) -> str:
    """Why descriptors do not take a case."""
    if problem.dtype in ("fp32", "tf32"):
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if any(problem[size] * element_size(problem.dtype) % 16 for size in "nk"):
        return "rows of x, W or y are not aligned to 16 bytes"
    return ""


def persists(problem: Case, gpu: GPU) -> str:
    """Why `persistent` does not take a case."""
    if describes(problem, gpu):
        return describes(problem, gpu)
    if gpu.functional:
        return ""
    tiles = cdiv(problem["m"], 128) * cdiv(problem["n"], 128)
    return "" if tiles > gpu.sms else f"{tiles} tiles: no SM has a second one"


def specializes(problem: Case, gpu: GPU) -> str:
    """Why `specialized` does not take a case."""
    return _multiplies_by_groups(problem, gpu) or few_tiles(problem, gpu)


def _multiplies_by_groups(problem: Case, gpu: GPU) -> str:
    """Why no variant in Gluon takes a case, however many tiles there are."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype in ("fp32", "tf32"):
        return describes(problem, gpu)
    if problem["residual"] and problem["n"] * element_size(problem.dtype) % 16:
        return "a residual is fetched by the copy engine, whose rows are at whole 16 bytes"
    return few_rows(problem) or few_columns(problem)


def alternates(problem: Case, gpu: GPU) -> str:
    """Why `alternating` does not take a case.

    Of a long sum it takes a single tile for each of most SMs, too, by one of its groups: sooner than parts of K do.
    """
    if reason := _multiplies_by_groups(problem, gpu):
        return reason
    tiles = cdiv(problem["m"], 128) * cdiv(problem["n"], 128)
    if few := few_tiles(problem, gpu):
        if problem["k"] < 1024 or 3 * tiles < 2 * gpu.sms:
            return few
        if covers_with_fewer(problem, gpu):  # 264 x 4096 x 8192: 55 us, 66 here (H200)
            return "fewer tiles of `split_descriptor` cover y"
        plain = problem["activation"] == "none" and not problem["residual"]
        if plain and fills_most(row_lengths, problem, gpu):  # with gelu 128 x 14336 x 4096: 43.7 us, 43.0 here
            return "one row of tiles for one round: `split_descriptor` ends as soon"
    # It reads a third more from L2: where the estimates are 3 % apart, an H200 takes as long, and an H100 12 % longer.
    late = microseconds(_ALTERNATING, problem, gpu) > 1.02 * min(
        microseconds(tile, problem, gpu) for tile in _GLUON_TILES
    )
    return "tiles of `specialized` read less, or leave fewer SMs idle in the last round" if late else ""


def fits_pull(config: Config, problem: Case, gpu: GPU) -> str:
    if rows := _single_strip(problem):
        whole = config["ROWS"] == config["BLOCK_M"] == rows and rows * config["BLOCK_N"] == 1024 * config["num_warps"]
        return "" if whole else "one strip at once leaves no sums to add, and four vectors a thread keep memory busy"
    if config["BLOCK_N"] != 256 or config["BLOCK_M"] > 16:
        return "long rows are read in whole lines, of a few rows at a time"
    vectors = config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype) / (32 * config["num_warps"] * 16)
    if not 1 <= vectors <= 4:
        return f"{vectors:g} 16-byte vectors a thread of each matrix; 1 to 4 keep memory busy without spills"
    if config["ROWS"] != 128 and config["ROWS"] != _rows_of_strip(config["BLOCK_N"], problem, gpu):
        return "strips are shorter where whole ones leave SMs idle, and no shorter than that takes"
    return ""


def _rows_of_strip(block_n: int, problem: Case, gpu: GPU) -> int:
    """The longest strips that are four for each SM: of rows one after the other, a loop waits for memory each time."""
    columns = cdiv(problem["n"], block_n)
    enough = (rows for rows in (128, 32) if cdiv(problem["m"], rows) * columns >= 4 * gpu.sms)
    return next(enough, 16)


def _single_strip(problem: Case) -> int:
    """Rows of a tile that holds all of dy's, whose sums are the bias' gradient as they are; 0 for several strips."""
    if problem.dtype not in ("bf16", "fp16") or not problem["bias"] or problem["m"] <= 16:
        return 0
    return next((rows for rows in (32, 64, 128) if problem["m"] <= rows), 0)


def default_pull(problem: Case, gpu: GPU) -> dict[str, int]:
    """Four vectors a thread: 1024 each way takes 26.8 us so, 28.9 with one, which wait for memory as often (H200).

    Up to 128 rows with a bias are one strip, without a second kernel: 76 x 6912 takes 2.6 us so, 6.1 in strips of 16
    and their sums, 128 x 4096 with gelu 4.2 and 6.5.  Without a bias more warps wait less: 128 x 896 3.0 and 4.7.
    """
    if rows := _single_strip(problem):
        return {"ROWS": rows, "BLOCK_M": rows, "BLOCK_N": 4096 // rows, "num_warps": 4}
    few = problem["m"] <= 128 and not problem["bias"] and problem.dtype in ("bf16", "fp16")
    warps = 8 if few else 2 * element_size(problem.dtype)
    return {"ROWS": _rows_of_strip(256, problem, gpu), "BLOCK_M": 16, "BLOCK_N": 256, "num_warps": warps}


FEW_ROWS_SPACE = {
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (128, 256),
    "STEP_N": (32, 64),
    "STEP_K": (32, 64),
    "SPLITS": (1, 2, 4, 8),
    "num_warps": (4, 8),
    "num_stages": (3, 4),
}

_TILES_OF_FEW_ROWS = {
    2: ((128, 128, 64, 64, 8, 4), (64, 256, 64, 64, 8, 4), (64, 128, 32, 64, 4, 4)),
    4: ((32, 128, 32, 32, 4, 3), (64, 128, 32, 64, 8, 3)),
}
"""By bytes of an element, the default first: BLOCK_N, BLOCK_K, STEP_N, STEP_K, num_warps, num_stages."""


def many_rows(m: int, k: int, n: int, dtype: torch.dtype, activation: str, gpu: GPU) -> str:
    """Why gradients of a layer [m, k] to [m, n] are not one launch.

    Each program computes act' again, of all rows: on a large W that takes longer than a launch does.  Without one,
    64 rows of 2048 x 6144 take 26.7 us so, 20.8 in two products, of 2048 x 2048 11.9 and 13.5 (H200); products would
    copy rows off 16 bytes.
    """
    if Capability.TENSOR_CORES not in gpu.capabilities and not gpu.functional:
        return "blocks of 16 rows for FMA, most of which may be empty"
    rows = 16 if dtype == torch.float32 else 64
    if m > rows:
        return f"{m} rows, where a block holds {rows}"
    # By comparisons alone: torch.compile keeps them as bounds of a size that it was told changes.
    block = next(block for block in (16, 32, 64) if m <= block)
    if dtype == torch.float32:
        most = 2**21
    elif activation == "none":
        most = 3 * 2**21 if block == 64 and n % 8 == k % 8 == 0 else 2**24
    else:
        most = 2**28 // block
    return "W is so large that launches take less than computing act' again" if n * k > most else ""


def has_few_rows(problem: Case, gpu: GPU) -> str:
    """Why `few_rows` does not take a case."""
    sizes = (problem[name] for name in "mkn")
    return many_rows(*sizes, torch_dtype(problem.dtype), problem["activation"], gpu)


def has_many_rows(problem: Case, gpu: GPU) -> str:
    """Why `pull` does not take a case."""
    return "" if has_few_rows(problem, gpu) else "`few_rows` makes all gradients in one launch"


def fits_few_rows(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``few_rows`` cannot launch, or cannot be the best."""
    size, rows = element_size(problem.dtype), max(16, triton.next_power_of_2(problem["m"]))
    tile = tuple(value for name, value in config.items() if name != "SPLITS")
    if tile not in _TILES_OF_FEW_ROWS[size]:
        return "other tiles have as much under way, and spill nothing"
    shared = config["num_stages"] * config["STEP_N"] * (config["STEP_K"] + 2 * rows) * size
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if config["SPLITS"] not in (_parts_of_dx(tile, problem, gpu, 0.75), _parts_of_dx(tile, problem, gpu, 1.5)):
        return "parts that leave SMs idle, or wait for one another"
    return ""


def _parts_of_dx(tile: tuple[int, ...], problem: Case, gpu: GPU, most: float) -> int:
    """Parts of n for ``most`` programs an SM that sum dx, of four steps at least where that makes enough."""
    programs, steps = cdiv(problem["k"], tile[3]), cdiv(problem["n"], tile[2])
    splits = 1
    while splits < 8 and steps > 4 * splits and 2 * splits * programs <= most * gpu.sms:
        splits *= 2
    return splits


def default_few_rows(problem: Case, gpu: GPU) -> dict[str, int]:
    """Programs that sum dx are 1.5 for each SM at most.

    32 rows of 2048 x 6144 take 23.2 us by 96 of them, 20.6 by 192; 64 rows of 4096 x 4096 30.0 by 128,
    31.7 by 256 (H200).
    """
    tile = _TILES_OF_FEW_ROWS[element_size(problem.dtype)][0]
    splits = _parts_of_dx(tile, problem, gpu, 1.5)
    return dict(zip(FEW_ROWS_SPACE, (*tile[:4], splits, *tile[4:]), strict=True))
