"""Reductions over the last axis: whole rows in registers, or rows of any length block after block."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .folding import NO_INDEX, collapse, first_state, fold, identity_of, write_results
from .results import (
    MOST_PARTS,
    cache_policy,
    close_counter,
    combine,
    is_last,
    launch_combine,
    multiple_of,
    open_counter,
    results_like,
    returned,
    scratch_for,
    splits_of,
    vector_of,
    write_part,
)


@triton.jit
def _rows_kernel(x_ptr, out_ptr, beside_ptr, outer, n, OP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 WIDTH: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they are in registers at once.  EVEN: the tiles cover them."""
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (rows[:, None] < outer) & (offs_n < n) | EVEN
    x = tl.load(x_ptr + rows[:, None] * n + offs_n, mask=mask, other=identity_of(OP)).to(tl.float32)
    acc, beside = first_state(x, offs_n, mask, OP)
    acc, beside = collapse(acc, beside, 1, OP)
    write_results(out_ptr, beside_ptr, rows, acc, beside, n, (rows < outer) | EVEN, OP)


def launch_rows(x, op, dtype=None, *, config):
    out, beside = results_like(x, op, dtype)
    outer, n, _ = x.shape
    block_n = triton.next_power_of_2(n)
    block_m = max(1, 32 * config["num_warps"] * config["VECTORS"] * vector_of(x) // block_n)
    launch(
        _rows_kernel,
        (triton.cdiv(outer, block_m),),
        x,
        out,
        out if beside is None else beside,
        outer,
        n,
        OP=op,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        WIDTH=multiple_of(n, x),
        EVEN=outer % block_m == 0 and n == block_n,
        num_warps=config["num_warps"],
    )
    return returned(out, beside)


@triton.jit
def _merge_ends(acc, beside, x_ptr, start, low, high, stop, here, OP: tl.constexpr, LANES: tl.constexpr,
                WIDTH: tl.constexpr):  # fmt: skip
    """State [LANES] with the elements of a row [start, stop) before its first whole lane, low, and past the last, high.

    Only ``here``: one of the programs that share a row takes them.
    """
    near = tl.arange(0, LANES)
    place = tl.where(near < WIDTH, start + near, high + near - WIDTH)
    valid = (place < stop) & ((near >= WIDTH) | (place < low)) & here
    x = tl.load(x_ptr + place, mask=valid, other=identity_of(OP)).to(tl.float32)
    more, beside_more = first_state(x, (place - start).to(tl.int32), valid, OP)
    if OP == "sum" or OP == "mean":
        new = acc + more
    elif OP == "max":
        same = (more == acc) | ((more != more) & (acc != acc))
        better = (more > acc) | ((more != more) & (acc == acc)) | (same & (beside_more < beside))
        new = tl.where(better, more, acc)
        beside = tl.where(better, beside_more, beside)
    else:
        new = tl.maximum(acc, more, propagate_nan=tl.PropagateNan.ALL)
        if OP == "ties":
            beside = tl.where(acc == new, beside, 0.0) + tl.where(more == new, beside_more, 0.0)
    return new, beside


@triton.jit
def _stream_kernel(x_ptr, out_ptr, beside_ptr, scratch_ptr, outer, n, splits, OP: tl.constexpr, LANES: tl.constexpr,
                   WIDTH: tl.constexpr, WHOLE: tl.constexpr, SPLITS: tl.constexpr, ONCE: tl.constexpr,
                   POLICY: tl.constexpr):  # fmt: skip
    """One program owns each ``splits``-th block of one row; SPLITS >= splits, and ONCE says to combine here.  POLICY
    is :func:`cache_policy`'s.

    Every place of a block has its own accumulator, so the sweep needs no exchange between threads.  Blocks consist of
    lanes, WIDTH elements that lie on 16 bytes; rows that are not WHOLE lanes have up to WIDTH - 1 more at either end.
    """
    BLOCK: tl.constexpr = LANES * WIDTH
    row = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    start = row.to(tl.int64) * n
    low = (start + WIDTH - 1) // WIDTH * WIDTH
    high = tl.maximum((start + n) // WIDTH * WIDTH, low)
    length = high - low
    first = tl.arange(0, LANES)[:, None] * WIDTH
    offs = first + tl.arange(0, WIDTH)[None, :]
    at = split.to(tl.int64) * BLOCK
    valid = first < tl.minimum(length - at, BLOCK).to(tl.int32)
    x = tl.load(x_ptr + low + at + offs, mask=valid, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + row
    part_ptr = scratch_ptr + 2 * outer
    if SPLITS > 1 and ONCE:
        open_counter(counter_ptr)  # while the first block is on its way
    acc, beside = first_state(x, split, valid, OP)
    full = (length // BLOCK).to(tl.int32)
    for block in tl.range(split + splits, full, splits):
        x = tl.load(x_ptr + low + tl.cast(block, tl.int64) * BLOCK + offs, eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, block, True, OP)
    at = full.to(tl.int64) * BLOCK
    if (at < length) & (full % splits == split) & (full != split):
        rest = first < (length - at).to(tl.int32)
        x = tl.load(x_ptr + low + at + offs, mask=rest, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, full, rest, OP)
    if OP == "max":
        beside = tl.where(beside == NO_INDEX, NO_INDEX, beside * BLOCK + offs + (low - start).to(tl.int32))
    acc, beside = collapse(acc, beside, 1, OP)
    if not WHOLE:
        acc, beside = _merge_ends(acc, beside, x_ptr, start, low, high, start + n, split == 0, OP, LANES, WIDTH)
    acc, beside = collapse(acc, beside, 0, OP)
    if SPLITS == 1:
        write_results(out_ptr, beside_ptr, row, acc, beside, n, None, OP)
    else:
        write_part(part_ptr, split * outer + row, acc, beside, splits * outer, None, OP)
        if ONCE:
            last = is_last(counter_ptr, splits)
            if last:
                offs_o = row + tl.zeros([1, 1], tl.int32)
                whole, with_it = combine(part_ptr, offs_o, splits, outer, offs_o >= 0, SPLITS, OP)
                write_results(out_ptr, beside_ptr, row + tl.arange(0, 1), whole, with_it, n, None, OP)
                close_counter(counter_ptr)


def launch_stream(x, op, dtype=None, *, config, once=True):
    out, beside = results_like(x, op, dtype)
    outer, n, _ = x.shape
    width = vector_of(x)
    lanes = 32 * config["num_warps"] * config["VECTORS"]
    splits = splits_of(gpu_of(x.device), config, outer, triton.cdiv(n, lanes * width), MOST_PARTS)
    scratch = out if splits == 1 else scratch_for(x, op, outer, splits * outer)
    launch(
        _stream_kernel,
        (outer * splits,),
        x,
        out,
        out if beside is None else beside,
        scratch,
        outer,
        n,
        splits,
        OP=op,
        LANES=lanes,
        WIDTH=width,
        WHOLE=n % width == 0,
        SPLITS=triton.next_power_of_2(splits),
        ONCE=once,
        POLICY=cache_policy(x),
        num_warps=config["num_warps"],
    )
    if splits > 1 and not once:
        launch_combine(scratch[2 * outer :], out, beside, op, n, splits)
    return returned(out, beside)


def launch_stream_twice(x, op, dtype=None, *, config):
    return launch_stream(x, op, dtype, config=config, once=False)
