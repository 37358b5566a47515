"""Backward: the gradients of the tokens that name a row, added up in fp32 and in one order, without atomics.

The tokens are sorted by row (see sorting.py), so those of a row are neighbours, a run.  Every tile of SPLIT sorted
tokens is summed by a program of its own, run by run, however long the runs are.  Last, the runs that go on from tile to
tile are joined.  Each launch also writes zeros to some of the rows, the first ones to the last rows whoever names them,
those of sums and joins to rows that no token names: memory works while they wait for indices.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .lookup import BLOCKS, columns, no_use, vector_width, vectors_of_row
from .sorting import ONLY_CHUNK, Zeros, below, chunk_of, clear_rows, merges, sorted_tokens


@triton.jit
def _sum_tile(
    dy_ptr, sorted_ptr, order_ptr, partial_ptr, dweight_ptr, tile, offs_n, m, v, n,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add up the runs of one tile of SPLIT sorted tokens, GROUP of which are under way together.

    A run that lies within the tile is a row of dweight.  Of one that began before it, `partial` takes what it has here
    if it ends here (partial[tile, 0]), and of one that goes on after it likewise (partial[tile, 1]).
    """
    mask_n = offs_n < n
    begin = tile * SPLIT
    partial = partial_ptr + tile.to(tl.int64) * 2 * n + offs_n
    continued = tl.load(sorted_ptr + begin) == tl.load(sorted_ptr + begin - 1, mask=begin > 0, other=-1)
    inherited = continued  # whether the run at hand began before the tile
    total = tl.zeros([BLOCK_N], tl.float32)
    head = total
    for start in tl.range(begin, begin + SPLIT, GROUP):
        rows, dys = (), ()
        for i in tl.static_range(GROUP):
            rows += (tl.load(sorted_ptr + start + i, mask=start + i < m, other=v),)
            token = tl.load(order_ptr + start + i, mask=start + i < m, other=0).to(tl.int64)
            dys += (tl.load(dy_ptr + token * n + offs_n, mask=mask_n & (rows[i] < v), other=0.0),)
        rows += (tl.load(sorted_ptr + start + GROUP, mask=start + GROUP < m, other=v),)
        for i in tl.static_range(GROUP):
            total += dys[i].to(tl.float32)
            if rows[i] != rows[i + 1]:
                if inherited:
                    head = total
                else:
                    # Streaming: dweight is not read again here, unlike dy and partial.
                    out = dweight_ptr + rows[i].to(tl.int64) * n + offs_n
                    tl.store(out, total, mask=mask_n & (rows[i] < v), cache_modifier=".cs")
                total = tl.zeros([BLOCK_N], tl.float32)
                inherited = False
    if continued & (inherited == 0):
        tl.store(partial, head, mask=mask_n)
    last = tl.load(sorted_ptr + begin + SPLIT - 1, mask=begin + SPLIT - 1 < m, other=v)
    after = tl.load(sorted_ptr + begin + SPLIT, mask=begin + SPLIT < m, other=v)
    if (last == after) & (last < v):
        tl.store(partial + n, total, mask=mask_n)


@triton.jit
def _sum_tiles_kernel(
    dy_ptr, sorted_ptr, order_ptr, named_ptr, partial_ptr, dweight_ptr, m, v, n, summing, first, last,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first ``summing`` programs owns a tile of sorted tokens times BLOCK_N columns.

    The others write zeros to those of the rows from ``first`` to ``last`` that no token names.
    """
    n = n // WIDTH * WIDTH  # as in tiles_kernel
    blocks = tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    if pid < summing:
        offs_n = pid % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
        _sum_tile(
            dy_ptr, sorted_ptr, order_ptr, partial_ptr, dweight_ptr, pid // blocks, offs_n, m, v, n,
            SPLIT, GROUP, BLOCK_N,
        )  # fmt: skip
    else:
        clear_rows(dweight_ptr, named_ptr, pid - summing, first, last, n, BLOCK_V, BLOCK_N, False)


@triton.jit
def _parts_of(partial, tile, start, through, mask_n, n, GROUP: tl.constexpr):
    """What tiles number ``start`` to ``start + GROUP`` after ``tile`` have of a run that goes ``through`` so many."""
    parts = ()
    for i in tl.static_range(GROUP):
        at = partial + (2 * (tile + start + i) + 3) * n
        parts += (tl.load(at, mask=mask_n & (start + i < through), other=0.0),)
    return parts


@triton.jit
def _join_tile(
    sorted_ptr, partial_ptr, dweight_ptr, tile, offs_n, m, v, n,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, SEARCHED: tl.constexpr,
):  # fmt: skip
    """Add up the run that begins in the tile and goes on after it, if there is one.

    Its parts are what the tile, those that the run goes through, and the one it ends in have of it, in this order.
    """
    mask_n = offs_n < n
    begin, end = tile * SPLIT, (tile + 1) * SPLIT
    before = tl.load(sorted_ptr + begin - 1, mask=begin > 0, other=-1)
    row, after = tl.load(sorted_ptr + end - 1), tl.load(sorted_ptr + end)
    if (row == after) & (row != before) & (row < v):
        through = 0
        more = True
        while more:
            at = end + (through + 1 + tl.arange(0, SEARCHED)) * SPLIT
            found = tl.sum((tl.load(sorted_ptr + at, mask=at < m, other=v) == row).to(tl.int32), axis=0)
            through += found
            more = found == SEARCHED
        partial = partial_ptr + offs_n
        total = tl.load(partial + (2 * tile + 1) * n, mask=mask_n, other=0.0)
        parts = _parts_of(partial, tile, 0, through, mask_n, n, GROUP)
        for start in tl.range(0, through, GROUP):
            # Loaded before the others are added, they are under way together; loaded and added in one turn, they are
            # not: ptxas saves the registers, and waits for one after the other.
            later = _parts_of(partial, tile, start + GROUP, through, mask_n, n, GROUP)
            for i in tl.static_range(GROUP):
                total += parts[i]
            parts = later
        total += tl.load(partial + 2 * (tile + through + 1) * n, mask=mask_n, other=0.0)
        tl.store(dweight_ptr + row.to(tl.int64) * n + offs_n, total, mask=mask_n)


@triton.jit
def _join_tiles_kernel(
    sorted_ptr, named_ptr, partial_ptr, dweight_ptr, m, v, n, joining, first, last,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, SEARCHED: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first ``joining`` programs owns the run that goes on after a tile, times COLUMNS columns.

    The others write zeros to those of the rows from ``first`` to ``last`` that no token names.
    """
    n = n // WIDTH * WIDTH  # as in tiles_kernel
    blocks = tl.cdiv(n, COLUMNS)
    pid = tl.program_id(0)
    if pid < joining:
        offs_n = pid % blocks * COLUMNS + tl.arange(0, COLUMNS)
        tile = (pid // blocks).to(tl.int64)
        _join_tile(sorted_ptr, partial_ptr, dweight_ptr, tile, offs_n, m, v, n, SPLIT, GROUP, SEARCHED)
    else:
        clear_rows(dweight_ptr, named_ptr, pid - joining, first, last, n, BLOCK_V, BLOCK_N, False)


SPLITS = ((16_384, 16), (32_768, 32), (131_072, 64), (math.inf, 128))
"""Below how many tokens how many of them a program sums: few tokens are to keep all SMs busy; longer tiles cut fewer
runs, of which each piece is written and read again."""

JOINED, TILES_SEARCHED, JOINED_COLUMNS = 8, 128, 512  # tiles under way together, tiles looked at for a run's end

BEHIND = 16 * 2**20
"""Bytes of zeros, at most, that a launch other than that of the sums writes: what memory takes while it waits for
indices.  They are written again where a token names the row."""


def launch_runs(dy, index, rows, padding_idx, *, config):
    m, n, v = index.numel(), dy.shape[-1], rows
    dweight = torch.empty((v, n), dtype=dy.dtype, device=dy.device)
    if not dweight.numel():
        return dweight
    split, width = below(SPLITS, m), vector_width(dy)
    tiles, blocks = triton.cdiv(m, split), triton.cdiv(n, config["BLOCK_N"])
    chunk = chunk_of(m, dweight)
    shares = 2 + (1 + merges(m, chunk) if chunk < m else ONLY_CHUNK)
    share = min(v // shares, BEHIND // (n * dy.element_size()))
    zeros = Zeros(dweight, share, width)
    by_row, order, named = sorted_tokens(index, padding_idx, chunk, zeros)
    partial = torch.empty((tiles, 2, n), dtype=torch.float32, device=dy.device)
    first = share if tiles > 1 else 0
    programs = (tiles + triton.cdiv(zeros.end - first, config["BLOCK_V"])) * blocks
    launch(
        _sum_tiles_kernel, (programs,), dy, by_row, order, named, partial, dweight, m, v, n, tiles * blocks, first,
        zeros.end, SPLIT=split, WIDTH=width, **config,
    )  # fmt: skip
    if tiles > 1:
        zeros.end = first
        clearing, first, last, clear = zeros.next()
        joining = (tiles - 1) * triton.cdiv(n, JOINED_COLUMNS)
        launch(
            _join_tiles_kernel, (joining + clearing,), by_row, named, partial, dweight, m, v, n, joining, first, last,
            SPLIT=split, GROUP=JOINED, SEARCHED=TILES_SEARCHED, COLUMNS=JOINED_COLUMNS, num_warps=4, **clear,
        )  # fmt: skip
    return dweight


RUNS_SPACE = {"GROUP": (8, 16), "BLOCK_V": (4, 8, 16), "BLOCK_N": BLOCKS, "num_warps": (1, 2, 4)}


def runs_default(problem: Case, gpu: GPU) -> dict:
    """A vector a thread of each of eight tokens."""
    block_n = columns(problem, 2048)
    warps = max(1, block_n * element_size(problem.dtype) // (32 * VECTOR_BYTES))
    return {"GROUP": 8, "BLOCK_V": 8, "BLOCK_N": block_n, "num_warps": warps}


def fits_runs(config: dict, problem: Case, gpu: GPU) -> str:
    vectors = vectors_of_row(config, problem)
    if vectors > 1:
        return "over one 16-byte vector a thread of each token"
    return no_use(config, problem, vectors)
