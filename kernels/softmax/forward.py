"""Forward kernels of softmax and their launchers: whole rows in registers, or rows of any length streamed twice."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.rows import LOWEST

from .masks import extent, mask_arguments, masked
from .tiling import cut_row, edges, lane_shape, matrix_of, tile_of_rows, tile_shape


@triton.jit
def _normalize(x, LOG: tl.constexpr):
    """Softmax of each row of a tile, or its logarithm; what is -inf takes no part.

    A row that holds NaN or +inf, or -inf alone, comes out as NaN, as in torch: the exponentials make it so.
    """
    shifted = x - tl.max(x, axis=1)[:, None]
    e = tl.exp(shifted)
    total = tl.sum(e, axis=1)
    y = shifted - tl.log(total)[:, None] if LOG else e * (1.0 / total)[:, None]
    return y


@triton.jit
def _one_pass_kernel(
    x_ptr, mask_ptr, y_ptr, m, n, q, group, groups, stride_group, cycle, stride_cycle,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, NEAR: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store.

    NEAR says that rows and the mask's elements are counted in 32 bits.
    EVEN says that the tiles cover the rows exactly; without a mask 8192 x 8192 bf16 is 1 % faster (H200, Triton 3.6).
    mask_ptr is None where there is no mask; else its row for row r begins at :func:`mask_rows`' offset.
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    first, offs_m, offs_n, offs, inside = tile_of_rows(m, n, BLOCK_M, BLOCK_N, EVEN)
    taken = inside
    if CAUSAL:
        taken = inside & (offs_n <= ((first % q).to(tl.int32) + offs_m) % q + (n - q))
    # -inf is the identity of max and becomes 0, the identity of the sum.
    x = tl.load(x_ptr + first * n + offs, mask=taken, other=-float("inf")).to(tl.float32)
    if mask_ptr is not None:
        row = first + offs_m
        if NEAR:  # divisions of 64 bits take longer than all else of a short row
            row = row.to(tl.int32)
        x = masked(x, mask_ptr, row // group % groups * stride_group + row % cycle * stride_cycle + offs_n, taken)
    tl.store(y_ptr + first * n + offs, _normalize(x, LOG), mask=inside)


def launch_one_pass(x, mask=None, log=False, causal=False, *, config):
    y = torch.empty_like(x)
    m, n, q = matrix_of(x, causal)
    tiles = tile_shape(x, m, n, config)
    grid = (triton.cdiv(m, config["BLOCK_M"]),)
    launch(
        _one_pass_kernel, grid, x, mask, y, m, n, q, **mask_arguments(x, mask), **tiles,
        NEAR=mask is not None and m + config["BLOCK_M"] < 2**31 and extent(mask) < 2**31, LOG=log, CAUSAL=causal,
    )  # fmt: skip
    return y


@triton.jit
def _scaled(x, row_max, total, LOG: tl.constexpr):
    """Softmax of elements of one row, or its logarithm, given the row's maximum and sum."""
    y = x - row_max - tl.log(total) if LOG else tl.exp(x - row_max) * (1.0 / total)
    return y


@triton.jit
def _online_kernel(
    x_ptr, mask_ptr, y_ptr, n, q, group, groups, stride_group, cycle, stride_cycle,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length, in blocks of LANES x WIDTH elements.

    Each lane, WIDTH neighbours that one thread loads at once, has a running maximum m_i and sum l_i of its own, so
    threads need exchange nothing before the end of the sweep.  The second sweep goes backwards: what was read last is
    in cache.  Where rows begin off WIDTH elements (not ALIGNED), the few before and after the aligned ones are held
    apart.
    """
    if ALIGNED:
        n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64)
    first, head, body = cut_row(row, n, WIDTH)
    limit = n
    if CAUSAL:
        limit = (row % q).to(tl.int32) + (n - q) + 1
    row_ptr, lanes_ptr = mask_ptr, mask_ptr
    if mask_ptr is not None:
        row_ptr = mask_ptr + row // group % groups * stride_group + row % cycle * stride_cycle
        lanes_ptr = row_ptr + head
    in_body = tl.minimum(body, limit - head) if CAUSAL else body
    lane_0, columns = tl.arange(0, LANES)[:, None] * WIDTH, tl.arange(0, WIDTH)[None, :]
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, in_body, LANES * WIDTH):
        lane = start + lane_0
        offs = lane + columns
        # -inf is the identity of max and becomes 0, the identity of the sum.
        x = tl.load(x_ptr + first + offs, mask=lane < in_body, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        if CAUSAL:
            x = tl.where(offs < in_body, x, -float("inf"))
        if mask_ptr is not None:
            x = masked(x, lanes_ptr, offs, lane < in_body)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
    row_max = tl.max(m_i, axis=0)
    if not ALIGNED:
        offs_e, inside_e = edges(head, body, n, WIDTH)
        taken_e = inside_e & (offs_e < limit)
        edge = tl.load(x_ptr + row * n + offs_e, mask=taken_e, other=-float("inf")).to(tl.float32)
        if mask_ptr is not None:
            edge = masked(edge, row_ptr, offs_e, taken_e)
        row_max = tl.maximum(row_max, tl.max(edge, axis=0))
    total = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        total += tl.sum(tl.exp(edge - row_max), axis=0)
        tl.store(y_ptr + row * n + offs_e, _scaled(edge, row_max, total, LOG), mask=inside_e)
    last = (body - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    for done in tl.range(0, body, LANES * WIDTH):
        lane = last - done + lane_0
        offs = lane + columns
        x = tl.load(x_ptr + first + offs, mask=lane < in_body, other=-float("inf"), eviction_policy="evict_first")
        x = x.to(tl.float32)
        if CAUSAL:
            x = tl.where(offs < in_body, x, -float("inf"))
        if mask_ptr is not None:
            x = masked(x, lanes_ptr, offs, lane < in_body)
        # Streaming, so that what is stored does not displace what is read again (3 % on an H200, Triton 3.6).
        tl.store(y_ptr + first + offs, _scaled(x, row_max, total, LOG), mask=lane < body, cache_modifier=".cs")


def launch_online(x, mask=None, log=False, causal=False, *, config):
    y = torch.empty_like(x)
    m, n, q = matrix_of(x, causal)
    lanes = lane_shape(x, n, config)
    launch(_online_kernel, (m,), x, mask, y, n, q, **mask_arguments(x, mask), **lanes, LOG=log, CAUSAL=causal)
    return y
