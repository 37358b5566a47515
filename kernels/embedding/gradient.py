"""Backward: the gradients of the tokens that name a row, added up in fp32 and in one order, without atomics.

Four launches.  The tokens are sorted by row (chunks in registers, then each element's rank among all chunks, by binary
search), so those of a row are neighbours, a run.  Every tile of SPLIT sorted tokens is summed by a program of its own,
run by run, however long the runs are, while others write the rows that no token names.  Last, the runs that go on from
tile to tile are joined.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .lookup import BLOCKS, columns, no_use, vector_width, vectors_of_row


@triton.jit
def _count_less(sorted_ptr, length, bound, mask, BITS: tl.constexpr):
    """How many of ``length`` < 2^BITS ascending numbers are less than each ``bound``, by binary search."""
    count = tl.zeros(bound.shape, tl.int32)
    for bit in tl.static_range(BITS):
        more = count + (1 << (BITS - 1 - bit))
        inside = mask & (more <= length)
        below = tl.load(sorted_ptr + (more - 1), mask=inside, other=0) < bound
        count = tl.where(inside & below, more, count)
    return count


@triton.jit
def _sort_chunks_kernel(
    index_ptr, packed_ptr, named_ptr, m, v, padding_idx, chunks, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr
):
    """Each of the first `chunks` programs owns CHUNK tokens: packed = row * CHUNK + position in the chunk, ascending.

    Tokens without a gradient, of padding_idx or outside [0, v), are given row v, and the end of the last chunk v + 1:
    they come last.  Each further program clears BLOCK_V of the v flags that say which rows are named.
    """
    pid = tl.program_id(0)
    if pid < chunks:
        position = tl.arange(0, CHUNK)
        offs_m = pid * CHUNK + position
        index = tl.load(index_ptr + offs_m, mask=offs_m < m, other=-1)
        counted = (index >= 0) & (index < v) & (index != padding_idx)
        row = tl.where(counted, index, tl.where(offs_m < m, v, v + 1)).to(packed_ptr.dtype.element_ty)
        tl.store(packed_ptr + offs_m, tl.sort(row * CHUNK + position))
    else:
        offs_v = (pid - chunks) * BLOCK_V + tl.arange(0, BLOCK_V)
        tl.store(named_ptr + offs_v, tl.zeros([BLOCK_V], tl.int8), mask=offs_v < v)


@triton.jit
def _merge_chunks_kernel(
    packed_ptr, sorted_ptr, order_ptr, named_ptr, m, v, chunks,
    CHUNK: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK elements of one sorted chunk, and stores them where they stand among all.

    That is the number of elements before them in every chunk.  Equal rows keep the order of their tokens: those of
    earlier chunks come first, those of later ones after.  It flags their rows, too.
    """
    first = tl.program_id(0) * BLOCK
    own = first // CHUNK
    packed = tl.load(packed_ptr + first + tl.arange(0, BLOCK))
    row = packed // CHUNK
    tl.store(named_ptr + row, tl.full([BLOCK], 1, tl.int8), mask=row < v)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, chunks, BLOCK_C):
        chunk = start + tl.arange(0, BLOCK_C)[:, None]
        bound = tl.where(chunk < own, (row + 1)[None, :], row[None, :]) * CHUNK
        bound = tl.where(chunk == own, packed[None, :], bound)
        rank += tl.sum(_count_less(packed_ptr + chunk * CHUNK, CHUNK, bound, chunk < chunks, BITS), axis=0)
    tl.store(sorted_ptr + rank, row.to(tl.int32), mask=rank < m)
    tl.store(order_ptr + rank, (own * CHUNK + packed % CHUNK).to(tl.int32), mask=rank < m)


CHUNKS = ((1024, 64), (8192, 256), (math.inf, 1024))
"""Below how many tokens how many of them one program sorts in registers: small chunks are sorted sooner, and each more
is searched once for every token."""

MERGED, MERGED_CHUNKS = 128, 16  # elements a program ranks, and chunks it searches at a time
CLEARED = 4096  # flags


def _below(bounds, m):
    """The entry for m tokens of a table by number of tokens."""
    return next(entry for below, entry in bounds if m < below)


def sorted_tokens(index, v, padding_idx):
    """(row, token) of all tokens by row, those of one row in their order, and a flag for each row that is named.

    Tokens without a gradient have row v.
    """
    m = index.numel()
    chunk = _below(CHUNKS, m)
    chunks = triton.cdiv(m, chunk)
    wide = (v + 2) * chunk > 2**31
    packed = torch.empty(chunks * chunk, dtype=torch.int64 if wide else torch.int32, device=index.device)
    rows, order = (torch.empty(m, dtype=torch.int32, device=index.device) for _ in range(2))
    named = torch.empty(v, dtype=torch.int8, device=index.device)
    launch(
        _sort_chunks_kernel, (chunks + triton.cdiv(v, CLEARED),), index, packed, named, m, v, padding_idx, chunks,
        CHUNK=chunk, BLOCK_V=CLEARED, num_warps=max(1, chunk // 128),
    )  # fmt: skip
    block = min(chunk, MERGED)
    launch(
        _merge_chunks_kernel, (chunks * chunk // block,), packed, rows, order, named, m, v, chunks,
        CHUNK=chunk, BITS=chunk.bit_length(), BLOCK=block, num_warps=4,
        BLOCK_C=min(MERGED_CHUNKS, triton.next_power_of_2(chunks)),
    )  # fmt: skip
    return rows, order, named


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
def _clear_rows(named_ptr, dweight_ptr, offs_v, offs_n, v, n, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write zeros to those of BLOCK_V rows that no token names."""
    named = tl.load(named_ptr + offs_v, mask=offs_v < v, other=1)
    zeros = tl.zeros([BLOCK_V, BLOCK_N], dweight_ptr.dtype.element_ty)
    out = dweight_ptr + offs_v.to(tl.int64)[:, None] * n + offs_n[None, :]
    tl.store(out, zeros, mask=(named == 0)[:, None] & (offs_n < n)[None, :], cache_modifier=".cs")


@triton.jit
def _sum_tiles_kernel(
    dy_ptr, sorted_ptr, order_ptr, named_ptr, partial_ptr, dweight_ptr, m, v, n, sum_programs,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first sum_programs owns a tile of sorted tokens times BLOCK_N columns, the others BLOCK_V rows."""
    n = n // WIDTH * WIDTH  # as in tiles_kernel
    blocks = tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    offs_n = pid % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    if pid < sum_programs:
        _sum_tile(
            dy_ptr, sorted_ptr, order_ptr, partial_ptr, dweight_ptr, pid // blocks, offs_n, m, v, n,
            SPLIT, GROUP, BLOCK_N,
        )  # fmt: skip
    else:
        offs_v = (pid - sum_programs) // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
        _clear_rows(named_ptr, dweight_ptr, offs_v, offs_n, v, n, BLOCK_V, BLOCK_N)


@triton.jit
def _join_tiles_kernel(
    sorted_ptr, partial_ptr, dweight_ptr, m, v, n,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, SEARCHED: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns the run that begins in a tile and goes on after it, if there is one, times BLOCK_N columns.

    It adds up what the tile, those that the run goes through, and the one it ends in have of it, in this order.
    """
    n = n // WIDTH * WIDTH  # as in tiles_kernel
    blocks = tl.cdiv(n, BLOCK_N)
    tile = (tl.program_id(0) // blocks).to(tl.int64)
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
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
        for start in tl.range(0, through, GROUP):
            parts = ()
            for i in tl.static_range(GROUP):
                at = partial + (2 * (tile + start + i) + 3) * n
                parts += (tl.load(at, mask=mask_n & (start + i < through), other=0.0),)
            for i in tl.static_range(GROUP):
                total += parts[i]
        total += tl.load(partial + 2 * (tile + through + 1) * n, mask=mask_n, other=0.0)
        tl.store(dweight_ptr + row.to(tl.int64) * n + offs_n, total, mask=mask_n)


SPLITS = ((65_536, 16), (math.inf, 64))
"""Below how many tokens how many of them a program sums: few tokens are to keep all SMs busy; longer tiles cut fewer
runs, of which each piece is written and read again."""

JOINED, TILES_SEARCHED, JOINED_COLUMNS = 8, 128, 512  # tiles under way together, tiles looked at for a run's end


def launch_runs(dy, index, rows, padding_idx, *, config):
    m, n, v = index.numel(), dy.shape[-1], rows
    dweight = torch.empty((v, n), dtype=dy.dtype, device=dy.device)
    if not dweight.numel():
        return dweight
    by_row, order, named = sorted_tokens(index, v, padding_idx)
    split, width = _below(SPLITS, m), vector_width(dy)
    tiles, blocks = triton.cdiv(m, split), triton.cdiv(n, config["BLOCK_N"])
    partial = torch.empty((tiles, 2, n), dtype=torch.float32, device=dy.device)
    programs = (tiles + triton.cdiv(v, config["BLOCK_V"])) * blocks
    launch(
        _sum_tiles_kernel, (programs,), dy, by_row, order, named, partial, dweight, m, v, n, tiles * blocks,
        SPLIT=split, WIDTH=width, **config,
    )  # fmt: skip
    if tiles > 1:
        launch(
            _join_tiles_kernel, ((tiles - 1) * triton.cdiv(n, JOINED_COLUMNS),), by_row, partial, dweight, m, v, n,
            SPLIT=split, GROUP=JOINED, SEARCHED=TILES_SEARCHED, BLOCK_N=JOINED_COLUMNS, WIDTH=width, num_warps=4,
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
