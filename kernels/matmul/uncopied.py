"""The variant `uncopied` of tf32 products: few rows or columns times a small matrix, in whatever order they lie.

wgmma reads elements of 32 bits along K alone, so variants with descriptors copy what lies otherwise, transposed: one
launch more, or two, each as long as a product of a few MB.  Tensor cores' older instruction takes tiles of 16 rows from
registers, which read shared memory in any order.  Its loop is short, and so is the time until its code has been read.
"""

import functools
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

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

_MOST_ROWS = 16
_MOST_BYTES = 2**25
"""Of the matrix: beside a larger one copies are little."""
_WIDE = (16, 32, 64)
"""Rows or columns of the matrix that a tile has."""

_TOGETHER = 4
"""Programs that an SM has room for."""
_BYTES = 3.0e4
"""Of memory that an SM's share of the bandwidth moves in a microsecond (H200)."""
_PROGRAM, _SUM = 2.0, 1.5
"""Microseconds for a program's begin and end, and for the kernel that adds parts up."""
_NEAR = 1.3
"""How much longer than the best a config may take by the estimate and be worth a trial."""


def uncopied(launch: Callable) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="uncopied",
        summary="tf32 of few rows times a small matrix that does not lie along K, by pointers: nothing is copied first",
        launch=launch,
        space=UNCOPIED_SPACE,
        default=_default,
        fits=_fits,
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
    if 4 * many * problem["k"] > _MOST_BYTES:
        return "a large matrix outweighs copies"
    if layout_of(problem) == "NT":
        return "both operands lie along K, as tensor cores read them"
    if any(length % 4 for length in (many, problem["k"])):
        return "what lies off 16 bytes is `streamed`'s"
    return ""


def _microseconds(wide: int, splits: int, problem: Case, gpu: GPU) -> float:
    """About how long a product takes: an SM's programs share its bandwidth, and few of them do not reach it."""
    part = part_of_k(problem["k"], splits, UNCOPIED_SPACE["BLOCK_K"][0])
    count = triton.cdiv(problem["k"], part)
    full, rest = divmod(count * triton.cdiv(max(problem["m"], problem["n"]), wide), _TOGETHER * gpu.sms)
    last = max(2, triton.cdiv(rest, gpu.sms)) if rest else 0
    read = (full * _TOGETHER + last) * part * wide * 4
    return read / _BYTES + (full + bool(rest)) * _PROGRAM + (_SUM if count > 1 else 0.0)


def _parts(problem: Case) -> list[int]:
    """Numbers of parts that leave each at least two blocks; always one part."""
    least = 2 * UNCOPIED_SPACE["BLOCK_K"][0]
    return [s for s in UNCOPIED_SPACE["SPLITS"] if s == 1 or problem["k"] >= least * s]


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, int, int]:
    """The shortest time by the estimate, its columns (of few columns, rows) and its parts."""
    return min((_microseconds(wide, s, problem, gpu), wide, s) for wide in _WIDE for s in _parts(problem))


def _tile(wide: int, problem: Case) -> tuple[int, int]:
    return (_MOST_ROWS, wide) if problem["m"] <= problem["n"] else (wide, _MOST_ROWS)


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best."""
    wide = config["BLOCK_N" if problem["m"] <= problem["n"] else "BLOCK_M"]
    if (config["BLOCK_M"], config["BLOCK_N"]) != _tile(wide, problem):
        return "the tile is not as thin as C"
    if config["SPLITS"] not in _parts(problem):
        return "parts of less than two blocks"
    late = _microseconds(wide, config["SPLITS"], problem, gpu) > _NEAR * _best(problem, gpu)[0]
    return "other tiles and parts should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    _, wide, splits = _best(problem, gpu)
    return dict(zip(UNCOPIED_SPACE, (*_tile(wide, problem), 64, splits, 4, 4), strict=True))
