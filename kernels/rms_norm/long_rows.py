"""Backward of rms_norm for rows beyond one program's registers: held by several programs, or read again from cache."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.rows import lanes, widest
from atlas.operators import launch

from kernels.common.exchange import hear, look, tell, unset_slots
from kernels.common.rows import load_tiles, programs_for, spans

from .backward import gradients, sum_partials
from .forward import size_of


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


def launch_team(x, weight, rstd, dy, dsum, *, config):
    (m, n), team = size_of(x), config["TEAM"]
    teams = min(m, gpu_of(x.device).sms // team)
    span, block_n, chunks = spans(n, x.element_size(), config)
    (dx, partial, dweight), slots = gradients(x, weight, teams), unset_slots(m, team, x.device)
    launch(
        _backward_team_kernel, (teams * team,), x, weight, rstd, dy, dsum, dx, partial, slots, m, n, span,
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, TEAM=team, BLOCK_N=block_n, CHUNKS=chunks,
        WIDTH=widest(x), WHOLE=min(span, n - span * (team - 1)) // block_n, NUM_STAGES=config["num_stages"],
        num_warps=config["num_warps"], launch_cooperative_grid=True,
    )  # fmt: skip
    sum_partials(partial, dweight)
    return dx, dweight


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


def launch_reread(x, weight, rstd, dy, dsum, *, config):
    (_, n), programs, block_n = size_of(x), programs_for(x, config), config["BLOCK_N"]
    dx, partial, dweight = gradients(x, weight, programs)
    launch(
        _backward_reread_kernel, (programs,), x, weight, rstd, dy, dsum, dx, partial, *size_of(x),
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, **lanes(x, block_n),
        CHUNKS=triton.cdiv(n, block_n), EVEN=n % block_n == 0, KEEP=config["KEEP"], num_warps=config["num_warps"],
    )  # fmt: skip
    sum_partials(partial, dweight)
    return dx, dweight
