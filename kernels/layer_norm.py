"""Layer normalisation over rows: out[i, j] = (x[i, j] - mean_i) * rstd_i * weight[j] + bias[j].

mean_i and var_i are over the n elements of row i, rstd_i = 1 / sqrt(var_i + eps).  Forward reads x and writes out, MN
elements each; everything else is M or N.  With a residual, the row that is normalised is sum = x + residual, rounded to
the input's dtype and written too: 4 MN.  Backward, with xhat = (x - mean) * rstd and g = dy * weight:

    dx = rstd * (g - xhat * sum_j(g * xhat) / n - sum_j(g) / n) + dsum,  dweight = sum_i dy * xhat,  dbias = sum_i dy

It reads x and dy (and dsum, the gradient of a residual's sum) and writes dx, 3 MN (4 MN).  dweight and dbias cross the
rows: each program sums those of the rows it owns and writes one partial row; a last kernel adds the partial rows,
always in one order.  Arithmetic is fp32 whatever the dtype.

Variants.  Forward: `one_pass` holds whole rows in registers, `stream` reads rows of any length twice,
several at a time so that they share weight and bias.  Backward: `rows` holds rows and the partial sums in registers,
`helped` holds longer rows and the sums for dweight alone, `columns` reads rows of any length twice.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Capability,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled,
    compiled_gradients,
    eager,
    element_size,
    gpu_of,
    gradients,
    rows,
    torch_dtype,
)
from atlas.operators import CustomOperator, Differentiable, autocast, autocasting, launch, torch_gradients

from kernels.common.exchange import hear, look, tell, unset_slots
from kernels.common.rows import load_tiles, spans, still_packed, tiles_of_row, tiles_of_vectors


@triton.jit
def _load_rows(x_ptr, residual_ptr, sum_ptr, offs, mask, HAS_RESIDUAL: tl.constexpr):
    """Rows in fp32, 0 (the identity of the sum) outside; those of x + residual, rounded, are written as well."""
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offs, mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(sum_ptr + offs, x, mask=mask)
    return x.to(tl.float32)


@triton.jit
def _load_columns(weight_ptr, bias_ptr, offs_n, mask_n, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    """(weight, bias) of some columns as they are stored; 1 and 0 for what the layer does not have."""
    weight, bias = 1.0, 0.0
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0)
    return weight, bias


@triton.jit
def _apply(xhat, weight, bias, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    if HAS_WEIGHT:
        xhat *= weight.to(tl.float32)
    if HAS_BIAS:
        xhat += bias.to(tl.float32)
    return xhat


@triton.jit
def _one_pass_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, sum_ptr, mean_ptr, rstd_ptr, m, n, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, LATE: tl.constexpr, REST: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows, in CHUNKS tiles of BLOCK_N columns, which stay in registers from load to store.

    LATE loads weight and bias once the statistics are known: their latency shows, but a thread needs fewer registers,
    so more programs share an SM.  EVEN says that the tiles cover rows, columns exactly: only the last tile is ever
    masked.  The variance is taken about the mean, so nothing cancels; the mean's division is rounded as IEEE asks, for
    its error shifts all of a row alike, which sums over the row add up.  REST subtracts that error as well.
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = (offs_m < m) | EVEN_M
    columns = tl.arange(0, BLOCK_N)[None, :]
    x, parameters = (), ()
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + columns
        mask_n = (offs_n < n) | EVEN_N | (i < CHUNKS - 1)
        x += (tl.load(x_ptr + offs_m[:, None] * n + offs_n, mask=mask_m[:, None] & mask_n, other=0.0),)
    if HAS_RESIDUAL:
        added = ()
        for i in tl.static_range(CHUNKS):
            offs = offs_m[:, None] * n + (i * BLOCK_N + columns)
            mask = mask_m[:, None] & ((i * BLOCK_N + columns < n) | EVEN_N | (i < CHUNKS - 1))
            residual = tl.load(residual_ptr + offs, mask=mask, other=0.0)
            added += ((x[i].to(tl.float32) + residual.to(tl.float32)).to(x_ptr.dtype.element_ty),)
            tl.store(sum_ptr + offs, added[i], mask=mask)
        x = added
    if not LATE:
        for i in tl.static_range(CHUNKS):
            mask_n = (i * BLOCK_N + columns < n) | EVEN_N | (i < CHUNKS - 1)
            parameters += (_load_columns(weight_ptr, bias_ptr, i * BLOCK_N + columns, mask_n, HAS_WEIGHT, HAS_BIAS),)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        total += x[i].to(tl.float32)  # 0, the identity of the sum, outside
    mean = tl.div_rn(tl.sum(total, axis=1), tl.cast(n, tl.float32))
    bit = (mean != mean).to(tl.int16)[:, None]
    squares, left = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        mask_n = (i * BLOCK_N + columns < n) | EVEN_N | (i < CHUNKS - 1)
        centred = tl.where(mask_n, still_packed(x[i], bit).to(tl.float32) - mean[:, None], 0.0)
        squares += centred * centred
        left += centred
    rstd = tl.rsqrt((tl.sum(squares, axis=1) / n + eps).to(tl.float32))  # eps is fp64 under torch.compile
    if REST:
        rest = tl.sum(left, axis=1) / n
    tl.store(mean_ptr + offs_m, mean, mask=mask_m)
    tl.store(rstd_ptr + offs_m, rstd, mask=mask_m)
    bit = (rstd != rstd).to(tl.int16)[:, None]
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + columns
        mask_n = (offs_n < n) | EVEN_N | (i < CHUNKS - 1)
        xhat = still_packed(x[i], bit).to(tl.float32) - mean[:, None]
        if REST:
            xhat -= rest[:, None]
        xhat *= rstd[:, None]
        if LATE:
            weight, bias = _load_columns(weight_ptr, bias_ptr, offs_n, mask_n, HAS_WEIGHT, HAS_BIAS)
        else:
            weight, bias = parameters[i]
        out = _apply(xhat, weight, bias, HAS_WEIGHT, HAS_BIAS)
        tl.store(out_ptr + offs_m[:, None] * n + offs_n, out, mask=mask_m[:, None] & mask_n)


@triton.jit
def _stream_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, sum_ptr, mean_ptr, rstd_ptr, m, n, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows of any length, in blocks of LANES x WIDTH columns; weight and bias serve them all.

    Each lane, WIDTH neighbours that one thread loads at once, keeps count, mean and squared deviations M2 of what it
    has seen and merges each block's into them (Chan, Golub, LeVeque 1979), so neither a large mean nor a drift along
    the row cancels.  The second sweep goes backwards: what was read last is in cache.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < m
    row = offs_m[:, None, None] * n
    lane = tl.arange(0, LANES) * WIDTH
    offs = lane[None, :, None] + tl.arange(0, WIDTH)[None, None, :]
    count = tl.zeros([1, LANES], tl.float32)
    mean, m2 = tl.zeros([BLOCK_M, LANES], tl.float32), tl.zeros([BLOCK_M, LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH):
        mask = mask_m[:, None, None] & (start + offs < n)
        x = _load_rows(x_ptr, residual_ptr, sum_ptr, row + start + offs, mask, HAS_RESIDUAL)
        # WIDTH divides n, so a lane is in the row as a whole or not at all.
        added = tl.where(start + lane[None, :] < n, WIDTH, 0).to(tl.float32)
        block_mean = tl.sum(x, axis=2) / WIDTH
        centred = x - block_mean[:, :, None]
        delta = block_mean - mean
        share = added / tl.maximum(count + added, 1.0)
        m2 += tl.sum(centred * centred, axis=2) + delta * delta * count * share
        mean += delta * share
        count += added
    row_mean = tl.div_rn(tl.sum(count * mean, axis=1), tl.cast(n, tl.float32))
    between = mean - row_mean[:, None]
    rstd = tl.rsqrt((tl.sum(m2 + count * between * between, axis=1) / n + eps).to(tl.float32))
    tl.store(mean_ptr + offs_m, row_mean, mask=mask_m)
    tl.store(rstd_ptr + offs_m, rstd, mask=mask_m)
    last = (n - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    again_ptr = sum_ptr if HAS_RESIDUAL else x_ptr  # each thread reads what it has written itself
    for done in tl.range(0, n, LANES * WIDTH):
        offs_n = last - done + offs
        mask = mask_m[:, None, None] & (offs_n < n)
        x = tl.load(again_ptr + row + offs_n, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        weight, bias = _load_columns(weight_ptr, bias_ptr, offs_n, offs_n < n, HAS_WEIGHT, HAS_BIAS)
        xhat = (x - row_mean[:, None, None]) * rstd[:, None, None]
        out = _apply(xhat, weight, bias, HAS_WEIGHT, HAS_BIAS)
        tl.store(out_ptr + row + offs_n, out, mask=mask, cache_modifier=".cs")


@triton.jit
def _backward_rows_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows: their dx, and one partial row of dweight, dbias.

    The partial rows stay in registers, one per row of the tile, until the last block; partial_ptr is
    [HAS_WEIGHT + HAS_BIAS, num_programs, n].
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    pid, programs = tl.program_id(0), tl.num_programs(0)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_n = offs_n < n
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0)
        dweight = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if HAS_BIAS:
        dbias = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in tl.range(pid, tl.cdiv(m, BLOCK_M), programs, num_stages=NUM_STAGES):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask_m = offs_m < m
        mask = mask_m[:, None] & mask_n
        offs = offs_m[:, None] * n + offs_n
        # dy is 0 in the padding, and every sum has dy as a factor.
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        xhat = (x - mean) * rstd
        g = tl.fma(dy, weight.to(tl.float32), 0.0) if HAS_WEIGHT else dy  # rounded: see _backward_columns_kernel
        along = tl.sum(g * xhat, axis=1)[:, None] / n
        level = tl.sum(g, axis=1)[:, None] / n
        dx = (g - xhat * along - level) * rstd
        if HAS_SUM:
            dx += tl.load(dsum_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + offs, dx, mask=mask)
        if HAS_WEIGHT:
            dweight += dy * xhat
        if HAS_BIAS:
            dbias += dy
    columns = tl.arange(0, BLOCK_N)
    partial_ptr += pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)


@triton.jit
def _backward_helped_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, m, n, helpers,
    HAS_WEIGHT: tl.constexpr, HAS_SUM: tl.constexpr, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """The first ``helpers`` programs sum dbias over every `helpers`-th row; each other owns every so-many-th row of dx.

    A 16-bit row of CHUNKS tiles and one vector of sums, that of dweight, are all that registers hold, so dbias is left
    to those who read dy alone: a third of the traffic again, but for what they find in the L2.  The first WHOLE tiles
    end within the row.  partial_ptr is [programs, n], the helpers' rows last.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    pid, owners = tl.program_id(0), tl.num_programs(0) - helpers
    columns = tl.arange(0, BLOCK_N)
    sums = ()
    for _ in tl.static_range(CHUNKS):
        sums += (tl.zeros([BLOCK_N], tl.float32),)
    if pid < helpers:
        for row in tl.range(pid.to(tl.int64), m, helpers, num_stages=NUM_STAGES):
            dy = load_tiles(dy_ptr + row * n, n, True, BLOCK_N, CHUNKS, WHOLE)
            added = ()
            for i in tl.static_range(CHUNKS):
                added += (sums[i] + dy[i].to(tl.float32),)
            sums = added
        partial_ptr += (owners + pid).to(tl.int64) * n
        for i in tl.static_range(CHUNKS):
            tl.store(partial_ptr + i * BLOCK_N + columns, sums[i], mask=i * BLOCK_N + columns < n)
    else:
        weight = load_tiles(weight_ptr, n, True, BLOCK_N, CHUNKS, WHOLE) if HAS_WEIGHT else sums
        for row in tl.range((pid - helpers).to(tl.int64), m, owners, num_stages=NUM_STAGES):
            # dy is 0 in the padding, and every sum has dy as a factor.
            x = load_tiles(x_ptr + row * n, n, True, BLOCK_N, CHUNKS, WHOLE)
            dy = load_tiles(dy_ptr + row * n, n, True, BLOCK_N, CHUNKS, WHOLE)
            mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
            along, level = tl.zeros([BLOCK_N], tl.float32), tl.zeros([BLOCK_N], tl.float32)
            for i in tl.static_range(CHUNKS):
                g = dy[i].to(tl.float32)
                if HAS_WEIGHT:
                    g *= weight[i].to(tl.float32)
                along += g * (x[i].to(tl.float32) - mean)
                level += g
            # dx = rstd g - slope (x - mean) - base: few operations an element.
            slope = tl.sum(along, axis=0) * rstd / n * rstd * rstd
            base = tl.sum(level, axis=0) / n * rstd
            zero = ((rstd < 0) & (slope == slope)).to(tl.int16)
            added = ()
            for i in tl.static_range(CHUNKS):
                offs_n = i * BLOCK_N + columns
                mask = (offs_n < n) | (i < WHOLE)
                centred = still_packed(x[i], zero).to(tl.float32) - mean
                g = still_packed(dy[i], zero).to(tl.float32) * rstd
                if HAS_WEIGHT:
                    added += (sums[i] + g * centred,)
                    g *= weight[i].to(tl.float32)
                dx = g - (centred * slope + base)
                if HAS_SUM:
                    dx += tl.load(dsum_ptr + row * n + offs_n, mask=mask, other=0.0).to(tl.float32)
                tl.store(dx_ptr + row * n + offs_n, dx, mask=mask)
            if HAS_WEIGHT:
                sums = added
        if HAS_WEIGHT:
            partial_ptr += (pid - helpers).to(tl.int64) * n
            for i in tl.static_range(CHUNKS):
                tl.store(partial_ptr + i * BLOCK_N + columns, sums[i], mask=i * BLOCK_N + columns < n)


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _tell_row_sums(
    slots_ptr, row, m, part, x, dy, weight, mean,
    HAS_WEIGHT: tl.constexpr, TEAM: tl.constexpr, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Publish this part's sums of g (x - mean) and of g of a row, unless it is beyond the last one."""
    along, level = tl.zeros([BLOCK_N], tl.float32), tl.zeros([BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        g = dy[i].to(tl.float32)
        if HAS_WEIGHT:
            g *= weight[i].to(tl.float32)
        along += g * (x[i].to(tl.float32) - mean)
        level += g
    along, level = tl.reduce((along, level), 0, _both)
    tell(slots_ptr + row * TEAM + part, along, level, row < m)


@triton.jit
def _backward_team_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, slots_ptr, m, n, span,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr, TEAM: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """TEAM programs own every so-many-th row, each ``span`` columns of it and of the partial rows of dweight, dbias.

    What a program lacks of a row are two sums, which it hears from the others through slots_ptr [m, TEAM].  Each tells
    its share of the next row before it asks for those of this one, which so have been told by then.  All programs must
    run at once.  The first WHOLE tiles end within each span, the last of which may be shorter.  partial_ptr is
    [HAS_WEIGHT + HAS_BIAS, teams, n].
    """
    n, span = n // WIDTH * WIDTH, span // WIDTH * WIDTH  # as in _one_pass_kernel
    part, teams = tl.program_id(0) % TEAM, tl.num_programs(0) // TEAM
    first = (tl.program_id(0) // TEAM).to(tl.int64)
    begin, columns = part * span, tl.arange(0, BLOCK_N)
    length = tl.minimum(n - begin, span)
    dweight, dbias = (), ()
    for _ in tl.static_range(CHUNKS):
        dweight += (tl.zeros([BLOCK_N], tl.float32),)
        dbias += (tl.zeros([BLOCK_N], tl.float32),)
    weight = load_tiles(weight_ptr + begin, length, True, BLOCK_N, CHUNKS, WHOLE) if HAS_WEIGHT else dweight
    x = load_tiles(x_ptr + first * n + begin, length, True, BLOCK_N, CHUNKS, WHOLE)
    dy = load_tiles(dy_ptr + first * n + begin, length, True, BLOCK_N, CHUNKS, WHOLE)
    mean, rstd = tl.load(mean_ptr + first), tl.load(rstd_ptr + first)
    _tell_row_sums(slots_ptr, first, m, part, x, dy, weight, mean, HAS_WEIGHT, TEAM, BLOCK_N, CHUNKS)
    for row in tl.range(first, m, teams, num_stages=NUM_STAGES):
        slots = slots_ptr + row * TEAM + tl.arange(0, TEAM)
        seen = look(slots)  # the answer is here by the time the next row is summed up
        ahead = row + teams
        next_x = load_tiles(x_ptr + ahead * n + begin, length, ahead < m, BLOCK_N, CHUNKS, WHOLE)
        next_dy = load_tiles(dy_ptr + ahead * n + begin, length, ahead < m, BLOCK_N, CHUNKS, WHOLE)
        next_mean = tl.load(mean_ptr + ahead, mask=ahead < m, other=0.0)
        next_rstd = tl.load(rstd_ptr + ahead, mask=ahead < m, other=0.0)
        _tell_row_sums(slots_ptr, ahead, m, part, next_x, next_dy, weight, next_mean, HAS_WEIGHT, TEAM, BLOCK_N, CHUNKS)
        along, level = hear(slots, seen)
        # As in _backward_helped_kernel.
        slope = tl.sum(along, axis=0) * rstd / n * rstd * rstd
        base = tl.sum(level, axis=0) / n * rstd
        weight_sums, bias_sums = (), ()
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + columns
            mask = (offs_n < length) | (i < WHOLE)
            centred = x[i].to(tl.float32) - mean
            g = dy[i].to(tl.float32)
            bias_sums += (dbias[i] + g,)
            g *= rstd
            weight_sums += (dweight[i] + g * centred,)
            if HAS_WEIGHT:
                g *= weight[i].to(tl.float32)
            dx = g - (centred * slope + base)
            if HAS_SUM:
                dx += tl.load(dsum_ptr + row * n + begin + offs_n, mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_ptr + row * n + begin + offs_n, dx, mask=mask)
        dweight, dbias = weight_sums, bias_sums
        x, dy, mean, rstd = next_x, next_dy, next_mean, next_rstd
    partial_ptr += first * n + begin
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + columns
        if HAS_WEIGHT:
            tl.store(partial_ptr + offs_n, dweight[i], mask=offs_n < length)
        if HAS_BIAS:
            tl.store(partial_ptr + HAS_WEIGHT * teams.to(tl.int64) * n + offs_n, dbias[i], mask=offs_n < length)


@triton.jit
def _row_sums_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, along_ptr, level_ptr, n,
    HAS_WEIGHT: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: along = sum_j(g * xhat) / n and level = sum_j(g) / n."""
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64) * n
    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    mean, rstd = tl.load(mean_ptr + tl.program_id(0)), tl.load(rstd_ptr + tl.program_id(0))
    along, level = tl.zeros([LANES], tl.float32), tl.zeros([LANES], tl.float32)
    for start in tl.range(0, n, LANES * WIDTH):
        offs_n = start + offs
        mask = offs_n < n
        x = tl.load(x_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + row + offs_n, mask=mask, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            g *= tl.load(weight_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
        along += tl.sum(g * (x - mean), axis=1)
        level += tl.sum(g, axis=1)
    tl.store(along_ptr + tl.program_id(0), tl.sum(along, axis=0) * rstd / n)
    tl.store(level_ptr + tl.program_id(0), tl.sum(level, axis=0) / n)


@triton.jit
def _backward_columns_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, along_ptr, level_ptr, dx_ptr, partial_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N columns of every `num_programs(1)`-th block of BLOCK_M rows.

    The rows' sums are known, so it needs no other column; partial_ptr is [HAS_WEIGHT + HAS_BIAS, num_programs(1), n].
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    pid, programs = tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_n = columns[None, :]
    if HAS_WEIGHT:
        weight = tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
    dweight, dbias = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in tl.range(pid, tl.cdiv(m, BLOCK_M), programs):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask_m = offs_m < m
        mask = mask_m[:, None] & (offs_n < n)
        offs = offs_m[:, None] * n + offs_n
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        # Loaded as vectors and widened after: as [BLOCK_M, 1] tiles each thread would load them once per column.
        mean = tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        along = tl.load(along_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        level = tl.load(level_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        xhat = (x - mean) * rstd
        # Rounded as in the sums: merged into the subtraction it would leave rows of one element a dx that is not 0.
        g = tl.fma(dy, weight, 0.0) if HAS_WEIGHT else dy
        dx = (g - xhat * along - level) * rstd
        if HAS_SUM:
            dx += tl.load(dsum_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + offs, dx, mask=mask, cache_modifier=".cs")
        dweight += dy * xhat
        dbias += dy
    partial_ptr += pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)


@triton.jit
def _sum_partials_kernel(partial_ptr, first_ptr, second_ptr, p, split, n, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program owns BLOCK_N columns of the sum over some of the rows of partial[p, n], in a fixed order.

    That of the first ``split`` rows goes to first[n], that of the others to second[n].
    """
    second = tl.program_id(1)
    begin, end = second * split, tl.where(second == 0, split, p)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for start in tl.range(begin, end, BLOCK_P):
        offs_p = start + tl.arange(0, BLOCK_P)
        mask = (offs_p[:, None] < end) & (offs_n[None, :] < n)
        total += tl.load(partial_ptr + offs_p.to(tl.int64)[:, None] * n + offs_n[None, :], mask=mask, other=0.0)
    result = tl.sum(total, axis=0)
    if second == 0:
        tl.store(first_ptr + offs_n, result, mask=offs_n < n)
    else:
        tl.store(second_ptr + offs_n, result, mask=offs_n < n)


def _statistics(x):
    """Two vectors of one fp32 value a row."""
    return tuple(torch.empty(x.shape[0], dtype=torch.float32, device=x.device) for _ in range(2))


def _flags(weight, bias):
    return {"HAS_WEIGHT": int(weight is not None), "HAS_BIAS": int(bias is not None)}


def _programs(x, config, rows_each):
    """Programs for blocks of ``rows_each`` rows, at most PROGRAMS_PER_SM on each SM where the config says so."""
    blocks = triton.cdiv(x.shape[0], rows_each)
    return min(blocks, config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms) if "PROGRAMS_PER_SM" in config else blocks


def _launch_forward(kernel, x, weight, bias, eps, residual, config, **blocks):
    """Launch a forward kernel; (out, mean, rstd), and with a residual the sum."""
    m, n = x.shape
    out, total = torch.empty_like(x), None if residual is None else torch.empty_like(x)
    mean, rstd = _statistics(x)
    launch(
        kernel, (_programs(x, config, config["BLOCK_M"]),),
        x, residual, weight, bias, out, total, mean, rstd, m, n, eps,
        HAS_RESIDUAL=residual is not None, **_flags(weight, bias),
        BLOCK_M=config["BLOCK_M"], **blocks, num_warps=config["num_warps"],
    )  # fmt: skip
    return (out, mean, rstd) if total is None else (out, mean, rstd, total)


def _whole_rows(x):
    return {"BLOCK_N": triton.next_power_of_2(x.shape[1]), "WIDTH": rows.width(x)}


def _launch_one_pass(x, weight, bias, eps, residual=None, *, config, rest=False):
    m, n = x.shape
    block_n, chunks = tiles_of_row(n, x.element_size(), config)
    return _launch_forward(
        _one_pass_kernel, x, weight, bias, eps, residual, config, BLOCK_N=block_n, CHUNKS=chunks, WIDTH=rows.width(x),
        LATE=config["LATE"], REST=rest, EVEN_M=m % config["BLOCK_M"] == 0, EVEN_N=n == block_n * chunks,
    )  # fmt: skip


def _launch_stream(x, weight, bias, eps, residual=None, *, config):
    return _launch_forward(_stream_kernel, x, weight, bias, eps, residual, config, **rows.lanes(x, config["BLOCK_N"]))


def _partials(x, programs, flags):
    return torch.empty((max(1, sum(flags.values())) * programs, x.shape[1]), dtype=torch.float32, device=x.device)


def _sum_partials(partial, weight, bias, split):
    """(dweight, dbias) from the first ``split`` rows of partial [p, n] and the others, or one of them from all rows.

    Something of one element for what there is not.
    """
    p, n = partial.shape
    found = tuple(
        torch.empty(
            1 if like is None else n, dtype=torch.float32 if like is None else like.dtype, device=partial.device
        )
        for like in (weight, bias)
    )
    wanted = [gradient for gradient, like in zip(found, (weight, bias), strict=True) if like is not None]
    if wanted:
        # Columns for two programs an SM, from the 128 bytes of a cache line on; rows to fill 16 elements a thread.
        columns = triton.next_power_of_2(len(wanted) * n // (2 * gpu_of(partial.device).sms) + 1)
        block_n = min(256, max(32, columns))
        launch(
            _sum_partials_kernel, (triton.cdiv(n, block_n), len(wanted)),
            partial, wanted[0], wanted[-1], p, split if len(wanted) > 1 else p, n,
            BLOCK_P=16 * 32 * 8 // block_n, BLOCK_N=block_n, num_warps=8,
        )  # fmt: skip
    return found


def _launch_backward_rows(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    m, n = x.shape
    programs, flags = _programs(x, config, config["BLOCK_M"]), _flags(weight, bias)
    dx = torch.empty_like(x)
    partial = _partials(x, programs, flags)
    launch(
        _backward_rows_kernel, (programs,), x, weight, mean, rstd, dy, dsum, dx, partial, m, n,
        **flags, HAS_SUM=dsum is not None, BLOCK_M=config["BLOCK_M"], **_whole_rows(x),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias, programs)


def _launch_backward_helped(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    (m, n), flags, (block_n, chunks) = (
        x.shape,
        _flags(weight, bias),
        tiles_of_vectors(x.shape[1], x.element_size(), config),
    )
    sms = gpu_of(x.device).sms
    helpers = flags["HAS_BIAS"] * min(m, max(1, sms * config["HELPERS"] // 64))
    owners = min(m, max(1, sms - helpers))
    dx, partial = torch.empty_like(x), torch.empty((owners + helpers, n), dtype=torch.float32, device=x.device)
    launch(
        _backward_helped_kernel, (owners + helpers,), x, weight, mean, rstd, dy, dsum, dx, partial, m, n, helpers,
        HAS_WEIGHT=flags["HAS_WEIGHT"], HAS_SUM=dsum is not None, BLOCK_N=block_n, CHUNKS=chunks, WIDTH=rows.width(x),
        WHOLE=n // block_n, NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    if weight is None:  # then the owners' rows are not written
        partial = partial[owners:]
    return dx, *_sum_partials(partial, weight, bias, owners)


def _launch_backward_team(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    (m, n), flags, team = x.shape, _flags(weight, bias), config["TEAM"]
    teams = min(m, gpu_of(x.device).sms // team)
    span, block_n, chunks = spans(n, x.element_size(), config)
    dx, partial, slots = torch.empty_like(x), _partials(x, teams, flags), unset_slots(m, team, x.device)
    launch(
        _backward_team_kernel, (teams * team,), x, weight, mean, rstd, dy, dsum, dx, partial, slots, m, n, span,
        **flags, HAS_SUM=dsum is not None, TEAM=team, BLOCK_N=block_n, CHUNKS=chunks, WIDTH=rows.width(x),
        WHOLE=min(span, n - span * (team - 1)) // block_n, NUM_STAGES=config["num_stages"],
        num_warps=config["num_warps"], launch_cooperative_grid=True,
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias, teams)


def _launch_backward_columns(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    m, n = x.shape
    flags, block_n, dx = _flags(weight, bias), config["BLOCK_N"], torch.empty_like(x)
    along, level = _statistics(x)
    launch(
        _row_sums_kernel, (m,), x, weight, mean, rstd, dy, along, level, n,
        HAS_WEIGHT=flags["HAS_WEIGHT"], **_row_sums_shape(x),
    )  # fmt: skip
    columns = triton.cdiv(n, block_n)
    wanted = triton.cdiv(config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms, columns)
    programs = min(wanted, triton.cdiv(m, config["BLOCK_M"]))
    partial = _partials(x, programs, flags)
    launch(
        _backward_columns_kernel, (columns, programs),
        x, weight, mean, rstd, dy, dsum, along, level, dx, partial, m, n, **flags, HAS_SUM=dsum is not None,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=block_n, WIDTH=rows.width(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *_sum_partials(partial, weight, bias, programs)


def _case_of(x, n, with_residual):
    sizes = {"m": x.numel() // n, "n": n}
    return case(_NAMES[x.dtype], **sizes, residual=True) if with_residual else case(_NAMES[x.dtype], **sizes)


def _run_forward(x, residual, n, weight, bias, eps):
    variant, config = choose(DECLARATION, "forward", _case_of(x, n, residual is not None), x.device)
    plain = (x.view(-1, n), weight, bias, eps, *(() if residual is None else (residual.view(-1, n),)))
    out, mean, rstd, *total = variant.launch(*plain, config=config)
    return out.view(x.shape), *(t.view(x.shape) for t in total), mean, rstd


def _fake_forward(x, residual, n, weight, bias, eps):
    matrices = (torch.empty_like(x) for _ in range(1 if residual is None else 2))
    return *matrices, *(x.new_empty(x.numel() // n, dtype=torch.float32) for _ in range(2))


def _run_backward(x, n, weight, bias, mean, rstd, dy, dsum):
    variant, config = choose(DECLARATION, "backward", _case_of(x, n, dsum is not None), x.device)
    dsum = dsum if dsum is None else dsum.view(-1, n)
    dx, *columns = variant.launch(x.view(-1, n), weight, bias, mean, rstd, dy.view(-1, n), dsum, config=config)
    found = (d if p is None else d.view(p.shape) for d, p in zip(columns, (weight, bias), strict=True))
    return dx.view(x.shape), *found


def _fake_backward(x, n, weight, bias, mean, rstd, dy, dsum):
    found = (x.new_empty(1, dtype=torch.float32) if p is None else torch.empty_like(p) for p in (weight, bias))
    return torch.empty_like(x), *found


def _setup(ctx, inputs, output):
    x, n, weight, bias, eps = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:])
    ctx.n, ctx.eps = n, eps
    ctx.set_materialize_grads(False)


def _setup_residual(ctx, inputs, output):
    _, _, n, weight, bias, eps = inputs
    _, total, mean, rstd = output
    _setup(ctx, (total, n, weight, bias, eps), (None, mean, rstd))


def _gradients(ctx, dy, dsum=None):
    """Gradients of what was normalised, weight and bias; dy and dsum may be None."""
    x, weight, bias, mean, rstd = ctx.saved_tensors
    if dy is None:
        return dsum, None, None
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_backward(x, weight, bias, ctx.n, ctx.eps, dy, dsum)
    dsum = dsum if dsum is None else dsum.contiguous()
    dx, dweight, dbias = _backward(x, ctx.n, weight, bias, mean, rstd, dy.contiguous(), dsum)
    return dx, None if weight is None else dweight, None if bias is None else dbias


def _pull_back(ctx, dy, dmean, drstd):
    dx, dweight, dbias = _gradients(ctx, dy)
    return dx, None, dweight, dbias, None


def _pull_back_residual(ctx, dy, dsum, dmean, drstd):
    dx, dweight, dbias = _gradients(ctx, dy, dsum)
    return dx, dx, None, dweight, dbias, None


def _differentiable_backward(x, weight, bias, n, eps, dy, dsum):
    shape = (n,) if weight is None and bias is None else (bias if weight is None else weight).shape

    def normalised(x, weight, bias):
        rows_of = x if tuple(x.shape[-len(shape) :]) == tuple(shape) else x.view(-1, n)
        return torch.nn.functional.layer_norm(rows_of, shape, weight, bias, eps).view(x.shape)

    dx, dweight, dbias = torch_gradients(normalised, (x, weight, bias), dy)
    return dx if dsum is None else dx + dsum, dweight, dbias


_forward = CustomOperator(
    "layer_norm_forward",
    "(Tensor x, int n, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    run=lambda x, n, weight, bias, eps: _run_forward(x, None, n, weight, bias, eps),
    fake=lambda x, n, weight, bias, eps: _fake_forward(x, None, n, weight, bias, eps),
)
_forward_residual = CustomOperator(
    "layer_norm_residual_forward",
    "(Tensor x, Tensor residual, int n, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    run=_run_forward,
    fake=_fake_forward,
)
_backward = CustomOperator(
    "layer_norm_backward",
    "(Tensor x, int n, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, Tensor dy, Tensor? dsum)"
    " -> (Tensor, Tensor, Tensor)",
    run=_run_backward,
    fake=_fake_backward,
)
_layer_norm = Differentiable(_forward, setup_context=_setup, backward=_pull_back)
_layer_norm_residual = Differentiable(_forward_residual, setup_context=_setup_residual, backward=_pull_back_residual)


def layer_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``torch.nn.functional.layer_norm`` in fp32, fp16 or bf16; statistics are fp32.

    ``normalized_shape`` are the sizes of the last dimensions; ``weight`` and ``bias`` have that shape and the input's
    dtype and device, or are None.  With a ``residual``, of the input's shape, dtype and device, ``input + residual``
    (rounded to the dtype) is normalised, and ``(out, input + residual)`` returned.  Inputs that are not contiguous are
    copied first.  Second derivatives go through torch's operations.  Raises TypeError for another dtype and ValueError
    for shapes or devices that do not fit.
    """
    if autocasting():
        total = input if residual is None else input + residual  # in their own dtype, as torch adds
        out, weight, bias = autocast("layer_norm", total, weight, bias)
        if residual is not None and out is not total:
            return layer_norm(out, normalized_shape, weight, bias, eps), total
        input = out if residual is None else input
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if input.dtype not in _NAMES:
        raise TypeError(f"layer_norm takes {', '.join(_DTYPES)}: {input.dtype}")
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(f"layer_norm: normalized_shape {shape} is not the end of the input's {tuple(input.shape)}")
    if weight is not None:
        weight = _checked("weight", weight, shape, input)
    if bias is not None:
        bias = _checked("bias", bias, shape, input)
    if residual is not None:
        residual = _checked("residual", residual, input.shape, input)
    if not input.numel():  # nothing to launch for
        total = input if residual is None else input + residual
        out = torch.nn.functional.layer_norm(total, shape, weight, bias, eps)
        return out if residual is None else (out, total)
    if residual is None:
        return _layer_norm(input.contiguous(), math.prod(shape), weight, bias, eps)[0]
    return _layer_norm_residual(input.contiguous(), residual, math.prod(shape), weight, bias, eps)[:2]


def _checked(name, tensor, shape, input):
    """The tensor, contiguous, if it has this shape and the input's dtype and device."""
    if tensor.dtype != input.dtype:
        raise TypeError(f"layer_norm takes a {name} of the input's {input.dtype}: {tensor.dtype}")
    if tensor.shape != shape or tensor.device != input.device:
        raise ValueError(
            f"layer_norm takes a {name} of shape {tuple(shape)} on {input.device}: "
            f"{tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor.contiguous()


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(x, weight, bias, eps, residual=None):
    total = x if residual is None else x + residual
    out, mean, rstd = torch.native_layer_norm(total, x.shape[-1:], weight, bias, eps)
    return (out, mean.flatten(), rstd.flatten(), *(() if residual is None else (total,)))


def _backward_reference(x, weight, bias, mean, rstd, dy, dsum=None):
    xhat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    along, level = (g * xhat).mean(dim=-1, keepdim=True), g.mean(dim=-1, keepdim=True)
    dx = (g - xhat * along - level) * rstd[:, None]
    return dx if dsum is None else dx + dsum, (dy * xhat).sum(dim=0), dy.sum(dim=0)


def _torch_forward(x, weight, bias, mean, rstd):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, _EPS)


def _torch_forward_residual(x, weight, bias, mean, rstd):
    """Out, and the sum that was normalised: its own gradient is added to what comes back from out."""
    return _torch_forward(x, weight, bias, mean, rstd), x.view_as(x)


def _pulled_back(peer):
    """A peer of the backward pass that pulls back dy and, where there is one, dsum."""

    def prepare(dsum=None, **inputs):
        if dsum is None:
            return peer(_torch_forward, _PARAMETERS).prepare(**inputs)
        inputs["dy"] = (inputs["dy"], dsum)
        return peer(_torch_forward_residual, _PARAMETERS).prepare(**inputs)

    return Peer(prepare, compiles=peer is compiled_gradients)


def _liger(x, weight, bias, eps, residual=None):
    from liger_kernel.ops.layer_norm import layer_norm_forward

    total = x if residual is None else x + residual
    out, _, mean, rstd, *_ = layer_norm_forward(total, weight, bias, eps)
    return (out, mean, rstd, *(() if residual is None else (total,)))


def _liger_backward(dsum=None, **inputs):
    def forward(x, weight, bias, mean, rstd):
        from liger_kernel.transformers.functional import liger_layer_norm

        out = liger_layer_norm(x, weight, bias, _EPS)
        return out if dsum is None else (out, x.view_as(x))

    inputs["dy"] = inputs["dy"] if dsum is None else (inputs["dy"], dsum)
    return gradients(forward, _PARAMETERS).prepare(**inputs)


_EPS = 1e-5
"""torch's default, in all cases."""

_PARAMETERS = ("x", "weight", "bias")
"""What the backward pass gives gradients of."""


def _with_residual(problem: Case) -> bool:
    return dict(problem.sizes).get("residual", False)


def _inputs(problem: Case, device, generator):
    m, n = problem["m"], problem["n"]

    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    residual = {"residual": draw(m, n)} if _with_residual(problem) else {}
    return {"x": draw(m, n), "weight": draw(n), "bias": draw(n), "eps": _EPS} | residual


def _backward_inputs(problem: Case, device, generator):
    forward = _inputs(problem, device, generator)
    x = forward["x"]  # with a residual, what was normalised
    mean = x.float().mean(dim=-1)
    rstd = (x.float().var(dim=-1, correction=0) + _EPS).rsqrt()
    dy = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
    dsum = {"dsum": forward["residual"]} if _with_residual(problem) else {}
    return {"x": x, "weight": forward["weight"], "bias": forward["bias"], "mean": mean, "rstd": rstd, "dy": dy} | dsum


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024),  # the launch is the cost
            (4096, 1024),
            (16384, 4096),
            (4096, 5120),  # a hidden size, no power of two
            (8192, 8192),
            (4096, 11008),  # the width of a feed-forward layer: 43 lines of 256
            (8192, 16384),
            (4096, 32768),
        ),
        "fp16": ((4096, 1024), (8192, 8192), (4096, 32768)),
        "fp32": ((4096, 1024), (8192, 8192), (4096, 32768)),
    }
    largest = gpu.memory_bytes // 8 // 4  # the matrices of the backward pass in an eighth of the memory
    found = [case(d, m=m, n=n) for d, pairs in shapes.items() for m, n in pairs]
    found += [case("bf16", m=m, n=n, residual=True) for m, n in ((128, 1024), (16384, 4096), (8192, 8192))]
    return [c for c in found if c["m"] * c["n"] * element_size(c.dtype) <= largest]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, **flags)
    for dtype in _DTYPES
    for m, n, flags, reason in (
        (1, 1, {}, "one element: its own mean, no variance"),
        (7, 1, {}, "rows of one element: rstd is 1 / sqrt(eps)"),
        (1, 1000, {}, "one row, not a power of two"),
        (37, 129, {}, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, {}, "one row more than whole tiles of rows"),
        (3, 4097, {}, "rows one element longer than a block of the streaming variants: a tail of one"),
        (2, 20_000, {}, "several blocks and a tail"),
        (9, 9008, {}, "rows too long for both sums of a program; the last tile cut"),
        (140, 8, {}, "more rows than programs: each owns several and adds them up"),
        (11, 136, {"residual": True}, "a residual, rows that no tile of them divides"),
        (3, 4100, {"residual": True}, "a residual, several blocks and a tail"),
    )
)

# Of the shapes with as many elements one that every variant takes: n = 8192 is the longest row of backward's registers.
_HUGE_CASES = (case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192),)


_ENOUGH_IN_FLIGHT = 16384
"""Bytes of a tile: with two more of that size prefetched an SM has what covers memory's latency on an H200 (about
4.3 TB/s x 0.7 us / 132 SMs = 23 KB)."""

_MOST_CHUNKS = 16

_EXCHANGE_BYTES = 1024
"""Shared memory through which the warps of a program exchange their sums, at most."""

_LIVE = {"rows": 6.5, "helped": 2.75, "team": {2: 7, 4: 9.5}}
"""Registers for each element of a tile: row, dy, xhat, g, weight and both sums; 16-bit row, dy and weight and one sum;
two rows and dy, weight and both sums, by the size of an element (what ptxas of Triton 3.7 needs without spilling)."""


def _row_sums_shape(x: torch.Tensor) -> dict:
    """Block of :func:`_row_sums_kernel`: two 16-byte vectors a thread of 8 warps, fewer warps for shorter rows.

    Half of that where elements are loaded one by one.
    """
    vectors = triton.next_power_of_2(x.shape[1]) * x.element_size() // (32 * rows.VECTOR_BYTES)
    num_warps = max(1, min(8, vectors // 2))
    each = 1 if rows.width(x) == 1 else 2
    return rows.lanes(x, each * 32 * num_warps * rows.VECTOR_BYTES // x.element_size()) | {"num_warps": num_warps}


def _streams(problem: Case, streams: int) -> int:
    """Inputs of the size of x that a pass reads."""
    return streams + _with_residual(problem)


def _fits_one_pass(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads = element_size(problem.dtype), 32 * config["num_warps"]
    block_n, chunks = tiles_of_row(problem["n"], size, config)
    tile = config["BLOCK_M"] * block_n * chunks
    if threads > 32 * rows.most_warps(gpu):
        return "over 1024 threads"
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    if chunks > _MOST_CHUNKS:
        return f"{chunks} tiles to a row: each is unrolled, and compiling takes time"
    if threads > 32 and tile * size < threads * rows.VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    # x, and with early loads weight and bias, in their own dtype, and what is computed of a tile.
    narrow = (1 if config["LATE"] else 3) + _with_residual(problem)
    needed = tile * (narrow * size / 4 + 0.25) / threads + rows.OTHER_REGISTERS
    available = min(rows.THREAD_REGISTERS, rows.REGISTERS // threads)
    return f"{needed:.0f} registers a thread, of {available}: rows would spill" if needed > available else ""


def _fits_persistent(live: float, streams: int):
    """``fits`` for ``live`` registers an element and ``streams`` inputs whose next rows are prefetched."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        elements = config["BLOCK_M"] * rows.block_n(problem)
        tile = elements * element_size(problem.dtype) * _streams(problem, streams)
        programs, threads = config["PROGRAMS_PER_SM"], 32 * config["num_warps"]

        def prefetched(stages: int) -> int:
            return (stages - 1) * tile + _EXCHANGE_BYTES

        if config["BLOCK_M"] > 1 and tile > _ENOUGH_IN_FLIGHT:
            return f"tiles of {tile} bytes: more rows at a time bring no more bytes into flight than memory can use"
        if threads > 32 and elements < 16 * threads:
            return "under 16 elements a thread: most of its registers would hold addresses"
        if config["num_stages"] == 1 and prefetched(3) * programs <= gpu.shared_bytes:
            return "nothing prefetched, though the shared memory has room for it"
        shared = prefetched(config["num_stages"])
        if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
            return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
        registers = programs * threads * rows.registers(config, problem, live)
        if programs * config["num_warps"] > gpu.warps_per_sm or registers > rows.REGISTERS:
            return f"{programs} programs of {threads} threads exceed an SM's warps or registers"
        return rows.rows_obstacle(config, problem, live)

    return fits


def _fits_stream(config: dict, problem: Case, gpu: GPU) -> str:
    if config["BLOCK_M"] > 1 and (problem["n"] <= 8192 or problem["m"] == 1):
        return "short rows: whole ones in registers are read once"
    return rows.fits_stream({**config, "BLOCK_N": config["BLOCK_M"] * config["BLOCK_N"]}, problem, gpu)


def _fits_helped(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads = element_size(problem.dtype), 32 * config["num_warps"]
    block_n, chunks = tiles_of_vectors(problem["n"], size, config)
    shared = (config["num_stages"] - 1) * block_n * chunks * size * 2 + _EXCHANGE_BYTES
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of prefetched rows exceed an SM's shared memory"
    if threads > 32 * rows.most_warps(gpu):
        return "over 1024 threads"
    needed = block_n * chunks * _LIVE["helped"] / threads + rows.OTHER_REGISTERS
    available = min(rows.THREAD_REGISTERS, rows.REGISTERS // threads)
    return f"{needed:.0f} registers a thread, of {available}: rows would spill" if needed > available else ""


def _fits_team(config: dict, problem: Case, gpu: GPU) -> str:
    size, threads, team = element_size(problem.dtype), 32 * config["num_warps"], config["TEAM"]
    span, block_n, chunks = spans(problem["n"], size, config)
    if (team - 1) * span >= problem["n"] or team > gpu.sms:
        return f"fewer than {team} parts of a row, or programs"
    shared = (config["num_stages"] - 1) * block_n * chunks * size * 2 + _EXCHANGE_BYTES
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of prefetched rows exceed an SM's shared memory"
    needed = block_n * chunks * _LIVE["team"][size] / threads + rows.OTHER_REGISTERS
    available = min(rows.THREAD_REGISTERS, rows.REGISTERS // threads)
    return f"{needed:.0f} registers a thread, of {available}: rows would spill" if needed > available else ""


def _handles_team(problem: Case, gpu: GPU) -> str:
    if gpu.backend != "cuda" or int(gpu.arch) < 80:
        return "programs that wait for one another: written for NVIDIA's GPUs from sm_80 on"
    if problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    if problem["n"] <= (16384 if element_size(problem.dtype) == 2 else 8192):
        return "rows short enough for one program"
    fitting = any(not _fits_team(config, problem, gpu) for config in _team_configs())
    return "" if fitting else "rows longer than the registers of a team"


def _team_configs():
    return (dict(zip(_TEAM_SPACE, values, strict=True)) for values in itertools.product(*_TEAM_SPACE.values()))


def _team_default(problem: Case, gpu: GPU) -> dict:
    """The smallest team whose registers hold a row."""
    fitting = [config for config in _team_configs() if not _fits_team(config, problem, gpu)]
    if int(gpu.arch) >= 100:  # with 32 elements a thread ptxas of sm_100 spills 24 bytes (Triton 3.6, 3.7)
        spans = ((config, spans(problem["n"], element_size(problem.dtype), config)) for config in fitting)
        fitting = [c for c, (_, block, chunks) in spans if block * chunks <= 16 * 32 * c["num_warps"]] or fitting
    return fitting[0]


def _handles_helped(problem: Case, gpu: GPU) -> str:
    if element_size(problem.dtype) > 2:
        return "rows of 32-bit elements, of which registers do not hold enough"
    if problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    if problem.dtype == "bf16" and gpu.backend == "cuda" and Capability.BF16 not in gpu.capabilities:
        return "bf16 by other instructions, which need registers that rows fill"
    return "" if 8192 < problem["n"] <= 16384 else "not between 2^13 and 2^14 columns"


def _fits_columns(config: dict, problem: Case, gpu: GPU) -> str:
    elements = config["BLOCK_M"] * config["BLOCK_N"] / (32 * config["num_warps"])
    if not 8 <= elements <= 16:
        return f"{elements:g} elements a thread; 8 to 16 keep memory busy without spills"
    if config["BLOCK_N"] > max(rows.block_n(problem), _COLUMN_BLOCKS[0]):
        return "a block wider than the matrix"
    return ""


def _up_to(longest: int):
    """``handles`` of a variant for rows of at most ``longest`` elements."""

    def handles(problem: Case, gpu: GPU) -> str:
        return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""

    return handles


def _handles_rows(problem: Case, gpu: GPU) -> str:
    if problem["n"] > 4096 and problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES:
        return "over 4096 elements, not of whole 16-byte vectors: their addresses and masks spill"
    return _up_to(8192)(problem, gpu)


def _one_pass_default(problem: Case, gpu: GPU) -> dict:
    """Short rows by several, which share weight and bias, 32 elements a thread; of longer ones what registers hold."""
    block_n = rows.block_n(problem)
    block_m = min(8, triton.next_power_of_2(problem["m"]), max(2, 2048 // block_n)) if block_n <= 8192 else 1
    warps = min(8, max(1, block_m * block_n // (32 * 32)))
    configs = [{"BLOCK_M": block_m, "LATE": False, "num_warps": warps}] if block_n <= 16384 else []
    # With 16 warps ptxas of sm_100 spills 8 bytes of fp32 rows of 32768 elements (Triton 3.7).
    spills = gpu.backend == "cuda" and int(gpu.arch) >= 100 and problem.dtype == "fp32"
    warps = (8, 16, 32) if spills else (16, 32, 8)
    configs += [{"BLOCK_M": 1, "LATE": True, "num_warps": number} for number in warps]
    return next((config for config in configs if not _fits_one_pass(config, problem, gpu)), configs[-1])


def _persistent_default(live: float, streams: int, block_m: int, warps_per_sm: int):
    """``default``: 32 elements a thread, at most ``block_m`` rows a tile, ``warps_per_sm`` warps or one program.

    Rows not of whole 16-byte vectors get 16: each element has an address and a mask of its own.
    With two stages nothing would be prefetched a whole block ahead.  A GPU whose shared memory or registers are short
    gets fewer programs, then no prefetching.
    """
    fits = _fits_persistent(live, streams)

    def default(problem: Case, gpu: GPU) -> dict:
        block_n = rows.block_n(problem)
        row = block_n * element_size(problem.dtype) * _streams(problem, streams)
        each = (
            1 << min(block_m, triton.next_power_of_2(problem["m"]), max(1, _ENOUGH_IN_FLIGHT // row)).bit_length() - 1
        )
        held = 16 if problem["n"] * element_size(problem.dtype) % rows.VECTOR_BYTES else 32
        tile = {"BLOCK_M": each, "num_warps": max(1, each * block_n // (32 * held))}
        programs = [p for p in (4, 2, 1) if p * tile["num_warps"] <= warps_per_sm or p == 1]
        configs = [tile | {"num_stages": stages, "PROGRAMS_PER_SM": p} for stages in (3, 1) for p in programs]
        return next((config for config in configs if not fits(config, problem, gpu)), configs[-1])

    return default


def _helped_default(problem: Case, gpu: GPU) -> dict:
    """16 warps, and the next row on its way where the shared memory has room for it."""
    configs = [{"num_warps": 16, "num_stages": stages, "HELPERS": 20} for stages in (3, 1)]
    return next((config for config in configs if not _fits_helped(config, problem, gpu)), configs[-1])


def _stream_default(problem: Case, gpu: GPU) -> dict:
    found = {"BLOCK_M": 1} | rows.stream_default(1, _STREAM_BLOCKS)(problem, gpu)
    if found["num_warps"] > rows.most_warps(gpu):
        found |= {"BLOCK_N": found["BLOCK_N"] // 2, "num_warps": rows.most_warps(gpu)}
    return found


def _columns_default(problem: Case, gpu: GPU) -> dict:
    """Tiles of 16 elements a thread: as wide as the matrix, up to a kilobyte of a row, four warps of them."""
    return {"BLOCK_M": 4, "BLOCK_N": _COLUMN_BLOCKS[0], "num_warps": 4, "PROGRAMS_PER_SM": 4}


_STREAM_BLOCKS = (1024, 2048, 4096, 8192, 16384)
_COLUMN_BLOCKS = (512, 1024)
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8), "LATE": (False, True), "num_warps": (1, 2, 4, 8, 16, 32)}
_PERSISTENT_SPACE = {
    "BLOCK_M": (1, 2, 4),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 3),
    "PROGRAMS_PER_SM": (1, 2, 4),
}
_STREAM_SPACE = {"BLOCK_M": (1, 2, 4), "BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32)}
_TEAM_SPACE = {"TEAM": (2, 4, 8), "num_stages": (3,), "num_warps": (8, 16)}
_HELPED_SPACE = {"num_warps": (8, 16), "num_stages": (1, 3), "HELPERS": (16, 20, 24)}  # of 64 programs
_COLUMNS_SPACE = {
    "BLOCK_M": (1, 2, 4, 8),
    "BLOCK_N": _COLUMN_BLOCKS,
    "num_warps": (4, 8),
    "PROGRAMS_PER_SM": (4, 8),
}


def _bytes(matrices: str, with_residual: str, columns: str):
    """Traffic of a pass: matrices [m, n] and columns [n] in the case's dtype, statistics [m] in fp32."""

    def cost(c: Case) -> dict[str, int]:
        size = element_size(c.dtype)
        wanted = matrices.split() + (with_residual.split() if _with_residual(c) else [])
        return (
            dict.fromkeys(wanted, c["m"] * c["n"] * size)
            | dict.fromkeys(("mean", "rstd"), c["m"] * element_size("fp32"))
            | dict.fromkeys(columns.split(), c["n"] * size)
        )

    return cost


def _call(function, inputs):
    """The public function on a pass's inputs; of the two results with a residual, out."""
    result = function(
        inputs["x"], inputs["x"].shape[-1:], inputs["weight"], inputs["bias"], inputs["eps"], inputs.get("residual")
    )
    return result[0] if isinstance(result, tuple) else result


DECLARATION = Declaration(
    name="layer_norm",
    family="rows",
    summary="out = (x - mean) * rstd * weight + bias over rows, x + residual in the place of x if asked",
    function=layer_norm,
    call=_call,
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "weight", "bias", "residual"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "mean", "rstd", "sum"),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass,
                space=_ROWS_SPACE,
                default=_one_pass_default,
                fits=_fits_one_pass,
                handles=_up_to(32768),
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice, statistics merged by lane",
                launch=_launch_stream,
                space=_STREAM_SPACE,
                default=_stream_default,
                fits=_fits_stream,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=_bytes("x out", "residual sum", "weight bias"),
        flops=lambda c: {
            "residual": c["m"] * c["n"] * _with_residual(c),
            "mean": c["m"] * c["n"],
            "variance": 3 * c["m"] * c["n"],
            "normalize": c["m"] * c["n"],
            "weight, bias": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx", "dweight", "dbias"),
        variants=(
            Variant(
                name="rows",
                summary="rows and partial sums of dweight, dbias in registers, next rows prefetched",
                launch=_launch_backward_rows,
                space=_PERSISTENT_SPACE,
                default=_persistent_default(_LIVE["rows"], streams=2, block_m=4, warps_per_sm=8),
                fits=_fits_persistent(_LIVE["rows"], streams=2),
                handles=_handles_rows,
            ),
            Variant(
                name="helped",
                summary="rows and the sum for dweight in registers; some programs read dy alone, for dbias",
                follows="rows",
                launch=_launch_backward_helped,
                space=_HELPED_SPACE,
                default=_helped_default,
                fits=_fits_helped,
                handles=_handles_helped,
            ),
            Variant(
                name="team",
                summary="rows and partial sums in the registers of several programs, which tell each other their sums",
                follows="rows",
                launch=_launch_backward_team,
                space=_TEAM_SPACE,
                default=_team_default,
                fits=_fits_team,
                handles=_handles_team,
            ),
            Variant(
                name="columns",
                summary="rows of any length read twice: their two sums, then tiles of columns",
                launch=_launch_backward_columns,
                space=_COLUMNS_SPACE,
                default=_columns_default,
                fits=_fits_columns,
            ),
        ),
        peers={
            "torch": _pulled_back(gradients),
            "torch.compile": _pulled_back(compiled_gradients),
            "liger": Peer(_liger_backward, requires="liger_kernel"),
        },
        bytes=_bytes("x dy dx", "dsum", "weight dweight dbias"),
        flops=lambda c: {
            "xhat": 2 * c["m"] * c["n"],
            "g": c["m"] * c["n"],
            "row sums": 3 * c["m"] * c["n"],
            "dx": (4 + _with_residual(c)) * c["m"] * c["n"],
            "dweight, dbias": 3 * c["m"] * c["n"],
        },
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
