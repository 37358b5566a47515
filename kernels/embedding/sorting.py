"""Backward's tokens, sorted by the row they name, those of a row in their order; no atomics, so of equal bits always.

Chunks are sorted in registers and then merged, 8 or 16 into one, until one is left: an element's place is the number
of elements before it in the other chunks, found by binary search.  Both take time in which memory is idle, so further
programs of the same launches write zeros: to the last rows, before any sum is stored there.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.operators import launch


@triton.jit
def clear_rows(
    dweight_ptr, named_ptr, pid, first, last, n, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, ALL: tl.constexpr
):
    """Write zeros to the ``pid``-th tile of the rows from ``first`` to ``last``; without ALL not to those named."""
    blocks = tl.cdiv(n, BLOCK_N)
    offs_v = first + pid // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
    offs_n = pid % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    empty = offs_v < last
    if not ALL:
        named = tl.load(named_ptr + offs_v, mask=empty, other=1)
        empty = named == 0
    zeros = tl.zeros([BLOCK_V, BLOCK_N], dweight_ptr.dtype.element_ty)
    out = dweight_ptr + offs_v.to(tl.int64)[:, None] * n + offs_n[None, :]
    tl.store(out, zeros, mask=empty[:, None] & (offs_n < n)[None, :], cache_modifier=".cs")


@triton.jit
def _sort_chunks_kernel(
    index_ptr, rows_ptr, order_ptr, named_ptr, dweight_ptr, m, v, n, padding_idx, chunks, flagging, first, last,
    CHUNK: tl.constexpr, SINGLE: tl.constexpr, WIDE: tl.constexpr, FLAGS: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first ``chunks`` programs owns CHUNK tokens, which it sorts by row and position.

    Tokens without a gradient, of padding_idx or outside [0, v), are given row v, and the end of the last chunk v + 1:
    they come last.  Each of the next ``flagging`` programs clears FLAGS of the flags that say which rows are named, and
    the others write zeros to the rows from ``first`` to ``last``.  SINGLE: the only chunk's program clears all flags
    and sets those of its rows, so nothing is left to merge.
    """
    n = n // WIDTH * WIDTH  # as in tiles_kernel
    pid = tl.program_id(0)
    if pid < chunks:
        position = tl.arange(0, CHUNK)
        offs_m = pid * CHUNK + position
        index = tl.load(index_ptr + offs_m, mask=offs_m < m, other=-1)
        counted = (index >= 0) & (index < v) & (index != padding_idx)
        row = tl.where(counted, index, tl.where(offs_m < m, v, v + 1)).to(tl.int64 if WIDE else tl.int32)
        packed = tl.sort(row * CHUNK + position)
        row = (packed // CHUNK).to(tl.int32)
        if SINGLE:
            for start in tl.range(0, v, FLAGS):
                tl.store(named_ptr + start + tl.arange(0, FLAGS), tl.zeros([FLAGS], tl.int8))
            tl.debug_barrier()
            tl.store(named_ptr + row, tl.full([CHUNK], 1, tl.int8), mask=row < v)
        tl.store(rows_ptr + offs_m, row)
        tl.store(order_ptr + offs_m, pid * CHUNK + (packed % CHUNK).to(tl.int32))
    elif pid < chunks + flagging:
        tl.store(named_ptr + (pid - chunks) * FLAGS + tl.arange(0, FLAGS), tl.zeros([FLAGS], tl.int8))
    else:
        clear_rows(dweight_ptr, named_ptr, pid - chunks - flagging, first, last, n, BLOCK_V, BLOCK_N, True)


@triton.jit
def _count_less(sorted_ptr, length, bound, bits):
    """How many of ``length`` < 2^bits ascending numbers are less than each ``bound``, by binary search."""
    count = tl.zeros(bound.shape, tl.int32)
    for bit in tl.range(0, bits):
        more = count + (1 << (bits - 1 - bit))
        inside = more <= length
        below = tl.load(sorted_ptr + (more - 1), mask=inside, other=0) < bound
        count = tl.where(inside & below, more, count)
    return count


@triton.jit
def _merge_chunks_kernel(
    rows_ptr, order_ptr, merged_rows_ptr, merged_order_ptr, named_ptr, dweight_ptr, elements, length, fan, bits, v, n,
    merging, first, last,
    BLOCK: tl.constexpr, FAN: tl.constexpr, FLAGGED: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first ``merging`` programs owns BLOCK elements of a sorted chunk, and stores them where they belong.

    ``fan`` chunks of ``length`` become one.  Equal rows keep the order of their tokens: those of earlier chunks come
    first, those of later ones after.  FLAGGED: it flags their rows, too.  The others write zeros to the rows from
    ``first`` to ``last``.
    """
    n = n // WIDTH * WIDTH  # as in tiles_kernel
    pid = tl.program_id(0)
    if pid < merging:
        own = pid * BLOCK // length
        offs = pid * BLOCK + tl.arange(0, BLOCK)
        row, token = tl.load(rows_ptr + offs), tl.load(order_ptr + offs)
        if FLAGGED:
            tl.store(named_ptr + row, tl.full([BLOCK], 1, tl.int8), mask=row < v)
        group = own // fan * fan
        chunk = group + tl.arange(0, FAN)[:, None]
        there = tl.where((chunk < group + fan) & (chunk != own), tl.minimum(elements - chunk * length, length), 0)
        bound = row[None, :] + (chunk < own).to(tl.int32)
        before = _count_less(rows_ptr + chunk * length, there, bound, bits)
        place = offs - own * length + group * length + tl.sum(before, axis=0)
        tl.store(merged_rows_ptr + place, row)
        tl.store(merged_order_ptr + place, token)
    else:
        clear_rows(dweight_ptr, named_ptr, pid - merging, first, last, n, BLOCK_V, BLOCK_N, True)


CHUNKS = ((1024, 64), (4096, 256), (math.inf, 1024))
"""Below how many tokens how many of them one program sorts in registers: small chunks are sorted sooner, and each more
is searched once for every token."""

LONGEST_CHUNK, HIDING = 2048, 32 * 2**20
"""Up to so many tokens are one chunk where so many bytes of the gradient can be cleared while it is sorted: a launch
less, and none of them takes under 3 us."""

FANS = ((32_768, 16), (math.inf, 8))
"""Below how many tokens how many chunks become one at most: the more tokens, the more their searches weigh against
another launch."""

MERGED, FLAGS = 32, 4096  # elements a program places, flags it clears

ONLY_CHUNK = 3
"""Shares of zeros that are written while one program sorts all tokens, which takes longer, and clears all flags."""


def below(bounds, m):
    """The entry for m tokens of a table by number of tokens."""
    return next(entry for most, entry in bounds if m < most)


def chunk_of(m, dweight):
    """How many of m tokens one program sorts, for a gradient ``dweight``."""
    if m <= LONGEST_CHUNK and dweight.numel() * dweight.element_size() >= HIDING:
        return max(CHUNKS[0][1], triton.next_power_of_2(m))
    return below(CHUNKS, m)


def merges(m, chunk):
    """How many launches merge m tokens, in chunks of ``chunk``, into one."""
    chunks, levels = triton.cdiv(m, chunk), 0
    while below(FANS, m) ** levels < chunks:
        levels += 1
    return levels


TILE = 16 * 2**10  # bytes of zeros that a program writes


class Zeros:
    """Zeros to write to rows of ``dweight``, from its end on, shares of ``share`` rows a launch."""

    def __init__(self, dweight, share, width):
        self.dweight, self.share, self.width, self.end = dweight, share, width, dweight.shape[0]

    def next(self, shares=1):
        """What the next launch has to write: programs, first and last row, block sizes."""
        last, n, size = self.end, self.dweight.shape[1], self.dweight.element_size()
        self.end = first = last - shares * self.share
        block_n = min(512, triton.next_power_of_2(n))
        block_v = max(1, TILE // (block_n * size))
        programs = triton.cdiv(last - first, block_v) * triton.cdiv(n, block_n)
        return programs, first, last, {"BLOCK_V": block_v, "BLOCK_N": block_n, "WIDTH": self.width}


def sorted_tokens(index, padding_idx, chunk, zeros):
    """(row, token) of all tokens by row, those of one row in their order, and a flag for each row that is named.

    Tokens without a gradient have row v; behind the last token there may be more.  ``chunk`` tokens are sorted by a
    program, and ``zeros`` written meanwhile.
    """
    m, dweight = index.numel(), zeros.dweight
    v, n = dweight.shape
    chunks, levels = triton.cdiv(m, chunk), merges(m, chunk)
    elements = chunks * chunk
    rows, order = (torch.empty(elements, dtype=torch.int32, device=index.device) for _ in range(2))
    flagging = triton.cdiv(v, FLAGS)
    named = torch.empty(flagging * FLAGS, dtype=torch.int8, device=index.device)  # whole blocks: 16 bytes a store
    if chunks == 1:
        flagging = 0
    clearing, first, last, blocks = zeros.next(ONLY_CHUNK if chunks == 1 else 1)
    launch(
        _sort_chunks_kernel, (chunks + flagging + clearing,), index, rows, order, named, dweight, m, v, n, padding_idx,
        chunks, flagging, first, last, CHUNK=chunk, SINGLE=chunks == 1, WIDE=(v + 2) * chunk > 2**31, FLAGS=FLAGS,
        num_warps=max(1, chunk // 128), **blocks,
    )  # fmt: skip
    if not levels:
        return rows, order, named
    merged_rows, merged_order = torch.empty_like(rows), torch.empty_like(order)
    fan = next(fan for fan in range(2, chunks + 1) if fan**levels >= chunks)
    length, merging = chunk, elements // MERGED
    for level in range(levels):
        clearing, first, last, blocks = zeros.next()
        launch(
            _merge_chunks_kernel, (merging + clearing,), rows, order, merged_rows, merged_order, named, dweight,
            elements, length, fan, length.bit_length(), v, n, merging, first, last,
            BLOCK=MERGED, FAN=triton.next_power_of_2(fan), FLAGGED=level == 0, num_warps=4, **blocks,
        )  # fmt: skip
        rows, order, merged_rows, merged_order = merged_rows, merged_order, rows, order
        length *= fan
    return rows, order, named
