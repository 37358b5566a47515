"""How long `direct` and `persistent` should take in fp16 and bf16 on an H200, copies of operands apart."""

import triton
from atlas.declaration import GPU, Case, element_size

# Microseconds of one SM, fitted to 60 timings of 26 shapes: 9 % off in the mean.
_START, _START_PERSISTENT = 3.0, 3.2
"""Of a launch."""
_STEP, _STEP_PERSISTENT = 0.09, 0.176
"""A step of 64 of K: of all tiles that are on an SM at a time; of a tile of ``persistent`` of 64 x 64."""
_LOAD = 0.15
"""The same of a tile of 64 x 64 of ``direct`` while others are under way."""
_WRITE, _WRITE_SINGLY = (0.3, 0.256), (0.51, 0.57)
"""64 x 64 elements of C by the copy engine, and through pointers (n off 8): of ``direct``, of ``persistent``."""
_BYTES = 3.6e6
"""That all SMs read and write in one."""

SMALL, WIDE = (64, 64), (64, 128)
"""The tiles of ``direct``."""

_AT_ONCE = {SMALL: 8, WIDE: 4}
"""Tiles on an SM at a time, of either size."""
_FEW = 3
"""Tiles of 64 x 64 for each SM, up to which wider ones end later: 8 of 577 x 197 x 128 TN 7.5 us, 7.9 by 64 x 128; 24
of 256 x 333 x 64 TN (4.4 an SM) 9.6, 8.7 (H200)."""


def count(tile: tuple[int, ...], problem: Case) -> int:
    """Tiles of all products."""
    return problem["b"] * triton.cdiv(problem["m"], tile[0]) * triton.cdiv(problem["n"], tile[1])


def rounds(tile: tuple[int, ...], problem: Case, gpu: GPU) -> int:
    """Tiles that an SM takes one after the other."""
    return triton.cdiv(count(tile, problem), gpu.sms)


def are_few(problem: Case, gpu: GPU) -> bool:
    """Whether an SM has so few tiles that ``direct`` takes small ones."""
    return count(SMALL, problem) <= _FEW * gpu.sms


def direct_tile(problem: Case, gpu: GPU) -> tuple[int, int]:
    return SMALL if problem["n"] <= SMALL[1] or are_few(problem, gpu) else WIDE


def direct_microseconds(problem: Case, gpu: GPU) -> float:
    tile = direct_tile(problem, gpu)
    steps, tiles = triton.cdiv(problem["k"], 64), count(tile, problem)
    waiting = triton.cdiv(tiles, gpu.sms * _AT_ONCE[tile]) * steps * _STEP
    of_tile = steps * _LOAD * (tile[0] + tile[1]) / 128 + _writing(tile, problem, 0)
    return _START + max(_moving(problem), waiting + tiles / gpu.sms * of_tile)


def persistent_microseconds(tile: tuple[int, ...], problem: Case, gpu: GPU) -> float:
    steps = triton.cdiv(problem["k"], 64)
    of_tile = steps * _STEP_PERSISTENT * (tile[0] + tile[1]) / 128 + _writing(tile, problem, 1)
    return _START_PERSISTENT + max(_moving(problem), rounds(tile, problem, gpu) * of_tile)


def _writing(tile: tuple[int, ...], problem: Case, which: int) -> float:
    return (_WRITE_SINGLY if problem["n"] % 8 else _WRITE)[which] * tile[0] * tile[1] / 4096


def _moving(problem: Case) -> float:
    b, m, n, k = (problem[name] for name in "bmnk")
    return element_size(problem.dtype) * b * (m * k + k * n + m * n) / _BYTES
