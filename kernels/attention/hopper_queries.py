"""dQ of wide heads on Hopper (sm_90), in Gluon: a kernel of its own, which computes S and dP again.

A program has a multiprocessor for itself.  Two groups of four warps own 64 queries each, and keep their dQ in
registers; for each block of keys, from the last to the first,

    S = Q K^T,    P = exp2(S - lse),    dP = dO V^T,    dS = P * (dP - D),    dQ += dS K

with dS as an operand from registers.  dQ of a block and S of the next one are begun together; exponentials run under
dP.  One warp loads by TMA: Q and dO of a tile, then K into a ring of two blocks and V into one buffer, which is free
again while dQ and the next S are computed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from .hopper_parts import (
    add_products,
    begin_products,
    no_sums,
    parts_of,
    send_sums,
    wait_for_sums,
)
from .hopper_tiles import anew, blocks_of, mask_scores, seen_by, tile_of

GROUPS = gl.constexpr(2)
"""Groups of warps that multiply."""

STAGES = gl.constexpr(2)
"""Blocks of keys in shared memory; of values there is one."""


@gluon.jit
def _produce(q_desc, dout_desc, k_desc, v_desc, buffers, barriers, sizes, CAUSAL: gl.constexpr):
    """The producer: each tile's Q and dO, and its K and V block by block from the last."""
    q_smem, dout_smem, k_smem, v_smem = buffers
    q_full, q_empty, dout_full, dout_empty, k_full, k_empty, v_full, v_empty = barriers
    len_k, heads, group, m_blocks, all_heads, section, _ = sizes
    rows: gl.constexpr = q_desc.block_shape[2]
    keys: gl.constexpr = k_desc.block_shape[2]
    step = 0
    done = 0
    for turn in range(gl.cdiv(m_blocks * all_heads, gl.num_programs(0))):
        block_m, place, there = tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        if there:
            batch = place // heads
            head = place % heads
            blocks = blocks_of(block_m, len_k, CAUSAL, rows * GROUPS, keys)
            for c in gl.static_range(GROUPS):
                mbarrier.wait(q_empty.index(c), (done & 1) ^ 1)
                mbarrier.expect(q_full.index(c), q_desc.block_type.nbytes)
                first = (block_m * GROUPS + c) * rows
                tma.async_copy_global_to_shared(q_desc, [batch, head, first, 0], q_full.index(c), q_smem.index(c))
            for i in range(blocks):
                corner = [batch, head // group, (blocks - 1 - i) * keys, 0]
                slot = step % STAGES
                mbarrier.wait(k_empty.index(slot), (step // STAGES & 1) ^ 1)
                mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(k_desc, corner, k_full.index(slot), k_smem.index(slot))
                if i == 0:  # out of whose memory dQ of the tile before leaves
                    for c in gl.static_range(GROUPS):
                        full = dout_full.index(c)
                        mbarrier.wait(dout_empty.index(c), (done & 1) ^ 1)
                        mbarrier.expect(full, dout_desc.block_type.nbytes)
                        first = (block_m * GROUPS + c) * rows
                        tma.async_copy_global_to_shared(dout_desc, [batch, head, first, 0], full, dout_smem.index(c))
                mbarrier.wait(v_empty, (step & 1) ^ 1)
                mbarrier.expect(v_full, v_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(v_desc, corner, v_full, v_smem.index(0))
                step += 1
            done += 1


@gluon.jit
def _begin(own, group, smem, slot, zeros, RIGHT: gl.constexpr):
    """Begin the product of a group's queries with a block of keys, or of their dO with one of values."""
    return begin_products(parts_of(own.index(anew(group)), RIGHT), smem.index(anew(slot)), zeros, RIGHT)


@gluon.jit
def _consume(
    dq_desc, stats_ptr, buffers, barriers, scale, scale_out, sizes,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    RIGHT: gl.constexpr, VALUES_RIGHT: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its half of each tile's queries."""
    q_smem, dout_smem, k_smem, v_smem = buffers
    q_full, q_empty, dout_full, dout_empty, k_full, k_empty, v_full, v_empty = barriers
    len_k, heads, _, m_blocks, all_heads, section, padded = sizes
    dtype: gl.constexpr = dq_desc.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    D: gl.constexpr = q_smem.shape[4]
    left_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, left_layout, 2)
    BEGUN: gl.constexpr = 1 if VALUES_RIGHT == 0 else 2  # products of a block's dP
    zeros = gl.zeros([ROWS, KEYS], gl.float32, s_layout)
    step = 0
    done = 0
    for turn in range(gl.cdiv(m_blocks * all_heads, gl.num_programs(0))):
        block_m, place, there = tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        if there:
            blocks = blocks_of(block_m, len_k, CAUSAL, ROWS * GROUPS, KEYS)
            first = (block_m * GROUPS + GROUP) * ROWS
            offs_m, limit, mine, _ = seen_by(blocks, first, len_k, CAUSAL, ROWS, KEYS, s_layout)
            if CAUSAL:
                for _skipped in range(mine, blocks):  # only the group after this one sees these keys
                    mbarrier.wait(k_full.index(step % STAGES), step // STAGES & 1)
                    mbarrier.arrive(k_empty.index(step % STAGES), count=1)
                    mbarrier.wait(v_full, step & 1)
                    mbarrier.arrive(v_empty, count=1)
                    step += 1
            stats_ptrs = stats_ptr + place.to(gl.int64) * padded + offs_m
            lse = gl.load(stats_ptrs)
            delta = gl.load(stats_ptrs + all_heads.to(gl.int64) * padded)
            mbarrier.wait(q_full.index(GROUP), done & 1)
            mbarrier.wait(k_full.index(step % STAGES), step // STAGES & 1)
            s = _begin(q_smem, GROUP, k_smem, step % STAGES, zeros, RIGHT)
            mbarrier.wait(dout_full.index(GROUP), done & 1)
            mbarrier.wait(v_full, step & 1)
            dp = _begin(dout_smem, GROUP, v_smem, 0, zeros, VALUES_RIGHT)
            s = warpgroup_mma_wait(BEGUN, deps=[s])
            if CAUSAL or TAIL:
                s = mask_scores(s, (mine - 1) * KEYS, limit, KEYS, s_layout)
            p = gl.exp2(s * scale - lse[:, None])
            dp = warpgroup_mma_wait(0, deps=[dp])
            mbarrier.arrive(v_empty, count=1)
            ds = gl.convert_layout((p * (dp - delta[:, None])).to(dtype), operand)
            dq = no_sums(ROWS, D, RIGHT)
            step += 1
            for _i in range(1, mine):  # no mask touches their blocks
                slot = step % STAGES
                slot_before = (step - 1) % STAGES
                dq = add_products(dq, ds, k_smem.index(slot_before), RIGHT)
                mbarrier.wait(k_full.index(slot), step // STAGES & 1)
                s = _begin(q_smem, GROUP, k_smem, slot, zeros, RIGHT)
                mbarrier.wait(v_full, step & 1)
                dp = _begin(dout_smem, GROUP, v_smem, 0, zeros, VALUES_RIGHT)
                s, left, right, ds = warpgroup_mma_wait(BEGUN, deps=[s, dq[0], dq[1], ds])
                dq = (left, right)
                mbarrier.arrive(k_empty.index(slot_before), count=1)
                p = gl.exp2(s * scale - lse[:, None])
                dp = warpgroup_mma_wait(0, deps=[dp])
                mbarrier.arrive(v_empty, count=1)
                ds = gl.convert_layout((p * (dp - delta[:, None])).to(dtype), operand)
                step += 1
            mbarrier.arrive(q_empty.index(GROUP), count=1)
            slot = (step - 1) % STAGES
            dq = add_products(dq, ds, k_smem.index(slot), RIGHT)
            dq, ds = wait_for_sums(0, dq, ds, RIGHT)
            mbarrier.arrive(k_empty.index(slot), count=1)
            send_sums(dq, dq_desc, dout_smem.index(GROUP), scale_out, place, heads, first, RIGHT)
            mbarrier.arrive(dout_empty.index(GROUP), count=1)
            done += 1


@gluon.jit(do_not_specialize=["len_k", "heads", "group", "m_blocks", "all_heads", "section", "padded"])
def queries_kernel(
    q_desc, dout_desc, k_desc, v_desc, dq_desc, stats_ptr, scale, scale_out,
    len_k, heads, group, m_blocks, all_heads, section, padded,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr,
    RIGHT: gl.constexpr, VALUES_RIGHT: gl.constexpr,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], in blocks of a head's rows; ``stats_ptr`` is of [2, b h, padded].

    Those of V, dO and dQ have V's columns, which may be those of the first part of a head alone: VALUES_RIGHT is 0.

    ``scale`` has log2(e) in it, and so has lse, the first of the statistics; D is the second.
    """
    dtype: gl.constexpr = q_desc.dtype
    D: gl.constexpr = q_desc.block_shape[3]
    VALUES: gl.constexpr = v_desc.block_shape[3]
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_smem = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, D], q_desc.layout)
    dout_smem = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, VALUES], dout_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, KEYS, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [1, 1, 1, KEYS, VALUES], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barrier)
    dout_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barrier)
    dout_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    for c in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(c), count=1)
        mbarrier.init(q_empty.index(c), count=1)
        mbarrier.init(dout_full.index(c), count=1)
        mbarrier.init(dout_empty.index(c), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=GROUPS)
    mbarrier.init(v_full, count=1)
    mbarrier.init(v_empty, count=GROUPS)
    fence_async_shared()
    buffers = (q_smem, dout_smem, k_smem, v_smem)
    barriers = (q_full, q_empty, dout_full, dout_empty, k_full, k_empty, v_full, v_empty)
    sizes = (len_k, heads, group, m_blocks, all_heads, section, padded)
    gl.warp_specialize(
        [
            (_consume, (dq_desc, stats_ptr, buffers, barriers, scale, scale_out, sizes,
                        CAUSAL, TAIL, ROWS, KEYS, RIGHT, VALUES_RIGHT, 0)),
            (_consume, (dq_desc, stats_ptr, buffers, barriers, scale, scale_out, sizes,
                        CAUSAL, TAIL, ROWS, KEYS, RIGHT, VALUES_RIGHT, 1)),
            (_produce, (q_desc, dout_desc, k_desc, v_desc, buffers, barriers, sizes, CAUSAL)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
