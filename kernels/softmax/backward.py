"""Backward kernels of softmax and their launchers: rows in registers, dy alone there, or rows streamed twice."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .tiling import cut_row, edges, lane_shape, matrix_of, tile_of_rows, tile_shape


@triton.jit
def _pull(y, dy, inner, LOG: tl.constexpr):
    """dx of a tile, given each row's inner = sum of y * dy, or of dy for the logarithm."""
    dx = dy - tl.exp(y) * inner if LOG else y * (dy - inner)
    return dx


@triton.jit
def _unmerged(x, inner):
    """x itself, which the compiler cannot tell: it converts 16-bit values to fp32 again and need not keep both.

    `inner` is NaN only where the whole row comes out as NaN, so the bit that it flips there is never seen.
    """
    if x.dtype.primitive_bitwidth == 16:
        x = (x.to(tl.int16, bitcast=True) ^ (inner != inner).to(tl.int16)).to(x.dtype, bitcast=True)
    return x


@triton.jit
def _one_pass_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, m, n, q,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store.

    Between their two uses 16-bit rows stay 16 bits wide, two to a register: 2^15 of y and dy fit 32 warps so (60
    registers a thread on sm_90, and spills otherwise; Triton 3.7).
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    first, offs_m, offs_n, offs, inside = tile_of_rows(m, n, BLOCK_M, BLOCK_N, EVEN)
    taken = inside
    if CAUSAL:
        taken = inside & (offs_n <= ((first % q).to(tl.int32) + offs_m) % q + (n - q))
    # 0 is the identity of the sum.
    y = tl.load(y_ptr + first * n + offs, mask=taken, other=0.0)
    dy = tl.load(dy_ptr + first * n + offs, mask=taken, other=0.0)
    if LOG:
        inner = tl.sum(dy.to(tl.float32), axis=1)[:, None]
    else:
        inner = tl.sum(y.to(tl.float32) * dy.to(tl.float32), axis=1)[:, None]
    y, dy = _unmerged(y, inner).to(tl.float32), _unmerged(dy, inner).to(tl.float32)
    dx = _pull(y, dy, inner, LOG)
    if CAUSAL:
        dx = tl.where(taken, dx, 0.0)  # where inner is NaN, too
    tl.store(dx_ptr + first * n + offs, dx, mask=inside)


def launch_one_pass(y, dy, log=False, causal=False, *, config):
    dx = torch.empty_like(y)
    m, n, q = matrix_of(y, causal)
    tiles = tile_shape(y, m, n, config)
    grid = (triton.cdiv(m, config["BLOCK_M"]),)
    launch(_one_pass_backward_kernel, grid, y, dy, dx, m, n, q, **tiles, LOG=log, CAUSAL=causal)
    return dx


@triton.jit
def _held_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, n, q,
    BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns one row of CHUNKS tiles of BLOCK_N columns: its dy stays in registers, its y is read again.

    dy goes past L1 (`.cg`), so that L1 has room for y, which is read backwards: what was read last is in cache.  Of the
    logarithm y is read once.  EVEN says that the tiles cover the row exactly.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64)
    limit = n
    if CAUSAL:
        limit = (row % q).to(tl.int32) + (n - q) + 1
    y_ptr, dy_ptr, dx_ptr = y_ptr + row * n, dy_ptr + row * n, dx_ptr + row * n
    columns = tl.arange(0, BLOCK_N)
    dys = ()
    products = tl.zeros([BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        offs = i * BLOCK_N + columns
        taken = offs < limit if CAUSAL else (offs < n) | EVEN
        # 0 is the identity of the sum.
        dy = tl.load(dy_ptr + offs, mask=taken, other=0.0, cache_modifier=".cg")
        dys += (dy,)
        if LOG:
            products += dy.to(tl.float32)
        else:
            y = tl.load(y_ptr + offs, mask=taken, other=0.0, eviction_policy="evict_last")
            products += y.to(tl.float32) * dy.to(tl.float32)
    inner = tl.sum(products, axis=0)
    for i in tl.static_range(CHUNKS):
        offs = (CHUNKS - 1 - i) * BLOCK_N + columns
        inside = (offs < n) | EVEN
        taken = offs < limit if CAUSAL else inside
        y = tl.load(y_ptr + offs, mask=taken, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dx = _pull(y, _unmerged(dys[CHUNKS - 1 - i], inner).to(tl.float32), inner, LOG)
        if CAUSAL:
            dx = tl.where(taken, dx, 0.0)  # as in _one_pass_backward_kernel
        tl.store(dx_ptr + offs, dx, mask=inside)


def launch_held(y, dy, log=False, causal=False, *, config):
    dx = torch.empty_like(y)
    m, n, q = matrix_of(y, causal)
    columns, chunks = triton.next_power_of_2(n), config["CHUNKS"]
    launch(
        _held_backward_kernel, (m,), y, dy, dx, n, q, BLOCK_N=columns // chunks, CHUNKS=chunks,
        WIDTH=VECTOR_BYTES // y.element_size(), EVEN=n == columns, LOG=log, CAUSAL=causal,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dx


@triton.jit
def _share(body, part, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    """The blocks [low, high) of a row's body that program `part` of SPLITS writes."""
    size = tl.cdiv(tl.cdiv(body, BLOCK), SPLITS) * BLOCK
    low = tl.minimum(part * size, body).to(tl.int32)
    return low, tl.minimum(low + size, body)


@triton.jit
def _gather(
    y_ptr, dy_ptr, low, high, limit, inner_i,
    LANES: tl.constexpr, WIDTH: tl.constexpr, LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Each lane's sum of y * dy, or of dy for the logarithm, after [low, high) of a row; y is 0 from `limit` on."""
    if CAUSAL:
        high = tl.minimum(high, limit)
    for start in tl.range(low, high, LANES * WIDTH):
        lane = start + tl.arange(0, LANES)[:, None] * WIDTH
        offs = lane + tl.arange(0, WIDTH)[None, :]
        # 0 is the identity of the sum.
        dy = tl.load(dy_ptr + offs, mask=lane < high, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if LOG:
            inner_i += tl.sum(dy, axis=1)
        else:
            y = tl.load(y_ptr + offs, mask=lane < high, other=0.0, eviction_policy="evict_last").to(tl.float32)
            if CAUSAL:
                dy = tl.where(offs < limit, dy, 0.0)
            inner_i += tl.sum(y * dy, axis=1)
    return inner_i


@triton.jit
def _stream_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, m, n, q,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, SPLITS: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """SPLITS programs share one row of any length, in blocks of LANES x WIDTH elements, then the next of their rows.

    Each sums the whole row, its own share of it last, then sweeps backwards over its share, which it writes.  Two
    programs a row begin at opposite ends, so half as many rows are under way, and each element comes from memory once
    where these fit the L2.
    """
    if ALIGNED:
        n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    for index in tl.range(tl.program_id(0).to(tl.int64), m * SPLITS, tl.num_programs(0)):
        row, part = index // SPLITS, index % SPLITS
        first, head, body = cut_row(row, n, WIDTH)
        low, high = _share(body, part, LANES * WIDTH, SPLITS)
        limit = n
        if CAUSAL:
            limit = (row % q).to(tl.int32) + (n - q) + 1
        in_body = limit - head
        y_lanes, dy_lanes = y_ptr + first, dy_ptr + first
        inner_i = tl.zeros([LANES], tl.float32)
        if SPLITS > 1:
            inner_i = _gather(y_lanes, dy_lanes, high, body, in_body, inner_i, LANES, WIDTH, LOG, CAUSAL)
            inner_i = _gather(y_lanes, dy_lanes, 0, low, in_body, inner_i, LANES, WIDTH, LOG, CAUSAL)
        inner_i = _gather(y_lanes, dy_lanes, low, high, in_body, inner_i, LANES, WIDTH, LOG, CAUSAL)
        inner = tl.sum(inner_i, axis=0)
        if not ALIGNED:
            offs_e, inside_e = edges(head, body, n, WIDTH)
            taken_e = inside_e & (offs_e < limit)
            y_edge = tl.load(y_ptr + row * n + offs_e, mask=taken_e, other=0.0).to(tl.float32)
            dy_edge = tl.load(dy_ptr + row * n + offs_e, mask=taken_e, other=0.0).to(tl.float32)
            inner += tl.sum(dy_edge if LOG else y_edge * dy_edge, axis=0)
            dx_edge = _pull(y_edge, dy_edge, inner, LOG)
            if CAUSAL:
                dx_edge = tl.where(taken_e, dx_edge, 0.0)
            tl.store(dx_ptr + row * n + offs_e, dx_edge, mask=inside_e & (part == 0))
        last = low + (high - low - 1) // (LANES * WIDTH) * (LANES * WIDTH)
        for done in tl.range(0, high - low, LANES * WIDTH):
            lane = last - done + tl.arange(0, LANES)[:, None] * WIDTH
            offs = lane + tl.arange(0, WIDTH)[None, :]
            taken = lane < high
            if CAUSAL:
                taken = lane < tl.minimum(high, in_body)
            y = tl.load(y_lanes + offs, mask=taken, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_lanes + offs, mask=taken, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dx = _pull(y, dy, inner, LOG)
            if CAUSAL:
                dx = tl.where(offs < in_body, dx, 0.0)
            tl.store(dx_ptr + first + offs, dx, mask=lane < high, cache_modifier=".cs")


def launch_stream(y, dy, log=False, causal=False, *, config):
    """A program for each share of a row, or no more than PROGRAMS_PER_SM on each SM where the config says so."""
    dx = torch.empty_like(y)
    m, n, q = matrix_of(y, causal)
    shares = m * config["SPLITS"]
    programs = min(shares, config["PROGRAMS_PER_SM"] * gpu_of(y.device).sms or shares)
    launch(
        _stream_backward_kernel, (programs,), y, dy, dx, m, n, q,
        **lane_shape(y, n, config), SPLITS=config["SPLITS"], LOG=log, CAUSAL=causal,
    )  # fmt: skip
    return dx
