"""Which configs of grouped products are worth a trial, which is the default, and what descriptors cannot take."""

import triton
from atlas.declaration import GPU, Capability, Case, Config, element_size
from atlas.declaration.products import reads_shared_memory, uses_tensor_cores

from kernels.common.products import narrow_by_rows, stage_bytes

# (BLOCK_M, BLOCK_N, num_warps) by the rows that a group has on average: the larger the tile the fewer reads from L2,
# but rows past a group's end are multiplied for nothing.  Up to 64 rows that costs no time: b is read, and where groups
# are uneven the long ones want a high tile (H200, 32 groups of 16 rows on average: 72 us, in tiles of 16 rows 128).
_TENSOR_CORE_TILES = (
    (128, 256, 8), (128, 128, 8), (128, 128, 4), (64, 256, 4), (64, 128, 4), (64, 64, 4), (32, 128, 4), (16, 128, 4),
    (16, 64, 4), (16, 32, 4),
)  # fmt: skip

_FMA_TILES = ((64, 64, 8), (64, 64, 4), (32, 64, 8), (32, 64, 4), (32, 32, 4), (16, 32, 4))


def _singly(problem: Case, described: bool) -> bool:
    """Whether elements are read one by one: through pointers where 16 does not divide sizes; descriptors ask for 8.

    8 groups of 128 rows, n 4096 and k 2056 take 176 us as described, 550 by tiles for single elements (H200).
    """
    return narrow_by_rows(problem) and not described


def _tiles(problem: Case, gpu: GPU, described: bool = False) -> tuple[tuple[int, int, int], ...]:
    """The tiles worth a trial, by what they compute with and how long groups are."""
    rows = problem["m"] / problem["groups"]
    if uses_tensor_cores(problem, gpu) and not _singly(problem, described):
        high, wide = max(64, 2 * rows), max(32, 2 * problem["n"])
        if not reads_shared_memory(problem, gpu):  # 128 x 256 in 8 warps spills on sm_80 (Triton 3.6)
            wide = min(wide, 128)
        tiles = [tile for tile in _TENSOR_CORE_TILES if tile[0] <= high and tile[1] <= wide]
        if rows > 160:
            tiles = [tile for tile in tiles if tile[0] >= 128] or tiles
        return tuple(tiles[:4])
    if problem.dtype != "fp32":  # held a second time, as fp32: more in a warp spills on sm_75 (Triton 3.7.1)
        return tuple(tile for tile in _FMA_TILES if tile[0] * tile[1] // tile[2] <= 256)
    return _FMA_TILES


def fits(config: Config, problem: Case, gpu: GPU, described: bool = False) -> str:
    """Why a config cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    if (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) not in _tiles(problem, gpu, described):
        return "registers spill, too little work a warp, or tiles much longer than groups"
    tensor_cores, singly = uses_tensor_cores(problem, gpu), _singly(problem, described)
    row_bytes = (64 if singly else 128) if tensor_cores else 16 * element_size(problem.dtype)
    if config["BLOCK_K"] * element_size(problem.dtype) != row_bytes:
        return "rows of 128 bytes fill the widest swizzle of shared memory; what passes through registers is shorter"
    if (config["num_stages"] > 2) != (tensor_cores and not singly):
        return "as many stages as latency takes: none where FMA or single elements are the bound"
    shared = stage_bytes(config, problem) * (config["num_stages"] if _arch(gpu) >= 80 else 1)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return ""


def fits_tiled_backward(config: Config, problem: Case, gpu: GPU) -> str:
    """The same for the gradients of ``tiled``, whose sums are of blocks as long as those of the other gradient.

    On an H200 64 groups of 16 rows take 280 us so, and 226 in ``descriptor``; of 48 rows 283 and 299.
    """
    by_descriptor = Capability.WGMMA in gpu.capabilities and not describes(problem, gpu)
    if problem["m"] < 40 * problem["groups"] and by_descriptor and config != default(problem, gpu):
        return "groups shorter than blocks: `descriptor` takes blocks of 16 rows for sums"
    return fits(config, problem, gpu)


def _arch(gpu: GPU) -> int:
    """Compute capability; 80 for what is not CUDA."""
    return int(gpu.arch) if gpu.backend == "cuda" else 80


SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}


def default(problem: Case, gpu: GPU, described: bool = False) -> dict[str, int]:
    """The first tile whose columns C fills, with the most stages that fit.

    Three of 128 x 128, which leave room for a second program on the SM: 60 groups of 137 rows, n 1408 and k 2048 take
    148 us so, 159 with four in 4 warps, and 171 by 256 columns (H200).
    """
    tiles = sorted(_tiles(problem, gpu, described), key=lambda tile: not _fills(tile[1], problem))
    if _few_columns(problem, gpu):
        tiles.sort(key=lambda tile: tile[:2] == (64, 256))
    if _in_halves(problem, gpu):
        tiles.sort(key=lambda tile: tile[:2] != (64, 256))
    twice = gpu.shared_bytes >= 2 * 3 * (128 + 128) * 128
    configs = [
        dict(zip(SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))
        for rows, columns, warps in tiles
        for stages in ((3, 4, 2) if twice and rows == columns == 128 else (4, 3, 2))
        for block_k in (64, 32, 16)
    ]
    return next((config for config in configs if not fits(config, problem, gpu, described)), configs[-1])


def _fills(columns: int, problem: Case) -> bool:
    """Whether C's last tiles of so many columns are not empty for more than a sixteenth of C; up to 128 they may be."""
    return columns <= 128 or 16 * (-problem["n"] % columns) <= problem["n"]


def _few_columns(problem: Case, gpu: GPU) -> bool:
    """Whether tiles of 256 columns may be too few: where lengths are skewed, some eight groups have rows.

    128 groups of 3 rows, n 768 and k 2048, take 18 us by 128 columns, 20 by 256, if even 105 both; 8 of 12, n 14336 and
    k 4096, 224 and 199 (H200).
    """
    return 4 * min(problem["groups"], 8) * triton.cdiv(problem["n"], 256) <= gpu.sms


_HALF = 0.52
"""What a tile of 64 x 256 takes beside one of 128 x 256."""


def _in_halves(problem: Case, gpu: GPU) -> bool:
    """Whether tiles of 64 rows are ahead for groups longer than that, as their last round leaves fewer SMs idle.

    8 groups of 67, n 14336 and k 4096, take 252 us so and 257, if lengths are random 241 and 252; 32 of 80, n and k
    4096, in as many rounds of whole tiles, 289 and 277.  A single round of few groups is two where lengths are skewed:
    8 of 67, n 4096 and k 14336, take 275 us in halves, 334 in whole tiles (H200).
    """
    groups, m, wide = problem["groups"], problem["m"], triton.cdiv(problem["n"], 256)
    if describes(problem, gpu) or not 64 * groups <= m < 128 * groups or not _fills(256, problem):
        return False
    whole = triton.cdiv(groups * wide, gpu.sms)
    halves = triton.cdiv(groups * triton.cdiv(m, 64 * groups) * wide, gpu.sms)
    return _HALF * halves < whole or (whole == 1 and groups <= 16)


def describes(problem: Case, gpu: GPU) -> str:
    """Why `descriptor` does not take a case."""
    if problem.dtype in ("fp32", "tf32"):
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if any(problem[size] * element_size(problem.dtype) % 16 for size in "nk"):
        return "rows of a or b are not aligned to 16 bytes"
    return ""


GLUON_SPACE = {
    "GROUPS": (2,),
    "ROWS": (64,),
    "BLOCK_N": (128, 256),
    "BLOCK_K": (64,),
    "GROUP_M": (8, 16),
    "STAGES": (4, 6),
    "BUFFERS": (2,),
}

_WIDE = 0.92
"""What a tile of 256 columns takes beside two of 128."""

_LONG = 160
"""Rows that a group has on average from which on tiles of 128 rows pay."""


def long_groups(problem: Case, gpu: GPU) -> str:
    """Why `gluon` does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem["m"] < _LONG * problem["groups"]:
        return f"fewer than {_LONG} rows a group on average: tiles of 128 would be empty for the most part"
    if problem["m"] * problem["n"] >= 2**31:
        return "offsets into c beyond 2^31: not seen to be right on a GPU"
    return describes(problem, gpu)


def fits_in_gluon(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of `gluon` cannot be the best."""
    columns = config["BLOCK_N"]
    if config["STAGES"] != {128: 6, 256: 4}[columns]:
        return "not as many stages as there is room for"
    if columns == 256 and problem["n"] <= 128:
        return "a tile twice as wide as c"
    return "an order that does not matter to narrow tiles" if columns == 128 and config["GROUP_M"] > 8 else ""


def default_in_gluon(problem: Case, gpu: GPU) -> dict[str, int]:
    """Tiles of 128 x 256, unless their rounds over the SMs cost more than they gain.

    They are up to 10 % sooner than twice as many of 128 x 128 (8 groups of 522 rows, n 14336, k 4096; H200), and the
    more lie beyond C, the less: 32 groups of 432 rows, n and k 2880, take 415 us for 452, but 64 of 384 rows, n 1408
    and k 2048, 233 for 218.
    """
    tiles = problem["groups"] * triton.cdiv(problem["m"], 128 * problem["groups"])
    narrow, wide = (triton.cdiv(tiles * triton.cdiv(problem["n"], columns), gpu.sms) for columns in (128, 256))
    columns, stages = (256, 4) if 2 * _WIDE * wide <= narrow else (128, 6)
    return dict(zip(GLUON_SPACE, (2, 64, columns, 64, 8, stages, 2), strict=True))
