"""Tuning spaces of `strided` and of its gradients: what fits, and where tuning starts."""

import triton
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES

from .cases import is_strided
from .gradient_spaces import handles_gradient
from .spaces import first, is_apart, spills, under_way
from .tiling import strided_tile

SPACE = {
    "VECTORS": (1, 2, 4, 8),
    "BLOCK_C": (16, 64, 128),
    "num_warps": (4, 8),
    "PER_SM": (1, 2, 4, 8, 16),
    "WHOLE": (False, True),
}
TILES_SPACE = {"VECTORS": (1, 2, 4), "BLOCK_C": (128, 1024), "num_warps": (4, 8)}
"""BLOCK_C is of columns, before other axes have had their part of a block; WHOLE blocks hold all that is reduced, so
that nothing is shared; the rest as for the other variants."""

_AT_ONCE = 2**16
"""Bytes of x an SM that its programs ask for at once: so much is read in one round trip to memory."""

_ALONE = {64: 4 * _AT_ONCE, 16: 2 * _AT_ONCE}
"""Bytes of x an SM up to which blocks of so many columns are best not shared: more of what the wide ones read is
neighbours in memory."""


def neighbours(handles):
    """``handles`` of a variant that takes [outer, n, inner], and no axes apart."""

    def obstacle(problem: Case, gpu: GPU) -> str:
        return "the axes that are reduced lie apart, or x has gaps" if is_strided(problem) else handles(problem, gpu)

    return obstacle


def handles(problem: Case, gpu: GPU) -> str:
    if not is_strided(problem):
        return "the axes that are reduced are neighbours: variants without strides do the same with less"
    many = problem["op"] == "max" and (problem["n"] >= 2**31 or problem["far"] > 1)
    return "indices along several axes, or beyond 2^31" if many else ""


def handles_tiles(problem: Case, gpu: GPU) -> str:
    return handles(problem, gpu) or handles_gradient(problem, gpu)


def _tile(config, problem: Case):
    far, between = problem["far"], problem["between"]
    vector = VECTOR_BYTES // element_size(problem.dtype)
    return strided_tile(config, far, between, problem["n"] // far, problem["inner"] // between, vector)


def _programs(config, problem: Case) -> int:
    tile, between = _tile(config, problem), problem["between"]
    across = triton.cdiv(problem["inner"] // between, tile.k2)
    return problem["outer"] * triton.cdiv(between, tile.k1) * across


def _too_wide(config, problem: Case, space) -> str:
    widest = max(space["BLOCK_C"][0], triton.next_power_of_2(problem["inner"] // problem["between"]))
    return "a block wider than the rows" if config["BLOCK_C"] > widest else ""


def _room(config, problem: Case) -> int:
    return 32 * config["num_warps"] * config["VECTORS"] * VECTOR_BYTES // element_size(problem.dtype)


def _bytes_of_sm(problem: Case, gpu: GPU) -> float:
    """Bytes of x that come to each SM."""
    return problem["outer"] * problem["n"] * problem["inner"] * element_size(problem.dtype) / gpu.sms


def _fits_whole(config, problem: Case, gpu: GPU) -> str:
    tile, room = _tile(config, problem), _room(config, problem)
    if config["PER_SM"] > SPACE["PER_SM"][0]:
        return "nothing is shared: PER_SM changes nothing"
    elements = tile.n1 * tile.k1 * tile.n2 * tile.k2
    if elements > room:
        return "more to reduce than a block holds"
    if elements < room and config["VECTORS"] * config["num_warps"] > SPACE["num_warps"][0]:
        return "a block larger than all there is"
    if tile.n1 * tile.n2 > 2 * problem["n"]:
        return "more lanes beyond the ends than before"
    if tile.k1 > 1 and _programs(config, problem) < gpu.sms:
        return "several rows of results a program, and SMs without any"
    return _too_wide(config, problem, SPACE) or spills(config, problem)


def fits(config, problem: Case, gpu: GPU) -> str:
    if config["WHOLE"]:
        return _fits_whole(config, problem, gpu)
    tile, room = _tile(config, problem), _room(config, problem)
    smallest = config["VECTORS"] == 1 and config["num_warps"] == SPACE["num_warps"][0]
    if not smallest and tile.n1 * tile.k1 * tile.n2 * tile.k2 < room:
        return "a block larger than all there is"
    if config["PER_SM"] > 4 and config["VECTORS"] * config["num_warps"] > 8 and _bytes_of_sm(problem, gpu) <= _AT_ONCE:
        return "so many programs for what is read in one round trip to memory"
    obstacle = _too_wide(config, problem, SPACE) or spills(config, problem)
    return obstacle or under_way(config, _programs(config, problem), gpu, SPACE["PER_SM"][-1])


def _scattered(problem: Case) -> bool:
    """Whether nearly every element has an address of its own."""
    columns = problem["inner"] // problem["between"]
    return is_apart(problem, columns if columns > 1 else problem["n"] // problem["far"])


def default(problem: Case, gpu: GPU) -> dict:
    """As much under way as for the other variants; fewer elements a thread of maxima, and of rows of no 8 bytes.

    Of narrow columns a thread takes one vector, in as many programs as an SM holds: with more each thread's places are
    computed one by one (64 x 3136 of 256: 45.6 us, with four vectors 60.7; H100).  Of wide ones that add up eight of
    four warps, which read as much as four of eight and exchange less (32 x 32 of 256 x 128: 43.0 us, and 28.7; H200).
    What is read in one round trip to memory or little more is not shared: counting programs and reading their parts
    would take three (256 of 15552 fp32: 12.0 us for 13.2; 128 of 49152: 14.0 for 17.3; H200).  Of that a program has
    64 columns, where there are so many, and four warps, of up to eight vectors a thread (56 of 14336 fp32: 7.2 us, of
    16 columns and two vectors 8.9; 2 x 1024 of 2048 bf16: 12.0, by eight warps 15.0; H200).
    """
    adds = not _scattered(problem) and problem["op"] in ("sum", "mean")
    shared = ((4, 8, 2), (4, 4, 4)) if adds else ()
    sizes = (
        *shared,
        (2, 4, 8),
        (2, 8, 4),
        *(((4, 4, 1),) if adds else ()),
        (2, 4, 1),
        (1, 4, 16),
        (1, 4, 4),
        (1, 4, 1),
    )
    wide = (*(((8, 4, 4), (8, 4, 1)) if adds else ()), *sizes)
    by_width = [(c, one) for c in (128, 64) for one in wide] + [(16, one) for one in ((1, 4, 16), *sizes)]
    preferred = [{"VECTORS": v, "BLOCK_C": c, "num_warps": w, "PER_SM": p} for c, (v, w, p) in by_width]
    preferred = [config | {"WHOLE": False} for config in preferred]
    at_all = [c for c, most in _ALONE.items() if _bytes_of_sm(problem, gpu) <= most]
    smallest = [(c, v, w) for c in at_all for v, w in ((1, 4), (2, 4), (4, 4), (8, 4), (4, 8), (8, 8))]
    alone = [{"VECTORS": v, "BLOCK_C": c, "num_warps": w, "PER_SM": 1, "WHOLE": True} for c, v, w in smallest]
    preferred = [*alone, *preferred]
    return first(SPACE, fits, problem, gpu, preferred)


def fits_tiles(config, problem: Case, gpu: GPU) -> str:
    return _too_wide(config, problem, TILES_SPACE)


def tiles_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread, one where nearly every element has an address of its own.

    (1568 of 2048 bf16: 9.6 us, of one vector 10.9; of two columns, 8 x 131072 x 64, 233 and 116; H200.)
    """
    vectors = (1,) if _scattered(problem) else (2, 1)
    preferred = [{"VECTORS": v, "BLOCK_C": c, "num_warps": 4} for v, c in ((2, 1024), *((v, 128) for v in vectors))]
    return first(TILES_SPACE, fits_tiles, problem, gpu, preferred)
