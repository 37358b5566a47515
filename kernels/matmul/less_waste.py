"""Tiles of 64 x 256, or 256 x 64, for products of 16 bits of which fewer cover C than of those of 128 x 128.

They are as large, and leave less empty where C's rows, or columns, are little beyond a multiple of 128.
"""

from atlas.declaration import GPU, Case, element_size

from kernels.common.counting import cdiv

OF_64_COLUMNS = (128, 64, 128, 4, 4)
"""BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages of a tile for a tall C of 33 to 64 columns, too.

9216 x 64 x 1536 NT takes 16.4 us so, 18.5 by tiles of 128 x 128, half of them empty, and 18.8 by two rounds of 64 x 64;
12288 x 64 x 4096 37.7, 40.4 by the latter (H200).
"""

_NARROW = ((256, 64, 64, 4, 5), OF_64_COLUMNS)
_FLAT = ((64, 256, 64, 4, 5),)
"""The same of a tall C, which few columns of tiles cover, and of any other.

2048 x 264 x 16384 takes 50 us so, 87 by others; 264 x 4096 x 8192 51 and 62 (H200).  Beside a residual or an error
function they spill.
"""


def is_tall(problem: Case) -> bool:
    """Whether C is of 16 bits and more than twice as high as wide."""
    return problem.dtype in ("bf16", "fp16") and problem["m"] > 2 * problem["n"]


def of_less_waste(problem: Case, gpu: GPU) -> tuple[tuple[int, ...], ...]:
    """Those of the tiles that cover C with so many fewer that they pay; where rows of C are off 16 bytes, smaller ones.

    A tenth fewer: 3072 x 520 x 3072 takes 24.7 us for 28.9, but 520 x 3072 x 3072 26.6 for 24.4 (H200).  Or one round
    where those of 128 x 128 are two.
    """
    if problem.dtype not in ("bf16", "fp16") or problem["m"] <= 64 or problem["n"] <= 64:
        return ()
    rows, columns, most = (256, 64, 0.9) if is_tall(problem) else (64, 256, 0.88)
    count, others = _covering(rows, columns, problem), _covering(128, 128, problem)
    if count > most * others and not count <= gpu.sms < others:
        return ()
    flags = dict(problem.sizes)
    if flags.get("residual") or flags.get("activation") == "gelu":
        return ()
    tiles = _NARROW if is_tall(problem) else _FLAT
    return tiles[1:] if problem["n"] * element_size(problem.dtype) % 16 else tiles


def few_tiles(problem: Case, gpu: GPU) -> str:
    """Why tiles of 128 x 128 are few: they leave SMs idle, or tiles of less waste take one round for their two.

    136 x 11008 x 4096 NT takes 34.8 us by 129 tiles of 64 x 256, 45.7 by 116 of 128 x 192, of which half are nearly
    empty; 832 x 2560 x 5120 35.9 by 130, and 41.5; a linear layer of it 36.7, and 46.2 by groups of warps (H200).
    """
    tiles = _covering(128, 128, problem)
    if tiles <= gpu.sms:
        return f"{tiles} tiles of 128 x 128 leave SMs idle"
    fewer = covers_with_fewer(problem, gpu)
    return f"{tiles} tiles of 128 x 128 are two rounds, {fewer} as large one" if 0 < fewer <= gpu.sms else ""


def covers_with_fewer(problem: Case, gpu: GPU) -> int:
    """How many tiles of less waste, and as large as 128 x 128, cover C; 0 where there are none."""
    large = (tile[:2] for tile in of_less_waste(problem, gpu) if tile[0] * tile[1] >= 128 * 128)
    return next((_covering(*tile, problem) for tile in large), 0)


def _covering(rows: int, columns: int, problem: Case) -> int:
    return cdiv(problem["m"], rows) * cdiv(problem["n"], columns)
