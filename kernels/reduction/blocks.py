"""Reductions of short or narrow matrices: blocks of neighbouring matrices, rows and columns."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .folding import NO_INDEX, collapse, first_state, fold, identity_of
from .results import (
    PART_REGISTERS,
    cache_policy,
    multiple_of,
    open_counter,
    results_like,
    returned,
    scratch_for,
    splits_of,
    vector_of,
    write_shared,
)
from .tiling import block_of


@triton.jit
def _blocks_kernel(x_ptr, out_ptr, beside_ptr, scratch_ptr, outer, n, inner, splits, OP: tl.constexpr,
                   BLOCK_O: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, DOWN: tl.constexpr,
                   WIDTH_N: tl.constexpr, WIDTH: tl.constexpr, FAR: tl.constexpr, SPLITS: tl.constexpr,
                   POLICY: tl.constexpr):  # fmt: skip
    """One program owns BLOCK_C columns of BLOCK_O matrices, and of their blocks of BLOCK_R rows each ``splits``-th;
    SPLITS >= splits.

    Every place of a block has its own accumulator.  The compiler spreads threads over the last axes first: rows come
    first where each thread is to add up columns of its own (DOWN), else between matrices and columns, as in memory.
    n is a multiple of WIDTH_N, inner of WIDTH; FAR says that a block's elements are 2^31 and more apart.
    """
    n = n // WIDTH_N * WIDTH_N  # as for rows
    inner = inner // WIDTH * WIDTH
    across = tl.cdiv(inner, BLOCK_C)
    group = tl.program_id(0) // (across * splits)
    split = tl.program_id(0) // across % splits
    column = tl.program_id(0) % across * BLOCK_C
    matrix = group.to(tl.int64) * BLOCK_O
    if DOWN:
        offs_o = tl.arange(0, BLOCK_O)[None, :, None]
        offs_r = tl.arange(0, BLOCK_R)[:, None, None]
    else:
        offs_o = tl.arange(0, BLOCK_O)[:, None, None]
        offs_r = tl.arange(0, BLOCK_R)[None, :, None]
    offs_c = tl.arange(0, BLOCK_C)[None, None, :]
    if FAR:
        offs_o, offs_r = offs_o.to(tl.int64), offs_r.to(tl.int64)
    inside = (offs_o < outer - matrix) & (offs_c < inner - column)
    x_ptr += matrix * n * inner + column
    offs = (offs_o * n + offs_r) * inner + offs_c
    row = split * BLOCK_R
    mask = inside & (offs_r < n - row)
    down = row.to(tl.int64) * inner
    x = tl.load(x_ptr + down + offs, mask=mask, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + group * across + column // BLOCK_C
    part_ptr = scratch_ptr + 2 * tl.cdiv(outer, BLOCK_O) * across
    if SPLITS > 1:
        open_counter(counter_ptr)  # while the first rows are on their way
    acc, beside = first_state(x, split, mask, OP)
    full = n // BLOCK_R
    for step in tl.range(split + splits, full, splits):
        down = tl.cast(step, tl.int64) * BLOCK_R * inner
        x = tl.load(x_ptr + down + offs, mask=inside, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, step, inside, OP)
    if (full * BLOCK_R < n) & (full % splits == split) & (full != split):
        rest = inside & (offs_r < n - full * BLOCK_R)
        down = tl.cast(full, tl.int64) * BLOCK_R * inner
        x = tl.load(x_ptr + down + offs, mask=rest, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, beside = fold(acc, beside, x, full, rest, OP)
    if OP == "max":
        beside = tl.where(beside == NO_INDEX, NO_INDEX, beside * BLOCK_R + offs_r.to(tl.int32))
    acc, beside = collapse(acc, beside, 0 if DOWN else 1, OP)
    acc, beside = tl.reshape(acc, [BLOCK_O * BLOCK_C]), tl.reshape(beside, [BLOCK_O * BLOCK_C])
    place = tl.arange(0, BLOCK_O * BLOCK_C)
    offs_o, offs_c = place // BLOCK_C, place % BLOCK_C
    inside = (offs_o < outer - matrix) & (offs_c < inner - column)
    offs = (matrix + offs_o) * inner + column + offs_c
    write_shared(out_ptr, beside_ptr, part_ptr, counter_ptr, offs, acc, beside, outer * inner, split, splits, n, inside,
                 SPLITS, OP)  # fmt: skip


def launch_blocks(x, op, dtype=None, *, config):
    out, beside = results_like(x, op, dtype)
    outer, n, inner = x.shape
    gpu = gpu_of(x.device)
    block = block_of(config, outer, n, inner, vector_of(x), gpu)
    results = block.matrices * block.columns
    programs = triton.cdiv(outer, block.matrices) * triton.cdiv(inner, block.columns)
    most = max(1, PART_REGISTERS * 32 * config["num_warps"] // results)
    # Of two blocks at least: to combine parts takes longer than to read a second block.
    splits = splits_of(gpu, config, programs, n // (2 * block.rows), most)
    launch(
        _blocks_kernel,
        (programs * splits,),
        x,
        out,
        out if beside is None else beside,
        out if splits == 1 else scratch_for(x, op, programs, splits * outer * inner),
        outer,
        n,
        inner,
        splits,
        OP=op,
        BLOCK_O=block.matrices,
        BLOCK_R=block.rows,
        BLOCK_C=block.columns,
        DOWN=block.down,
        WIDTH_N=multiple_of(n, x) if inner == 1 else 1,
        WIDTH=multiple_of(inner, x),
        FAR=block.reach(n, inner) >= 2**31,
        SPLITS=triton.next_power_of_2(splits),
        POLICY=cache_policy(x),
        num_warps=config["num_warps"],
    )
    return returned(out, beside)
