"""Tiles of `direct` and of its gradient: which program has which part of which, and who adds parts and writes.

Sums are y^T's: 64 rows of W by rows of x.  A gradient's (TURNED) are 64 columns of W as warps have them (half, word, q,
t, p): they come into their order where they are written.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.extra.cuda import gdc_wait

from kernels.common import clusters

ROWS = gl.constexpr(64)
"""Rows of W of a group, of a gradient columns: those of one wgmma."""

BLOCK_K = gl.constexpr(64)
"""Columns of a stage, of a gradient rows: of x and dy a swizzled line of shared memory."""


@gluon.jit
def rounds_of(tiles, splits, CUT: gl.constexpr):
    """(tiles that are not cut, positions)."""
    whole = tiles
    if CUT:
        whole = tiles // gl.num_programs(0) * gl.num_programs(0)
    return whole, whole + (tiles - whole) * splits


@gluon.jit
def part_at(position, whole, K, splits, K_GROUPS: gl.constexpr, CUT: gl.constexpr):
    """(tile, part, its first step, its last) at ``position``: each group has an even number of steps of a part."""
    TURN: gl.constexpr = 2 * K_GROUPS
    turns = gl.cdiv(K, TURN * BLOCK_K)
    tile, part, begin, end = position, position * 0, position * 0, turns
    if CUT:  # noqa: SIM102 - a constant, the other is none
        if position >= whole:
            tile = whole + (position - whole) // splits
            part = (position - whole) % splits
            begin, end = part * turns // splits, (part + 1) * turns // splits
    return tile, part, begin * TURN, end * TURN


@gluon.jit
def in_order(sums):
    """Sums [64 columns of W as warps have them, rows of dy], with columns in their order."""
    return sums.reshape([2, 2, 2, 4, 2, sums.shape[1]]).permute(0, 3, 1, 2, 4, 5).reshape([ROWS, sums.shape[1]])


@gluon.jit
def _write_block(out, buffer, y_desc, m, n):
    """Write numbers [ROWS, rows of y] to y from (m, n) on, once the buffer's last ones have been read."""
    tma.store_wait(0)
    buffer.permute((1, 0)).store(out)
    fence_async_shared()
    tma.async_copy_shared_to_global(y_desc, [m, n], buffer)


@gluon.jit
def write_tile(out, buffer, y_desc, m, n, TURNED: gl.constexpr):
    """Write a group's numbers of a whole tile, of 256 rows of y in two halves."""
    BLOCK_M: gl.constexpr = out.shape[1]
    if TURNED:
        out = in_order(out)
    if y_desc.block_shape[0] < BLOCK_M:
        low, high = out.reshape([ROWS, 2, BLOCK_M // 2]).permute((0, 2, 1)).split()
        _write_block(low, buffer, y_desc, m, n)
        _write_block(high, buffer, y_desc, m + BLOCK_M // 2, n)
    else:
        _write_block(out, buffer, y_desc, m, n)


@gluon.jit
def store_part(ptr, acc):
    """Write sums [ROWS, rows of x] as lanes have them: 16 bytes of each, side by side.

    By rows of W and of x a lane would write 8 bytes, and a warp to eight rows at a time.
    """
    eights: gl.constexpr = acc.shape[1] // 8
    split = acc.reshape([4, 2, 8, eights, 4, 2])  # warp, h, g, eight rows of x, t, p
    lanes = split.permute(0, 3, 2, 4, 1, 5).reshape([ROWS * acc.shape[1]])
    gl.store(ptr + gl.arange(0, ROWS * acc.shape[1], lanes.type.layout), lanes)


@gluon.jit
def add_and_write(
    y_ptr, acc, room, rank, m, n, M, N, TURNED: gl.constexpr, W_GROUP: gl.constexpr, CLUSTER: gl.constexpr,
    STATIC: gl.constexpr,
):  # fmt: skip
    """Add a group's sums [rows of W, rows of x] to those of the cluster's other programs; each writes its share.

    Those of 128 columns, which a gradient of few rows has, are written two bytes at a time.
    """
    BLOCK_N: gl.constexpr = acc.shape[0]
    BLOCK_M: gl.constexpr = acc.shape[1]
    clusters.meet(STATIC)
    clusters.send(acc, room, rank, W_GROUP, 4, CLUSTER)
    clusters.await_sums(room, W_GROUP)
    if BLOCK_N == 64:
        clusters.write_added(y_ptr, room, rank, n, m, N, M, W_GROUP, BLOCK_M, CLUSTER, TURNED)
    else:
        for number in gl.static_range(clusters.own_blocks(BLOCK_N, BLOCK_M, 4, CLUSTER)):
            total, p, q, inside = clusters.added(room, rank, number, W_GROUP, BLOCK_N, BLOCK_M, 4, CLUSTER)
            where = (m + q).to(gl.int64) * N + n + p
            gl.store(y_ptr + where, total.to(y_ptr.dtype.element_ty), mask=inside & (m + q < M) & (n + p < N))


@triton.jit(do_not_specialize=["whole", "rest"])
def sum_tiles_kernel(
    parts_ptr, y_ptr, M, N, whole, rest, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr, ROWS_AT_ONCE: tl.constexpr,
    TURNED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """y of the tiles from ``whole`` on, the sum of parts: program (tile, 64 rows of W, ROWS_AT_ONCE rows of x)."""
    if EARLY:
        gdc_wait()
    per: tl.constexpr = (BLOCK_N // 64) * (BLOCK_M // ROWS_AT_ONCE)
    tile = tl.program_id(0) // per
    within = tl.program_id(0) % per
    first_n = within // (BLOCK_M // ROWS_AT_ONCE) * 64
    first_m = within % (BLOCK_M // ROWS_AT_ONCE) * ROWS_AT_ONCE
    warp, lane = tl.arange(0, 4), tl.arange(0, 16 * ROWS_AT_ONCE)
    ptrs = parts_ptr + tile.to(tl.int64) * (BLOCK_M * BLOCK_N) + first_n * BLOCK_M + first_m * 16
    ptrs += warp[:, None] * (16 * BLOCK_M) + lane[None, :]
    acc = tl.zeros((4, 16 * ROWS_AT_ONCE), tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(ptrs)
        ptrs += rest.to(tl.int64) * (BLOCK_M * BLOCK_N)
    if TURNED:  # half, word, eight rows, t, p, t of rows, q, p of rows
        split = acc.reshape(2, 2, ROWS_AT_ONCE // 8, 4, 2, 4, 2, 2).permute(2, 5, 7, 0, 3, 1, 6, 4)
    else:  # warp, eight rows of x, g, t, h, p: see ``store_part``
        split = acc.reshape(4, ROWS_AT_ONCE // 8, 8, 4, 2, 2).permute(1, 3, 5, 0, 4, 2)
    out = split.reshape(ROWS_AT_ONCE, 64).to(y_ptr.dtype.element_ty)
    position = whole + tile
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = GROUP_M * tiles_n
    first = (position // band) * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    inside = position % band
    m = (first + inside % rows) * BLOCK_M + first_m + tl.arange(0, ROWS_AT_ONCE)
    n = inside // rows * BLOCK_N + first_n + tl.arange(0, 64)
    tl.store(y_ptr + m.to(tl.int64)[:, None] * N + n[None, :], out, mask=(m[:, None] < M) & (n[None, :] < N))
