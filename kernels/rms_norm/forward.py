"""Forward kernels of rms_norm and their launchers: whole rows in registers, or rows of any length streamed twice."""

import torch
import triton
import triton.language as tl
from atlas.declaration.rows import widest, width
from atlas.operators import launch

from kernels.common.odd_rows import launch_odd_forward
from kernels.common.rows import programs_for, still_packed, tiles_of_row


@triton.jit
def load_rows(ptr, offs_m, mask_m, n, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr,
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
def store_tile(ptr, value, offs_m, mask_m, n, i, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr):
    """Store the ``i``-th of the tiles of :func:`load_rows`."""
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
        weight = load_rows(weight_ptr, tl.zeros([1, 1], tl.int32), True, n, BLOCK_N, CHUNKS, EVEN_N, "", "")
    offs_m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    mask_m = (offs_m < m) | EVEN_M
    x = load_rows(x_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, MODIFIER, POLICY)
    if HAS_RESIDUAL:
        added = ()
        residual = load_rows(residual_ptr, offs_m, mask_m, n, BLOCK_N, CHUNKS, EVEN_N, MODIFIER, POLICY)
        for i in tl.static_range(CHUNKS):
            added += ((x[i].to(tl.float32) + residual[i].to(tl.float32)).to(x_ptr.dtype.element_ty),)
            store_tile(sum_ptr, added[i], offs_m, mask_m, n, i, BLOCK_N, CHUNKS, EVEN_N)
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
        store_tile(out_ptr, out, offs_m, mask_m, n, i, BLOCK_N, CHUNKS, EVEN_N)


def size_of(x):
    """(m, n) of a contiguous tensor whose last dimension is normalised."""
    n = x.shape[-1]
    return x.numel() // n, n


def tiles(x, config):
    """Tile parameters and warps of a kernel that holds rows of ``x`` in registers."""
    m, n = size_of(x)
    block_n, chunks = tiles_of_row(n, x.element_size(), config)
    return {
        "BLOCK_M": config["BLOCK_M"], "BLOCK_N": block_n, "CHUNKS": chunks, "WIDTH": widest(x),
        "EVEN_M": m % config["BLOCK_M"] == 0, "EVEN_N": n == block_n * chunks, "num_warps": config["num_warps"],
    }  # fmt: skip


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


def launch_one_pass(x, residual, weight, eps, *, config, late=False, again=False, modifier="", policy=""):
    return _launch_forward(
        _one_pass_kernel, x, residual, weight, eps, *size_of(x), grid=programs_for(x, config), **tiles(x, config),
        LATE=late, AGAIN=again, MODIFIER=modifier, POLICY=policy,
    )  # fmt: skip


def launch_late(x, residual, weight, eps, *, config):
    """x past L1, which then holds weight from row to row: else the way from L2 carries as much of weight as of x.

    With AGAIN caches are asked to keep x, and it is read from there a second time: then no row waits in registers.
    """
    caches = {"policy": "evict_last"} if config["AGAIN"] else {"modifier": ".cg"}
    return launch_one_pass(x, residual, weight, eps, config=config, late=True, again=config["AGAIN"], **caches)


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


def launch_stream(x, residual, weight, eps, *, config):
    m, n = size_of(x)
    return _launch_forward(
        _stream_kernel, x, residual, weight, eps, n, grid=m,
        BLOCK_N=config["BLOCK_N"], WIDTH=width(x), num_warps=config["num_warps"],
    )  # fmt: skip


def launch_odd(x, residual, weight, eps, *, config):
    out, added, _, rstd = launch_odd_forward(x, weight, None, eps, residual, False, config)
    return (out, rstd) if residual is None else (out, added, rstd)
