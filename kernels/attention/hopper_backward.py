"""The backward pass for Hopper (sm_90) in Gluon: dQ, dK and dV in one kernel that computes each product once.

A program owns blocks of keys, one after the other, and goes through the queries that see them.  Two groups of four
warps (the consumers) take half of a block's keys each, and keep its dK and dV in registers; for each block of queries

    S^T = K Q^T,    P^T = exp2(S^T - lse),    dP^T = V dO^T,    dS^T = P^T * (dP^T - D),
    dV += P^T dO,    dK += dS^T Q,    dQ = dS K

where P^T and dS^T go from registers into the products of dV and dK, and dS through shared memory into that of dQ, of
which each group computes half of the columns.  Softmax, the exchange of dS and the way out of dQ run under products.
One warp loads (the producer): K and V once (of heads of 64 while the block before is worked on), Q, dO and their
statistics into a ring of two blocks, by TMA.  Two others (the writers) add the dQ of a block of keys to what others
have added, in memory, in fp32, by TMA (:mod:`.hopper_sums`), in the order of :mod:`.hopper_schedule`.

Where one block holds all keys of a head of more than 64 columns (WHOLE), dQ is complete as it is computed, and each
group writes its columns of it.
"""

import torch
from atlas.declaration import gpu_of
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

from .blocks import LOG2E, aligned_rows, wide, widest
from .hopper_parts import (
    add_products,
    begin_products,
    columns_of,
    no_sums,
    parts_of,
    right_of,
    store_sums,
    write_sums,
)
from .hopper_schedule import (
    KEYS,
    ROWS,
    STAGES,
    block_of,
    job_of,
    masks_of,
    members_of,
    part_of,
    slots_of,
)
from .hopper_sums import DQ_COLUMNS, add_in_turn, by_threads, finish_queries_kernel, leave_queries
from .hopper_tiles import anew, descriptor_of, plain_descriptor_of
from .parts import add_parts, heads_of_part, most_heads, sums_for

GROUPS = gl.constexpr(2)


@gluon.jit
def _produce(q_desc, k_desc, v_desc, dout_desc, stats_desc, buffers, barriers, sizes,
             CAUSAL: gl.constexpr):  # fmt: skip
    """The producer: each job's K and V, and its Q, dO and statistics block by block."""
    q_smem, dout_smem, stats_smem, k_smem, v_smem, _, _ = buffers
    k_full, k_empty, _, q_full, q_empty, dout_full, _, _, _, _ = barriers
    _, heads_k, _, _, m_blocks, _, _, _, jobs, parts, group = sizes
    rows: gl.constexpr = q_desc.block_shape[2]
    keys: gl.constexpr = k_desc.block_shape[2]
    BLOCKS: gl.constexpr = k_full.shape[0]
    step = 0
    done = 0
    for number in range(jobs):
        head_all, n, first, count, there = job_of(number, sizes, CAUSAL)
        if there:
            batch = head_all // heads_k
            head_k = head_all % heads_k
            block = done % BLOCKS
            full = k_full.index(block)
            mbarrier.wait(k_empty.index(block), (done // BLOCKS & 1) ^ 1)
            mbarrier.expect(full, 2 * GROUPS * k_desc.block_type.nbytes)
            for c in gl.static_range(GROUPS):
                corner, part = [batch, head_k // parts, (n * GROUPS + c) * keys, 0], block * GROUPS + c
                tma.async_copy_global_to_shared(k_desc, corner, full, k_smem.index(part))
                tma.async_copy_global_to_shared(v_desc, corner, full, v_smem.index(part))
            done += 1
            first_head, members = members_of(head_all, sizes)
            for member in range(members):
                head = first_head + member - batch * (heads_k // parts * group)
                for i in range(count):
                    m = block_of(number, i, first, m_blocks, CAUSAL)
                    slot = step % STAGES
                    parity = (step // STAGES & 1) ^ 1
                    full = q_full.index(slot)
                    mbarrier.wait(q_empty.index(slot), parity)
                    mbarrier.expect(full, q_desc.block_type.nbytes + stats_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(q_desc, [batch, head, m * rows, 0], full, q_smem.index(slot))
                    place = [0, first_head + member, m * rows]
                    tma.async_copy_global_to_shared(stats_desc, place, full, stats_smem.index(slot))
                    full = dout_full.index(slot)
                    mbarrier.expect(full, dout_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(dout_desc, [batch, head, m * rows, 0], full, dout_smem.index(slot))
                    step += 1


@gluon.jit
def _statistics(stats_smem, slot, ROWS: gl.constexpr):
    """log2(e) lse and D of a block of queries, [2, ROWS]."""
    return stats_smem.index(slot)._reinterpret(gl.float32, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _wait(pending: gl.constexpr, dk, dv, p, ds, RIGHT: gl.constexpr):
    """The sums and operands of products once no more than ``pending`` later ones are under way."""
    if RIGHT == 0:
        keys, values, p, ds = warpgroup_mma_wait(pending, deps=[dk[0], dv[0], p, ds])
        dk, dv = (keys,), (values,)
    else:
        keys, more_keys, values, more_values, p, ds = warpgroup_mma_wait(
            pending, deps=[dk[0], dk[1], dv[0], dv[1], p, ds]
        )
        dk, dv = (keys, more_keys), (values, more_values)
    return dk, dv, p, ds


@gluon.jit
def _block(
    dk, dv, s, lse, buffers, barriers, base, slot, next_slot, parity, next_parity, scale, first_n, first_m, masked,
    limit, leaving, place, MASKED: gl.constexpr, LAST: gl.constexpr, QUERIES: gl.constexpr, GROUP: gl.constexpr,
    D: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """(dk, dv, s, lse) after a block of queries, of which come S^T and the statistics: the new ones, unless LAST.

    K and V lie from ``base`` on in their rings.  With QUERIES the group computes dQ of the block, or of half of its
    columns, which goes to the writers or, where they are all there is, to place ``place`` of :func:`leave_queries`.
    """
    q_smem, dout_smem, stats_smem, k_smem, v_smem, ds_smem, dq_smem = buffers
    _, _, _, q_full, q_empty, dout_full, ds_full, ds_empty, dq_full, dq_empty = barriers
    dtype: gl.constexpr = q_smem.dtype
    keys: gl.constexpr = s.shape[0]
    rows: gl.constexpr = s.shape[1]
    s_layout: gl.constexpr = s.type.layout
    operand: gl.constexpr = gl.DotOperandLayout(0, dv[0].type.layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    together: gl.constexpr = DQ_COLUMNS
    PART: gl.constexpr = GROUP if together < D else 0
    columns: gl.constexpr = RIGHT if PART == 1 and RIGHT > 0 else together
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    BEGUN: gl.constexpr = 2 if RIGHT > 0 else 1  # products of the next scores, or of one sum
    zero = anew(base)
    zeros = gl.zeros([keys, rows], gl.float32, s_layout)
    dp = begin_products(parts_of(v_smem.index(zero + GROUP), RIGHT), dout_smem.index(slot), zeros, RIGHT)
    p = gl.exp2(s * scale - lse[None, :])
    if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
        if masked:
            offs_n = first_n + gl.arange(0, keys, layout=gl.SliceLayout(1, s_layout))
            offs_m = first_m + gl.arange(0, rows, layout=row_layout)
            p = gl.where(offs_n[:, None] <= gl.minimum(offs_m, limit)[None, :], p, 0.0)
    p_operand = gl.convert_layout(p.to(dtype), operand)
    dv = add_products(dv, p_operand, dout_smem.index(slot), RIGHT)
    dp = warpgroup_mma_wait(BEGUN, deps=[dp])
    delta = _statistics(stats_smem, slot, rows).index(1).load(row_layout)
    ds = (p * (dp - delta[None, :])).to(dtype)
    ds_slot = slot
    ds_parity = parity
    if leaving is not None:
        ds_slot = 0
        ds_parity = slot
        mbarrier.wait(ds_empty.index(0), slot ^ 1)
    ds_smem.index(ds_slot * GROUPS + GROUP).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_full.index(ds_slot), count=1)
    ds_operand = gl.convert_layout(ds, operand)
    dk = add_products(dk, ds_operand, q_smem.index(slot), RIGHT)
    if QUERIES:
        mbarrier.wait(ds_full.index(ds_slot), ds_parity)
        dq = gl.zeros([rows, columns], gl.float32, dq_layout)
        for c in gl.static_range(GROUPS):
            part = columns_of(k_smem.index(zero + c), PART * together, columns)
            share = ds_smem.index(ds_slot * GROUPS + c).permute((1, 0))
            dq = warpgroup_mma(share, part, dq, use_acc=c > 0, is_async=True)
        # The registers of the other products' left operands are free for the next scores.
        dk, dv, p_operand, ds_operand = _wait(GROUPS, dk, dv, p_operand, ds_operand, RIGHT)
    s_next = s
    if not LAST:
        mbarrier.wait(q_full.index(next_slot), next_parity)
        s_next = begin_products(parts_of(k_smem.index(zero + GROUP), RIGHT), q_smem.index(next_slot), zeros, RIGHT)
    if QUERIES:
        dq = warpgroup_mma_wait(0 if LAST else BEGUN, deps=[dq])
        if leaving is not None:
            mbarrier.arrive(ds_empty.index(0), count=1)
    else:
        dk, dv, p_operand, ds_operand = _wait(0 if LAST else BEGUN, dk, dv, p_operand, ds_operand, RIGHT)
    mbarrier.arrive(q_empty.index(slot), count=1)
    if QUERIES and leaving is not None:
        leave_queries(dq, dq_smem.index(GROUP), leaving, place, PART * together)
    elif QUERIES:
        mbarrier.wait(dq_empty.index(slot), parity ^ 1)
        lines: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        out = dq_smem.index(slot * (D // together) + PART)._reinterpret(gl.float32, [rows * columns // 128, 128], lines)
        out.store(by_threads(dq, rows, columns))
        fence_async_shared()
        mbarrier.arrive(dq_full.index(slot), count=1)
    if not LAST:
        lse = _statistics(stats_smem, next_slot, rows).index(0).load(row_layout)
        mbarrier.wait(dout_full.index(next_slot), next_parity)
        s_next = warpgroup_mma_wait(0, deps=[s_next])
    return dk, dv, s_next, lse


@gluon.jit
def _blocks(
    dk, dv, s, lse, buffers, barriers, base, step, within, number, n, first, count, scale, first_n, limit, sizes,
    leaving, place,
    MASKED: gl.constexpr, ALL: gl.constexpr, LAST: gl.constexpr, CAUSAL: gl.constexpr, TAIL: gl.constexpr,
    GROUP: gl.constexpr, D: gl.constexpr, RIGHT: gl.constexpr, ROWS: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """(dk, dv, s, lse) after UNROLL blocks of queries, from step ``within`` of a head on; LAST: the job's last ones.

    Without MASKED they need no mask, with ALL each does; else it is looked up.  The block of step 0 is number ``place``
    of all heads'.
    """
    for u in gl.static_range(UNROLL):
        first_m = 0
        masked = ALL
        if MASKED:
            first_m, some = masks_of(number, within + u, n, first, count, sizes, CAUSAL, TAIL, ROWS)
            if not ALL:
                masked = some
        slot, next_slot, parity, next_parity = slots_of(step + u, u, UNROLL)
        dk, dv, s, lse = _block(
            dk, dv, s, lse, buffers, barriers, base, slot, next_slot, parity, next_parity, scale, first_n, first_m,
            masked, limit, leaving, place + step + u, MASKED, LAST and u == UNROLL - 1, UNROLL == 1 or u == GROUP,
            GROUP, D, RIGHT,
        )  # fmt: skip
    return dk, dv, s, lse


@gluon.jit
def _consume(
    dk_desc, dv_desc, dk_sums_ptr, dv_sums_ptr, leaving, buffers, barriers, scale, scale_out, sizes,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, DIVIDED: gl.constexpr, D: gl.constexpr, RIGHT: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its half of each job's keys."""
    q_smem, _, stats_smem, k_smem, v_smem, _, _ = buffers
    k_full, k_empty, k_read, q_full, _, dout_full, _, _, _, _ = barriers
    len_k, heads_k, _, _, _, n_blocks, _, _, jobs, _, _ = sizes
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    BLOCKS: gl.constexpr = k_full.shape[0]
    # Where one group computes the dQ of a block, they take turns, and blocks are even in number.
    UNROLL: gl.constexpr = D // DQ_COLUMNS % 2 + 1
    step = 0
    done = 0
    for number in range(jobs):
        head_all, n, first, count, there = job_of(number, sizes, CAUSAL)
        if there:
            first_n = (n * GROUPS + GROUP) * KEYS
            first_head, members = members_of(head_all, sizes)
            place = 0
            if leaving is not None:
                place = first_head * sizes[4] - step
            steps = count * members
            limit = len_k - 1
            dk = no_sums(KEYS, D, RIGHT)
            dv = no_sums(KEYS, D, RIGHT)
            block = done % BLOCKS
            base = block * GROUPS
            mbarrier.wait(k_full.index(block), done // BLOCKS & 1)
            slot = step % STAGES
            mbarrier.wait(q_full.index(slot), step // STAGES & 1)
            s = gl.zeros([KEYS, ROWS], gl.float32, s_layout)
            s = begin_products(parts_of(k_smem.index(base + GROUP), RIGHT), q_smem.index(slot), s, RIGHT)
            lse = _statistics(stats_smem, slot, ROWS).index(0).load(gl.SliceLayout(0, s_layout))
            mbarrier.wait(dout_full.index(slot), step // STAGES & 1)
            s = warpgroup_mma_wait(0, deps=[s])
            if CAUSAL:
                for part in range(2 * members):
                    diagonal, begin, end = part_of(number, part, count, steps - UNROLL)
                    masked = diagonal
                    if TAIL:
                        masked = masked | (n == n_blocks - 1)
                    if masked:
                        for i in range(begin, end, UNROLL):
                            within = i - part // 2 * count
                            dk, dv, s, lse = _blocks(
                                dk, dv, s, lse, buffers, barriers, base, step, within, number, n, first, count, scale,
                                first_n, limit, sizes, leaving, place, True, True, False, CAUSAL, TAIL, GROUP, D, RIGHT,
                                ROWS, UNROLL,
                            )  # fmt: skip
                            step += UNROLL
                    else:
                        for _ in range(begin, end, UNROLL):
                            dk, dv, s, lse = _blocks(
                                dk, dv, s, lse, buffers, barriers, base, step, 0, number, n, first, count, scale,
                                first_n, limit, sizes, leaving, place, False, False, False, CAUSAL, TAIL, GROUP, D,
                                RIGHT, ROWS, UNROLL,
                            )  # fmt: skip
                            step += UNROLL
            else:
                for _ in range(steps // UNROLL - 1):
                    dk, dv, s, lse = _blocks(
                        dk, dv, s, lse, buffers, barriers, base, step, 0, number, n, first, count, scale, first_n,
                        limit, sizes, leaving, place, TAIL, False, False, CAUSAL, TAIL, GROUP, D, RIGHT, ROWS, UNROLL,
                    )  # fmt: skip
                    step += UNROLL
            dk, dv, s, lse = _blocks(
                dk, dv, s, lse, buffers, barriers, base, step, count - UNROLL, number, n, first, count, scale, first_n,
                limit, sizes, leaving, place, CAUSAL or TAIL, False, True, CAUSAL, TAIL, GROUP, D, RIGHT, ROWS, UNROLL,
            )  # fmt: skip
            step += UNROLL
            done += 1
            if DIVIDED:
                mbarrier.arrive(k_empty.index(block), count=1)
                write_sums(dv, 1.0, dv_sums_ptr, head_all, first_n, len_k, D, RIGHT)
                write_sums(dk, scale_out, dk_sums_ptr, head_all, first_n, len_k, D, RIGHT)
            else:
                # They leave through the shared memory of V, which this group alone reads, and of K, which both do.
                corner = [head_all // heads_k, head_all % heads_k, first_n, 0]
                store_sums(dv, v_smem.index(base + GROUP), 1.0, RIGHT)
                fence_async_shared()
                tma.async_copy_shared_to_global(dv_desc, corner, v_smem.index(base + GROUP))
                mbarrier.arrive(k_read, count=1)
                mbarrier.wait(k_read, (done & 1) ^ 1)
                store_sums(dk, k_smem.index(base + GROUP), scale_out, RIGHT)
                fence_async_shared()
                tma.async_copy_shared_to_global(dk_desc, corner, k_smem.index(base + GROUP))
                tma.store_wait(0)
                mbarrier.arrive(k_empty.index(block), count=1)


@gluon.jit(
    do_not_specialize=[
        "len_k", "heads_k", "most", "all_heads", "m_blocks", "n_blocks", "tiles", "programs", "jobs", "parts", "group",
    ]
)  # fmt: skip
def attention_backward_kernel(
    q_desc, k_desc, v_desc, dout_desc, stats_desc, dq_desc, rest_desc, dk_desc, dv_desc, dk_sums_ptr, dv_sums_ptr,
    turns_ptr, scale, scale_out, len_k, heads_k, most, all_heads, m_blocks, n_blocks, tiles, programs, jobs, parts,
    group,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, DIVIDED: gl.constexpr, D: gl.constexpr, RIGHT: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Descriptors of q, k, v, dout, dk and dv are of [b, h, l, d], of statistics [2, b h, l].

    That of dQ's sums is of lines of 128 fp32, as :func:`by_threads` makes them of a block, and so is ``rest_desc``, of
    RIGHT columns, if there are any.  ``scale`` has log2(e) in it, and so has lse; ``turns_ptr`` [b h, blocks of
    queries] begins with 0.  ``group`` heads of queries share a head of keys.  If DIVIDED that stands for ``parts``, of
    ``most`` heads of queries each, the last one of what is left, whose dK and dV are written as sums of fp32.

    WHOLE: a head's keys are one block, ``dq_desc`` is of dQ itself, in blocks of DQ_COLUMNS, and D is 128.  The room of
    dQ's sums is that of a second block of keys then, so that a job's loads lie under the one before.
    """
    dtype: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], dtype)
    q_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, ROWS, D], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, ROWS, D], dout_desc.layout)
    # Of keys: else heads of 128 leave no room for a second one.
    BLOCKS: gl.constexpr = 2 if WHOLE else 3 - D // DQ_COLUMNS
    DS_STAGES: gl.constexpr = 1 if WHOLE else STAGES
    k_smem = gl.allocate_shared_memory(dtype, [BLOCKS * GROUPS, 1, 1, KEYS, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [BLOCKS * GROUPS, 1, 1, KEYS, D], v_desc.layout)
    ds_smem = gl.allocate_shared_memory(dtype, [DS_STAGES * GROUPS, KEYS, ROWS], ds_layout)
    PARTS: gl.constexpr = D // DQ_COLUMNS
    if WHOLE:
        dq_smem = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, DQ_COLUMNS], dq_desc.layout)
        leaving = (dq_desc, scale_out, heads_k // parts * group, m_blocks)
    else:
        dq_smem = gl.allocate_shared_memory(gl.float32, [STAGES * PARTS, ROWS * DQ_COLUMNS // 128, 128], dq_desc.layout)
    stats_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 2, 1, ROWS], stats_desc.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], barrier)
    k_read = gl.allocate_shared_memory(gl.int64, [1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    dout_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    ds_full = gl.allocate_shared_memory(gl.int64, [DS_STAGES, 1], barrier)
    ds_empty = ds_full
    if WHOLE:
        ds_empty = gl.allocate_shared_memory(gl.int64, [1, 1], barrier)
        mbarrier.init(ds_empty.index(0), count=GROUPS)
    dq_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    dq_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for block in gl.static_range(BLOCKS):
        mbarrier.init(k_full.index(block), count=1)
        mbarrier.init(k_empty.index(block), count=GROUPS)
    mbarrier.init(k_read, count=GROUPS)
    for slot in gl.static_range(STAGES):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=GROUPS)
        mbarrier.init(dout_full.index(slot), count=1)
        if slot < DS_STAGES:
            mbarrier.init(ds_full.index(slot), count=GROUPS)
        mbarrier.init(dq_full.index(slot), count=PARTS)
        mbarrier.init(dq_empty.index(slot), count=1)
    fence_async_shared()
    buffers = (q_smem, dout_smem, stats_smem, k_smem, v_smem, ds_smem, dq_smem)
    barriers = (k_full, k_empty, k_read, q_full, q_empty, dout_full, ds_full, ds_empty, dq_full, dq_empty)
    sizes = (len_k, heads_k, most, all_heads, m_blocks, n_blocks, tiles, programs, jobs, parts, group)
    if WHOLE:
        gl.warp_specialize(
            [
                (_consume, (dk_desc, dv_desc, dk_sums_ptr, dv_sums_ptr, leaving, buffers, barriers, scale, scale_out,
                            sizes, CAUSAL, TAIL, DIVIDED, D, RIGHT, ROWS, KEYS, 0)),
                (_consume, (dk_desc, dv_desc, dk_sums_ptr, dv_sums_ptr, leaving, buffers, barriers, scale, scale_out,
                            sizes, CAUSAL, TAIL, DIVIDED, D, RIGHT, ROWS, KEYS, 1)),
                (_produce, (q_desc, k_desc, v_desc, dout_desc, stats_desc, buffers, barriers, sizes, CAUSAL)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (dk_desc, dv_desc, dk_sums_ptr, dv_sums_ptr, None, buffers, barriers, scale, scale_out,
                            sizes, CAUSAL, TAIL, DIVIDED, D, RIGHT, ROWS, KEYS, 0)),
                (_consume, (dk_desc, dv_desc, dk_sums_ptr, dv_sums_ptr, None, buffers, barriers, scale, scale_out,
                            sizes, CAUSAL, TAIL, DIVIDED, D, RIGHT, ROWS, KEYS, 1)),
                (_produce, (q_desc, k_desc, v_desc, dout_desc, stats_desc, buffers, barriers, sizes, CAUSAL)),
                (add_in_turn, (dq_desc, rest_desc, turns_ptr, buffers, barriers, sizes, CAUSAL, PARTS, 0)),
                (add_in_turn, (dq_desc, rest_desc, turns_ptr, buffers, barriers, sizes, CAUSAL, PARTS, 1)),
            ],
            [4, 1, 1, 1],
            [240, 24, 24, 24],
        )  # fmt: skip


def launch_by_tma(q, k, v, dout, stats, turns, gradients, causal, scale, *, config):
    """Fill dq, dk and dv; q [b, h, l, d], k [b, g, s, d], v [b, g, s, e], as the copy engine can read them.

    d and e are at most 128: the copy engine fills the narrower heads up with 0.

    With ``causal`` query i sees keys up to i, and there are no more keys than queries.

    ``stats`` [2, b, h, padded] are log2(e) lse and D of each query, inf and 0 behind the last up to whole blocks;
    ``turns`` [b h padded / ROWS] of int32 are 0, or None where nobody adds up dQ: of at most 128 keys, and heads of
    more than 64.  With EVEN each program has as many blocks of keys as any other, else those of the last turn lie idle
    that it has none for.
    """
    (batch, heads, len_q, d), (heads_k, len_k) = q.shape, k.shape[1:3]
    dq, dk, dv = gradients
    padded = stats.shape[3]
    m_blocks, n_blocks = padded // ROWS, -(-len_k // (2 * KEYS))
    columns_there = widest(k, v).shape[3]
    width, right = wide(columns_there), right_of(columns_there)
    columns = DQ_COLUMNS.value
    whole = turns is None
    if whole:
        described = descriptor_of(dq, ROWS, columns), None
    else:
        sums = torch.empty((batch * heads * padded * width // 128, 128), dtype=torch.float32, device=q.device)
        described = (
            plain_descriptor_of(sums, [ROWS * columns // 128, 128]),
            plain_descriptor_of(sums, [ROWS * right // 128, 128]) if right else None,
        )
    tiles = -(-n_blocks // 2) if causal else n_blocks  # of a head
    group, sms = heads // heads_k, gpu_of(q.device).sms
    most = heads_of_part(group, batch * heads_k * tiles, m_blocks, sms, most_heads(group, width, len_q, causal))
    parts = -(-group // most)
    dk_sums, dv_sums = key_sums = sums_for(widest(k, v), parts) if parts > 1 else (None, None)
    heads_k *= parts
    tiles_all = batch * heads_k * tiles
    programs = min(sms, tiles_all)
    if config["EVEN"]:
        programs = -(-tiles_all // -(-tiles_all // programs))
    launch(
        attention_backward_kernel, (programs,),
        descriptor_of(q, ROWS, width), descriptor_of(k, KEYS, width), descriptor_of(v, KEYS, width),
        descriptor_of(dout, ROWS, width),
        plain_descriptor_of(stats.view(2, batch * heads, padded), [2, 1, ROWS]), *described,
        descriptor_of(dk, KEYS, width), descriptor_of(dv, KEYS, width), dk_sums, dv_sums, turns,
        scale * LOG2E.value, scale,
        len_k, heads_k, most, batch * heads_k, m_blocks, n_blocks, tiles, programs,
        -(-tiles_all // programs) * (2 if causal else 1), parts, group,
        CAUSAL=causal, TAIL=len_k % (2 * KEYS) != 0, DIVIDED=parts > 1, D=width, RIGHT=right,
        ROWS=ROWS, KEYS=KEYS, WHOLE=whole, num_warps=4,
        **({} if whole else {"launch_cooperative_grid": True}),
    )  # fmt: skip
    if parts > 1:
        add_parts(key_sums, (dk, dv), parts)
    if whole:
        return
    launch(
        finish_queries_kernel, (batch * heads * m_blocks * width // columns,),
        sums, dq, scale, heads, len_q, m_blocks, *dq.stride()[:3],
        HEAD_DIM=d, ROWS=ROWS, D=width, COLUMNS=columns, ALIGNED=aligned_rows(dq), num_warps=4,
    )  # fmt: skip
