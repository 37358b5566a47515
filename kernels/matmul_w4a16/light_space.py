"""Configs of `light`, small products with packed weights in one role, and for what it is: its estimate."""

import math

import triton
from atlas.declaration import GPU, Case, Config

from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.estimated import Estimated

from .direct_space import best_direct
from .many_rows import LITTLE, beyond_gluon
from .spaces import FEW_ROWS, shared_us

LIGHT_SPACE = {"BLOCK_M": (16, 32, 64, 128, 256), "CLUSTER": (1, 2, 3, 4, 5, 6, 7, 8)}
"""CLUSTER: programs that share a tile's steps through k."""

_ROWS = 64
"""Rows of W of a tile."""

_STEP_US = {16: 0.43, 32: 0.49, 64: 0.451, 128: 0.515, 256: 0.416}
"""What a step takes, by BLOCK_M.

With the constants of `_microseconds` fits to 30 times of an H200, 3.9 % off on average, from 64 rows on to 24, 3.3."""

_LAUNCHING, _LAUNCHING_FEW = 6.2, 4.9
"""A program without steps, 3.2, of few rows 1.9, and what estimates of `direct` count beyond the GPU's time, 3.0."""

_SURELY = 0.97
"""Of the estimate of `direct`, and of that of `shared` for up to 16 rows: some 4 % of what the GPU takes."""

_SURELY_SHARED = {4: 0.88, 8: 0.8}
"""Of the estimate of `shared` for more rows, by bits: it is up to 8 and 18 % too long."""

_FEWEST_ROWS = 9
"""The fewest rows that `light` is timed at."""

_FEW_ROWS_WEIGHTS = 10e6
"""The most weights that it multiplies by up to 32 rows: 32x4096x4096 takes 10.9 us, by `direct` 10.4."""

_LATE = 1.1
"""Configs whose estimates are so many times the best one are no worth a trial."""

_TIMED_ROWS = 1024
"""The most rows that `light` is timed at."""


def block_k_of(rows: int) -> int:
    """Columns of a step: as many as leave the ring three stages or more."""
    return 64 if rows > 128 else 128


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """Launch, the steps of a program, and adding the sums of a cluster; infinite where they do not run at once."""
    rows, size = (config[name] for name in LIGHT_SPACE)
    tiles = triton.cdiv(problem["m"], rows) * triton.cdiv(problem["n"], _ROWS)
    if tiles > (_at_once(rows, size, gpu.sms) if size > 1 else gpu.sms):
        return math.inf
    steps = triton.cdiv(triton.cdiv(problem["k"], block_k_of(rows)), size)
    if rows <= FEW_ROWS:
        return _LAUNCHING_FEW + steps * _STEP_US[rows] + 0.7 * (size > 1)
    return _LAUNCHING + steps * _STEP_US[rows] + (0.0115 * rows if size > 1 else 0.0)


def _at_once(rows: int, size: int, sms: int) -> int:
    """Clusters at a time: with 256 rows, whose programs fill shared memory up, not quite as many.

    64 of 2 took two rounds there (300x2048x4096, 4 bits: 39.9 us), with 128 rows one; 36 of 3 took one.
    """
    every = clusters_at_once(size, sms)
    return every * 13 // 14 if rows > 128 else every


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    (rows, size), m = (config[name] for name in LIGHT_SPACE), problem["m"]
    if rows >= 2 * m and rows > 16:
        return "a tile twice as high as y"
    if rows <= FEW_ROWS and m > rows:
        return "weights made for few rows, and again for others"
    if rows > 128 and 0 < m % rows <= rows // 2:
        return "half of the last tile empty"
    short = size > 1 and triton.cdiv(problem["k"], block_k_of(rows)) < 2 * size
    return "no two steps for each program" if short else ""


LIGHT = Estimated(LIGHT_SPACE, _microseconds, _wasteful, _LATE)
"""The default, and what is worth a trial."""


def lights(bits: int, problem: Case, gpu: GPU) -> str:
    """Why ``light`` does not take a case."""
    if reason := beyond_gluon(problem, gpu, _FEWEST_ROWS - 1):
        return reason
    m, n, k = sizes = problem["m"], problem["n"], problem["k"]
    if m > _TIMED_ROWS:
        return f"more than {_TIMED_ROWS} rows: not timed"
    own = LIGHT.shortest(problem, gpu)
    if own == math.inf:
        return "more tiles than programs run at once"
    direct = _SURELY * best_direct(bits, problem["group"], *sizes, gpu.sms)[0]
    if m <= FEW_ROWS:
        if n * k > _FEW_ROWS_WEIGHTS:
            return "more weights than it was ahead with"
        shared = shared_us(bits, problem, gpu) * (_SURELY if m <= 16 else _SURELY_SHARED[bits])
        return "" if own < min(direct, shared) else "`shared` or `direct` should end as soon"
    return "`direct` should end as soon" if m * n * k >= LITTLE and own > direct else ""
