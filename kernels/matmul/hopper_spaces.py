"""The variant `gluon` of 16-bit products: its tiles, how long they should take, and which of them fit by that.

What tells tiles apart is their last round: 282 tiles take three rounds of 132 SMs, the third for 18 of them.  Of 20
shapes at which several tiles were timed (H200), the tile that the estimate takes is 0.2 % slower than the best in the
mean, 3.5 % at most.
"""

import functools

from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.counting import cdiv
from kernels.common.products import describes

from .less_waste import few_tiles

GLUON_SPACE = {
    "GROUPS": (2, 3),
    "ROWS": (64, 128),
    "BLOCK_N": (128, 256),
    "BLOCK_K": (64,),
    "GROUP_M": (4, 8, 16),
    "STAGES": (4, 5, 6),
    "BUFFERS": (1, 2),
}

_TILES = {(2, 64, 256): (4, 2), (3, 64, 128): (5, 1), (2, 64, 128): (6, 2), (2, 128, 128): (4, 1)}
"""GROUPS, ROWS, BLOCK_N of the tiles, and STAGES, BUFFERS: as many stages as there is room for."""

_MULTIPLY = {256: 3.01e-7, 128: 3.08e-7, 64: 4.25e-7}
"""Microseconds of an SM for one multiplication-addition, in parts of a tile so many columns wide."""
_ROUND = 0.85
"""Microseconds that a round takes beyond its products."""
_WIDE, _WAIT = 1.018, 8e-4
"""How much longer tiles of 256 columns take in `gluon`, and microseconds for each of K that their quarters wait beside:
of them too few blocks are under way."""
_LONG, _LATE = 500.0, 1.03
"""Microseconds from which on they take so much longer again."""
_NEAR = 1.04
"""How much longer than the best a tile may take by the estimate and be worth a trial."""
_PAYS = 1.1
"""How much sooner the best should end for another variant's config to be passed over."""


def gluon(launch) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]; operands off 16 bytes are copied first."""
    return Variant(
        name="gluon",
        summary="Gluon: a warp copies, two or three groups of warps multiply; the last round's tiles are cut",
        launch=launch,
        space=GLUON_SPACE,
        default=_default,
        fits=_fits,
        handles=multiplies_by_groups,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="persistent",
    )


def multiplies_by_groups(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype not in ("bf16", "fp16"):
        return "for elements of 16 bits, which wgmma reads in either order"
    return describes(problem, gpu) and few_tiles(problem, gpu)


def rounds_end_later(rows: int, columns: int, problem: Case, gpu: GPU) -> str:
    """Why tiles of another variant, in rounds that are not cut, should end later than `gluon`'s best."""
    if Capability.WGMMA not in gpu.capabilities or multiplies_by_groups(problem, gpu) or few_tiles(problem, gpu):
        return ""
    tiles = cdiv(problem["m"], rows) * cdiv(problem["n"], columns)
    own = cdiv(tiles, gpu.sms) * part_of_round(rows, min(columns, 256), problem)
    return "tiles of `gluon` leave fewer SMs idle in the last round" if own > _PAYS * _best(problem, gpu)[0] else ""


def few_rows(problem: Case) -> str:
    """Why tiles of fewer rows are better, however many there are: they have more of B under way.

    8 x 50257 x 768 NT takes 34.7 us by tiles of 16 x 128, 40.9 by groups of warps; 32 x 50257 x 4096 111 and 128
    (H200).
    """
    few = problem.dtype != "fp32" and problem["m"] <= 64
    return f"half of a tile of 128 rows, or more, lies outside of C's {problem['m']}" if few else ""


def few_columns(problem: Case) -> str:
    """The same of 16 bits' columns: of a router's, for instance.

    17024 x 16 x 4096 NT takes 52.5 us by tiles of 128 x 32, 64.7 by groups of warps (H200).
    """
    few = problem.dtype in ("bf16", "fp16") and problem["n"] <= 64
    return f"half of a tile of 128 columns, or more, lies outside of C's {problem['n']}" if few else ""


def parts_of_last(tiles: int, programs: int, most: int) -> int:
    """Into how many parts, a power of 2, tiles of the last round are cut: no more than give each program one."""
    rest = tiles % programs
    cut = 1
    while tiles > programs and rest and 2 * cut <= most and 2 * cut * rest <= programs:
        cut *= 2
    return cut


def part_of_round(rows: int, columns: int, problem: Case) -> float:
    """Microseconds for the products of so many rows and columns of a tile, and of a round around them."""
    return rows * columns * problem["k"] * _MULTIPLY.get(columns, _MULTIPLY[64]) + _ROUND


def microseconds(tile: tuple[int, int, int], problem: Case, gpu: GPU) -> float:
    """How long tiles of (groups, rows of a group, columns) take, the last round's cut where that fills SMs."""
    groups, rows, columns = tile
    tiles = cdiv(problem["m"], groups * rows) * cdiv(problem["n"], columns)
    cut = parts_of_last(tiles, gpu.sms, columns // 64)
    whole = tiles // gpu.sms if cut > 1 else cdiv(tiles, gpu.sms)
    last = part_of_round(groups * rows, columns // cut, problem) if cut > 1 else 0.0
    return whole * part_of_round(groups * rows, columns, problem) + last


def _microseconds(tile: tuple[int, int, int], problem: Case, gpu: GPU) -> float:
    """The same in `gluon`, with what was timed of wide tiles."""
    time, (groups, rows, columns) = microseconds(tile, problem, gpu), tile
    if columns < 256:
        return time
    tiles = cdiv(problem["m"], groups * rows) * cdiv(problem["n"], columns)
    if parts_of_last(tiles, gpu.sms, 4) == 4:
        time += problem["k"] * _WAIT
    return time * _WIDE * (_LATE if time > _LONG else 1.0)


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, tuple[int, int, int]]:
    """The shortest time by the estimate, and its tile."""
    return min((_microseconds(tile, problem, gpu), tile) for tile in _TILES)


def microseconds_of_gluon(problem: Case, gpu: GPU) -> float:
    """How long the best of the tiles takes."""
    return _best(problem, gpu)[0]


def stages_and_buffers(tile: tuple[int, int, int]) -> tuple[int, int] | None:
    """STAGES and BUFFERS of a tile, None where there is no such tile."""
    return _TILES.get(tile)


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    tile = (config["GROUPS"], config["ROWS"], config["BLOCK_N"])
    if _TILES.get(tile) != (config["STAGES"], config["BUFFERS"]):
        return "no such tile, or not as many stages as there is room for"
    if reason := few_tiles(problem, gpu):
        return reason
    if config["GROUP_M"] != 8 and not _ordered(problem, gpu):
        return "an order that does not matter"
    late = _microseconds(tile, problem, gpu) > _NEAR * _best(problem, gpu)[0]
    return "other tiles leave fewer SMs idle in the last round" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    tile = _best(problem, gpu)[1]
    stages, buffers = _TILES[tile]
    group = 4 if _ordered(problem, gpu) else 8  # 4096 x 4096 x 14336 takes 602 us so, 650 by 8 (H200; H100 600, 638)
    return dict(zip(GLUON_SPACE, (*tile, 64, group, stages, buffers), strict=True))


def _ordered(problem: Case, gpu: GPU) -> bool:
    """Whether the order of tiles matters: C has four of 128 x 128 for every SM, and more."""
    return problem["m"] * problem["n"] > 4 * gpu.sms * 128 * 128
