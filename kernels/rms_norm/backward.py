"""Backward kernels of rms_norm whose programs own whole rows or tiles of columns, and their launchers.

Each program writes one partial row of dweight; a last kernel adds the partial rows, always in one order."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.rows import VECTOR_BYTES, width
from atlas.operators import launch

from kernels.common.few_rows import launch_few_rows
from kernels.common.odd_rows import launch_odd_backward, programs_apart
from kernels.common.rows import programs_for, still_packed

from .forward import load_rows, size_of, store_tile, tiles


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
        weight = load_rows(weight_ptr, tl.zeros([1, 1], tl.int32), True, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        for _ in tl.static_range(CHUNKS):
            dweight += (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)
    for block in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.num_programs(0), num_stages=NUM_STAGES):
        offs_m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask_m = (offs_m < m) | EVEN_M
        x = load_rows(x_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        dy = load_rows(dy_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
        if HAS_DSUM:
            dsum = load_rows(dsum_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
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
            store_tile(dx_ptr, dx, offs_m, mask_m, n, i, BLOCK_N, CHUNKS, EVEN_N)
        dweight = added
    if HAS_WEIGHT:
        partial_ptr += tl.program_id(0).to(tl.int64) * n
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)
            tl.store(partial_ptr + offs_n, tl.sum(dweight[i], axis=0), mask=offs_n < n)


def launch_rows(x, weight, rstd, dy, dsum, *, config):
    programs = programs_for(x, config)
    dx, partial, dweight = gradients(x, weight, programs)
    launch(
        _backward_rows_kernel, (programs,), x, weight, rstd, dy, dsum, dx, partial, *size_of(x),
        HAS_WEIGHT=weight is not None, HAS_DSUM=dsum is not None, **tiles(x, config), NUM_STAGES=config["num_stages"],
    )  # fmt: skip
    sum_partials(partial, dweight)
    return dx, dweight


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


def launch_columns(x, weight, rstd, dy, dsum, *, config):
    (m, n), block_n = size_of(x), config["BLOCK_N"]
    columns = triton.cdiv(n, block_n)
    rows = triton.cdiv(config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms, columns)
    programs = min(rows, triton.cdiv(m, config["BLOCK_M"]))
    dx, partial, dweight = gradients(x, weight, programs)
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
    sum_partials(partial, dweight)
    return dx, dweight


def launch_few(x, weight, rstd, dy, dsum, *, config):
    dweight = None if weight is None else torch.empty_like(weight)
    return launch_few_rows(x, weight, None, rstd, dy, dsum, dweight, None, config), dweight


def launch_odd(x, weight, rstd, dy, dsum, *, config):
    partial = dweight = None
    if weight is not None:
        dweight = torch.empty_like(weight)
        partial = torch.empty((programs_apart(x, config), x.shape[-1]), dtype=torch.float32, device=x.device)
    dx = launch_odd_backward(x, weight, None, rstd, dy, dsum, partial, weight is not None, False, config)
    sum_partials(partial, dweight)
    return dx, dweight


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


def gradients(x, weight, programs):
    """dx, and for dweight ``programs`` partial rows and their sum (all None without a weight).

    The partial row of a single program is the sum itself.
    """
    dx, n = torch.empty_like(x), x.shape[-1]
    dweight = None if weight is None else torch.empty_like(weight)
    if weight is None or programs == 1:
        return dx, dweight, dweight
    return dx, torch.empty((programs, n), dtype=torch.float32, device=x.device), dweight


def sum_partials(partial, dweight):
    """Fill dweight [n] with the sum of the partial rows [p, n]."""
    if partial is dweight:  # one program's, or none
        return
    p, n = partial.shape
    # Columns for two programs an SM, from the 128 bytes of a cache line on; rows to fill 16 elements a thread.
    columns = triton.next_power_of_2(n // (2 * gpu_of(partial.device).sms) + 1)
    block_n = min(256, max(32, columns))
    launch(
        _sum_partials_kernel, (triton.cdiv(n, block_n),), partial, dweight, p, n,
        BLOCK_P=16 * 32 * 8 // block_n, BLOCK_N=block_n, num_warps=8,
    )  # fmt: skip
