"""Variant `small` for Hopper: cases that the blocks of `descriptor` are sooner done with than the tiles of `gluon`.

A tile of `gluon` has 128 queries, backward as many keys or, under a causal mask, twice as many, and begins late: its
warps are dealt out first.  Where tiles are few most multiprocessors have none, and blocks of 64 reach more of them.
"""

from atlas.declaration import GPU, Case

from .few_keys import FEW
from .hopper_few_keys import forward_takes_few_keys
from .parts import heads_of_part, most_heads
from .spaces import BACKWARD_SPACE, FEW_KEYS, FORWARD_SPACE, backward_default, describes

HEADS = range(40, 129, 8)
"""Heads that `gluon` takes, too; wider ones have not been compared."""

TILE = 128
"""Queries of a tile of `gluon`, or keys of one."""

BLOCK = 64
"""Queries and keys of what the kernels of `small` compute at a time."""

BUSY = 0.75
"""The share of multiprocessors' rounds that have a tile, of heads up to 64, up to which `small` is faster forward."""

LONG = 512
"""Keys from which on forward a loop of wide heads is long."""

SHORT = 640
"""Keys up to which a program of dQ for wide heads is too short to read far ahead."""

FORWARD_SMALL = dict(zip(FORWARD_SPACE, ((64,), (64, 128), (4,), (3,)), strict=True))
BACKWARD_SMALL = dict(
    zip(BACKWARD_SPACE, ((64, 128), (64,), (4,), (2,), (64,), (32, 64, 128), (4,), (2, 3)), strict=True)
)


def _tiles(problem: Case) -> int:
    return problem["b"] * problem["h"] * -(-problem["l"] // TILE)


def small_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Programs alone on their multiprocessors have shared memory and registers for 128 keys at a time.

    Of small heads these take 0.94 of the time of 64 (512 keys), of others 0.91 where loops are long (2048).  Where
    programs share a multiprocessor that pays as late as with `descriptor`.
    """
    alone, keys = 2 * _tiles(problem) <= gpu.sms, problem["s"]
    if problem["d"] <= 64:
        columns = 128 if keys > (TILE if alone else FEW_KEYS) else 64
    else:
        columns = 128 if alone and keys > LONG else 64
    return {"BLOCK_M": 64, "BLOCK_N": columns, "num_warps": 4, "num_stages": 3}


def _other_heads(problem: Case, gpu: GPU) -> str:
    if gpu.functional:
        return "the interpreter has no tiles of `gluon`"
    return describes(problem, gpu) or ("" if problem["d"] in HEADS else "for heads of 40 to 128")


def handles_small(problem: Case, gpu: GPU) -> str:
    """Why the forward pass of a case is not for `small`.

    H200, H100: with tiles for half of the multiprocessors at most 0.81 to 0.96 of the time of `gluon`.  Of heads of 64,
    that `gluon` gains less with, also where a second round has so few: with tiles for 1.45 rounds 0.81 and 0.91.  With
    65 to 128 keys of those, which are one block, so that no softmax runs under the products of another, 0.81.
    """
    if reason := _other_heads(problem, gpu):
        return reason
    if forward_takes_few_keys(problem["s"], problem["d"]):
        return "`gluon` has a kernel for so few keys"
    tiles = _tiles(problem)
    most = (BUSY if problem["d"] <= 64 else 0.5) * gpu.sms * -(-tiles // gpu.sms)
    return "" if problem["s"] <= TILE or tiles <= most else "tiles of `gluon` for most multiprocessors"


def small_backward_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """That of `descriptor`, but for the keys of dQ at a time.

    Of few keys 32 of wide heads begin sooner, three programs share a multiprocessor, and a tail is shorter: 0.86 to
    1.05 of the time of 64 (256 to 541 keys); of 1024 and 2048 1.02 to 1.22.  Where multiprocessors have few programs of
    narrow heads, 128 at a time leave fewer, longer steps: 0.9 to 1 (512 and 768 keys; H200, H100).
    """
    default = backward_default(problem, gpu)
    keys, programs = problem["s"], problem["b"] * problem["h"] * -(-problem["l"] // BLOCK)
    if problem["d"] > 64:
        return default | {"QUERIES_N": 32} if keys <= SHORT else default
    few = keys > 2 * TILE and -keys % TILE < BLOCK and programs <= 3 * gpu.sms
    return default | {"QUERIES_N": TILE, "QUERIES_STAGES": 3} if few else default


_BLOCK_US = 1.5
"""A multiprocessor's time for 64 queries and as many keys of a head of 65 to 128, of seven products, by `small`."""

_STEP_US = 2.4
"""The same for 64 queries and 128 keys, of five products, by `gluon`."""

_NARROW = 0.55
"""The share of either that heads up to 64 take."""

_SHARES = {64: _NARROW, 80: 0.67, 96: 0.8}
"""The share of the second by the most columns of heads, of which `gluon` computes those there are."""

_PASSED_US = 3e-6
"""What an element of q takes of either, whose gradients pass through memory while nothing is multiplied."""


def _passed_us(problem: Case) -> float:
    columns = 64 if problem["d"] <= 64 else 128
    return _PASSED_US * problem["b"] * problem["h"] * problem["l"] * columns


def blocks_us(problem: Case, gpu: GPU) -> float:
    """How long the kernels of `small` take: as long as all multiprocessors, or the longest program alone.

    The kernel of dQ begins where that of dK and dV leaves multiprocessors idle, so no rounds are counted.
    """
    queries, keys = -(-problem["l"] // BLOCK), -(-problem["s"] // BLOCK)
    keys = min(keys, queries) if problem["causal"] else keys
    seen = queries * keys - (keys * (keys - 1) // 2 if problem["causal"] else 0)
    places, places_k = problem["b"] * problem["h"], problem["b"] * problem["g"]
    enter = 1.5  # blocks that beginning and ending take as long as
    work = (places * seen + enter * (places * queries + places_k * keys)) / gpu.sms
    longest = 1.25 * (problem["h"] // problem["g"]) * queries + enter  # alone a program takes longer than its share
    share = _NARROW if problem["d"] <= 64 else 1
    return 9.5 + _passed_us(problem) + _BLOCK_US * share * max(work, longest)


def tiles_us(problem: Case, gpu: GPU) -> float:
    """How long `gluon` takes: rounds of programs, and what adds up the parts of a group that is dealt out."""
    group, queries = problem["h"] // problem["g"], -(-problem["l"] // BLOCK)
    tiles = -(-problem["s"] // (2 * TILE if problem["causal"] else TILE))
    width = 64 if problem["d"] <= 64 else 128
    blocks = problem["b"] * problem["g"] * tiles
    heads = heads_of_part(group, blocks, queries, gpu.sms, most_heads(group, width, problem["l"], problem["causal"]))
    parts = -(-group // heads)
    # Two blocks of keys of a causal tile are seen by two blocks of queries more than there are.
    steps = heads * (queries + (2 if problem["causal"] and problem["s"] > TILE else 0)) + 1
    rounds = -(-blocks * parts // gpu.sms)
    share = next((share for most, share in _SHARES.items() if problem["d"] <= most), 1)
    begin = 22 if 64 < problem["d"] <= 96 else 20
    return begin + (9 if parts > 1 else 0) + _passed_us(problem) + _STEP_US * share * rounds * steps


def handles_small_backward(problem: Case, gpu: GPU) -> str:
    """Why the backward pass of a case is not for `small`: `gluon` is expected to be done before.

    What both are expected to take was fitted to 61 timings of an H200 and an H100, and of heads in two parts anew to
    nine.  In all but four of those it tells which is faster, and in these it loses 3 to 7 %.
    """
    if reason := _other_heads(problem, gpu):
        return reason
    if problem["s"] <= FEW:
        return "`gluon` has a kernel for so few keys"
    return "" if blocks_us(problem, gpu) < tiles_us(problem, gpu) else "tiles of `gluon` are sooner done"
