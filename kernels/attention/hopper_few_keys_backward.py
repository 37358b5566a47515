"""The backward pass of few keys and many queries on Hopper (sm_90) in Gluon: a head's keys are 64, or two halves.

A program has a multiprocessor for itself.  It owns the keys of one head of K and goes through blocks of queries of the
heads that share it.  Such heads are bound by memory, so what counts is that loads never wait: one warp (the producer)
loads Q, dO and O by TMA into a ring of blocks, ahead of two groups of four warps that take every other block.  Each
group keeps sums of dK and dV of all keys in registers, and waits for nobody; for each half of 64 keys

    S^T = K Q^T,    P^T = exp2(S^T - lse),    dP^T = V dO^T,    dS^T = P^T * (dP^T - D),
    dV += P^T dO,    dK += dS^T Q,    dQ += dS K

with D = sum(dout out) from the blocks at hand.  dQ is complete then, and leaves through the memory of O.
"""

import torch
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .blocks import LOG2E, strides_of_lse
from .few_keys import FEW, dealt_out
from .hopper_parts import begin_products, no_sums, parts_of, write_sums
from .hopper_tiles import anew, descriptor_of
from .parts import add_parts

ROWS = 64
"""Queries of a block."""

KEYS = 64
"""Keys of a half: what one wgmma multiplies."""

GROUPS = gl.constexpr(2)
"""Groups of four warps that take a program's blocks of queries in turn."""

_ALONE = 8
"""Warps of a program that has a multiprocessor for itself, as :func:`.few_keys.dealt_out` counts."""

_LEAST, _LEAST_UNDIVIDED = 3, 7
"""Blocks of a program from which on it is sooner done than the kernel of :mod:`.few_keys` (H200).

Beginning takes longer, and sums of both groups are written and added up.  That kernel writes them where a head's
queries are dealt out, too, but not where a head is one program's.
"""


def sooner_by_tma(q, k):
    """Whether this kernel takes so many keys of such heads, and each program has blocks enough."""
    if k.shape[2] > (FEW if q.shape[3] <= 64 else KEYS):
        return False
    parts, steps = dealt_out(q, k, _ALONE)
    return steps >= (_LEAST if parts > 1 else _LEAST_UNDIVIDED)


@gluon.jit
def _place_of(sizes):
    """(batch, head of keys, the program's first block of queries, how many blocks)."""
    heads_k, group, parts, steps, blocks, _, _ = sizes
    place = gl.program_id(0) // parts
    first = gl.program_id(0) % parts * steps
    return place // heads_k, place % heads_k, first, gl.minimum(steps, group * blocks - first)


@gluon.jit
def _produce(q_desc, dout_desc, out_desc, k_desc, v_desc, buffers, barriers, sizes, HALVES: gl.constexpr):
    """The producer: K and V once, and the program's blocks of Q, dO and O."""
    q_smem, dout_smem, out_smem, k_smem, v_smem, _, _ = buffers
    k_full, q_full, q_empty, out_full, out_empty = barriers
    _, group, _, _, blocks, _, _ = sizes
    rows: gl.constexpr = q_desc.block_shape[2]
    keys: gl.constexpr = k_desc.block_shape[2]
    STAGES: gl.constexpr = q_full.shape[0]
    batch, head_k, first, count = _place_of(sizes)
    mbarrier.expect(k_full, 2 * HALVES * k_desc.block_type.nbytes)
    for c in gl.static_range(HALVES):
        tma.async_copy_global_to_shared(k_desc, [batch, head_k, c * keys, 0], k_full, k_smem.index(c))
        tma.async_copy_global_to_shared(v_desc, [batch, head_k, c * keys, 0], k_full, v_smem.index(c))
    for i in range(count):
        corner = [batch, head_k * group + (first + i) // blocks, (first + i) % blocks * rows, 0]
        slot = i % STAGES
        parity = (i // STAGES & 1) ^ 1
        full = q_full.index(slot)
        mbarrier.wait(q_empty.index(slot), parity)
        mbarrier.expect(full, 2 * q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, corner, full, q_smem.index(slot))
        tma.async_copy_global_to_shared(dout_desc, corner, full, dout_smem.index(slot))
        full = out_full.index(slot)
        mbarrier.wait(out_empty.index(slot), parity)
        mbarrier.expect(full, out_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(out_desc, corner, full, out_smem.index(slot))


@gluon.jit
def _statistic(x_ptr, strides, batch, number, head_k, sizes, other: gl.constexpr, layout: gl.constexpr,
               ROWS: gl.constexpr):  # fmt: skip
    """lse, or its gradient, of the block of queries ``number`` of a head of keys; ``other`` where there is no query."""
    _, group, _, _, blocks, len_q, _ = sizes
    head = head_k * group + number // blocks
    offs_m = number % blocks * ROWS + gl.arange(0, ROWS, layout=layout)
    x_ptr += batch.to(gl.int64) * strides[0] + head.to(gl.int64) * strides[1]
    return gl.load(x_ptr + offs_m, mask=(offs_m < len_q) & (number < group * blocks), other=other)


@gluon.jit
def _seen(p, first_key, first_query, len_k, CAUSAL: gl.constexpr, layout: gl.constexpr):
    """P^T of keys that are there and, where CAUSAL, not after their query; else 0."""
    keys: gl.constexpr = p.shape[0]
    rows: gl.constexpr = p.shape[1]
    offs_n = first_key + gl.arange(0, keys, layout=gl.SliceLayout(1, layout))
    seen = (offs_n < len_k)[:, None]
    if CAUSAL:
        offs_m = first_query + gl.arange(0, rows, layout=gl.SliceLayout(0, layout))
        seen = seen & (offs_n[:, None] <= offs_m[None, :])
    return gl.where(seen, p, 0.0)


@gluon.jit
def _begin_dq(ds_smem, k_smem, first_ds, first_half, HALVES: gl.constexpr, layout: gl.constexpr):
    """Begin dQ = dS K of a block of queries, of all halves of the keys."""
    KEYS: gl.constexpr = ds_smem.shape[1]
    ROWS: gl.constexpr = ds_smem.shape[2]
    D: gl.constexpr = k_smem.shape[4]
    dq = gl.zeros([ROWS, D], gl.float32, layout)
    for c in gl.static_range(HALVES):
        ds = ds_smem.index(first_ds + c).permute((1, 0))
        k = k_smem.index(first_half + c).reshape([KEYS, D])
        dq = warpgroup_mma(ds, k, dq, use_acc=c > 0, is_async=True)
    return dq


@gluon.jit
def _consume(
    dq_desc, lse_ptr, dlse_ptr, dk_sums_ptr, dv_sums_ptr, buffers, barriers, scale, scale_out, strides, sizes,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr,
    HALVES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: every other block of the program's queries."""
    q_smem, dout_smem, out_smem, k_smem, v_smem, ds_smem, notes = buffers
    k_full, q_full, q_empty, out_full, out_empty = barriers
    _, _, _, _, blocks, _, len_k = sizes
    dtype: gl.constexpr = q_smem.dtype
    STAGES: gl.constexpr = q_full.shape[0]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sums_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums_layout, 2)
    of_queries: gl.constexpr = gl.SliceLayout(0, s_layout)
    across: gl.constexpr = D // 8  # threads that share a row, with 16 bytes each
    of_rows: gl.constexpr = gl.BlockedLayout([1, 8], [32 // across, across], [4, 1], [1, 0])
    of_row: gl.constexpr = gl.SliceLayout(1, of_rows)
    batch, head_k, first, count = _place_of(sizes)
    EARLY: gl.constexpr = D * HALVES <= 64  # else there are no registers for scores while D is computed
    zeros = gl.zeros([KEYS, ROWS], gl.float32, s_layout)
    dk = no_sums(KEYS, D, 0) if HALVES == 1 else no_sums(KEYS, D, 0) + no_sums(KEYS, D, 0)
    dv = dk
    infinite: gl.constexpr = float("inf")
    lse_ahead = _statistic(lse_ptr, strides, batch, first + GROUP, head_k, sizes, infinite, of_row, ROWS)
    mbarrier.wait(k_full, 0)
    for i in range(GROUP, count, GROUPS):
        slot = i % STAGES
        parity = i // STAGES & 1
        zero = anew(0)
        q = q_smem.index(slot)
        dout = dout_smem.index(slot)
        mbarrier.wait(q_full.index(slot), parity)
        if EARLY:
            s = begin_products(parts_of(k_smem.index(zero), 0), q, zeros, 0)
            dp = begin_products(parts_of(v_smem.index(zero), 0), dout, zeros, 0)
        if i > GROUP:  # dQ of the block before has left the memory of its O
            tma.store_wait(0)
            mbarrier.arrive(out_empty.index((i - GROUPS) % STAGES), count=1)
        mbarrier.wait(out_full.index(slot), parity)
        out = out_smem.index(slot).reshape([ROWS, D])
        delta = gl.sum(out.load(of_rows).to(gl.float32) * dout.reshape([ROWS, D]).load(of_rows).to(gl.float32), 1)
        if dlse_ptr is not None:
            delta -= _statistic(dlse_ptr, strides, batch, first + i, head_k, sizes, 0.0, of_row, ROWS)
        lse = lse_ahead * LOG2E
        notes.index(zero + 2 * GROUP).store(gl.where(lse == -infinite, infinite, lse))
        notes.index(zero + 2 * GROUP + 1).store(delta)
        lse_ahead = _statistic(lse_ptr, strides, batch, first + i + GROUPS, head_k, sizes, infinite, of_row, ROWS)
        for c in gl.static_range(HALVES):
            if c > 0 or not EARLY:
                s = begin_products(parts_of(k_smem.index(zero + c), 0), q, zeros, 0)
                dp = begin_products(parts_of(v_smem.index(zero + c), 0), dout, zeros, 0)
            s = warpgroup_mma_wait(1, deps=[s])
            lse = notes.index(zero + 2 * GROUP).load(of_queries)
            p = gl.exp2(s * scale - lse[None, :])
            if CAUSAL or (TAIL and c == HALVES - 1):
                p = _seen(p, c * KEYS, (first + i) % blocks * ROWS, len_k, CAUSAL, s_layout)
            p_operand = gl.convert_layout(p.to(dtype), operand)
            values = warpgroup_mma(p_operand, dout.reshape([ROWS, D]), dv[c], is_async=True)
            dp = warpgroup_mma_wait(1, deps=[dp])
            delta = notes.index(zero + 2 * GROUP + 1).load(of_queries)
            ds = (p * (dp - delta[None, :])).to(dtype)
            ds_smem.index(zero + GROUP * HALVES + c).store(ds)
            ds_operand = gl.convert_layout(ds, operand)
            keys = warpgroup_mma(ds_operand, q.reshape([ROWS, D]), dk[c], is_async=True)
            if c < HALVES - 1:
                values, p_operand = warpgroup_mma_wait(1, deps=[values, p_operand])
                dk = (keys, dk[1])
                dv = (values, dv[1])
                first_operand = ds_operand
            elif HALVES == 1:
                dk = (keys,)
                dv = (values,)
            else:
                dk = (dk[0], keys)
                dv = (dv[0], values)
        fence_async_shared()
        dq = _begin_dq(ds_smem, k_smem, zero + GROUP * HALVES, zero, HALVES, sums_layout)
        if HALVES == 1:
            dq, keys, values, p_operand, ds_operand = warpgroup_mma_wait(
                0, deps=[dq, dk[0], dv[0], p_operand, ds_operand]
            )
            dk, dv = (keys,), (values,)
        else:
            dq, keys, values, more_keys, more_values, p_operand, ds_operand, first_operand = warpgroup_mma_wait(
                0, deps=[dq, dk[0], dv[0], dk[1], dv[1], p_operand, ds_operand, first_operand]
            )
            dk, dv = (keys, more_keys), (values, more_values)
        mbarrier.arrive(q_empty.index(slot), count=1)
        out.store((dq * scale_out).to(dtype))
        fence_async_shared()
        head = head_k * sizes[1] + (first + i) // blocks
        tma.async_copy_shared_to_global(dq_desc, [batch, head, (first + i) % blocks * ROWS, 0], out_smem.index(slot))
    tma.store_wait(0)
    part = gl.program_id(0) * GROUPS + GROUP
    for c in gl.static_range(HALVES):
        write_sums((dk[c],), scale_out, dk_sums_ptr, part, c * KEYS, len_k, D, 0)
        write_sums((dv[c],), 1.0, dv_sums_ptr, part, c * KEYS, len_k, D, 0)


@gluon.jit(
    do_not_specialize=["stride_lb", "stride_lh", "heads_k", "group", "parts", "steps", "blocks", "len_q", "len_k"]
)
def few_keys_backward_kernel(
    q_desc, dout_desc, out_desc, k_desc, v_desc, dq_desc, lse_ptr, dlse_ptr, dk_sums_ptr, dv_sums_ptr, scale, scale_out,
    stride_lb, stride_lh, heads_k, group, parts, steps, blocks, len_q, len_k,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, HALVES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], in blocks of a head's rows; ``scale`` has log2(e) in it.

    Each head of K is ``parts`` programs', of ``steps`` blocks of queries each, the last one's of what is left; sums of
    dK and dV are one for each group of each program, [b, heads of K, parts, GROUPS, s, d] of fp32.
    """
    dtype: gl.constexpr = q_desc.dtype
    D: gl.constexpr = q_desc.block_shape[3]
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], dtype)
    q_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, ROWS, D], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, ROWS, D], dout_desc.layout)
    out_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, ROWS, D], out_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [HALVES, 1, 1, KEYS, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [HALVES, 1, 1, KEYS, D], v_desc.layout)
    ds_smem = gl.allocate_shared_memory(dtype, [GROUPS * HALVES, KEYS, ROWS], ds_layout)
    notes = gl.allocate_shared_memory(gl.float32, [2 * GROUPS, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    out_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    out_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(k_full, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=1)
        mbarrier.init(out_full.index(slot), count=1)
        mbarrier.init(out_empty.index(slot), count=1)
    fence_async_shared()
    buffers = (q_smem, dout_smem, out_smem, k_smem, v_smem, ds_smem, notes)
    barriers = (k_full, q_full, q_empty, out_full, out_empty)
    strides = (stride_lb, stride_lh)
    sizes = (heads_k, group, parts, steps, blocks, len_q, len_k)
    gl.warp_specialize(
        [
            (_consume, (dq_desc, lse_ptr, dlse_ptr, dk_sums_ptr, dv_sums_ptr, buffers, barriers, scale, scale_out,
                        strides, sizes, CAUSAL, TAIL, ROWS, KEYS, D, HALVES, 0)),
            (_consume, (dq_desc, lse_ptr, dlse_ptr, dk_sums_ptr, dv_sums_ptr, buffers, barriers, scale, scale_out,
                        strides, sizes, CAUSAL, TAIL, ROWS, KEYS, D, HALVES, 1)),
            (_produce, (q_desc, dout_desc, out_desc, k_desc, v_desc, buffers, barriers, sizes, HALVES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


_STAGES = {32: 8, 64: 6, 128: 3}
"""Blocks of queries that the ring holds, by the columns that a head is computed in."""


def backward_few_keys_by_tma(q, k, v, out, lse, dout, dlse, causal, scale):
    """(dq, dk, dv) of at most 128 keys, 64 of heads beyond 64, all as the copy engine can read it.

    The arguments are those of :func:`.backward.launch_backward`.
    """
    (batch, heads, len_q, head_dim), (heads_k, len_k) = q.shape, k.shape[1:3]
    parts, steps = dealt_out(q, k, _ALONE)
    columns = next(columns for columns in _STAGES if head_dim <= columns)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    all_parts = parts * GROUPS.value
    sums = torch.empty((2, batch, heads_k * all_parts, len_k, columns), dtype=torch.float32, device=q.device)
    launch(
        few_keys_backward_kernel, (batch * heads_k * parts,),
        *(descriptor_of(x, ROWS, columns) for x in (q, dout, out)), *(descriptor_of(x, KEYS, columns) for x in (k, v)),
        descriptor_of(dq, ROWS, columns), lse, dlse, *sums, scale * LOG2E.value, scale, *strides_of_lse(lse),
        heads_k, heads // heads_k, parts, steps, -(-len_q // ROWS), len_q, len_k,
        CAUSAL=causal, TAIL=len_k % KEYS != 0, ROWS=ROWS, KEYS=KEYS, HALVES=-(-len_k // KEYS),
        STAGES=_STAGES[columns], num_warps=4,
    )  # fmt: skip
    add_parts(sums, (dk, dv), all_parts)
    return dq, dk, dv
