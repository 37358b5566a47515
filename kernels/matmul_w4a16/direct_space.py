"""Configs of `direct`, the product of many rows with packed weights whose operands all come by TMA: its estimate."""

import functools

import triton
from atlas.declaration import GPU, Case, Config

from kernels.common.cluster_sizes import clusters_at_once

DIRECT_SPACE = {
    "BLOCK_M": (32, 64, 128, 256),
    "W_GROUPS": (1, 2, 3),
    "K_GROUPS": (1, 2),
    "SPLITS": (1, 2, 3, 4, 5, 6, 7, 8),
}
"""W_GROUPS: groups of warps that share a tile's rows of W, 64 each.  K_GROUPS: those that take turns along k.
SPLITS: parts of k of the tiles that are beyond full rounds of programs, each a program's; 5 and 7 of clusters alone."""

STAGE = 64
"""Columns of a stage, and rows of W of a group."""

FEWEST_ROWS = 17
"""The fewest rows of x that are timed."""

_STAGE_US = {
    (32, 1, 2): (0.173, 0.168),
    (32, 2, 2): (0.234, 0.234),
    (64, 1, 2): (0.185, 0.166),
    (64, 2, 1): (0.335, 0.317),
    (64, 2, 2): (0.285, 0.261),
    (128, 1, 2): (0.244, 0.23),
    (128, 2, 1): (0.423, 0.39),
    (128, 3, 1): (0.578, 0.505),
    (256, 2, 1): (0.63, 0.644),
}
"""What a stage takes, of weights with groups' scales and of others, by BLOCK_M, W_GROUPS and K_GROUPS.

With the constants of `_adding_us` and `_direct_us` a fit to 238 times of an H200, of up to 1024 rows, 2.7 % off on
average.  Tensor cores alone would take 0.27 of (128, 2, 1) and 0.54 of (256, 2, 1), at 1.9 GHz.
"""

_LATE = 1.2
"""Configs whose estimates are so many times the best one are no worth a trial."""

Shape = tuple[int, int, int]


def _tiles_and_turns(shape: Shape, m: int, n: int, k: int) -> tuple[int, int]:
    """(tiles of y, turns of the loop for a whole one): a turn has two stages for each group."""
    rows, w_groups, k_groups = shape
    return triton.cdiv(m, rows) * triton.cdiv(n, STAGE * w_groups), triton.cdiv(k, 2 * STAGE * k_groups)


def tiles_to_cut(tiles: int, splits: int, programs: int) -> int:
    """Tiles beyond full rounds of ``programs``, or of as many as there are parts: what is cut into ``splits``."""
    return tiles % min(programs, tiles * splits) if splits > 1 else 0


def in_clusters(tiles: int, splits: int, programs: int) -> bool:
    """Whether the parts of all tiles run at once as clusters, which need no second kernel to add them.

    One too many waits for a whole round: 32 clusters of 4 took 12.9 us, 32 of 3 7.7 (128x2048x1536, 8 bits).
    """
    return tiles <= clusters_at_once(splits, programs)


def sending_us(shape: Shape, splits: int) -> float:
    """To add the parts of a tile in a cluster: by what a program sends to the others, all sums but its share."""
    rows, w_groups, _ = shape
    return 0.44 - 0.075 * splits + 0.2 * rows * w_groups * STAGE * (splits - 1) / splits / 1024


def _adding_us(shape: Shape, splits: int, cut: int, clustered: bool) -> float:
    """To add the parts of ``cut`` tiles, in clusters or by the kernel that adds them."""
    rows, w_groups, _ = shape
    if not cut:
        return 0.0
    if clustered:
        return sending_us(shape, splits)
    return 0.95 * (rows > 32) + splits * (0.32 + cut * rows * w_groups * STAGE * 8 / 6.8e6)


def _direct_us(bits: int, group: int, shape: Shape, splits: int, m: int, n: int, k: int, sms: int) -> float:
    """Launches, weights from memory, rounds of whole tiles, those of parts, and adding these."""
    _, w_groups, k_groups = shape
    tiles, turns = _tiles_and_turns(shape, m, n, k)
    cut = tiles_to_cut(tiles, splits, sms)
    rounds = triton.cdiv(tiles - cut, sms) * turns + triton.cdiv(cut * splits, sms) * triton.cdiv(turns, splits)
    adding = _adding_us(shape, splits, cut, in_clusters(tiles, splits, sms))
    launching = 7.3 + 1.3 * (w_groups * k_groups > 3)
    return launching + 0.064 * n * k * bits / 8e6 + rounds * 2 * k_groups * _STAGE_US[shape][group == 0] + adding


def _useless(shape: Shape, splits: int, m: int, n: int, k: int, sms: int) -> str:
    """Why a config is not worth an estimate."""
    rows, w_groups, k_groups = shape
    low = 32 if triton.cdiv(n, 2 * STAGE) <= sms else 64  # of 32 rows there are none for more tiles than programs
    if rows >= 2 * m and rows > low:
        return "a tile twice as high as y"
    if rows == 32 and m > rows:
        return "weights brought for 32 rows alone, and again for others"
    if rows > 128 and 0 < m % rows <= rows // 2:
        return "half of the last tile empty: 165 us, by 128 rows 133 (526x10240x6144)"
    tiles, turns = _tiles_and_turns(shape, m, n, k)
    if k_groups > 1 and tiles * splits > sms:
        return "groups that take turns add their sums between a program's tiles: 92 us for 57 (429x9728x3584)"
    if splits == 1:
        return ""
    if turns < splits:
        return "fewer turns of the loop than parts"
    clustered = in_clusters(tiles, splits, sms)
    if splits in (5, 7) and not clustered:
        return "parts of clusters, more than run at once"
    if clustered and (rows, w_groups, splits) == (128, 2, 2):
        return "much to send for half of the sum: 26.4 us for 23.7 (512x2048x5632)"
    cut = tiles_to_cut(tiles, splits, sms)
    return "" if 0 < cut * splits <= 2 * sms else "no tiles beyond full rounds, or more parts than run at once"


@functools.lru_cache(maxsize=1024)
def best_direct(bits: int, group: int, m: int, n: int, k: int, sms: int) -> tuple[float, Shape, int]:
    """(us, BLOCK_M with W_GROUPS and K_GROUPS, SPLITS) of the config that should end first."""
    return min(
        (_direct_us(bits, group, shape, splits, m, n, k, sms), shape, splits)
        for shape in _STAGE_US
        for splits in DIRECT_SPACE["SPLITS"]
        if not _useless(shape, splits, m, n, k, sms)
    )


def fits_direct(bits: int, config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``direct`` cannot be the best."""
    *shape, splits = (config[name] for name in DIRECT_SPACE)
    shape, group = tuple(shape), problem["group"]
    sizes = problem["m"], problem["n"], problem["k"], gpu.sms
    if shape not in _STAGE_US:
        return "more registers or memory than there are, or slower than another wherever it was timed"
    if reason := _useless(shape, splits, *sizes):
        return reason
    late = _direct_us(bits, group, shape, splits, *sizes) > _LATE * best_direct(bits, group, *sizes)[0]
    return "far from the fastest by an estimate" if late else ""


def direct_default(bits: int, problem: Case, gpu: GPU) -> dict[str, int]:
    """The fastest by an estimate."""
    _, shape, splits = best_direct(bits, *(problem[name] for name in ("group", "m", "n", "k")), gpu.sms)
    return dict(zip(DIRECT_SPACE, (*shape, splits), strict=True))
