"""dK and dV of wide heads on Hopper (sm_90), in Gluon: a kernel whose two groups of warps each own one of the two.

A program has a multiprocessor for itself.  It owns a block of 64 keys, and goes through the queries that see them, 64
at a time.  dK and dV of a head of 256 are 128 registers a thread each, so that no group can hold both:

    values    S^T = K Q^T,    P^T = exp2(S^T - lse),    dV += P^T dO
    keys      dP^T = V dO^T,    dS^T = P^T * (dP^T - D),    dK += dS^T Q

P^T goes from the one to the other through shared memory, in fp16: it is at most 1, and dS is rounded to 16 bits anyway.
It is computed times 2^15, so that of millions of keys none is below what fp16 has.  Both are operands from registers.
Each group begins its next scores behind its sum, and has two products of four, so one's exponentials run under the
other's products.  Two warps load by TMA: one K and V, one Q (by halves of a head, into a ring of five) and dO (into a
ring of two) with their statistics.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_parts import (
    add_products,
    begin_products,
    columns_of,
    no_sums,
    parts_of,
    send_sums,
    wait_for_sums,
    write_sums,
)
from .hopper_tiles import tile_of

HALVES = gl.constexpr(5)
"""Halves of blocks of Q in shared memory."""

STAGES = gl.constexpr(2)
"""Blocks of dO, and of P^T, in shared memory."""

SHIFT = gl.constexpr(15)
"""Log2 of the factor that P^T has, in both groups."""

UNSHIFT = gl.constexpr(2.0**-15)
"""What takes the factor out again."""

NOTES = gl.constexpr(3)
"""Blocks of queries whose lse is in shared memory: as many as any of whose Q is."""


@gluon.jit
def job_of(turn, sizes, CAUSAL: gl.constexpr):
    """(block of keys, head of keys of all batches, first block of queries, how many, whether there is a job)."""
    _, _, m_blocks, n_blocks, all_heads, section = sizes
    n, place, there = tile_of(turn, n_blocks, all_heads, section, CAUSAL)
    first = 0
    if CAUSAL:  # tile_of takes the last block for the longest
        n = n_blocks - 1 - n
        first = n
    return n, place, first, m_blocks - first, there


@gluon.jit
def _load_keys(k_desc, v_desc, buffers, barriers, sizes, parts, CAUSAL: gl.constexpr):
    """One of the warps that load: each job's K and V, whose memory dV and dK of the job before leave from."""
    k_smem, v_smem = buffers[0], buffers[1]
    k_full, k_empty, v_full, v_empty = barriers[0], barriers[1], barriers[2], barriers[3]
    heads_k, _, _, n_blocks, all_heads, _ = sizes
    keys: gl.constexpr = k_desc.block_shape[2]
    done = 0
    for turn in range(gl.cdiv(n_blocks * all_heads, gl.num_programs(0))):
        n, place, _, _, there = job_of(turn, sizes, CAUSAL)
        if there:
            corner = [place // heads_k, place % heads_k // parts, n * keys, 0]
            mbarrier.wait(k_empty, (done & 1) ^ 1)
            mbarrier.expect(k_full, k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, corner, k_full, k_smem.index(0))
            mbarrier.wait(v_empty, (done & 1) ^ 1)
            mbarrier.expect(v_full, v_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(v_desc, corner, v_full, v_smem.index(0))
            done += 1


@gluon.jit
def _load_queries(q_desc, dout_desc, stats_desc, buffers, barriers, sizes, CAUSAL: gl.constexpr):
    """The other one: the queries of each job, with lse, and their dO, with D."""
    _, _, q_smem, dout_smem, lse_smem, delta_smem, _ = buffers
    _, _, _, _, q_full, q_empty, dout_full, dout_empty, _, _ = barriers
    heads_k, group, _, n_blocks, all_heads, _ = sizes
    rows: gl.constexpr = q_desc.block_shape[2]
    columns: gl.constexpr = q_desc.block_shape[3]
    step = 0
    for turn in range(gl.cdiv(n_blocks * all_heads, gl.num_programs(0))):
        _, place, first, count, there = job_of(turn, sizes, CAUSAL)
        if there:
            batch = place // heads_k
            for member in range(group):
                head = place % heads_k * group + member
                for i in range(count):
                    row = (first + i) * rows
                    for half in gl.static_range(2):
                        part = 2 * step + half
                        slot = part % HALVES
                        full = q_full.index(slot)
                        mbarrier.wait(q_empty.index(slot), (part // HALVES & 1) ^ 1)
                        if half == 0:
                            mbarrier.expect(full, q_desc.block_type.nbytes + stats_desc.block_type.nbytes)
                            corner = [0, place * group + member, row]
                            tma.async_copy_global_to_shared(stats_desc, corner, full, lse_smem.index(step % NOTES))
                        else:
                            mbarrier.expect(full, q_desc.block_type.nbytes)
                        corner = [batch, head, row, half * columns]
                        tma.async_copy_global_to_shared(q_desc, corner, full, q_smem.index(slot))
                    slot = step % STAGES
                    full = dout_full.index(slot)
                    mbarrier.wait(dout_empty.index(slot), (step // STAGES & 1) ^ 1)
                    mbarrier.expect(full, dout_desc.block_type.nbytes + stats_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(dout_desc, [batch, head, row, 0], full, dout_smem.index(slot))
                    corner = [1, place * group + member, row]
                    tma.async_copy_global_to_shared(stats_desc, corner, full, delta_smem.index(slot))
                    step += 1


@gluon.jit
def _statistic(smem, slot, layout: gl.constexpr):
    """One of a block of queries' statistics, [queries]."""
    row = smem.index(slot)._reinterpret(gl.float32, [smem.shape[3]], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return row.load(gl.SliceLayout(0, layout))


@gluon.jit
def _begin_scores(k, q_smem, q_full, step, zeros, RIGHT: gl.constexpr):
    """Begin S^T = K Q^T with the block of queries number ``step``, a part of the head after the other.

    ``k`` are :func:`.hopper_parts.parts_of` K.
    """
    s = zeros
    for half in gl.static_range(2):
        part = 2 * step + half
        slot = part % HALVES
        mbarrier.wait(q_full.index(slot), part // HALVES & 1)
        q = columns_of(q_smem.index(slot), 0, RIGHT if half == 1 else q_smem.shape[4]).permute((1, 0))
        s = warpgroup_mma(k[half], q, s, use_acc=half > 0, is_async=True)
    return s


@gluon.jit
def _leave(
    sums, scale, desc, sums_ptr, smem, empty, place, heads, first, len_k,
    DIVIDED: gl.constexpr, D: gl.constexpr, RIGHT: gl.constexpr,
):  # fmt: skip
    """Write a group's sums times ``scale``, by way of shared memory that the group alone reads, and give that back.

    In fp32 sums have D columns.
    """
    if DIVIDED:
        mbarrier.arrive(empty, count=1)
        write_sums(sums, scale, sums_ptr, place, first, len_k, D, RIGHT)
    else:
        send_sums(sums, desc, smem, scale, place, heads, first, RIGHT)
        mbarrier.arrive(empty, count=1)


@gluon.jit
def _weights(s, buffers, barriers, step, scale, MASKED: gl.constexpr):
    """2^SHIFT P^T of the queries' block number ``step`` from its scores; MASKED where the diagonal runs through.

    In fp32, and for the other group in shared memory.  Q has been read, as far as this group is concerned.
    """
    lse_smem, p_smem = buffers[4], buffers[6]
    q_empty, p_full, p_empty = barriers[5], barriers[8], barriers[9]
    layout: gl.constexpr = s.type.layout
    lse = _statistic(lse_smem, step % NOTES, layout) - SHIFT
    p = gl.exp2(s * scale - lse[None, :])
    if MASKED:
        offs_n = gl.arange(0, s.shape[0], layout=gl.SliceLayout(1, layout))
        offs_m = gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, layout))
        p = gl.where(offs_n[:, None] <= offs_m[None, :], p, 0.0)
    slot = step % STAGES
    mbarrier.wait(p_empty.index(slot), (step // STAGES & 1) ^ 1)
    p_smem.index(slot).store(p.to(gl.float16))
    mbarrier.arrive(p_full.index(slot), count=1)
    mbarrier.arrive(q_empty.index(2 * step % HALVES), count=1)  # behind the use of lse: TMA waits for no load
    mbarrier.arrive(q_empty.index((2 * step + 1) % HALVES), count=1)
    return p


@gluon.jit
def _next_values(
    dv, p, k, buffers, barriers, step, scale,
    MASKED: gl.constexpr, RIGHT: gl.constexpr, VALUES_RIGHT: gl.constexpr, operand: gl.constexpr,
):  # fmt: skip
    """(dV, P^T) of the next block of queries: the product of block number ``step`` is added under its scores."""
    _, _, q_smem, dout_smem, _, _, _ = buffers
    _, _, _, _, q_full, _, dout_full, dout_empty, _, _ = barriers
    layout: gl.constexpr = p.type.layout
    slot = step % STAGES
    mbarrier.wait(dout_full.index(slot), step // STAGES & 1)
    p_operand = gl.convert_layout(p.to(dout_smem.dtype), operand)
    dv = add_products(dv, p_operand, dout_smem.index(slot), VALUES_RIGHT)
    s = _begin_scores(k, q_smem, q_full, step + 1, gl.zeros(p.shape, gl.float32, layout), RIGHT)
    dv, p_operand = wait_for_sums(2, dv, p_operand, VALUES_RIGHT)
    mbarrier.arrive(dout_empty.index(slot), count=1)
    s = warpgroup_mma_wait(0, deps=[s])
    return dv, _weights(s, buffers, barriers, step + 1, scale, MASKED)


@gluon.jit
def _sum_values(
    dv_desc, dv_sums_ptr, buffers, barriers, scale, sizes, len_k,
    CAUSAL: gl.constexpr, DIVIDED: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, RIGHT: gl.constexpr,
    VALUES_RIGHT: gl.constexpr,
):  # fmt: skip
    """The group that owns dV, and computes P^T for both.

    Of each head's queries the first block alone is on the diagonal: the loop over the others has no branch to a mask,
    across which the assembler moves nothing.
    """
    k_smem, _, q_smem, dout_smem, _, _, _ = buffers
    k_full, k_empty, _, _, q_full, _, dout_full, dout_empty, _, _ = barriers
    heads_k, group, _, n_blocks, all_heads, _ = sizes
    D: gl.constexpr = dv_desc.block_shape[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    left_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, q_smem.shape[4], 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, left_layout, 2)
    WIDTH: gl.constexpr = k_smem.shape[4]
    k = parts_of(k_smem.index(0), RIGHT)
    out = k_smem._reinterpret(k_smem.dtype, [WIDTH // D, 1, 1, KEYS, D], dv_desc.layout).index(0)
    step = 0
    done = 0
    for turn in range(gl.cdiv(n_blocks * all_heads, gl.num_programs(0))):
        n, place, _, count, there = job_of(turn, sizes, CAUSAL)
        if there:
            mbarrier.wait(k_full, done & 1)
            s = _begin_scores(k, q_smem, q_full, step, gl.zeros([KEYS, ROWS], gl.float32, s_layout), RIGHT)
            s = warpgroup_mma_wait(0, deps=[s])
            p = _weights(s, buffers, barriers, step, scale, CAUSAL)
            dv = no_sums(KEYS, D, VALUES_RIGHT)
            for member in range(group):
                if member > 0:
                    dv, p = _next_values(dv, p, k, buffers, barriers, step, scale, CAUSAL, RIGHT, VALUES_RIGHT, operand)
                    step += 1
                for _ in range(1, count):
                    dv, p = _next_values(dv, p, k, buffers, barriers, step, scale, False, RIGHT, VALUES_RIGHT, operand)
                    step += 1
            slot = step % STAGES
            mbarrier.wait(dout_full.index(slot), step // STAGES & 1)
            p_operand = gl.convert_layout(p.to(dout_smem.dtype), operand)
            dv = add_products(dv, p_operand, dout_smem.index(slot), VALUES_RIGHT)
            dv, p_operand = wait_for_sums(0, dv, p_operand, VALUES_RIGHT)
            mbarrier.arrive(dout_empty.index(slot), count=1)
            step += 1
            done += 1
            _leave(
                dv, UNSHIFT, dv_desc, dv_sums_ptr, out, k_empty, place, heads_k, n * KEYS, len_k,
                DIVIDED, WIDTH, VALUES_RIGHT,
            )  # fmt: skip


@gluon.jit
def _begin_gradients(v, dout_smem, dout_full, step, zeros, RIGHT: gl.constexpr):
    """Begin dP^T = V dO^T with the block of queries number ``step``; ``v`` are :func:`.hopper_parts.parts_of` V."""
    slot = step % STAGES
    mbarrier.wait(dout_full.index(slot), step // STAGES & 1)
    return begin_products(v, dout_smem.index(slot), zeros, RIGHT)


@gluon.jit
def _scores_gradients(dp, buffers, barriers, step, dtype: gl.constexpr, operand: gl.constexpr):
    """dS^T of the block of queries number ``step``, as the product with Q takes it."""
    delta_smem, p_smem, p_full = buffers[5], buffers[6], barriers[8]
    layout: gl.constexpr = dp.type.layout
    slot = step % STAGES
    delta = _statistic(delta_smem, slot, layout) * UNSHIFT
    mbarrier.wait(p_full.index(slot), step // STAGES & 1)
    p = p_smem.index(slot).load(layout).to(gl.float32)
    return gl.convert_layout((p * (dp * UNSHIFT - delta[None, :])).to(dtype), operand)


@gluon.jit
def _add_keys(dk, ds, q_smem, barriers, step):
    """Begin to add dS^T Q of the block of queries number ``step``, half by half, and give back what dS is made of.

    Not before: a product has its operand from registers, where all loads have arrived by then.
    """
    q_full, dout_empty, p_empty = barriers[4], barriers[7], barriers[9]
    left, right = dk
    for half in gl.static_range(2):
        part = 2 * step + half
        slot = part % HALVES
        mbarrier.wait(q_full.index(slot), part // HALVES & 1)
        if half == 0:
            left = warpgroup_mma(ds, columns_of(q_smem.index(slot), 0, left.shape[1]), left, is_async=True)
            mbarrier.arrive(dout_empty.index(step % STAGES), count=1)
            mbarrier.arrive(p_empty.index(step % STAGES), count=1)
        else:
            right = warpgroup_mma(ds, columns_of(q_smem.index(slot), 0, right.shape[1]), right, is_async=True)
    return left, right


@gluon.jit
def _sum_keys(
    dk_desc, dk_sums_ptr, buffers, barriers, scale_out, sizes, len_k,
    CAUSAL: gl.constexpr, DIVIDED: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, RIGHT: gl.constexpr,
    VALUES_RIGHT: gl.constexpr,
):  # fmt: skip
    """The group that owns dK."""
    k_smem, v_smem, q_smem, dout_smem, _, _, _ = buffers
    _, _, v_full, v_empty, _, q_empty, dout_full, _, _, _ = barriers
    heads_k, group, _, n_blocks, all_heads, _ = sizes
    dtype: gl.constexpr = dk_desc.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    left_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, q_smem.shape[4], 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, left_layout, 2)
    D: gl.constexpr = k_smem.shape[4]
    BEGUN: gl.constexpr = 1 if VALUES_RIGHT == 0 else 2  # products of a block's dP
    v = parts_of(v_smem.index(0), VALUES_RIGHT)
    zeros = gl.zeros([KEYS, ROWS], gl.float32, s_layout)
    step = 0
    done = 0
    for turn in range(gl.cdiv(n_blocks * all_heads, gl.num_programs(0))):
        n, place, _, count, there = job_of(turn, sizes, CAUSAL)
        if there:
            mbarrier.wait(v_full, done & 1)
            dp = _begin_gradients(v, dout_smem, dout_full, step, zeros, VALUES_RIGHT)
            dp = warpgroup_mma_wait(0, deps=[dp])
            ds = _scores_gradients(dp, buffers, barriers, step, dtype, operand)
            dk = no_sums(KEYS, D, RIGHT)
            for _ in range(1, count * group):
                part = 2 * step
                left, right = _add_keys(dk, ds, q_smem, barriers, step)
                step += 1
                dp = _begin_gradients(v, dout_smem, dout_full, step, zeros, VALUES_RIGHT)
                left = warpgroup_mma_wait(BEGUN + 1, deps=[left])
                mbarrier.arrive(q_empty.index(part % HALVES), count=1)
                right, ds = warpgroup_mma_wait(BEGUN, deps=[right, ds])
                mbarrier.arrive(q_empty.index((part + 1) % HALVES), count=1)
                dk = (left, right)
                dp = warpgroup_mma_wait(0, deps=[dp])
                ds = _scores_gradients(dp, buffers, barriers, step, dtype, operand)
            part = 2 * step
            dk = _add_keys(dk, ds, q_smem, barriers, step)
            dk, ds = wait_for_sums(0, dk, ds, RIGHT)
            mbarrier.arrive(q_empty.index(part % HALVES), count=1)
            mbarrier.arrive(q_empty.index((part + 1) % HALVES), count=1)
            step += 1
            done += 1
            _leave(
                dk, scale_out, dk_desc, dk_sums_ptr, v_smem.index(0), v_empty, place, heads_k, n * KEYS, len_k,
                DIVIDED, D, RIGHT,
            )  # fmt: skip


@gluon.jit(do_not_specialize=["heads_k", "group", "m_blocks", "n_blocks", "all_heads", "section", "parts", "len_k"])
def keys_kernel(
    q_desc, dout_desc, k_desc, v_desc, dk_desc, dv_desc, stats_desc, dk_sums_ptr, dv_sums_ptr, scale, scale_out,
    heads_k, group, m_blocks, n_blocks, all_heads, section, parts, len_k,
    CAUSAL: gl.constexpr, DIVIDED: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, RIGHT: gl.constexpr,
    VALUES_RIGHT: gl.constexpr,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], that of Q in blocks of half a head, and of statistics [2, b h, l].

    Those of V, dO, dK and dV have V's columns, which may be those of the first part of a head alone: VALUES_RIGHT is 0.

    ``scale`` has log2(e) in it, and so has lse, the first of the statistics; D is the second.  If DIVIDED each head
    of keys stands for ``parts``, of fewer heads of queries each, whose dK and dV are written as sums of fp32.
    """
    D: gl.constexpr = k_desc.block_shape[3]
    VALUES: gl.constexpr = v_desc.block_shape[3]
    dtype: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    p_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, ROWS], gl.float16)
    k_smem = gl.allocate_shared_memory(dtype, [1, 1, 1, KEYS, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [1, 1, 1, KEYS, VALUES], v_desc.layout)
    q_smem = gl.allocate_shared_memory(dtype, [HALVES, 1, 1, ROWS, D // 2], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, ROWS, VALUES], dout_desc.layout)
    lse_smem = gl.allocate_shared_memory(gl.float32, [NOTES, 1, 1, ROWS], stats_desc.layout)
    delta_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, 1, ROWS], stats_desc.layout)
    p_smem = gl.allocate_shared_memory(gl.float16, [STAGES, KEYS, ROWS], p_layout)
    k_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [HALVES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [HALVES, 1], barrier)
    dout_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    dout_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    p_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    p_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(k_full, count=1)
    mbarrier.init(k_empty, count=1)
    mbarrier.init(v_full, count=1)
    mbarrier.init(v_empty, count=1)
    for slot in gl.static_range(HALVES):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(dout_full.index(slot), count=1)
        mbarrier.init(dout_empty.index(slot), count=2)
        mbarrier.init(p_full.index(slot), count=1)
        mbarrier.init(p_empty.index(slot), count=1)
    fence_async_shared()
    buffers = (k_smem, v_smem, q_smem, dout_smem, lse_smem, delta_smem, p_smem)
    barriers = (k_full, k_empty, v_full, v_empty, q_full, q_empty, dout_full, dout_empty, p_full, p_empty)
    sizes = (heads_k, group, m_blocks, n_blocks, all_heads, section)
    gl.warp_specialize(
        [
            (_sum_values, (dv_desc, dv_sums_ptr, buffers, barriers, scale, sizes, len_k,
                           CAUSAL, DIVIDED, ROWS, KEYS, RIGHT, VALUES_RIGHT)),
            (_sum_keys, (dk_desc, dk_sums_ptr, buffers, barriers, scale_out, sizes, len_k,
                         CAUSAL, DIVIDED, ROWS, KEYS, RIGHT, VALUES_RIGHT)),
            (_load_keys, (k_desc, v_desc, buffers, barriers, sizes, parts, CAUSAL)),
            (_load_queries, (q_desc, dout_desc, stats_desc, buffers, barriers, sizes, CAUSAL)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )  # fmt: skip
