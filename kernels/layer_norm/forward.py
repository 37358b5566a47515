"""Forward kernels of layer_norm and their launchers: whole rows in registers, or rows of any length streamed twice."""

import torch
import triton
import triton.language as tl
from atlas.declaration import rows
from atlas.operators import launch

from kernels.common.odd_rows import launch_odd_forward
from kernels.common.rows import programs_for, still_packed, tiles_of_row


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


def statistics(x):
    """Two vectors of one fp32 value a row."""
    return tuple(torch.empty(x.shape[0], dtype=torch.float32, device=x.device) for _ in range(2))


def parameter_flags(weight, bias):
    return {"HAS_WEIGHT": int(weight is not None), "HAS_BIAS": int(bias is not None)}


def _launch_forward(kernel, x, weight, bias, eps, residual, config, **blocks):
    """Launch a forward kernel; (out, mean, rstd), and with a residual the sum."""
    m, n = x.shape
    out, total = torch.empty_like(x), None if residual is None else torch.empty_like(x)
    mean, rstd = statistics(x)
    launch(
        kernel, (programs_for(x, config),),
        x, residual, weight, bias, out, total, mean, rstd, m, n, eps,
        HAS_RESIDUAL=residual is not None, **parameter_flags(weight, bias),
        BLOCK_M=config["BLOCK_M"], **blocks, num_warps=config["num_warps"],
    )  # fmt: skip
    return (out, mean, rstd) if total is None else (out, mean, rstd, total)


def launch_one_pass(x, weight, bias, eps, residual=None, *, config, rest=False):
    m, n = x.shape
    block_n, chunks = tiles_of_row(n, x.element_size(), config)
    return _launch_forward(
        _one_pass_kernel, x, weight, bias, eps, residual, config, BLOCK_N=block_n, CHUNKS=chunks, WIDTH=rows.widest(x),
        LATE=config["LATE"], REST=rest, EVEN_M=m % config["BLOCK_M"] == 0, EVEN_N=n == block_n * chunks,
    )  # fmt: skip


def launch_stream(x, weight, bias, eps, residual=None, *, config):
    return _launch_forward(_stream_kernel, x, weight, bias, eps, residual, config, **rows.lanes(x, config["BLOCK_N"]))


def launch_odd(x, weight, bias, eps, residual=None, *, config):
    out, total, mean, rstd = launch_odd_forward(x, weight, bias, eps, residual, True, config)
    return (out, mean, rstd) if total is None else (out, mean, rstd, total)
