"""The gradient dx = dy W on Hopper: which kernel is for what, and its config, by when each should end on an H200.

The constants are fits to some hundred times, of weights that the forward pass has just read, 4 % off on average.  m are
rows, n is the sum's length and k columns of dx.
"""

import functools
import itertools
import math

import triton

from kernels.common.cluster_sizes import clusters_at_once

from .direct_space import in_clusters, sending_us, tiles_to_cut

FEW_ROWS = 32
"""The most rows that `hopper_pull` takes; `hopper_direct_pull` was behind it for fewer, ahead for more."""

COLUMNS, BLOCK_N = 256, 64
"""Columns of a program of `hopper_pull`, and rows of W that a block of dy serves."""

_BLOCK_US = {16: (0.85, 1.1), 32: (0.9, 1.2)}
"""What a block takes a program, by BLOCK_M: of one program an SM, and of two."""

_FEW_US = 3.9
"""What `hopper_pull` takes besides."""

_LIGHT_STEP_US = {
    16: {64: 0.338, 128: 0.465},
    32: {64: 0.36, 128: 0.475},
    64: {64: 0.353, 128: 0.454},
    128: {64: 0.384, 128: 0.522},
}
"""What 64 rows of W take `hopper_light_pull`, by BLOCK_M and COLUMNS.

With the constants of `_light_us` a fit to 56 times, 3.4 % off on average."""

_LIGHT_WEIGHTS = 10e6
"""The most weights that it takes; with up to 9.4 million it was timed, and ahead."""

_SURELY_LIGHT = 0.95
"""Of the estimates for the others."""

_STAGE_US = {(64, 1, 2): 0.216, (64, 2, 1): 0.42, (128, 1, 2): 0.258, (128, 2, 1): 0.491, (256, 2, 1): 0.69}
"""What a stage of `hopper_direct_pull` takes, by BLOCK_M, W_GROUPS and K_GROUPS."""

_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8)

_LITTLE = 2**24
"""Multiplications of a product that `hopper_direct_pull` takes whatever the estimates say, which are too low for two
launches: 33x2080x160 takes 6.7 us, by weights written out 7.5."""

_CLEARLY, _CLEARLY_CLUSTERED = 0.92, 0.96
"""Of the estimate for weights written out, without clusters and with them: 303x11008x4608 takes 82.5 us written out,
86.3 directly (estimates: 93, 89), 128x2048x1536 9.3, and 8.5 in clusters (8.7, 8.3)."""


@functools.lru_cache(maxsize=1024)
def best_few_pull(m: int, n: int, k: int, sms: int) -> tuple[float, dict[str, int]]:
    """(us, config) of `hopper_pull`: BLOCK_M, and the parts of n with which reading W and adding sums take least time.

    Two programs an SM at most.
    """
    rows = 16 if m <= 16 else 32
    tiles, blocks = triton.cdiv(k, COLUMNS), triton.cdiv(n, BLOCK_N)

    def us(splits):
        return triton.cdiv(blocks, splits) * _BLOCK_US[rows][tiles * splits > sms] + splits * (0.04 + m * k * 8 / 4e6)

    most = max(1, min(2 * sms // tiles, blocks))
    splits = min(range(1, most + 1), key=us)
    return _FEW_US + us(splits), {"BLOCK_M": rows, "SPLITS": splits}


def _light_us(rows: int, columns: int, size: int, n: int) -> float:
    """Launch, the steps of a program, and adding the sums of a cluster."""
    steps = triton.cdiv(triton.cdiv(n, BLOCK_N), size)
    return 1.73 + steps * _LIGHT_STEP_US[rows][columns] + (0.0151 * rows * columns / 64 if size > 1 else 0.0)


@functools.lru_cache(maxsize=1024)
def best_light_pull(m: int, n: int, k: int, sms: int) -> tuple[float, dict[str, int]]:
    """(us, config) of `hopper_light_pull` that should end first; infinite where it has none.

    All rows are one tile's: by two W would be made twice.
    """
    found = []
    rows = next((rows for rows in _LIGHT_STEP_US if m <= rows), None)
    for columns, size in itertools.product((64, 128), range(1, 9)):
        tiles = triton.cdiv(k, columns)
        if rows and tiles <= (clusters_at_once(size, sms) if size > 1 else sms) and size <= triton.cdiv(n, BLOCK_N):
            found.append((_light_us(rows, columns, size, n), {"BLOCK_M": rows, "COLUMNS": columns, "CLUSTER": size}))
    return min(found, key=lambda one: one[0], default=(math.inf, {}))


@functools.lru_cache(maxsize=1024)
def pulls_lightly(m: int, n: int, k: int, sms: int) -> bool:
    """Whether `hopper_light_pull` should be clearly sooner than whatever else there is."""
    if n * k > _LIGHT_WEIGHTS:
        return False
    if m <= FEW_ROWS:
        others = best_few_pull(m, n, k, sms)[0]
    else:
        others = min(best_direct_pull(m, n, k, sms)[0], _written_us(m, n, k, sms))
    return best_light_pull(m, n, k, sms)[0] < _SURELY_LIGHT * others


def _written_us(m: int, n: int, k: int, sms: int) -> float:
    """To write W out, and cuBLAS's product in tiles of 128 x 128, of few tiles in up to four parts."""
    weights, tiles = n * k / 1e6, triton.cdiv(m, 128) * triton.cdiv(k, 128)
    busy = max(tiles * parts / (triton.cdiv(tiles * parts, sms) * sms) for parts in (1, 2, 3, 4)) if tiles < sms else 1
    return 4 + 0.65 * weights + max(0.5 * weights, 2 * 128 * triton.cdiv(m, 128) * weights / 850 / busy)


def pulls_in_clusters(shape: tuple[int, int, int], tiles: int, splits: int, sms: int) -> bool:
    """Whether clusters add the parts: not those of 128 columns (41.1 us, whole tiles 36.4: 512x4096x4096, 8 bits)."""
    return shape[1] == 1 and in_clusters(tiles, splits, sms)


def _direct_us(shape: tuple[int, int, int], splits: int, m: int, n: int, k: int, sms: int) -> float:
    """Rounds of whole tiles, those of parts, and to add them: in clusters, or by a kernel."""
    rows, w_groups, k_groups = shape
    tiles, turns = triton.cdiv(m, rows) * triton.cdiv(k, 64 * w_groups), triton.cdiv(n, 128 * k_groups)
    cut = tiles_to_cut(tiles, splits, sms)
    rounds = triton.cdiv(tiles - cut, sms) * turns + triton.cdiv(cut * splits, sms) * triton.cdiv(turns, splits)
    adding = splits * (0.3 + cut * rows * w_groups * 64 * 8 / 4.4e6) if cut else 0
    if pulls_in_clusters(shape, tiles, splits, sms):
        adding = sending_us(shape, splits)
    return 4.5 + rounds * 2 * k_groups * _STAGE_US[shape] + adding


@functools.lru_cache(maxsize=1024)
def best_direct_pull(m: int, n: int, k: int, sms: int) -> tuple[float, dict[str, int]]:
    """(us, config) of `hopper_direct_pull` that should end first."""
    found = []
    for shape in _STAGE_US:
        rows, w_groups, k_groups = shape
        tiles, turns = triton.cdiv(m, rows) * triton.cdiv(k, 64 * w_groups), triton.cdiv(n, 128 * k_groups)
        if (rows >= 2 * m and rows > 64) or (rows > 128 and 0 < m % rows <= rows // 2):
            continue  # a tile twice as high as dx, or half of the last one empty
        for splits in _SPLITS:
            cut = tiles_to_cut(tiles, splits, sms)
            if splits > 1 and not (splits <= turns and 0 < cut * splits <= 2 * sms):
                continue  # nothing to cut, or parts of nothing, or more than run at once
            if splits in (5, 7) and not pulls_in_clusters(shape, tiles, splits, sms):
                continue  # parts of clusters alone
            if k_groups > 1 and tiles * splits > sms:
                continue  # groups that take turns add their sums between a program's tiles
            config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS", "SPLITS"), (*shape, splits), strict=True))
            found.append((_direct_us(shape, splits, m, n, k, sms), config))
    return min(found, key=lambda one: one[0])


@functools.lru_cache(maxsize=1024)
def pulls_directly(m: int, n: int, k: int, sms: int) -> bool:
    """Whether `hopper_direct_pull` should be clearly sooner than to write W out and multiply."""
    if m * n * k < _LITTLE:
        return True
    us, config = best_direct_pull(m, n, k, sms)
    shape = config["BLOCK_M"], config["W_GROUPS"], config["K_GROUPS"]
    tiles = triton.cdiv(m, shape[0]) * triton.cdiv(k, 64 * shape[1])
    clustered = config["SPLITS"] > 1 and pulls_in_clusters(shape, tiles, config["SPLITS"], sms)
    return us < (_CLEARLY_CLUSTERED if clustered else _CLEARLY) * _written_us(m, n, k, sms)
