"""Configs of `light`, small products with packed weights in one role, and for what it is: its estimate."""

import math

import triton
from atlas.declaration import GPU, Case, Config

from kernels.common.cluster_sizes import clusters_at_once
from kernels.common.estimated import Estimated

from .direct_space import best_direct
from .many_rows import LITTLE, beyond_gluon

LIGHT_SPACE = {"BLOCK_M": (64, 128, 256), "CLUSTER": (1, 2, 3, 4, 5, 6, 7, 8)}
"""CLUSTER: programs that share a tile's steps through k."""

_ROWS = 64
"""Rows of W of a tile."""

_STEP_US = {64: 0.451, 128: 0.515, 256: 0.416}
"""What a step takes, by BLOCK_M.

With the constants of `_microseconds` a fit to 24 times of an H200, 3.3 % off on average."""

_LAUNCHING = 6.2
"""A program without steps, 3.2, and what estimates of `direct` count beyond the GPU's time, 3.0."""

_SURELY = 0.97
"""Of the estimate of `direct`: some 4 % of what the GPU takes."""

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
    return _LAUNCHING + steps * _STEP_US[rows] + (0.013 * rows if size > 1 else 0.0)


def _at_once(rows: int, size: int, sms: int) -> int:
    """Clusters at a time: with 256 rows, whose programs fill shared memory up, not quite as many.

    64 of 2 took two rounds there (300x2048x4096, 4 bits: 39.9 us), with 128 rows one; 36 of 3 took one.
    """
    every = clusters_at_once(size, sms)
    return every * 13 // 14 if rows > 128 else every


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    (rows, size), m = (config[name] for name in LIGHT_SPACE), problem["m"]
    if rows >= 2 * m and rows > 64:
        return "a tile twice as high as y"
    if rows > 128 and 0 < m % rows <= rows // 2:
        return "half of the last tile empty"
    short = size > 1 and triton.cdiv(problem["k"], block_k_of(rows)) < 2 * size
    return "no two steps for each program" if short else ""


LIGHT = Estimated(LIGHT_SPACE, _microseconds, _wasteful, _LATE)
"""The default, and what is worth a trial."""


def lights(bits: int, problem: Case, gpu: GPU) -> str:
    """Why ``light`` does not take a case."""
    if reason := beyond_gluon(problem, gpu):
        return reason
    m, n, k = sizes = problem["m"], problem["n"], problem["k"]
    if m > _TIMED_ROWS:
        return f"more than {_TIMED_ROWS} rows: not timed"
    own = LIGHT.shortest(problem, gpu)
    if own == math.inf:
        return "more tiles than programs run at once"
    late = m * n * k >= LITTLE and own > _SURELY * best_direct(bits, problem["group"], *sizes, gpu.sms)[0]
    return "`direct` should end as soon" if late else ""
