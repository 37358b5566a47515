"""Sums, means and maxima over a middle axis where rows are no whole 16-byte vectors: several rows as one.

Row by row nearly every element would be read by itself.  But F rows together are whole vectors, with F at most the
elements of a vector, and a matrix is a run of such groups, with less than F rows before them and after.
"""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch

from .folded_spaces import run_of, shares_of
from .folding import collapse, fold, identity_of
from .results import cache_policy, open_counter, read_parts, results_like, scratch_for, vector_of, write_shared

_ALIGNED = 4
"""Elements by which what a program keeps for itself may begin later, so that it begins on 16 bytes."""

_HELD = 16
"""Elements that each thread reads at once where rows are added up one beside the other."""


@triton.jit
def _folded_kernel(x_ptr, out_ptr, scratch_ptr, outer, n, inner, rows, splits, OP: tl.constexpr,
                   BLOCK: tl.constexpr, GROUP: tl.constexpr, VECTOR: tl.constexpr, BLOCK_R: tl.constexpr,
                   BLOCK_C: tl.constexpr, SPLITS: tl.constexpr, POLICY: tl.constexpr):  # fmt: skip
    """One program owns every ``splits``-th run of ``rows`` rows of a matrix, as one line of BLOCK >= rows * inner.

    Every place of the line has its own accumulator.  GROUP divides ``rows``, and GROUP * inner is a multiple of VECTOR;
    BLOCK_C >= inner; SPLITS >= splits.
    """
    matrix = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    before = tl.cast(matrix, tl.int64) * n  # rows
    head = ((-before) % GROUP + GROUP).to(tl.int32) % GROUP
    groups = (n - head) // GROUP
    wide = GROUP * inner // VECTOR * VECTOR  # so said, the compiler accesses VECTOR elements at once
    line = rows // GROUP * wide
    total = tl.cast(groups, tl.int64) * wide
    start_ptr = x_ptr + (before + head) // GROUP * wide
    offs = tl.arange(0, BLOCK)
    inside = offs < line
    down = split.to(tl.int64) * line
    mask = inside & (offs < total - down)
    acc = tl.load(start_ptr + down + offs, mask=mask, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
    outputs = tl.cast(outer, tl.int64) * inner
    counter_ptr = scratch_ptr.to(tl.pointer_type(tl.int64)) + matrix
    part_ptr = scratch_ptr + 2 * outer
    # On 16 bytes, as its places are: threads store several at once.
    own_ptr = scratch_ptr + tl.cdiv(2 * outer + splits * outputs, 4) * 4 + tl.program_id(0).to(tl.int64) * line
    if SPLITS > 1:
        open_counter(counter_ptr)  # while the first rows are on their way
    full = groups * GROUP // rows
    for step in tl.range(split + splits, full, splits):
        down = tl.cast(step, tl.int64) * line
        x = tl.load(start_ptr + down + offs, mask=inside, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, _ = fold(acc, acc, x, step, inside, OP)
    if (full * rows < groups * GROUP) & (full % splits == split) & (full != split):
        down = tl.cast(full, tl.int64) * line
        rest = inside & (offs < total - down)
        x = tl.load(start_ptr + down + offs, mask=rest, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
        acc, _ = fold(acc, acc, x, full, rest, OP)
    # Places of a column come together through memory: no axis of a block is as long as ``inner``.
    tl.store(own_ptr + offs, acc, mask=inside)
    tl.debug_barrier()
    offs_r, offs_c = tl.arange(0, BLOCK_R)[:, None], tl.arange(0, BLOCK_C)[None, :]
    some, _ = read_parts(own_ptr, offs_r, offs_c, rows, inner, offs_c < inner, OP)
    for row in tl.range(BLOCK_R, rows, BLOCK_R):
        more, _ = read_parts(own_ptr, row + offs_r, offs_c, rows, inner, offs_c < inner, OP)
        some, _ = fold(some, some, more, 0, offs_c < inner, OP)
    if split == splits - 1:  # rows before the first group, and behind the last
        behind = n - groups * GROUP  # and before, together
        for first in tl.range(0, behind, BLOCK_R):
            left = first + offs_r
            there = (left < behind) & (offs_c < inner)
            left = tl.where(left < head, left, left + groups * GROUP)
            at = (before + left) * inner + offs_c
            edge = tl.load(x_ptr + at, mask=there, other=identity_of(OP)).to(tl.float32)
            some, _ = fold(some, some, edge, 0, there, OP)
    value, _ = collapse(some, some, 0, OP)
    offs_c = tl.arange(0, BLOCK_C)
    offs = tl.cast(matrix, tl.int64) * inner + offs_c
    inside = offs_c < inner
    write_shared(out_ptr, out_ptr, part_ptr, counter_ptr, offs, value, value, outputs, split, splits, n, inside, SPLITS,
                 OP)  # fmt: skip


def launch_folded(x, op, dtype=None, *, config):
    out, _ = results_like(x, op, dtype)
    outer, n, inner = x.shape
    run = run_of(config, inner, vector_of(x))
    threads, wide = 32 * config["num_warps"], triton.next_power_of_2(inner)
    splits = shares_of(gpu_of(x.device), config, outer, n, inner, run.rows)
    launch(
        _folded_kernel,
        (outer * splits,),
        x,
        out,
        scratch_for(x, op, outer, splits * (out.numel() + outer * run.rows * inner) + _ALIGNED),
        outer,
        n,
        inner,
        run.rows,
        splits,
        OP=op,
        BLOCK=run.block,
        GROUP=run.group,
        VECTOR=vector_of(x),
        BLOCK_R=max(1, _HELD * threads // wide),
        BLOCK_C=wide,
        SPLITS=triton.next_power_of_2(splits),
        POLICY=cache_policy(x),
        num_warps=config["num_warps"],
    )
    return out
