"""The blocks that there are of packed sequences, listed by a kernel: the host does not know how long they are.

A block of queries, or of keys, of each sequence is a tile.  Those that take longest come first, so that no
multiprocessor begins one when the others are done; a program finds its own by its number.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

RECORD = tl.constexpr(8)
"""Numbers of a tile: its block, its sequence, the first row and the rows of its own and of the others; two of none.

Before the first tile stands how many there are.
"""


@triton.jit
def _lengths(own_ptr, others_ptr, j, sequences, longest, BLOCK: tl.constexpr):
    """(own rows, other rows, own blocks) of sequences ``j``; none of those that are not there."""
    there = j < sequences
    own = tl.load(own_ptr + j + 1, mask=there, other=0) - tl.load(own_ptr + j, mask=there, other=0)
    others = tl.load(others_ptr + j + 1, mask=there, other=0) - tl.load(others_ptr + j, mask=there, other=0)
    return own, others, tl.cdiv(tl.maximum(tl.minimum(own, longest), 0), BLOCK)


@triton.jit
def _listing_kernel(
    own_ptr, others_ptr, list_ptr, sequences, longest, capacity,
    CAUSAL: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, OTHER: tl.constexpr, TILES: tl.constexpr,
    SEQUENCES: tl.constexpr,
):  # fmt: skip
    """List the tiles of one sequence, each in its place by falling numbers of blocks of OTHER rows that it meets.

    Of equal ones those of the sequence before come first, and of one sequence the longest, which of queries is the
    last one and of KEYS the first.
    """
    i = tl.program_id(0)
    own, others, tiles = _lengths(own_ptr, others_ptr, i, sequences, longest, BLOCK)
    if i == 0:
        total = tl.zeros((SEQUENCES,), tl.int32)
        for start in range(0, sequences, SEQUENCES):
            j = start + tl.arange(0, SEQUENCES)
            _, _, theirs = _lengths(own_ptr, others_ptr, j, sequences, longest, BLOCK)
            total += theirs
        tl.store(list_ptr, tl.minimum(tl.sum(total), capacity))
    for first in range(0, tiles, TILES):
        place = first + tl.arange(0, TILES)  # within the sequence
        block = place if KEYS else tiles - 1 - place
        meets = others + tl.zeros((TILES,), tl.int32)
        if CAUSAL and KEYS:
            meets -= tl.maximum(block * BLOCK - (own - others), 0)
        elif CAUSAL:
            meets = tl.minimum(meets, (block + 1) * BLOCK + others - own)
        cost = tl.maximum(tl.cdiv(meets, OTHER), 1)
        for start in range(0, sequences, SEQUENCES):
            j = start + tl.arange(0, SEQUENCES)
            their_own, their_others, theirs = _lengths(own_ptr, others_ptr, j, sequences, longest, BLOCK)
            more = (cost[:, None] - (j < i).to(tl.int32)[None, :]) * OTHER  # what meets more rows comes before
            before = tl.where((more <= 0) | (their_others[None, :] > more), theirs[None, :], 0)
            if CAUSAL and KEYS:
                least = tl.maximum(their_own[None, :] - more + BLOCK - 1, 0) // BLOCK
                before = tl.where(more > 0, tl.minimum(before, least), before)
            elif CAUSAL:
                short = tl.maximum(more - (their_others - their_own)[None, :], 0) // BLOCK
                before = tl.where(more > 0, tl.maximum(before - short, 0), before)
            place += tl.sum(tl.where((j != i)[None, :], before, 0), axis=1)
        there = (first + tl.arange(0, TILES) < tiles) & (place < capacity)
        record = list_ptr + (1 + place) * RECORD
        tl.store(record, block, mask=there)
        tl.store(record + 1, i, mask=there)
        tl.store(record + 2, tl.load(own_ptr + i), mask=there)
        tl.store(record + 3, own, mask=there)
        tl.store(record + 4, tl.load(others_ptr + i), mask=there)
        tl.store(record + 5, others, mask=there)


def listed(own, others, rows, longest, causal, keys, block, other):
    """(list, most tiles) of sequences of ``rows`` rows in all, cumulative lengths ``own``, ``longest`` each.

    ``keys``: own rows are keys, else queries.  A tile has ``block`` of them, and meets blocks of ``other`` others.
    """
    sequences = own.shape[0] - 1
    capacity = rows // block + sequences
    tiles = torch.empty((1 + capacity) * RECORD.value, dtype=torch.int32, device=own.device)
    launch(
        _listing_kernel, (sequences,), own, others, tiles, sequences, longest, capacity,
        CAUSAL=causal, KEYS=keys, BLOCK=block, OTHER=other, TILES=16, SEQUENCES=128, num_warps=4,
    )  # fmt: skip
    return tiles, capacity


@triton.jit
def tile_at(list_ptr, number):
    """(whether there is one, block, sequence, first own row, own rows, first other row, other rows) of a tile."""
    there = number < tl.load(list_ptr)
    record = list_ptr + (1 + tl.where(there, number, 0)) * RECORD
    return (
        there, tl.load(record), tl.load(record + 1), tl.load(record + 2), tl.load(record + 3), tl.load(record + 4),
        tl.load(record + 5),
    )  # fmt: skip


@triton.jit
def listed_place(list_ptr, heads):
    """(head, block, sequence, first own row, own rows, first other row, other rows) of a program; of none no rows."""
    there, block, sequence, first_own, own, first_other, other = tile_at(list_ptr, tl.program_id(0) // heads)
    return tl.program_id(0) % heads, block, sequence, first_own, tl.where(there, own, 0), first_other, other
