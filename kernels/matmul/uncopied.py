"""The variant `uncopied` of tf32 products: few rows or columns times a small matrix, in whatever order they lie.

wgmma reads elements of 32 bits along K alone, so variants with descriptors copy what lies otherwise, transposed: one
launch more, or two, each as long as a product of a few MB.  Tensor cores' older instruction takes tiles of 16 rows from
registers, which read shared memory in any order.  Its loop is short, and so is the time until its code has been read.
"""

import math
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.estimated import Estimated
from kernels.common.parts import part_of_k
from kernels.common.products import layout_of

UNCOPIED_SPACE = {
    "BLOCK_M": (16, 32, 64),
    "BLOCK_N": (16, 32, 64),
    "BLOCK_K": (64,),
    "SPLITS": (1, 2, 4, 8, 16),
    "num_warps": (4,),
    "num_stages": (4,),
}

_MOST_ROWS = 64
_MOST_BYTES = 2**26
"""Of the matrix beside 16 rows, and the fewer the more rows: beside a larger one copies are little."""

_BYTES = 2.5e4
"""Bytes that an SM, or a program alone, moves in a microsecond (H200)."""
_PROGRAM, _HIDDEN = 0.9, 0.5
"""Microseconds for a program's begin and end; the part of the shorter of an SM's time and of a program's that the other
does not hide."""
_SUM, _PASS = 1.5, 2.6e3
"""Microseconds for the kernel that adds parts up, and bytes an SM adds up in one."""
_OF_A = 0.95
"""What a byte of the few rows takes, which is in L2, for one of the matrix."""
_ENOUGH = 3
"""Programs for each SM, of which there may be more only in one part."""
_NEAR = 1.15
"""How much longer than the best a config may take by the estimate and be worth a trial."""


def uncopied(launch: Callable) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="uncopied",
        summary="tf32 of few rows times a small matrix that does not lie along K, by pointers: nothing is copied first",
        launch=launch,
        space=UNCOPIED_SPACE,
        default=_CHOICE.default,
        fits=_CHOICE.fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="split",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if problem.dtype != "tf32":
        return "for tf32: 16 bits are read in either order, and fp32 is not for tensor cores"
    few, many = sorted((problem["m"], problem["n"]))
    if not 1 < few <= _MOST_ROWS:
        return f"2 to {_MOST_ROWS} rows or columns are few, and one is a vector"
    if 32 < few <= 48:
        return "tiles of 64 rows, a quarter of them empty: 13.1 us, copied first 10.9 (40 x 2304 x 768)"
    if not problem["k"]:
        return "nothing to multiply"
    if 4 * many * problem["k"] * _rows_of_tile(few) > _MOST_BYTES * 16:
        return "a large matrix outweighs copies"
    if layout_of(problem) == "NT":
        return "both operands lie along K, as tensor cores read them"
    if any(length % 4 for length in (many, problem["k"])):
        return "what lies off 16 bytes is `streamed`'s"
    return ""


def _rows_of_tile(few: int) -> int:
    return max(16, triton.next_power_of_2(few))


def _thin_and_wide(config: Config, problem: Case) -> tuple[int, int]:
    """A tile's size in the few rows, and in the matrix."""
    m, n = config["BLOCK_M"], config["BLOCK_N"]
    return (m, n) if problem["m"] <= problem["n"] else (n, m)


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long a product takes: all programs on their SMs, or one alone, and part of the shorter of the two."""
    (few, many), (rows, wide) = sorted((problem["m"], problem["n"])), _thin_and_wide(config, problem)
    part = part_of_k(problem["k"], config["SPLITS"], config["BLOCK_K"])
    at_once = gpu.shared_bytes // ((config["num_stages"] - 1) * (rows + wide) * config["BLOCK_K"] * 4)
    if not at_once:
        return math.inf
    count, read = triton.cdiv(problem["k"], part), part * (wide + _OF_A * rows) * 4
    programs = count * triton.cdiv(many, wide)
    times = programs / gpu.sms * (read / _BYTES + _PROGRAM / at_once), read / _BYTES + _PROGRAM
    summed = _SUM + 4 * count * few * many / (_PASS * gpu.sms) if count > 1 else 0.0
    return max(times) + _HIDDEN * min(times) + summed


def _wasteful(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config is not worth an estimate."""
    if _thin_and_wide(config, problem)[0] != _rows_of_tile(min(problem["m"], problem["n"])):
        return "the tile is not as thin as C"
    if config["SPLITS"] > 1 and problem["k"] < 2 * config["SPLITS"] * config["BLOCK_K"]:
        return "parts of less than two blocks"
    tiles = triton.cdiv(max(problem["m"], problem["n"]), _thin_and_wide(config, problem)[1])
    if tiles * config["SPLITS"] > _ENOUGH * gpu.sms and config["SPLITS"] > 1:
        return "fewer parts are enough for every SM"
    return ""


_CHOICE = Estimated(UNCOPIED_SPACE, _microseconds, _wasteful, _NEAR)
