"""Tuning space of `whole`: which reductions one program holds at once, what fits, and where tuning starts."""

import math

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES

from .cases import is_strided
from .results import BESIDE
from .spaces import is_apart, spills
from .tiling import whole_tile

SPACE = {"VECTORS": (1, 2, 4, 8), "BLOCK_C": (4, 8, 16, 32, 64), "num_warps": (1, 2, 4, 8)}
"""VECTORS are of 16 bytes, each thread's; BLOCK_C is of columns."""

_STRIDED = 2**18
"""Bytes of x an SM up to which axes apart are held at once: above, programs that go through memory block after block
keep it as busy."""

_LITTLE = 2**14
"""Bytes of x an SM up to which neighbouring columns are: odd ones of more cost too much to read each by itself, others
are read as fast by programs that share results."""

_FEWEST = 64
"""Rows of whole vectors from which on a program has enough to read: of less ``blocks`` takes several matrices."""

_PIECE = 64
"""Bytes of columns side by side from which on axes apart of 4-byte elements are read at once up to ``_APART``."""

_APART = 5 * 2**17
"""Bytes of x an SM: so much was measured."""

_SECTOR = 32
"""Bytes that memory brings at least."""

_HELD = {True: 16, False: 64}
"""Elements that a thread has at most, where each has an address of its own or not."""

_VECTORS = 4
"""Vectors of neighbouring columns that a thread has at most (214 x 64 bf16: 5.5 us, with eight 7.7; H200)."""


def _sizes(problem: Case) -> tuple[int, int, int, int, int]:
    """[k0, n1, k1, n2, k2]."""
    if not is_strided(problem):
        return problem["outer"], 1, 1, problem["n"], problem["inner"]
    far, between = problem["far"], problem["between"]
    return problem["outer"], far, between, problem["n"] // far, problem["inner"] // between


def _fastest(problem: Case) -> int:
    """The length of the fastest axis."""
    *_, n2, k2 = _sizes(problem)
    return n2 if k2 == 1 else k2


def _tile(config, problem: Case):
    _, n1, k1, n2, k2 = _sizes(problem)
    vector = VECTOR_BYTES // element_size(problem.dtype)
    return whole_tile(config, n1 * n2, k1, k2, vector, math.gcd(vector, _fastest(problem)))


def _programs(config, problem: Case) -> int:
    k0, _, k1, _, k2 = _sizes(problem)
    tile = _tile(config, problem)
    return k0 * triton.cdiv(k1, tile.k1) * (1 if k2 == 1 else triton.cdiv(k2, tile.columns))


def _room(config, problem: Case) -> int:
    return 32 * config["num_warps"] * config["VECTORS"] * VECTOR_BYTES // element_size(problem.dtype)


def _configs():
    return [
        {"VECTORS": v, "BLOCK_C": c, "num_warps": w}
        for v in SPACE["VECTORS"] for c in SPACE["BLOCK_C"] for w in SPACE["num_warps"]
    ]  # fmt: skip


def _most(problem: Case) -> int:
    """Bytes of x an SM up to which all that is reduced is held at once."""
    columns, apart, size = _sizes(problem)[-1], is_apart(problem, _fastest(problem)), element_size(problem.dtype)
    if apart or not is_strided(problem):
        return _LITTLE
    block = 32 * SPACE["num_warps"][-1] * SPACE["VECTORS"][-1] * VECTOR_BYTES
    pieces = columns * size >= _PIECE and triton.next_power_of_2(problem["n"]) * _PIECE <= block
    return _APART if size == 4 and pieces and problem["op"] not in BESIDE else _STRIDED


def handles(problem: Case, gpu: GPU) -> str:
    """Axes apart, and neighbouring columns of little to read: nothing is counted, and no parts are read.

    (Of 214 x 64 bf16 5.5 us, ``blocks`` 7.6; amax of 8 x 200 x 96 fp32 6.1 and 8.0; 8 x 300 x 64 x 64 fp32 20.0,
    ``strided`` 31.4, but 16 x 300 x 64 x 128 bf16 44.5 and 29.4; H200.)
    """
    columns = _sizes(problem)[-1]
    if columns == 1 and not is_strided(problem):
        return "the last axis is reduced"
    plain = not is_strided(problem) and not is_apart(problem, columns)
    narrow = columns * element_size(problem.dtype) < _SECTOR
    if plain and (problem["op"] in BESIDE or problem["n"] < _FEWEST or narrow):
        return "few rows or columns, or a second result, of columns of whole 8-byte vectors"
    if problem["op"] == "max" and (problem["n"] >= 2**31 or _sizes(problem)[1] > 1):
        return "indices along several axes, or beyond 2^31"
    if is_strided(problem) and columns > 1 and is_apart(problem, columns):
        return "columns of no whole 8-byte vectors along several axes"
    elements = problem["outer"] * problem["n"] * problem["inner"]
    if elements * element_size(problem.dtype) > _most(problem) * gpu.sms:
        return "so much to read that programs which go through it block after block keep memory busy"
    if all(fits(config, problem, gpu) for config in _configs()):
        return "more to reduce than a program holds"
    return ""


def fits(config, problem: Case, gpu: GPU) -> str:
    tile, room = _tile(config, problem), _room(config, problem)
    apart, columns = is_apart(problem, _fastest(problem)), _sizes(problem)[-1]
    if tile.elements > room:
        return "more to reduce than a block holds"
    smallest = config["num_warps"] * config["VECTORS"] == 1
    if not smallest and 2 * tile.elements <= room:
        return "a block larger than all there is"
    held = _HELD[apart] if apart or is_strided(problem) else _VECTORS * VECTOR_BYTES // element_size(problem.dtype)
    if tile.elements > 32 * config["num_warps"] * held:
        return "so many loads a thread that they wait for each other"
    if config["BLOCK_C"] > max(SPACE["BLOCK_C"][0], triton.next_power_of_2(columns) if columns > 1 else 1):
        return "a block wider than the rows"
    if not apart and config["BLOCK_C"] < min(columns, _SECTOR // element_size(problem.dtype)):
        return "parts of sectors"
    if not smallest and tile.k1 > 1 and _programs(config, problem) < gpu.sms:
        return "several lines of results a program, and SMs without any"
    return spills(config, problem)


def default(problem: Case, gpu: GPU) -> dict:
    """The most columns, and then the fewest warps, of which each SM has four programs, or else the most programs."""
    able = [config for config in _configs() if not fits(config, problem, gpu)]
    enough = 4 * gpu.sms

    def order(config):
        programs = min(_programs(config, problem), enough)
        return -programs, -config["BLOCK_C"], config["num_warps"], config["VECTORS"]

    return min(able, key=order)
