"""`split` and `vector`: C is thin, so K goes to several programs in parts, which a second kernel adds up."""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.common.parts import empty_parts, part_of_k, sum_parts
from kernels.common.products import by_columns, precision_of_product
from kernels.common.tiles import multiply_tile, store_tile

from .tiled import empty_product, tiles_of


@triton.jit
def part_bounds(part, K, K_PART):
    """Begin and end of the elements of K that ``part`` sums; the last parts may have fewer than K_PART, or none."""
    start = tl.minimum(part.to(tl.int64) * K_PART, K)
    return start.to(tl.int32), tl.minimum(start + K_PART, K).to(tl.int32)


@triton.jit
def _split_kernel(
    a_ptr, b_ptr, parts_ptr, M, N, K, K_PART, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr, A_POLICY: tl.constexpr, B_POLICY: tl.constexpr,
    WIDTHS: tl.constexpr, A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (tile, part) sums one tile over K_PART elements of K, and writes it to parts[part, M, N].

    Where C is thin its tiles are few; parts of K make more programs, and each element of the larger operand is still
    read once, which is what bounds such a product.

    WIDTHS divide M, N, K and the strides of A's and of B's rows (columns, where they lie so).  So said, the compiler
    accesses as many elements at once, and copies them asynchronously from 4 bytes on.
    """
    M, N, K = M // WIDTHS[0] * WIDTHS[0], N // WIDTHS[1] * WIDTHS[1], K // WIDTHS[2] * WIDTHS[2]
    if A_BY_COLUMNS:
        stride_ak = stride_ak // WIDTHS[3] * WIDTHS[3]
    else:
        stride_am = stride_am // WIDTHS[3] * WIDTHS[3]
    if B_BY_COLUMNS:
        stride_bn = stride_bn // WIDTHS[4] * WIDTHS[4]
    else:
        stride_bk = stride_bk // WIDTHS[4] * WIDTHS[4]
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    start, end = part_bounds(tl.program_id(1), K, K_PART)
    acc = multiply_tile(
        a_ptr + start.to(tl.int64) * stride_ak, b_ptr + start.to(tl.int64) * stride_bk, tile_m, tile_n, M, N,
        end - start, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION,
        A_POLICY, B_POLICY,
    )  # fmt: skip
    store_tile(parts_ptr + tl.program_id(1).to(tl.int64) * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _vector_kernel(
    v_ptr, w_ptr, out_ptr, N, K, K_PART, stride_v, stride_wk, stride_wn, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """out[part, n] = sum over a part of K of v[k] W[k, n]: program (tile, part) owns BLOCK_N columns.

    Each thread sums its own elements of every block; only the last step adds up across threads.  W is read once, so it
    need not push anything else out of L2.
    """
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start, end = part_bounds(tl.program_id(1), K, K_PART)
    offs_k = tl.arange(0, BLOCK_K)
    columns = w_ptr + offs_n.to(tl.int64)[None, :] * stride_wn
    acc = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    for k in range(start, end, BLOCK_K):
        rows = (k + offs_k).to(tl.int64)
        inside = (rows[:, None] < end) & (offs_n[None, :] < N)
        v = tl.load(v_ptr + rows * stride_v, mask=rows < end, other=0.0)
        w = tl.load(columns + rows[:, None] * stride_wk, mask=inside, other=0.0, eviction_policy="evict_first")
        acc += v.to(tl.float32)[:, None] * w.to(tl.float32)
    out = tl.sum(acc, axis=0)
    out_ptrs = out_ptr + tl.program_id(1).to(tl.int64) * N + offs_n
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=offs_n < N)


def launch_split(a, b, tf32=False, *, config):
    """Launch ``_split_kernel``, and ``_sum_kernel`` if there are several parts."""
    c, splits = empty_product(a, b), config["SPLITS"]
    if not c.numel():
        return c
    parts = c if splits == 1 else empty_parts(c, splits)
    multiply_thin(a, b, parts.view(splits, *c.shape), tf32, config=config)
    return c if splits == 1 else sum_parts(parts, c)


def multiply_thin(a, b, parts, tf32=False, *, config):
    """Write products of parts of K into ``parts`` [SPLITS, m, n], which add up to A B."""
    (m, k), n = a.shape, b.shape[1]
    tile = {name: value for name, value in config.items() if name != "SPLITS"}
    precision, part = precision_of_product(a, tf32), part_of_k(k, config["SPLITS"], config["BLOCK_K"])
    a, b = as_interpreted(a), as_interpreted(b)
    of_a, of_b = (int(by_columns(matrix)) for matrix in (a, b))  # the axis whose stride is a row's length, or more
    launch(
        _split_kernel, (tiles_of(parts[0], config), config["SPLITS"]), a, b, parts, m, n, k, part,
        *a.stride(), *b.stride(), EVEN_K=k % config["BLOCK_K"] == 0, PRECISION=precision,
        A_POLICY=_policy(config["BLOCK_N"], n), B_POLICY=_policy(config["BLOCK_M"], m),
        WIDTHS=tuple(width_of(length, a) for length in (m, n, k, a.stride(of_a), b.stride(of_b))),
        A_BY_COLUMNS=of_a, B_BY_COLUMNS=of_b, **tile,
    )  # fmt: skip


def launch_vector(a, b, tf32=False, *, config):
    """Launch ``_vector_kernel`` for a row times a matrix; a matrix times a column is one of their transposes."""
    c = empty_product(a, b)
    if not c.numel():
        return c
    vector, matrix = (a[0], b) if a.shape[0] == 1 else (b[:, 0], a.t())
    (k, n), splits = matrix.shape, config["SPLITS"]
    parts = c if splits == 1 else torch.empty((splits, n), dtype=torch.float32, device=a.device)
    launch(
        _vector_kernel, (triton.cdiv(n, config["BLOCK_N"]), splits),
        vector, matrix, parts, n, k, part_of_k(k, splits, config["BLOCK_K"]), *vector.stride(), *matrix.stride(),
        BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"], num_warps=config["num_warps"],
    )  # fmt: skip
    return c if splits == 1 else sum_parts(parts, c)


def width_of(length, x):
    """The most elements of ``x``, up to 16 bytes, that divide ``length``."""
    return math.gcd(length, 16 // x.element_size())


def _policy(block, size):
    """What L2 is told of an operand: to drop it first where one tile covers all of the other, and it is read once."""
    return "evict_first" if block >= size else ""
