"""Reductions of axes that are no neighbours in memory, or of tensors with gaps: variant `strided` and its gradients.

x is [k0, n1, k1, n2, k2] with any strides; n1 and n2 are reduced, and the fastest of its axes is n2 (k2 is 1) or k2.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .folding import NO_INDEX, collapse, first_state, fold, identity_of
from .results import (
    BESIDE,
    PART_REGISTERS,
    cache_policy,
    open_counter,
    returned,
    scratch_for,
    splits_of,
    vector_of,
    write_shared,
)
from .tiling import strided_tile


@triton.jit
def _strided_kernel(
    x_ptr, out_ptr, beside_ptr, scratch_ptr, k0, n1, k1, n2, k2, stride_k0, stride_n1, stride_k1, stride_n2, stride_k2,
    splits, OP: tl.constexpr, BLOCK_N1: tl.constexpr, BLOCK_K1: tl.constexpr, BLOCK_N2: tl.constexpr,
    BLOCK_K2: tl.constexpr, WIDTH: tl.constexpr, BY_ROW: tl.constexpr, FAR: tl.constexpr, SPLITS: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_K1 x BLOCK_K2 results of one of k0 matrices, and of the blocks of BLOCK_N1 x BLOCK_N2
    elements of each every ``splits``-th; SPLITS >= splits.

    Every place of a block has its own accumulator.  WIDTH divides the fastest axis, n2 where BY_ROW, else k2, and the
    strides of the others; FAR says that a block's elements are 2^31 and more apart.
    """
    # So said, the compiler accesses WIDTH elements at once.
    stride_n1 = stride_n1 // WIDTH * WIDTH
    stride_k0, stride_k1 = stride_k0 // WIDTH * WIDTH, stride_k1 // WIDTH * WIDTH
    if BY_ROW:
        n2 = n2 // WIDTH * WIDTH
    else:
        k2 = k2 // WIDTH * WIDTH
        stride_n2 = stride_n2 // WIDTH * WIDTH
    across, down = tl.cdiv(k2, BLOCK_K2), tl.cdiv(k1, BLOCK_K1)
    pid = tl.program_id(0)
    column = pid % across * BLOCK_K2
    line = pid // across % down * BLOCK_K1
    split = pid // (across * down) % splits
    matrix = (pid // (across * down * splits)).to(tl.int64)
    offs_n1 = tl.arange(0, BLOCK_N1)[:, None, None, None]
    offs_k1 = tl.arange(0, BLOCK_K1)[None, :, None, None]
    offs_n2 = tl.arange(0, BLOCK_N2)[None, None, :, None]
    offs_k2 = tl.arange(0, BLOCK_K2)[None, None, None, :]
    inside = (offs_k1 < k1 - line) & (offs_k2 < k2 - column)
    if FAR:
        offs = offs_n1.to(tl.int64) * stride_n1 + offs_k1.to(tl.int64) * stride_k1
        offs += offs_n2.to(tl.int64) * stride_n2 + offs_k2.to(tl.int64) * stride_k2
    else:
        offs = offs_n1 * stride_n1 + offs_k1 * stride_k1 + offs_n2 * stride_n2 + offs_k2 * stride_k2
    x_ptr += matrix * stride_k0 + line.to(tl.int64) * stride_k1 + column.to(tl.int64) * stride_k2
    wide = tl.cdiv(n2, BLOCK_N2)  # blocks along n2, which are taken before those along n1
    first_n1, first_n2 = split // wide * BLOCK_N1, split % wide * BLOCK_N2
    mask = inside & (offs_n1 < n1 - first_n1) & (offs_n2 < n2 - first_n2)
    start = first_n1.to(tl.int64) * stride_n1 + first_n2.to(tl.int64) * stride_n2
    x = tl.load(x_ptr + start + offs, mask=mask, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + (matrix * down + line // BLOCK_K1) * across
    counter_ptr += column // BLOCK_K2
    part_ptr = scratch_ptr + 2 * tl.cast(k0, tl.int64) * down * across
    if SPLITS > 1:
        open_counter(counter_ptr)  # while the first block is on its way
    acc, beside = first_state(x, split, mask, OP)
    for step in tl.range(split + splits, tl.cdiv(n1, BLOCK_N1) * wide, splits):
        first_n1, first_n2 = step // wide * BLOCK_N1, step % wide * BLOCK_N2
        mask = inside & (offs_n1 < n1 - first_n1) & (offs_n2 < n2 - first_n2)
        start = tl.cast(first_n1, tl.int64) * stride_n1 + tl.cast(first_n2, tl.int64) * stride_n2
        x = tl.load(x_ptr + start + offs, mask=mask, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, step, mask, OP)
    if OP == "max":  # of a single axis, n2
        beside = tl.where(beside == NO_INDEX, NO_INDEX, beside * BLOCK_N2 + offs_n2)
    acc, beside = collapse(acc, beside, 2, OP)
    acc, beside = collapse(acc, beside, 0, OP)
    acc, beside = tl.reshape(acc, [BLOCK_K1 * BLOCK_K2]), tl.reshape(beside, [BLOCK_K1 * BLOCK_K2])
    place = tl.arange(0, BLOCK_K1 * BLOCK_K2)
    offs_k1, offs_k2 = line + place // BLOCK_K2, column + place % BLOCK_K2
    inside = (offs_k1 < k1) & (offs_k2 < k2)
    offs = (matrix * k1 + offs_k1) * k2 + offs_k2
    outputs = tl.cast(k0, tl.int64) * k1 * k2
    write_shared(out_ptr, beside_ptr, part_ptr, counter_ptr, offs, acc, beside, outputs, split, splits, n1 * n2, inside,
                 SPLITS, OP)  # fmt: skip


def width_of(x, by_row):
    """Elements of the widest access, up to 16 bytes, that the fastest axis and all strides allow."""
    fastest = 3 if by_row else 4
    if x.stride(fastest) != 1 and x.shape[fastest] > 1:
        return 1
    apart = (x.stride(axis) for axis in range(5) if axis < fastest and x.shape[axis] > 1)
    return math.gcd(vector_of(x), x.shape[fastest], *apart)


def strides_of(x):
    """The strides of x; of an axis of one element 0, which is a multiple of anything, of the fastest 1."""
    return [
        step if length > 1 else int(axis > 2)
        for axis, (length, step) in enumerate(zip(x.shape, x.stride(), strict=True))
    ]


def _reach(tile, strides):
    """Elements from the first to the last of a block of axes with these strides."""
    blocks = (tile.n1, tile.k1, tile.n2, tile.k2)
    return sum((block - 1) * step for block, step in zip(blocks, strides[1:], strict=True))


def launch_strided(x, op, dtype=None, *, config):
    k0, n1, k1, n2, k2 = x.shape
    out = torch.empty((k0, k1, k2), dtype=dtype or x.dtype, device=x.device)
    beside = torch.empty((k0, k1, k2), dtype=BESIDE[op], device=x.device) if op in BESIDE else None
    tile = strided_tile(config, n1, k1, n2, k2, vector_of(x))
    results = tile.k1 * tile.k2
    programs = k0 * triton.cdiv(k1, tile.k1) * triton.cdiv(k2, tile.k2)
    steps = triton.cdiv(n1, tile.n1) * triton.cdiv(n2, tile.n2)
    most = max(1, PART_REGISTERS * 32 * config["num_warps"] // results)
    splits = splits_of(gpu_of(x.device), config, programs, steps, most)
    strides = strides_of(x)
    launch(
        _strided_kernel, (programs * splits,),
        x, out, out if beside is None else beside,
        out if splits == 1 else scratch_for(x, op, programs, splits * out.numel()),
        k0, n1, k1, n2, k2, *strides, splits,
        OP=op, BLOCK_N1=tile.n1, BLOCK_K1=tile.k1, BLOCK_N2=tile.n2, BLOCK_K2=tile.k2, WIDTH=width_of(x, k2 == 1),
        BY_ROW=k2 == 1, FAR=_reach(tile, strides) >= 2**31, SPLITS=triton.next_power_of_2(splits),
        POLICY=cache_policy(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return returned(out, beside)


@triton.jit
def _of_results(ptr, lines, k2, column, other, BLOCK_K1: tl.constexpr, BLOCK_K2: tl.constexpr, FAR: tl.constexpr):
    """What ``ptr`` holds for a block of results [BLOCK_K1, BLOCK_K2], as [BLOCK_K1, 1, BLOCK_K2].

    Loaded as a vector and widened after: beside n2 each thread would load it once for each element.
    """
    place = tl.arange(0, BLOCK_K1 * BLOCK_K2)
    line, along = place // BLOCK_K2, place % BLOCK_K2
    offs = (line.to(tl.int64) if FAR else line) * k2 + along
    found = tl.load(ptr + offs, mask=(line < lines) & (along < k2 - column), other=other)
    return tl.reshape(found, [BLOCK_K1, 1, BLOCK_K2])


@triton.jit
def _strided_backward_kernel(
    x_ptr, out_ptr, beside_ptr, dout_ptr, dx_ptr, n1, k1, n2, k2,
    stride_k0, stride_n1, stride_k1, stride_n2, stride_k2, MAX: tl.constexpr, BLOCK_K1: tl.constexpr,
    BLOCK_N2: tl.constexpr, BLOCK_K2: tl.constexpr, WIDTH: tl.constexpr, BY_ROW: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """One program owns a block of k1, n2 and k2 of one matrix of dx, which is contiguous; WIDTH, FAR as for results."""
    if BY_ROW:
        n2 = n2 // WIDTH * WIDTH
    else:
        k2 = k2 // WIDTH * WIDTH
        stride_n2 = stride_n2 // WIDTH * WIDTH
    stride_k0, stride_n1 = stride_k0 // WIDTH * WIDTH, stride_n1 // WIDTH * WIDTH
    stride_k1 = stride_k1 // WIDTH * WIDTH
    across, along, down = tl.cdiv(k2, BLOCK_K2), tl.cdiv(n2, BLOCK_N2), tl.cdiv(k1, BLOCK_K1)
    pid = tl.program_id(0)
    column, row = pid % across * BLOCK_K2, pid // across % along * BLOCK_N2
    line, matrix = pid // (across * along) % down * BLOCK_K1, pid // (across * along * down)
    outer = (matrix // n1).to(tl.int64)
    # Within a block places are 32 bits wide, where they fit: those of its beginning are the same for all threads.
    offs_k1 = tl.arange(0, BLOCK_K1)[:, None, None]
    offs_n2 = tl.arange(0, BLOCK_N2)[None, :, None]
    offs_k2 = tl.arange(0, BLOCK_K2)[None, None, :]
    mask = (offs_k1 < k1 - line) & (offs_k2 < k2 - column) & (offs_n2 < n2 - row)
    wide_k1 = offs_k1.to(tl.int64) if FAR else offs_k1
    wide_n2 = offs_n2.to(tl.int64) if FAR else offs_n2
    wide_k2 = offs_k2.to(tl.int64) if FAR else offs_k2
    begin_o = (outer * k1 + line) * k2 + column
    dout = _of_results(dout_ptr + begin_o, k1 - line, k2, column, 0.0, BLOCK_K1, BLOCK_K2, FAR).to(tl.float32)
    if MAX:
        indices = _of_results(beside_ptr + begin_o, k1 - line, k2, column, -1, BLOCK_K1, BLOCK_K2, FAR)
        dx = tl.where(indices == row + offs_n2, dout, 0.0)
    else:
        x_ptr += outer * stride_k0 + (matrix % n1).to(tl.int64) * stride_n1 + line.to(tl.int64) * stride_k1
        x_ptr += row.to(tl.int64) * stride_n2 + column.to(tl.int64) * stride_k2
        offs = wide_k1 * stride_k1 + wide_n2 * stride_n2 + wide_k2 * stride_k2
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        out = _of_results(out_ptr + begin_o, k1 - line, k2, column, 0.0, BLOCK_K1, BLOCK_K2, FAR).to(tl.float32)
        share = dout / _of_results(beside_ptr + begin_o, k1 - line, k2, column, 1.0, BLOCK_K1, BLOCK_K2, FAR)
        dx = tl.where(x == out, 1.0, 0.0) * share  # no choice, as for tiles
    dx_ptr += ((matrix.to(tl.int64) * k1 + line) * n2 + row) * k2 + column
    tl.store(dx_ptr + (wide_k1 * n2 + wide_n2) * k2 + wide_k2, dx, mask=mask)


_RUN_OF_GRADIENTS = 16
"""Vectors of 16 bytes that are written one after the other, at least: of odd rows each end is a part of a sector."""


def launch_strided_backward(op, dout, x=None, out=None, ties=None, indices=None, n=None, *, config):
    """dx [k0, n1, k1, n2, k2], contiguous; of max n1 is 1, and x need not be there."""
    k0, k1, k2 = dout.shape
    n1, n2 = (1, n) if x is None else (x.shape[1], x.shape[3])
    dx = torch.empty((k0, n1, k1, n2, k2), dtype=dout.dtype, device=dout.device)
    tile = strided_tile(config, 1, k1, n2, k2, vector_of(dx), _RUN_OF_GRADIENTS)
    blocks = triton.cdiv(k1, tile.k1) * triton.cdiv(n2, tile.n2) * triton.cdiv(k2, tile.k2)
    like = dx if x is None else x
    far = max(_reach(tile, strides_of(like)), _reach(tile, strides_of(dx))) >= 2**31
    launch(
        _strided_backward_kernel, (k0 * n1 * blocks,),
        like, dout if out is None else out, indices if op == "max" else ties, dout, dx, n1, k1, n2, k2,
        *strides_of(like), MAX=op == "max", BLOCK_K1=tile.k1, BLOCK_N2=tile.n2, BLOCK_K2=tile.k2,
        WIDTH=width_of(like, k2 == 1), BY_ROW=k2 == 1, FAR=far, num_warps=config["num_warps"],
    )  # fmt: skip
    return dx
