"""Reductions over another axis than the last: blocks of rows and columns."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .folding import NO_INDEX, collapse, first_state, fold, identity_of
from .results import (
    PART_REGISTERS,
    cache_policy,
    launch_combine,
    multiple_of,
    open_counter,
    results_like,
    returned,
    scratch_for,
    splits_of,
    vector_of,
    write_shared,
)


@triton.jit
def _columns_kernel(x_ptr, out_ptr, beside_ptr, scratch_ptr, outer, n, inner, splits, OP: tl.constexpr,
                    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
                    SPLITS: tl.constexpr, ONCE: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_C columns of one of ``outer`` matrices, and of its blocks of BLOCK_R rows each
    ``splits``-th; SPLITS >= splits, and ONCE says to combine here.

    Every place of a block has its own accumulator.  EVEN says that blocks cover the columns exactly.
    """
    inner = inner // WIDTH * WIDTH  # as for rows
    blocks = tl.cdiv(inner, BLOCK_C)
    block = tl.program_id(0) % blocks
    split = tl.program_id(0) // blocks % splits
    matrix = tl.program_id(0) // (blocks * splits)
    offs_r = tl.arange(0, BLOCK_R)[:, None]
    offs_c = block * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask_c = (offs_c < inner) | EVEN
    x_ptr += matrix.to(tl.int64) * n * inner
    offs = offs_r.to(tl.int64) * inner + offs_c
    row = split * BLOCK_R
    mask = (row + offs_r < n) & mask_c
    down = row.to(tl.int64) * inner
    x = tl.load(x_ptr + down + offs, mask=mask, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + matrix * blocks + block
    part_ptr = scratch_ptr + 2 * outer * blocks
    if SPLITS > 1 and ONCE:
        open_counter(counter_ptr)  # while the first rows are on their way
    acc, beside = first_state(x, split, mask, OP)
    full = n // BLOCK_R
    for step in tl.range(split + splits, full, splits):
        down = tl.cast(step, tl.int64) * BLOCK_R * inner
        x = tl.load(x_ptr + down + offs, mask=mask_c, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, step, mask_c, OP)
    if (full * BLOCK_R < n) & (full % splits == split) & (full != split):
        rest = (full * BLOCK_R + offs_r < n) & mask_c
        down = tl.cast(full, tl.int64) * BLOCK_R * inner
        x = tl.load(x_ptr + down + offs, mask=rest, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, full, rest, OP)
    if OP == "max":
        beside = tl.where(beside == NO_INDEX, NO_INDEX, beside * BLOCK_R + offs_r)
    acc, beside = collapse(acc, beside, 0, OP)
    offs_c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    mask_c = (offs_c < inner) | EVEN
    offs_o = matrix.to(tl.int64) * inner + offs_c
    write_shared(out_ptr, beside_ptr, part_ptr, counter_ptr, offs_o, acc, beside, outer * inner, split, splits, n,
                 mask_c, SPLITS, OP, ONCE)  # fmt: skip


def launch_columns(x, op, dtype=None, *, config, once=True):
    out, beside = results_like(x, op, dtype)
    outer, n, inner = x.shape
    block_c = config["BLOCK_C"]
    block_r = 32 * config["num_warps"] * config["VECTORS"] * vector_of(x) // block_c
    blocks = triton.cdiv(inner, block_c)
    most = PART_REGISTERS * 32 * config["num_warps"] // block_c
    splits = splits_of(gpu_of(x.device), config, outer * blocks, triton.cdiv(n, block_r), most)
    scratch = out if splits == 1 else scratch_for(x, op, outer * blocks, splits * outer * inner)
    launch(
        _columns_kernel,
        (outer * blocks * splits,),
        x,
        out,
        out if beside is None else beside,
        scratch,
        outer,
        n,
        inner,
        splits,
        OP=op,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        WIDTH=multiple_of(inner, x),
        EVEN=inner % block_c == 0,
        SPLITS=triton.next_power_of_2(splits),
        ONCE=once,
        POLICY=cache_policy(x),
        num_warps=config["num_warps"],
    )
    if splits > 1 and not once:
        launch_combine(scratch[2 * outer * blocks :], out, beside, op, n, splits)
    return returned(out, beside)


def launch_columns_twice(x, op, dtype=None, *, config):
    return launch_columns(x, op, dtype, config=config, once=False)
