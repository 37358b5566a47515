"""Backward kernels of layer_norm whose programs own whole rows or tiles of columns, and their launchers.

Each program writes one partial row of dweight and dbias; a last kernel adds the partial rows, always in one order."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of, rows
from atlas.operators import launch

from kernels.common.few_rows import launch_few_rows
from kernels.common.odd_rows import launch_odd_backward, programs_apart
from kernels.common.rows import load_tiles, programs_for, still_packed, tiles_of_vectors

from .forward import parameter_flags, statistics


@triton.jit
def _backward_rows_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, dweight_ptr, dbias_ptr, m, n,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th block of BLOCK_M rows: their dx, and one partial row of dweight, dbias.

    The partial rows stay in registers, one per row of the tile, until the last block; dweight_ptr and dbias_ptr are
    [num_programs, n] each.
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
    offs = pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(dweight_ptr + offs, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(dbias_ptr + offs, tl.sum(dbias, axis=0), mask=columns < n)


def _whole_rows(x):
    return {"BLOCK_N": triton.next_power_of_2(x.shape[1]), "WIDTH": rows.widest(x)}


def launch_rows(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    m, n = x.shape
    programs, flags = programs_for(x, config), parameter_flags(weight, bias)
    dx = torch.empty_like(x)
    if programs == 1:  # whose partial rows are the sums
        sums = _empty_sums(x, weight, bias)
    else:
        partial = partials(x, programs, flags)
        sums = partial, partial[programs:] if all(flags.values()) else partial
    launch(
        _backward_rows_kernel, (programs,), x, weight, mean, rstd, dy, dsum, dx, *sums, m, n,
        **flags, HAS_SUM=dsum is not None, BLOCK_M=config["BLOCK_M"], **_whole_rows(x),
        NUM_STAGES=config["num_stages"], num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *(sums if programs == 1 else sum_partials(partial, weight, bias, programs))


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


def launch_helped(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    (m, n), flags, (block_n, chunks) = (
        x.shape,
        parameter_flags(weight, bias),
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
    return dx, *sum_partials(partial, weight, bias, owners)


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


def _row_sums_shape(x: torch.Tensor) -> dict:
    """Block of :func:`_row_sums_kernel`: two 16-byte vectors a thread of 8 warps, fewer warps for shorter rows.

    Half of that where elements are loaded one by one.
    """
    vectors = triton.next_power_of_2(x.shape[1]) * x.element_size() // (32 * rows.VECTOR_BYTES)
    num_warps = max(1, min(8, vectors // 2))
    each = 1 if rows.width(x) == 1 else 2
    return rows.lanes(x, each * 32 * num_warps * rows.VECTOR_BYTES // x.element_size()) | {"num_warps": num_warps}


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


def launch_columns(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    m, n = x.shape
    flags, block_n, dx = parameter_flags(weight, bias), config["BLOCK_N"], torch.empty_like(x)
    along, level = statistics(x)
    launch(
        _row_sums_kernel, (m,), x, weight, mean, rstd, dy, along, level, n,
        HAS_WEIGHT=flags["HAS_WEIGHT"], **_row_sums_shape(x),
    )  # fmt: skip
    columns = triton.cdiv(n, block_n)
    wanted = triton.cdiv(config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms, columns)
    programs = min(wanted, triton.cdiv(m, config["BLOCK_M"]))
    partial = partials(x, programs, flags)
    launch(
        _backward_columns_kernel, (columns, programs),
        x, weight, mean, rstd, dy, dsum, along, level, dx, partial, m, n, **flags, HAS_SUM=dsum is not None,
        BLOCK_M=config["BLOCK_M"], BLOCK_N=block_n, WIDTH=rows.width(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return dx, *sum_partials(partial, weight, bias, programs)


def launch_few(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    sums = _empty_sums(x, weight, bias)
    wanted = (None if like is None else one for one, like in zip(sums, (weight, bias), strict=True))
    return launch_few_rows(x, weight, mean, rstd, dy, dsum, *wanted, config), *sums


def launch_odd(x, weight, bias, mean, rstd, dy, dsum=None, *, config):
    programs, flags = programs_apart(x, config), parameter_flags(weight, bias)
    partial = partials(x, programs, flags)
    dx = launch_odd_backward(x, weight, mean, rstd, dy, dsum, partial, *flags.values(), config)
    return dx, *sum_partials(partial, weight, bias, programs)


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


def partials(x, programs, flags):
    return torch.empty((max(1, sum(flags.values())) * programs, x.shape[1]), dtype=torch.float32, device=x.device)


def _empty_sums(x, weight, bias):
    """Room for dweight and dbias [n], of one element for what there is not."""
    return tuple(
        torch.empty(1, dtype=torch.float32, device=x.device)
        if like is None
        else torch.empty(x.shape[-1], dtype=like.dtype, device=x.device)
        for like in (weight, bias)
    )


def sum_partials(partial, weight, bias, split):
    """(dweight, dbias) from the first ``split`` rows of partial [p, n] and the others, or one of them from all rows.

    Something of one element for what there is not.
    """
    p, n = partial.shape
    found = _empty_sums(partial, weight, bias)
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
