"""Variant `small` for Hopper: cases that the blocks of `descriptor` are sooner done with than the tiles of `gluon`.

A tile of `gluon` has 128 queries, backward as many keys or, under a causal mask, twice as many, and begins late: its
warps are dealt out first.  Where tiles are few most multiprocessors have none, and blocks of 64 reach more of them.
"""

from atlas.declaration import GPU, Case

from .few_keys import FEW
from .hopper_few_keys import forward_takes_few_keys
from .spaces import BACKWARD_SPACE, FORWARD_SPACE, describes

HEADS = range(40, 129, 8)
"""Heads that `gluon` takes, too; wider ones have not been compared."""

TILE = 128
"""Queries of a tile of `gluon`, or keys of one."""

LONGEST = 512
"""Keys up to which forward it counts that a tile begins late: of more, a block of 64 queries alone is as slow."""

FORWARD_SMALL = dict(zip(FORWARD_SPACE, ((64,), (64, 128), (4,), (3,)), strict=True))
BACKWARD_SMALL = dict(zip(BACKWARD_SPACE, ((64, 128), (64,), (4,), (2,), (64,), (64, 128), (4,), (2, 3)), strict=True))


def small_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Small heads leave registers for scores of 128 keys, where there are more: 0.94 of the time of 64 (512 keys)."""
    columns = 128 if problem["d"] <= 64 and problem["s"] > TILE else 64
    return {"BLOCK_M": 64, "BLOCK_N": columns, "num_warps": 4, "num_stages": 3}


def _other_heads(problem: Case, gpu: GPU) -> str:
    if gpu.functional:
        return "the interpreter has no tiles of `gluon`"
    return describes(problem, gpu) or ("" if problem["d"] in HEADS else "for heads of 40 to 128")


def handles_small(problem: Case, gpu: GPU) -> str:
    """Why the forward pass of a case is not for `small`.

    H200, H100: with tiles for half of the multiprocessors at most 0.81 to 0.96 of the time of `gluon`; with 65 to 128
    keys of heads of 64, which are one block, so that no softmax runs under the products of another, 0.81.
    """
    if reason := _other_heads(problem, gpu):
        return reason
    if forward_takes_few_keys(problem["s"], problem["d"]) or problem["s"] > LONGEST:
        return "`gluon` has a kernel for so few keys, or a loop long enough"
    tiles = problem["b"] * problem["h"] * -(-problem["l"] // TILE)
    return "" if problem["s"] <= TILE or 2 * tiles <= gpu.sms else "tiles of `gluon` for most multiprocessors"


def handles_small_backward(problem: Case, gpu: GPU) -> str:
    """Why the backward pass of a case is not for `small`.

    H200, H100: with tiles for a quarter of the multiprocessors at most 0.69 to 0.73 of the time of `gluon`.  Where
    heads share keys `gluon` deals their queries out, while a program of `small` goes through all of them.
    """
    if reason := _other_heads(problem, gpu):
        return reason
    if problem["s"] <= FEW or problem["h"] != problem["g"]:
        return "`gluon` has a kernel for so few keys, and deals groups out"
    tiles = problem["b"] * problem["h"] * -(-problem["s"] // (2 * TILE if problem["causal"] else TILE))
    return "" if 4 * tiles <= gpu.sms else "tiles of `gluon` for more than a quarter of the multiprocessors"
