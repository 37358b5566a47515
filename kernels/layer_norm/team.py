"""Backward of layer_norm for rows that several programs hold together: each tells the others its sums."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of, rows
from atlas.operators import launch

from kernels.common.exchange import hear, look, tell, unset_slots
from kernels.common.rows import load_tiles, spans

from .backward import partials, sum_partials
from .forward import parameter_flags


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


def launch_team(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    (m, n), flags, team = x.shape, parameter_flags(weight, bias), config["TEAM"]
    teams = min(m, gpu_of(x.device).sms // team)
    span, block_n, chunks = spans(n, x.element_size(), config)
    dx, partial, slots = torch.empty_like(x), partials(x, teams, flags), unset_slots(m, team, x.device)
    launch(
        _backward_team_kernel, (teams * team,), x, weight, mean, rstd, dy, dsum, dx, partial, slots, m, n, span,
        **flags, HAS_SUM=dsum is not None, TEAM=team, BLOCK_N=block_n, CHUNKS=chunks, WIDTH=rows.widest(x),
        WHOLE=min(span, n - span * (team - 1)) // block_n, NUM_STAGES=config["num_stages"],
        num_warps=config["num_warps"], launch_cooperative_grid=True,
    )  # fmt: skip
    return dx, *sum_partials(partial, weight, bias, teams)
