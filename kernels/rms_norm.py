"""Root mean square normalisation over rows, after a residual add if asked: out = x * rstd * weight.

rstd_i = 1 / sqrt(mean_j x[i, j]^2 + eps) over the n elements of row i.  With a residual, x is first replaced by
sum = x + residual, rounded to its dtype, which is returned as well.  Forward reads x (and residual) and writes out (and
sum): 2 MN elements, 4 MN with a residual.  Backward, with xhat = x * rstd and g = dy * weight, x being the sum:

    dx = rstd * (g - xhat * sum_j(g * xhat) / n) + dsum,  dweight = sum_i dy * xhat

It reads x, dy (and dsum) and writes dx: 3 MN, 4 MN with a residual, whose gradient is dx too.  dweight crosses the
rows: each program sums that of the rows it owns into one partial row, and a last kernel adds the partial rows, always
in one order.  Arithmetic is fp32 whatever the dtype.

Variants: `one_pass`, `late` and backward's `rows` hold whole rows in registers; `stream` and backward's `reread`
read a row a second time while a cache still has it, `columns` when none has.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled,
    eager,
    element_size,
    gpu_of,
    torch_dtype,
)
from atlas.declaration.rows import (
    OTHER_REGISTERS,
    REGISTERS,
    THREAD_REGISTERS,
    VECTOR_BYTES,
    fits_stream,
    lanes,
    stream_default,
    width,
)
from atlas.operators import CustomOperator, Differentiable, autocast, autocasting, launch

from kernels.common.exchange import hear, look, tell, unset_slots
from kernels.common.rows import load_tiles, spans, still_packed, tiles_of_row


@triton.jit
def _load_rows(ptr, offs_m, mask_m, n, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr,
               MODIFIER: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    """Rows ``offs_m`` ([BLOCK_M, 1]) as CHUNKS tiles of BLOCK_N columns; 0, the identity of every sum, beyond n.

    Rows that are no power of two long waste fewer registers in several tiles.  EVEN says that the tiles cover them
    exactly: only the last tile is ever masked.
    """
    rows = ()
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mask = mask_m & ((offs_n < n) | EVEN | (i < CHUNKS - 1))
        rows += (
            tl.load(ptr + offs_m * n + offs_n, mask=mask, other=0.0, cache_modifier=MODIFIER, eviction_policy=POLICY),
        )
    return rows


@triton.jit
def _store_tile(ptr, value, offs_m, mask_m, n, i, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr):
    """Store the ``i``-th of the tiles of :func:`_load_rows`."""
    offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = mask_m & ((offs_n < n) | EVEN | (i < CHUNKS - 1))
    tl.store(ptr + offs_m * n + offs_n, value, mask=mask)


@triton.jit
def _one_pass_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rstd_ptr, m, n, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, LATE: tl.constexpr,
    AGAIN: tl.constexpr, MODIFIER: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows, which stay in registers from load to store, unless it reads x AGAIN.

    LATE loads weight once the sums are known, which leaves registers for rows twice as long.  MODIFIER and POLICY say
    how caches take x.
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    weight = ()
    if HAS_WEIGHT and not LATE:
        weight = _load_rows(weight_ptr, tl.zeros([1, 1], tl.int32), True, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
    offs_m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    mask_m = (offs_m < m) | EVEN_M
    x = _load_rows(x_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, MODIFIER, POLICY)
    if HAS_RESIDUAL:
        added = ()
        residual = _load_rows(residual_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, MODIFIER, POLICY)
        for i in tl.static_range(CHUNKS):
            added += ((x[i].to(tl.float32) + residual[i].to(tl.float32)).to(x_ptr.dtype.element_ty),)
            _store_tile(sum_ptr, added[i], offs_m, mask_m, n, i, BLOCK_N, CHUNKS, EVEN_N)
        x = added
    squares = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        squares += x[i].to(tl.float32) * x[i].to(tl.float32)
    rstd = tl.rsqrt((tl.sum(squares, axis=1)[:, None] / n + eps).to(tl.float32))
    tl.store(rstd_ptr + offs_m, rstd, mask=mask_m)
    zero = (rstd < 0).to(tl.int16)
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        inside = (offs_n < n) | EVEN_N | (i < CHUNKS - 1)
        if AGAIN:
            again = tl.load(x_ptr + offs_m * n + offs_n, mask=mask_m & inside, other=0.0, eviction_policy="evict_first")
            out = again.to(tl.float32) * rstd
        else:
            out = still_packed(x[i], zero).to(tl.float32) * rstd
        if HAS_WEIGHT and LATE:
            out *= tl.load(weight_ptr + offs_n, mask=inside, other=0.0).to(tl.float32)
        elif HAS_WEIGHT:
            out *= weight[i].to(tl.float32)
        _store_tile(out_ptr, out, offs_m, mask_m, n, i, BLOCK_N, CHUNKS, EVEN_N)


@triton.jit
def _stream_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rstd_ptr, n, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length, in blocks of BLOCK_N elements.

    The second sweep goes backwards: what was read last is in cache.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64) * n
    squares = tl.zeros([BLOCK_N], tl.float32)
    for start in tl.range(0, n, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask = offs_n < n
        x = tl.load(x_ptr + row + offs_n, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if HAS_RESIDUAL:
            x += tl.load(residual_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
            rounded = x.to(sum_ptr.dtype.element_ty)
            tl.store(sum_ptr + row + offs_n, rounded, mask=mask)
            x = rounded.to(tl.float32)
        squares += x * x
    if HAS_RESIDUAL:
        x_ptr = sum_ptr
        tl.debug_barrier()  # what one thread stored another may load
    rstd = tl.rsqrt((tl.sum(squares, axis=0) / n + eps).to(tl.float32))
    tl.store(rstd_ptr + tl.program_id(0), rstd)
    last = (n - 1) // BLOCK_N * BLOCK_N
    for done in tl.range(0, n, BLOCK_N):
        offs_n = last - done + tl.arange(0, BLOCK_N)
        mask = offs_n < n
        out = tl.load(x_ptr + row + offs_n, mask=mask, eviction_policy="evict_first").to(tl.float32) * rstd
        if HAS_WEIGHT:
            out *= tl.load(weight_ptr + offs_n, mask=mask, eviction_policy="evict_last").to(tl.float32)
        # Streamed, so that what is stored does not displace what is read again.
        tl.store(out_ptr + row + offs_n, out, mask=mask, cache_modifier=".cs")


@triton.jit
def _backward_rows_kernel(
    x_ptr, weight_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_DSUM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows: their dx, and one partial row of dweight.

    The partial row stays in registers, one for each row of the tile, until the last block; partial_ptr is
    [num_programs, n].
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    weight = ()
    dweight = ()
    if HAS_WEIGHT:
        weight = _load_rows(weight_ptr, tl.zeros([1, 1], tl.int32), True, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        for _ in tl.static_range(CHUNKS):
            dweight += (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)
    for block in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.num_programs(0), num_stages=NUM_STAGES):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask_m = (offs_m < m) | EVEN_M
        x = _load_rows(x_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        dy = _load_rows(dy_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        if HAS_DSUM:
            dsum = _load_rows(dsum_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)
        products = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in tl.static_range(CHUNKS):
            g = dy[i].to(tl.float32)
            if HAS_WEIGHT:
                g *= weight[i].to(tl.float32)
            products += g * (x[i].to(tl.float32) * rstd)
        along = tl.sum(products, axis=1)[:, None] / n
        zero = ((rstd < 0) & (along == along)).to(tl.int16)
        added = ()
        for i in tl.static_range(CHUNKS):
            xhat = still_packed(x[i], zero).to(tl.float32) * rstd
            g = still_packed(dy[i], zero).to(tl.float32)
            if HAS_WEIGHT:
                added += (dweight[i] + g * xhat,)
                g *= weight[i].to(tl.float32)
            dx = (g - xhat * along) * rstd
            if HAS_DSUM:
                dx += dsum[i].to(tl.float32)
            _store_tile(dx_ptr, dx, offs_m, mask_m, n, i, BLOCK_N, CHUNKS, EVEN_N)
        dweight = added
    if HAS_WEIGHT:
        partial_ptr += tl.program_id(0).to(tl.int64) * n
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)
            tl.store(partial_ptr + offs_n, tl.sum(dweight[i], axis=0), mask=offs_n < n)


@triton.jit
def _tell_row_sum(
    slots_ptr, row, m, part, x, dy, weight,
    HAS_WEIGHT: tl.constexpr, TEAM: tl.constexpr, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Publish this part's sum of g x of a row, unless it is beyond the last one."""
    along = tl.zeros([BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        g = dy[i].to(tl.float32)
        if HAS_WEIGHT:
            g *= weight[i].to(tl.float32)
        along += g * x[i].to(tl.float32)
    tell(slots_ptr + row * TEAM + part, tl.sum(along, axis=0), tl.full([], 0.0, tl.float32), row < m)


@triton.jit
def _backward_team_kernel(
    x_ptr, weight_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, slots_ptr, m, n, span,
    HAS_WEIGHT: tl.constexpr, HAS_DSUM: tl.constexpr, TEAM: tl.constexpr, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """TEAM programs own every so-many-th row, each ``span`` columns of it and of a partial row of dweight.

    What a program lacks of a row is one sum, which it hears from the others: see layer_norm's kernel of this name.
    partial_ptr is [teams, n].
    """
    n, span = n // WIDTH * WIDTH, span // WIDTH * WIDTH  # as in _one_pass_kernel
    part, teams = tl.program_id(0) % TEAM, tl.num_programs(0) // TEAM
    first = (tl.program_id(0) // TEAM).to(tl.int64)
    begin, columns = part * span, tl.arange(0, BLOCK_N)
    length = tl.minimum(n - begin, span)
    dweight = ()
    for _ in tl.static_range(CHUNKS):
        dweight += (tl.zeros([BLOCK_N], tl.float32),)
    weight = load_tiles(weight_ptr + begin, length, True, BLOCK_N, CHUNKS, WHOLE) if HAS_WEIGHT else dweight
    x = load_tiles(x_ptr + first * n + begin, length, True, BLOCK_N, CHUNKS, WHOLE)
    dy = load_tiles(dy_ptr + first * n + begin, length, True, BLOCK_N, CHUNKS, WHOLE)
    rstd = tl.load(rstd_ptr + first)
    _tell_row_sum(slots_ptr, first, m, part, x, dy, weight, HAS_WEIGHT, TEAM, BLOCK_N, CHUNKS)
    for row in tl.range(first, m, teams, num_stages=NUM_STAGES):
        slots = slots_ptr + row * TEAM + tl.arange(0, TEAM)
        seen = look(slots)
        ahead = row + teams
        next_x = load_tiles(x_ptr + ahead * n + begin, length, ahead < m, BLOCK_N, CHUNKS, WHOLE)
        next_dy = load_tiles(dy_ptr + ahead * n + begin, length, ahead < m, BLOCK_N, CHUNKS, WHOLE)
        next_rstd = tl.load(rstd_ptr + ahead, mask=ahead < m, other=0.0)
        _tell_row_sum(slots_ptr, ahead, m, part, next_x, next_dy, weight, HAS_WEIGHT, TEAM, BLOCK_N, CHUNKS)
        along = tl.sum(hear(slots, seen)[0], axis=0) * rstd / n
        added = ()
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + columns
            mask = (offs_n < length) | (i < WHOLE)
            xhat = x[i].to(tl.float32) * rstd
            g = dy[i].to(tl.float32)
            if HAS_WEIGHT:
                added += (dweight[i] + g * xhat,)
                g *= weight[i].to(tl.float32)
            dx = (g - xhat * along) * rstd
            if HAS_DSUM:
                dx += tl.load(dsum_ptr + row * n + begin + offs_n, mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_ptr + row * n + begin + offs_n, dx, mask=mask)
        if HAS_WEIGHT:
            dweight = added
        x, dy, rstd = next_x, next_dy, next_rstd
    if HAS_WEIGHT:
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + columns
            tl.store(partial_ptr + first * n + begin + offs_n, dweight[i], mask=offs_n < length)


@triton.jit
def _backward_reread_kernel(
    x_ptr, weight_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_DSUM: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    EVEN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th row: its dx, and one partial row of dweight, which stays in registers.

    There is no room for x and dy beside it, so a row is read twice, the second time from L1, or L2 where L1 is too
    small: the two reads are one row apart.  Memory is never idle, for in the order of the chunks the sum of the next
    row is taken beside the dx of this one, and its x and dy are loaded one chunk before they are needed.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    BLOCK_N: tl.constexpr = LANES * WIDTH
    # Either the first read is to stay in the caches, or the second is to leave them.
    FIRST: tl.constexpr = "evict_last" if KEEP else ""
    SECOND: tl.constexpr = "" if KEEP else "evict_first"
    columns = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    dweight = ()
    products = tl.zeros([LANES], tl.float32)
    for i in tl.static_range(CHUNKS):
        dweight += (tl.zeros([LANES, WIDTH], tl.float32),)
        offs_n = i * BLOCK_N + columns
        mask = (offs_n < n) | EVEN | (i < CHUNKS - 1)
        here = first * n + columns
        g = tl.load(dy_ptr + here + i * BLOCK_N, mask=mask, other=0.0, eviction_policy=FIRST).to(tl.float32)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + columns + i * BLOCK_N, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + here + i * BLOCK_N, mask=mask, other=0.0, eviction_policy=FIRST).to(tl.float32)
        products += tl.sum(g * x, axis=1)
    mask = (first + programs < m) & ((columns < n) | EVEN | (CHUNKS > 1))
    ahead = (first + programs) * n + columns
    next_x = tl.load(x_ptr + ahead, mask=mask, other=0.0, eviction_policy=FIRST)
    next_dy = tl.load(dy_ptr + ahead, mask=mask, other=0.0, eviction_policy=FIRST)
    rstd = tl.load(rstd_ptr + first)
    for row in tl.range(first, m, programs):
        next_rstd = tl.load(rstd_ptr + row + programs, mask=row + programs < m, other=0.0)
        along = tl.sum(products, axis=0) * rstd / n
        products = tl.zeros([LANES], tl.float32)
        added = ()
        for i in tl.static_range(CHUNKS):
            # The chunk after the next row's i-th: of the same row, or the first of the row after it.
            j = (i + 1) % CHUNKS
            ahead_row = row + programs * (1 + (i + 1) // CHUNKS)
            mask = (ahead_row < m) & ((j * BLOCK_N + columns < n) | EVEN | (j < CHUNKS - 1))
            ahead = ahead_row * n + columns
            ahead_x = tl.load(x_ptr + ahead + j * BLOCK_N, mask=mask, other=0.0, eviction_policy=FIRST)
            ahead_dy = tl.load(dy_ptr + ahead + j * BLOCK_N, mask=mask, other=0.0, eviction_policy=FIRST)
            offs_n = i * BLOCK_N + columns
            mask = (offs_n < n) | EVEN | (i < CHUNKS - 1)
            offs = row * n + columns
            x = tl.load(x_ptr + offs + i * BLOCK_N, mask=mask, other=0.0, eviction_policy=SECOND).to(tl.float32)
            g = tl.load(dy_ptr + offs + i * BLOCK_N, mask=mask, other=0.0, eviction_policy=SECOND).to(tl.float32)
            next_g = next_dy.to(tl.float32)
            xhat = x * rstd
            if HAS_WEIGHT:
                weight = tl.load(weight_ptr + columns + i * BLOCK_N, mask=mask, other=0.0).to(tl.float32)
                added += (dweight[i] + g * xhat,)
                g *= weight
                next_g *= weight
            dx = (g - xhat * along) * rstd
            if HAS_DSUM:
                dx += tl.load(dsum_ptr + offs + i * BLOCK_N, mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_ptr + offs + i * BLOCK_N, dx, mask=mask, cache_modifier=".cs")
            products += tl.sum(next_g * next_x.to(tl.float32), axis=1)
            next_x, next_dy = ahead_x, ahead_dy
        dweight = added
        rstd = next_rstd
    if HAS_WEIGHT:
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + columns
            tl.store(partial_ptr + first * n + columns + i * BLOCK_N, dweight[i], mask=offs_n < n)


@triton.jit
def _along_kernel(
    x_ptr, weight_ptr, rstd_ptr, dy_ptr, along_ptr, n,
    HAS_WEIGHT: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: along = sum_j(g * xhat) / n."""
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64) * n
    products = tl.zeros([BLOCK_N], tl.float32)
    for start in tl.range(0, n, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask = offs_n < n
        g = tl.load(dy_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
        products += g * tl.load(x_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + tl.program_id(0))
    tl.store(along_ptr + tl.program_id(0), tl.sum(products, axis=0) * rstd / n)


@triton.jit
def _backward_columns_kernel(
    x_ptr, weight_ptr, rstd_ptr, dy_ptr, dsum_ptr, along_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_DSUM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N columns of every `num_programs(1)`-th block of BLOCK_M rows.

    The rows' sums are known, so it needs no other column; partial_ptr is [num_programs(1), n].
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    pid, programs = tl.program_id(1), tl.num_programs(1)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask_n = offs_n < n
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
        dweight = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in tl.range(pid, tl.cdiv(m, BLOCK_M), programs):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask_m = offs_m < m
        mask = mask_m & mask_n
        offs = offs_m * n + offs_n
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)
        along = tl.load(along_ptr + offs_m, mask=mask_m, other=0.0)
        xhat = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32) * rstd
        g = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            dweight += g * xhat
            g *= weight
        dx = (g - xhat * along) * rstd
        if HAS_DSUM:
            dx += tl.load(dsum_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + offs, dx, mask=mask)
    if HAS_WEIGHT:
        columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        tl.store(partial_ptr + pid.to(tl.int64) * n + columns, tl.sum(dweight, axis=0), mask=columns < n)


@triton.jit
def _sum_partials_kernel(partial_ptr, out_ptr, p, n, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program owns BLOCK_N columns of out[n] = sum over the p rows of partial[p, n], in a fixed order."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for start in tl.range(0, p, BLOCK_P):
        offs_p = (start + tl.arange(0, BLOCK_P)).to(tl.int64)
        mask = (offs_p[:, None] < p) & (offs_n[None, :] < n)
        total += tl.load(partial_ptr + offs_p[:, None] * n + offs_n[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + offs_n, tl.sum(total, axis=0), mask=offs_n < n)


def _rows(x):
    """(m, n) of a contiguous tensor whose last dimension is normalised."""
    n = x.shape[-1]
    return x.numel() // n, n


def _tiles(x, config):
    """Tile parameters and warps of a kernel that holds rows of ``x`` in registers."""
    m, n = _rows(x)
    block_n, chunks = tiles_of_row(n, x.element_size(), config)
    return {
        "BLOCK_M": config["BLOCK_M"], "BLOCK_N": block_n, "CHUNKS": chunks, "WIDTH": width(x),
        "EVEN_M": m % config["BLOCK_M"] == 0, "EVEN_N": n == block_n * chunks, "num_warps": config["num_warps"],
    }  # fmt: skip


def _programs(x, config):
    """Programs for blocks of BLOCK_M rows, at most PROGRAMS_PER_SM on each SM where the config says so."""
    blocks = triton.cdiv(_rows(x)[0], config.get("BLOCK_M", 1))
    return min(blocks, config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms) if "PROGRAMS_PER_SM" in config else blocks


def _launch_forward(kernel, x, residual, weight, eps, *sizes, grid, **meta):
    """(out, rstd), with a residual (out, sum, rstd)."""
    out = torch.empty_like(x)
    added = None if residual is None else torch.empty_like(x)
    rstd = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
    launch(
        kernel, (grid,), x, residual, weight, out, added, rstd, *sizes, eps,
        HAS_RESIDUAL=residual is not None, HAS_WEIGHT=weight is not None, **meta,
    )  # fmt: skip
    return (out, rstd) if residual is None else (out, added, rstd)


def _launch_one_pass(x, residual, weight, eps, *, config, late=False, again=False, modifier="", policy=""):
    return _launch_forward(
        _one_pass_kernel, x, residual, weight, eps, *_rows(x), grid=_programs(x, config), **_tiles(x, config),
        LATE=late, AGAIN=again, MODIFIER=modifier, POLICY=policy,
    )  # fmt: skip


def _launch_late(x, residual, weight, eps, *, config):
    """x past L1, which then holds weight from row to row: else the way from L2 carries as much of weight as of x.

    With AGAIN caches are asked to keep x, and it is read from there a second time: then no row waits in registers.
    """
    caches = {"policy": "evict_last"} if config["AGAIN"] else {"modifier": ".cg"}
    return _launch_one_pass(x, residual, weight, eps, config=config, late=True, again=config["AGAIN"], **caches)


def _launch_stream(x, residual, weight, eps, *, config):
    m, n = _rows(x)
    return _launch_forward(
        _stream_kernel, x, residual, weight, eps, n, grid=m,
        BLOCK_N=config["BLOCK_N"], WIDTH=width(x), num_warps=config["num_warps"],
    )  # fmt: skip


def _gradients(x, weight, programs):
    """dx, and for dweight ``programs`` partial rows and their sum (all None without a weight)."""
    dx, n = torch.empty_like(x), x.shape[-1]
    if weight is None:
        return dx, None, None
    return dx, torch.empty((programs, n), dtype=torch.float32, device=x.device), torch.empty_like(weight)


def _sum_partials(partial, dweight):
    """Fill dweight [n] with the sum of the partial rows [p, n]."""
    if dweight is None:
        return
    p, n = partial.shape
    # Columns for two programs an SM, from the 128 bytes of a cache line on; rows to fill 16 elements a thread.
    columns = triton.next_power_of_2(n // (2 * gpu_of(partial.device).sms) + 1)
    block_n = min(256, max(32, columns))
    launch(
        _sum_partials_kernel, (triton.cdiv(n, block_n),), partial, dweight, p, n,
        BLOCK_P=16 * 32 * 8 // block_n, BLOCK_N=block_n, num_warps=8,
    )  # fmt: skip


def _launch_backward_rows(x, weight, rstd, dy, dsum, *, config):
    programs = _programs(x, config)
    dx, partial, dweight = _gradients(x, weight, programs)
    launch(
        _backward_rows_kernel, (programs,), x, weight, rstd, dy, dsum, dx, partial, *_rows(x),
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, **_tiles(x, config), NUM_STAGES=config["num_stages"],
    )  # fmt: skip
    _sum_partials(partial, dweight)
    return dx, dweight


def _launch_backward_team(x, weight, rstd, dy, dsum, *, config):
    (m, n), team = _rows(x), config["TEAM"]
    teams = min(m, gpu_of(x.device).sms // team)
    span, block_n, chunks = spans(n, x.element_size(), config)
    (dx, partial, dweight), slots = _gradients(x, weight, teams), unset_slots(m, team, x.device)
    launch(
        _backward_team_kernel, (teams * team,), x, weight, rstd, dy, dsum, dx, partial, slots, m, n, span,
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, TEAM=team, BLOCK_N=block_n, CHUNKS=chunks,
        WIDTH=width(x), WHOLE=min(span, n - span * (team - 1)) // block_n, NUM_STAGES=config["num_stages"],
        num_warps=config["num_warps"], launch_cooperative_grid=True,
    )  # fmt: skip
    _sum_partials(partial, dweight)
    return dx, dweight


def _launch_backward_reread(x, weight, rstd, dy, dsum, *, config):
    (_, n), programs, block_n = _rows(x), _programs(x, config), config["BLOCK_N"]
    dx, partial, dweight = _gradients(x, weight, programs)
    launch(
        _backward_reread_kernel, (programs,), x, weight, rstd, dy, dsum, dx, partial, *_rows(x),
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, **lanes(x, block_n),
        CHUNKS=triton.cdiv(n, block_n), EVEN=n % block_n == 0, KEEP=config["KEEP"], num_warps=config["num_warps"],
    )  # fmt: skip
    _sum_partials(partial, dweight)
    return dx, dweight


def _launch_backward_columns(x, weight, rstd, dy, dsum, *, config):
    (m, n), block_n = _rows(x), config["BLOCK_N"]
    columns = triton.cdiv(n, block_n)
    rows = triton.cdiv(config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms, columns)
    programs = min(rows, triton.cdiv(m, config["BLOCK_M"]))
    dx, partial, dweight = _gradients(x, weight, programs)
    along = torch.empty_like(rstd)
    # Two 16-byte vectors a thread of 8 warps, fewer warps for shorter rows.
    size = x.element_size()
    num_warps = max(1, min(8, triton.next_power_of_2(n) * size // (2 * 32 * VECTOR_BYTES)))
    launch(
        _along_kernel, (m,), x, weight, rstd, dy, along, n, HAS_WEIGHT=weight is not None,
        BLOCK_N=2 * 32 * num_warps * VECTOR_BYTES // size, WIDTH=width(x), num_warps=num_warps,
    )  # fmt: skip
    launch(
        _backward_columns_kernel, (columns, programs), x, weight, rstd, dy, dsum, along, dx, partial, m, n,
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, BLOCK_M=config["BLOCK_M"], BLOCK_N=block_n,
        WIDTH=width(x), num_warps=config["num_warps"],
    )  # fmt: skip
    _sum_partials(partial, dweight)
    return dx, dweight


def _case_of(x, residual):
    m, n = _rows(x)
    return case(_NAMES[x.dtype], m=m, n=n, residual=residual is not None)


def _run_forward(x, residual, weight, eps):
    variant, config = choose(DECLARATION, "forward", _case_of(x, residual), x.device)
    return variant.launch(x, residual, weight, eps, config=config)


def _run_backward(x, weight, rstd, dy, dsum):
    variant, config = choose(DECLARATION, "backward", _case_of(x, dsum), x.device)
    dx, dweight = variant.launch(x, weight, rstd, dy, dsum, config=config)
    return dx, torch.empty(0, dtype=x.dtype, device=x.device) if dweight is None else dweight


def _fake_rstd(x):
    return torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)


_forward = CustomOperator(
    "rms_norm_forward",
    "(Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
    run=lambda x, weight, eps: _run_forward(x, None, weight, eps),
    fake=lambda x, weight, eps: (torch.empty_like(x), _fake_rstd(x)),
)
_forward_residual = CustomOperator(
    "rms_norm_residual_forward",
    "(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor, Tensor)",
    run=_run_forward,
    fake=lambda x, residual, weight, eps: (torch.empty_like(x), torch.empty_like(x), _fake_rstd(x)),
)
_backward = CustomOperator(
    "rms_norm_backward",
    "(Tensor x, Tensor? weight, Tensor rstd, Tensor dy, Tensor? dsum) -> (Tensor, Tensor)",
    run=_run_backward,
    fake=lambda x, weight, rstd, dy, dsum: (torch.empty_like(x), x.new_empty(0 if weight is None else weight.shape)),
)


def _save(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.set_materialize_grads(False)


def _save_residual(ctx, inputs, output):
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight, output[2])
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dy, drstd):
    return *_input_gradients(ctx, dy, None), None


def _pull_back_residual(ctx, dy, dsum, drstd):
    dx, dweight = _input_gradients(ctx, dy, dsum)
    return dx, dx, dweight, None


def _input_gradients(ctx, dy, dsum):
    """(dx, dweight) of the saved x, weight and rstd; a gradient that is None is that of an output nobody used."""
    x, weight, rstd = ctx.saved_tensors
    if dy is None:
        return dsum, None
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_gradients(x, weight, ctx.eps, dy, dsum)
    dx, dweight = _backward(x, weight, rstd, dy.contiguous(), dsum if dsum is None else dsum.contiguous())
    return dx, None if weight is None else dweight


def _differentiable_gradients(x, weight, eps, dy, dsum):
    wide = x.float()
    rstd = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    dx, dweight = _backward_reference(wide, weight if weight is None else weight.float(), rstd, dy.float(), dsum)
    return dx.to(x.dtype), None if weight is None else dweight.to(weight.dtype)


_rms_norm = Differentiable(_forward, setup_context=_save, backward=_pull_back)
_rms_norm_residual = Differentiable(_forward_residual, setup_context=_save_residual, backward=_pull_back_residual)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``torch.nn.functional.rms_norm`` in fp32, fp16 or bf16, in fp32 arithmetic; fused with an addition if asked.

    ``normalized_shape`` are the sizes of the last dimensions; ``weight`` has that shape and the input's dtype and
    device, or is None.  ``eps`` is by default fp32's machine epsilon in every dtype, as it is in torch, which documents
    the input's.  With a ``residual``, of the input's shape, dtype and device, returns (out, sum): ``sum = input +
    residual``, rounded to that dtype, and ``rms_norm(sum)``; either may be differentiated.  What is not contiguous is
    copied first.  Second derivatives go through torch's operations.  Raises TypeError for another dtype and ValueError
    for shapes or devices that do not fit.
    """
    if autocasting():
        total = input if residual is None else input + residual  # in their own dtype, as torch adds
        out, weight = autocast("rms_norm", total, weight)
        if residual is not None and out is not total:
            return rms_norm(out, normalized_shape, weight, eps), total
        input = out if residual is None else input
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    _check(input, shape, weight, residual)
    if eps is None:
        eps = _DEFAULT_EPS
    if not input.numel():  # nothing to launch for
        added = input if residual is None else input + residual
        out = torch.nn.functional.rms_norm(added, shape, weight, eps)
        return out if residual is None else (out, added)
    whole = input.shape
    if len(shape) > 1:
        n = math.prod(shape)
        input, weight = input.reshape(-1, n), weight if weight is None else weight.reshape(n)
        residual = residual if residual is None else residual.reshape(-1, n)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if not input.is_contiguous():
        input = input.contiguous()
    if residual is None:
        out = _rms_norm(input, weight, eps)[0]
        return out if len(shape) == 1 else out.view(whole)
    out, added, _ = _rms_norm_residual(input, residual.contiguous(), weight, eps)
    return (out, added) if len(shape) == 1 else (out.view(whole), added.view(whole))


def _check(x, shape, weight, residual):
    """Raise for what rms_norm does not take."""
    if x.dtype not in _NAMES:
        raise TypeError(f"rms_norm takes {', '.join(_DTYPES)}: {x.dtype}")
    if not shape or x.shape[-len(shape) :] != shape:
        raise ValueError(f"rms_norm: normalized_shape {shape} is not the end of the input's {tuple(x.shape)}")
    for name, given, expected in (("weight", weight, shape), ("residual", residual, x.shape)):
        if given is None:
            continue
        if given.dtype != x.dtype:
            raise TypeError(f"rms_norm takes a {name} of the input's {x.dtype}: {given.dtype}")
        if given.shape != expected or given.device != x.device:
            raise ValueError(
                f"rms_norm takes a {name} of shape {tuple(expected)} on {x.device}: "
                f"{tuple(given.shape)} on {given.device}"
            )


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}

_DEFAULT_EPS = torch.finfo(torch.float32).eps
"""torch's: that of the dtype it computes in (seen in 2.11 on an H200 and in 2.13 on a CPU)."""

_EPS = 1e-6
"""What language models use, in all cases."""


def _reference(x, residual, weight, eps):
    """(out, rstd), with a residual (out, sum, rstd)."""
    added = x if residual is None else x + residual
    rstd = (added.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    out = added * rstd * weight
    return (out, rstd.flatten()) if residual is None else (out, added, rstd.flatten())


def _backward_reference(x, weight, rstd, dy, dsum):
    rstd = rstd.reshape(-1, 1) if rstd.dim() == 1 else rstd
    xhat = x * rstd
    g = dy if weight is None else dy * weight
    dx = (g - xhat * (g * xhat).mean(dim=-1, keepdim=True)) * rstd
    return dx if dsum is None else dx + dsum, (dy * xhat).flatten(0, -2).sum(dim=0)


def _torch(x, residual, weight, eps):
    """What a user writes without a fused kernel."""
    if residual is None:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    added = x + residual
    return torch.nn.functional.rms_norm(added, x.shape[-1:], weight, eps), added


def _liger(x, residual, weight, eps):
    from liger_kernel.transformers.functional import liger_fused_add_rms_norm, liger_rms_norm

    if residual is None:
        return liger_rms_norm(x, weight, eps, in_place=False)
    return liger_fused_add_rms_norm(x, residual, weight, eps, in_place=False)


def _pulled_back(forward: Callable, requires: str = "", compiles: bool = False) -> Peer:
    """A peer that times only the backward of ``forward``: (dx, dweight), pulled back from dy and dsum.

    With dsum the x that was normalised is the sum of itself and a residual of 0, and dx that of either.
    """

    def prepare(x, weight, rstd, dy, dsum):
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        residual = None if dsum is None else torch.zeros_like(x).requires_grad_()
        upstream = dy if dsum is None else (dy, dsum)

        def gradients(function):
            outputs = function(leaves[0], residual, leaves[1], _EPS)
            wanted = leaves if residual is None else (*leaves, residual)
            return lambda: torch.autograd.grad(outputs, wanted, upstream, retain_graph=True)[:2]

        if not compiles:
            return gradients(forward)
        torch._dynamo.reset()
        # Donated buffers forbid retain_graph=True, which lets one forward serve every timed backward.
        with torch._functorch.config.patch(donated_buffer=False):
            thunk = gradients(torch.compile(forward, dynamic=False))
            thunk()
        return thunk

    return Peer(prepare, requires, compiles)


def _inputs(problem: Case, device, generator):
    m, n = problem["m"], problem["n"]

    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {"x": draw(m, n), "residual": draw(m, n) if problem["residual"] else None, "weight": draw(n), "eps": _EPS}


def _backward_inputs(problem: Case, device, generator):
    forward = _inputs(problem, device, generator)
    x, residual = forward["x"], forward["residual"]
    return {
        "x": x,
        "weight": forward["weight"],
        "rstd": (x.float().square().mean(dim=-1) + _EPS).rsqrt(),
        "dy": torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator),
        "dsum": residual,
    }


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024, False),  # the launch is the cost
            (4096, 1024, False),
            (16384, 4096, False),
            (8192, 5120, False),  # a hidden size, no power of two
            (8192, 8192, False),
            (8192, 11008, False),  # a size between powers of two, and no multiple of 1024
            (16384, 16384, False),
            (4096, 32768, False),
            (4096, 4096, True),
            (8192, 8192, True),
        ),
        "fp16": ((4096, 1024, False), (8192, 8192, False), (4096, 32768, False)),
        "fp32": ((4096, 1024, False), (8192, 8192, False), (4096, 32768, False)),
    }
    largest = gpu.memory_bytes // 8 // 4  # the four matrices of a pass with a residual in an eighth of the memory
    return [
        case(d, m=m, n=n, residual=residual)
        for d, sizes in shapes.items()
        for m, n, residual in sizes
        if m * n * element_size(d) <= largest
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, residual=residual)
    for dtype in _DTYPES
    for m, n, residual, reason in (
        # Not of one or two elements: nearly all of dx cancels, and what is left is rounding in every implementation.
        (3, 7, False, "three short rows"),
        (7, 1, True, "rows of one element, with a residual"),
        (1, 1000, False, "one row, not a power of two: several tiles, the last one masked"),
        (37, 129, True, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, False, "one row more than whole tiles of rows"),
        (3, 4097, False, "rows one element longer than a block of the streaming variants: a tail of one"),
        (13, 5120, True, "whole tiles, though no power of two; long rows, and more of them than programs"),
        (2, 20_000, False, "several blocks and a tail"),
        (40, 8, True, "more rows than programs: each owns several and adds them up"),
    )
)

# Of the shapes with as many elements one that every variant takes.
_HUGE_CASES = (
    case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192, residual=False),
)


_MOST_CHUNKS = 16
"""Tiles of one row: each is unrolled, and compiling takes time."""

_SHORTEST_PREFETCH = 16384
"""Bytes of a tile: with two more of that size prefetched an SM has what covers memory's latency on an H200 (about
4.3 TB/s x 0.7 us / 132 SMs = 23 KB), so more rows at a time bring nothing."""

_EXCHANGE_BYTES = 1024
"""Shared memory through which the warps of a program exchange their sums, at most."""


def _live(problem: Case, wide: float, narrow: int) -> float:
    """Registers for each element of a tile: ``wide`` values in fp32 and ``narrow`` ones in the case's dtype."""
    return wide + narrow * element_size(problem.dtype) / 4


def _rows_obstacle(config: dict, problem: Case, live: tuple, programs: int = 1) -> str:
    """Why the registers of an SM do not hold the rows of ``programs`` programs, or ``""``; ``live`` as for _live."""
    threads, size = 32 * config["num_warps"], element_size(problem.dtype)
    block, chunks = tiles_of_row(problem["n"], size, config)
    tile = config["BLOCK_M"] * block
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    if chunks > _MOST_CHUNKS:
        return f"{chunks} tiles to a row"
    if threads > 32 and tile * size < threads * VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    needed = tile * chunks * _live(problem, *live) / threads + OTHER_REGISTERS
    available = min(THREAD_REGISTERS, REGISTERS // (threads * programs))
    return f"{needed:.0f} registers a thread, of {available}" if needed > available else ""


def _fits_one_pass(config: dict, problem: Case, gpu: GPU) -> str:
    return _rows_obstacle(config, problem, (_FORWARD_LIVE[0], _FORWARD_LIVE[1] + problem["residual"]))


def _fits_late(config: dict, problem: Case, gpu: GPU) -> str:
    if config["AGAIN"] and problem["residual"]:
        return "the sum with a residual is in registers alone"
    return _rows_obstacle(config, problem, (_FORWARD_LIVE[0], 1 + problem["residual"]))


def _handles_late(problem: Case, gpu: GPU) -> str:
    if gpu.backend != "cuda":
        return "warps of 64 lanes: programs of 32 of them are too large"
    if problem["n"] < 8192:
        return "short rows: registers hold weight beside them, and its latency does not show"
    if problem["n"] * element_size(problem.dtype) % VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    return _handles(_LATE_SPACE, _fits_late, longest=32768)(problem, gpu)


def _fits_persistent(live: tuple, streams: int):
    """``fits`` for ``live`` registers and ``streams`` inputs (and a residual) whose next rows are prefetched."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        size, programs = element_size(problem.dtype), config["PROGRAMS_PER_SM"]
        block, chunks = tiles_of_row(problem["n"], size, config)
        tile = config["BLOCK_M"] * block * chunks * size * (streams + problem["residual"])

        def prefetched(stages: int) -> int:
            return (stages - 1) * tile + _EXCHANGE_BYTES

        if config["BLOCK_M"] > 1 and tile > 2 * _SHORTEST_PREFETCH:
            return f"tiles of {tile} bytes: more rows at a time bring no more bytes into flight than memory can use"
        shared = prefetched(config["num_stages"])
        if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
            return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
        if config["num_stages"] == 1 and prefetched(3) * programs <= gpu.shared_bytes:
            return "nothing prefetched, though the shared memory has room for it"
        if not 4 <= programs * config["num_warps"] <= 32:
            return f"{programs} programs of {config['num_warps']} warps: 4 to 32 on an SM are worth trying"
        held = config["BLOCK_M"] * block * chunks / (32 * config["num_warps"])
        if held > 64 or (held < 16 and config["num_warps"] > 1):
            return f"{held:g} elements a thread: 16 to 64 are worth trying"
        if held > 32 and config["num_stages"] == 1:
            return "long rows with nothing prefetched: no better than streamed ones"
        return _rows_obstacle(config, problem, (live[0], live[1] + problem["residual"]), programs)

    return fits


def _fits_team(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads, team = element_size(problem.dtype), 32 * config["num_warps"], config["TEAM"]
    span, block_n, chunks = spans(problem["n"], size, config)
    if (team - 1) * span >= problem["n"] or team > gpu.sms:
        return f"fewer than {team} parts of a row, or programs"
    shared = (config["num_stages"] - 1) * block_n * chunks * size * 2 + _EXCHANGE_BYTES
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of prefetched rows exceed an SM's shared memory"
    needed = block_n * chunks * _live(problem, *_TEAM_LIVE) / threads + OTHER_REGISTERS
    available = min(THREAD_REGISTERS, REGISTERS // threads)
    return f"{needed:.0f} registers a thread, of {available}" if needed > available else ""


def _handles_team(problem: Case, gpu: GPU) -> str:
    if gpu.backend != "cuda" or int(gpu.arch) < 80:
        return "programs that wait for one another: written for NVIDIA's GPUs from sm_80 on"
    if problem["n"] * element_size(problem.dtype) % VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    if problem["n"] <= (16384 if element_size(problem.dtype) == 2 else 8192):
        return "rows short enough for one program"
    return _handles(_TEAM_SPACE, _fits_team)(problem, gpu)


def _fits_reread(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads, block = element_size(problem.dtype), 32 * config["num_warps"], config["BLOCK_N"]
    chunks = triton.cdiv(problem["n"], block)
    vectors = block * size / (threads * VECTOR_BYTES)
    if not 1 <= vectors <= 2:
        return f"{vectors:g} 16-byte vectors a thread"
    if not 2 <= chunks <= _MOST_CHUNKS:
        return f"{chunks} chunks to a row"
    if config["PROGRAMS_PER_SM"] * config["num_warps"] > gpu.warps_per_sm:
        return "more warps than an SM has"
    if size == 4 and block * chunks > REGISTERS // 4:
        return "ptxas gives up, with 2 KB of spills (Triton 3.7, sm_75 to sm_100)"
    # dweight; chunks of x and dy of three rows, weight and what is computed of them.
    needed = (block * chunks + block * _REREAD_VALUES) / threads + OTHER_REGISTERS
    available = min(THREAD_REGISTERS, REGISTERS // (threads * config["PROGRAMS_PER_SM"]))
    return f"{needed:.0f} registers a thread, of {available}" if needed > available else ""


def _fits_columns(config: dict, problem: Case, gpu: GPU) -> str:
    elements = config["BLOCK_M"] * config["BLOCK_N"] / (32 * config["num_warps"])
    if not 8 <= elements <= 16:
        return f"{elements:g} elements a thread; 8 to 16 keep memory busy without spills"
    return ""


_FORWARD_LIVE, _BACKWARD_LIVE = (0.25, 2), (1.75, 3)
"""Row and weight; sum of dweight, x, dy and weight (what ptxas of Triton 3.7 needs without spilling, with some to spare
for what is computed of them)."""

_TEAM_LIVE = (2.5, 6)
"""Sum of dweight and what is computed of an element; two rows of x and dy, and weight."""

_REREAD_VALUES = 5.0


def _handles(space: dict, fits: Callable, longest: float = math.inf):
    """``handles``: rows of at most ``longest`` elements for which some config of the space fits."""

    def handles(problem: Case, gpu: GPU) -> str:
        if problem["n"] > longest:
            return f"rows of {problem['n']} elements, over {longest}"
        if any(not fits(config, problem, gpu) for config in _configs(space)):
            return ""
        return f"rows of {problem['n']} elements fit no config"

    return handles


def _configs(space: dict):
    return (dict(zip(space, values, strict=True)) for values in itertools.product(*space.values()))


def _default(space: dict, fits: Callable, penalty: Callable[[dict, Case, GPU], tuple]):
    """``default``: of the configs that fit the one of least ``penalty``."""

    def default(problem: Case, gpu: GPU) -> dict:
        fitting = [config for config in _configs(space) if not fits(config, problem, gpu)]
        return min(fitting, key=lambda config: penalty(config, problem, gpu))

    return default


def _away_from(elements: int):
    """``penalty``: doublings away from ``elements`` a thread and one row a tile; lanes beyond the row count twice.

    Of rows not of whole 16-byte vectors half as many: each element has an address and a mask of its own.
    """

    def penalty(config: dict, problem: Case, gpu: GPU) -> tuple:
        size = element_size(problem.dtype)
        wanted = elements / 2 if problem["n"] * size % VECTOR_BYTES else elements
        block, chunks = tiles_of_row(problem["n"], size, config)
        held = config["BLOCK_M"] * block * chunks / (32 * config["num_warps"])
        return (
            abs(math.log2(held / wanted))
            + math.log2(config["BLOCK_M"]) / 4
            + 2 * math.log2(block * chunks / problem["n"]),
            abs(config.get("num_stages", 3) - 3),
            -config.get("PROGRAMS_PER_SM", 1) * config["num_warps"],
        )

    return penalty


_ROWS_SPACE = {"BLOCK_M": (1, 2, 4), "num_warps": (1, 2, 4, 8, 16)}
_LATE_SPACE = {"BLOCK_M": (1,), "num_warps": (8, 16, 32), "AGAIN": (True, False)}
_STREAM_SPACE = {"BLOCK_N": (1024, 2048, 4096, 8192, 16384), "num_warps": (4, 8, 16, 32)}
_BACKWARD_SPACE = {
    "BLOCK_M": (1, 2, 4),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 3, 4),
    "PROGRAMS_PER_SM": (1, 2, 4),
}
_TEAM_SPACE = {"TEAM": (2, 4, 8), "num_warps": (8, 16), "num_stages": (3,)}
_REREAD_SPACE = {
    "BLOCK_N": (1024, 2048, 4096, 8192),
    "num_warps": (8, 16, 32),
    "PROGRAMS_PER_SM": (1, 2),
    "KEEP": (False, True),
}
_COLUMNS_SPACE = {"BLOCK_M": (2, 4), "BLOCK_N": (512, 1024), "num_warps": (4,), "PROGRAMS_PER_SM": (4, 8)}

_fits_backward_rows = _fits_persistent(_BACKWARD_LIVE, streams=2)


def _bytes(matrices: str, added: str, columns: str):
    """Traffic of a pass: matrices [m, n] (``added`` with a residual), columns [n], and one fp32 statistic a row."""

    def cost(c: Case) -> dict[str, int]:
        size = element_size(c.dtype)
        names = matrices.split() + (added.split() if c["residual"] else [])
        return (
            dict.fromkeys(names, c["m"] * c["n"] * size)
            | {"rstd": c["m"] * element_size("fp32")}
            | dict.fromkeys(columns.split(), c["n"] * size)
        )

    return cost


DECLARATION = Declaration(
    name="rms_norm",
    family="rows",
    summary="out = x * rstd * weight over rows, x with a residual added first if asked",
    function=rms_norm,
    call=lambda function, inputs: function(
        inputs["x"], inputs["x"].shape[-1:], inputs["weight"], inputs["eps"], inputs["residual"]
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "residual", "weight"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "sum or rstd", "rstd"),  # there is a sum only where there is a residual
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass,
                space=_ROWS_SPACE,
                default=_default(_ROWS_SPACE, _fits_one_pass, _away_from(elements=24)),
                fits=_fits_one_pass,
                # Longer rows fill more than half of an SM's registers: memory is idle while its one program sums.
                handles=_handles(_ROWS_SPACE, _fits_one_pass, longest=16384),
            ),
            Variant(
                name="late",
                summary="as one_pass, for long rows: weight loaded after the sums, x past L1 or a second time from it",
                follows="one_pass",
                launch=_launch_late,
                space=_LATE_SPACE,
                default=_default(_LATE_SPACE, _fits_late, _away_from(elements=32)),
                fits=_fits_late,
                handles=_handles_late,
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice, the second time from cache",
                launch=_launch_stream,
                space=_STREAM_SPACE,
                default=stream_default(streams=1, blocks=_STREAM_SPACE["BLOCK_N"]),
                fits=fits_stream,
            ),
        ),
        peers={
            "torch": eager(_torch),
            "torch.compile": compiled(_torch),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=_bytes("x out", "residual sum", "weight"),
        flops=lambda c: {
            "sum": c["m"] * c["n"] * c["residual"],
            "squares": 2 * c["m"] * c["n"],
            "normalize, weight": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx", "dweight"),
        variants=(
            Variant(
                name="rows",
                summary="rows and partial sums of dweight in registers, next rows prefetched",
                launch=_launch_backward_rows,
                space=_BACKWARD_SPACE,
                default=_default(_BACKWARD_SPACE, _fits_backward_rows, _away_from(elements=24)),
                fits=_fits_backward_rows,
                handles=_handles(_BACKWARD_SPACE, _fits_backward_rows),
            ),
            Variant(
                name="team",
                summary="rows and partial sums in the registers of several programs, which tell each other their sums",
                follows="rows",
                launch=_launch_backward_team,
                space=_TEAM_SPACE,
                default=_default(_TEAM_SPACE, _fits_team, lambda config, *_: (config["TEAM"], config["num_warps"])),
                fits=_fits_team,
                handles=_handles_team,
            ),
            Variant(
                name="reread",
                summary="partial sums of dweight in registers, rows read again from cache as the next ones are loaded",
                launch=_launch_backward_reread,
                space=_REREAD_SPACE,
                default=_default(
                    _REREAD_SPACE, _fits_reread, lambda config, *_: (abs(config["num_warps"] - 16), config["BLOCK_N"])
                ),
                fits=_fits_reread,
                handles=_handles(_REREAD_SPACE, _fits_reread),
            ),
            Variant(
                name="columns",
                summary="rows of any length read twice: their sums, then tiles of columns",
                launch=_launch_backward_columns,
                space=_COLUMNS_SPACE,
                default=lambda problem, gpu: {"BLOCK_M": 2, "BLOCK_N": 1024, "num_warps": 4, "PROGRAMS_PER_SM": 4},
                fits=_fits_columns,
            ),
        ),
        peers={
            "torch": _pulled_back(_torch),
            "torch.compile": _pulled_back(_torch, compiles=True),
            "liger": _pulled_back(_liger, requires="liger_kernel"),
        },
        bytes=_bytes("x dy dx", "dsum", "weight dweight"),
        flops=lambda c: {
            "xhat, g": 2 * c["m"] * c["n"],
            "row sums": 2 * c["m"] * c["n"],
            "dx": (3 + c["residual"]) * c["m"] * c["n"],
            "dweight": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
