"""Ragged rows: c [m, n] of a [m, k] and b [groups, k, n], where groups are of the rows of a."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted, describable, fp32_precision
from atlas.operators import launch
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _tiles_of_groups(
    offs_ptr, groups, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr
):  # fmt: skip
    """Tiles of c up to the end of each group, [BLOCK_G]; number ``groups`` are the rows that belong to none."""
    group = tl.arange(0, BLOCK_G)
    ends = tl.load(offs_ptr + group, mask=group < groups, other=0)
    ends = tl.where(group < groups, ends, M)  # no rows, so no tiles, after the rest
    starts = tl.load(offs_ptr + group - 1, mask=(group > 0) & (group <= groups), other=0)
    starts = tl.where(group <= groups, starts, M)
    return tl.cumsum(tl.cdiv(tl.maximum(ends - starts, 0), BLOCK_M) * tl.cdiv(N, BLOCK_N), axis=0)


@triton.jit
def _place(
    position, ends_of_tiles, offs_ptr, groups, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """(group, first row, end of the group's rows, first column) of the tile at ``position``.

    Groups come one after the other; within one, tiles go down GROUP_M rows of tiles before the next column.
    """
    before = ends_of_tiles <= position
    group = tl.sum(before.to(tl.int32), axis=0)
    within = position - tl.max(tl.where(before, ends_of_tiles, 0), axis=0)
    start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(offs_ptr + group, mask=group < groups, other=M)
    tiles_m = tl.cdiv(end - start, BLOCK_M)
    tiles_of_band = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (within // tiles_of_band) * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = within % tiles_of_band
    return group, start + (first_m + within % rows) * BLOCK_M, end, within // rows * BLOCK_N


@triton.jit
def _store_rows(c_ptr, acc, row, end, n, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Writes the rows of the block at (row, n) that belong to the group; c is contiguous."""
    offs_m = row + tl.arange(0, BLOCK_M)
    offs_n = n + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < end) & (offs_n[None, :] < N))


@triton.jit
def _rows_kernel(
    a_ptr, b_ptr, offs_ptr, c_ptr, groups, M, N, K, stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_G: tl.constexpr, PROGRAMS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Ragged rows: a program takes every PROGRAMS-th tile of all groups."""
    ends_of_tiles = _tiles_of_groups(offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, BLOCK_G)
    for position in range(tl.program_id(0), tl.max(ends_of_tiles, axis=0), PROGRAMS):
        group, row, end, n = _place(position, ends_of_tiles, offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        # Rows past the group's end and columns past N are valid ones again: the loop needs no mask for them.
        offs_m = tl.minimum(row + tl.arange(0, BLOCK_M), end - 1).to(tl.int64)
        offs_n = ((n + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
        offs_k = tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
        b_ptrs += group.to(tl.int64) * stride_bg
        block_k = tl.full((), BLOCK_K, tl.int64)  # a stride of 16 M elements times BLOCK_K = 128 passes 2^31
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, tl.where(group < groups, K, 0), BLOCK_K):  # rows of no group are 0
            if EVEN_K:
                a = tl.load(a_ptrs)
                b = tl.load(b_ptrs)
            else:  # 0 past K: adds nothing to the sum
                a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
                b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
            a_ptrs += block_k * stride_ak
            b_ptrs += block_k * stride_bk
        _store_rows(c_ptr, acc, row, end, n, N, BLOCK_M, BLOCK_N)


@triton.jit
def _rows_descriptor_kernel(
    a_desc, b_desc, offs_ptr, c_ptr, groups, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_G: tl.constexpr, PROGRAMS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The same by the copy engine; the loops are one, so blocks of the next tile load while one is stored.

    Rows of no group are one step over what lies outside of a and b, which is read as 0.  WIDTH divides N: so said, the
    compiler stores as many elements at once.
    """
    N = N // WIDTH * WIDTH
    ends_of_tiles = _tiles_of_groups(offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, BLOCK_G)
    finished = tl.program_id(0) - PROGRAMS  # counted apart: the store then hangs on nothing that is prefetched
    for position in tl.range(tl.program_id(0), tl.max(ends_of_tiles, axis=0), PROGRAMS, flatten=True):
        group, row, end, n = _place(position, ends_of_tiles, offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row = tl.where(group < groups, row, M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, tl.where(group < groups, K, 1), BLOCK_K):
            a = a_desc.load([row, k])
            if B_BY_COLUMNS:
                b = b_desc.load([group, n, k]).reshape(BLOCK_N, BLOCK_K).T
            else:
                b = b_desc.load([group, k, n]).reshape(BLOCK_K, BLOCK_N)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        finished += PROGRAMS
        group, row, end, n = _place(finished, ends_of_tiles, offs_ptr, groups, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        _store_rows(c_ptr, acc, row, end, n, N, BLOCK_M, BLOCK_N)


PLAIN = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
"""The config for operands of long groups that Gluon's kernels do not take."""


def launch_rows(a, b, offs, out_dtype=None, *, config, by_descriptor=False, in_gluon=False):
    """c [m, n] for a [m, k], b [groups, k, n].

    ``in_gluon``: by Hopper's own kernel, where the copy engine reads a and b and c is of their dtype.
    """
    (m, k), (groups, _, n) = a.shape, b.shape
    c = torch.empty((m, n), dtype=out_dtype or a.dtype, device=a.device)
    b_by_columns = b.stride(2) != 1
    b_rows = b.transpose(1, 2) if b_by_columns else b
    described = describable(a) and describable(b_rows)
    if in_gluon:
        if described and describable(c) and c.dtype == a.dtype and a.element_size() == 2:
            from .hopper import rows_by_tma

            rows_by_tma(a, b, offs, c, config=config)
            return c
        config, by_descriptor = PLAIN, True
    by_descriptor = by_descriptor and described
    a, b, b_rows = as_interpreted(a), as_interpreted(b), as_interpreted(b_rows)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    most = (triton.cdiv(m, rows) + groups) * triton.cdiv(n, columns)  # each group's last tile may be a part of one
    resident = 1 if rows * columns > 128 * 128 else 2
    if by_descriptor:  # where two rings of blocks fit into an SM's shared memory
        ring = config["num_stages"] * (rows + columns) * block_k * a.element_size()
        resident = max(1, min(2, gpu_of(a.device).shared_bytes // ring))
    meta = {
        "BLOCK_G": triton.next_power_of_2(groups + 1), "PROGRAMS": min(most, resident * gpu_of(a.device).sms),
        "PRECISION": fp32_precision(), **config,
    }  # fmt: skip
    if by_descriptor:
        block_of_b = [1, columns, block_k] if b_by_columns else [1, block_k, columns]
        launch(
            _rows_descriptor_kernel, (meta["PROGRAMS"],),
            TensorDescriptor.from_tensor(a, [rows, block_k]), TensorDescriptor.from_tensor(b_rows, block_of_b),
            offs, c, groups, m, n, k, B_BY_COLUMNS=b_by_columns, WIDTH=8 if n % 16 == 8 else 1, **meta,
        )  # fmt: skip
    else:
        launch(
            _rows_kernel, (meta["PROGRAMS"],), a, b, offs, c, groups, m, n, k, *a.stride(), *b.stride(),
            EVEN_K=k % block_k == 0, **meta,
        )  # fmt: skip
    return c
