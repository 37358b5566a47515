"""Flash attention's forward pass for Hopper (sm_90): out = softmax(scale Q K^T) V, and each row's log-sum-exp.

A program has a multiprocessor for itself.  One of its warps loads (the producer): Q, K and V go by TMA into rings of
shared memory.  CONSUMERS groups of four warps multiply, each for ROWS rows of Q: S = Q K^T and O += P V run on the
tensor cores (wgmma) while the group works at the softmax.  Barriers in shared memory hand buffers over: a "full" one,
on which TMA counts the bytes, and an "empty" one, on which the readers arrive.

    OVERLAP    S of the next block is begun before P V of this one, and its softmax runs while P V does
    PINGPONG   the groups take turns at issuing products, so that one's softmax runs under the other's products

Blocks of keys are walked from the last to the first: those with masks (the diagonal's, the tail) come first, the loop
over the others has none.  Programs are persistent: the producer loads for the next tile under this one's end.
"""

import math

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LOWEST = gl.constexpr(-3.4028234663852886e38)
"""The least finite fp32, where a running maximum starts: exp2(-inf - LOWEST) is 0, exp2(-inf - -inf) would be NaN."""

HEADS = (64, 128)
"""Heads that there is a kernel for."""

ROWS = 64
"""Queries of a group of warps: what one wgmma multiplies."""

KEYS = 128
"""Keys of a block: scores of 64 queries and 128 keys are 64 registers of each thread of a group."""

LN2 = gl.constexpr(0.6931471805599453)
LOG2_E = 1.4426950408889634


@gluon.jit
def _tile_of(turn, m_blocks, heads, section, CAUSAL: gl.constexpr):
    """(block of rows, head, whether there is one) of this program's ``turn``-th tile.

    Tiles of a head run at about the same time, for they read the same keys.  With CAUSAL that goes for the heads of a
    section: its longest tiles come first, and every other turn runs backwards over the programs.  A section fills an
    even number of turns (:func:`_section`), so that all programs get about the same work.
    """
    width = gl.num_programs(0)
    pid = gl.program_id(0)
    if CAUSAL:
        place = turn * width + gl.where(turn % 2 == 0, pid, width - 1 - pid)
        first = place // (section * m_blocks) * section
        count = gl.maximum(gl.minimum(section, heads - first), 1)
        within = place - first * m_blocks
        block_m = m_blocks - 1 - within // count
        head = first + within % count
    else:
        place = turn * width + pid
        block_m = place % m_blocks
        head = place // m_blocks
    return block_m, head, place < m_blocks * heads


@gluon.jit
def _blocks_of(block_m, len_k, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many blocks of keys a block of rows sees: one at least, for there is a key, and every row sees the first."""
    end = len_k
    if CAUSAL:
        end = gl.minimum(len_k, (block_m + 1) * BLOCK_M)
    return gl.cdiv(end, BLOCK_N)


@gluon.jit
def _produce(
    q_desc, k_desc, v_desc, buffers, barriers, sizes,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    V_TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """The producer: each tile's Q, and its K and V block by block from the last; blocks of V^T are columns.

    A buffer's n-th filling waits for its n-1-th emptying, by the parity of either; the first waits for none.
    """
    q_smem, k_smem, v_smem, _, _ = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, _ = barriers
    _, len_k, heads, group, m_blocks, all_heads, section = sizes
    step = 0
    done = 0
    for turn in range(gl.cdiv(m_blocks * all_heads, gl.num_programs(0))):
        block_m, place, there = _tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        if there:
            batch = place // heads
            head = place % heads
            head_k = head // group
            blocks = _blocks_of(block_m, len_k, CAUSAL, ROWS * CONSUMERS, BLOCK_N)
            for c in gl.static_range(CONSUMERS):
                mbarrier.wait(q_empty.index(c), (done & 1) ^ 1)
                mbarrier.expect(q_full.index(c), q_desc.block_type.nbytes)
                first = (block_m * CONSUMERS + c) * ROWS
                tma.async_copy_global_to_shared(q_desc, [batch, head, first, 0], q_full.index(c), q_smem.index(c))
            for i in range(blocks):
                first = (blocks - 1 - i) * BLOCK_N
                slot = step % STAGES
                parity = (step // STAGES & 1) ^ 1
                for key_or_value in gl.static_range(2):
                    desc = k_desc if key_or_value == 0 else v_desc
                    empty = (k_empty if key_or_value == 0 else v_empty).index(slot)
                    full = (k_full if key_or_value == 0 else v_full).index(slot)
                    mbarrier.wait(empty, parity)
                    mbarrier.expect(full, desc.block_type.nbytes)
                    smem = (k_smem if key_or_value == 0 else v_smem).index(slot)
                    row = 0 if V_TRANSPOSED and key_or_value == 1 else first
                    column = first if V_TRANSPOSED and key_or_value == 1 else 0
                    tma.async_copy_global_to_shared(desc, [batch, head_k, row, column], full, smem)
                step += 1
            done += 1


@gluon.jit
def _partial_sums(p, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """Sums of P's rows [ROWS, 4]: each of the four threads that share a row keeps its own until the tile's end."""
    return gl.sum(gl.sum(p.reshape([ROWS, BLOCK_N // 8, 4, 2]), 3), 1)


@gluon.jit
def _masked(s, first_n, limit, BLOCK_N: gl.constexpr, s_layout: gl.constexpr):
    """Scores of keys from ``first_n`` on with -inf where a row, which sees ``limit`` keys, does not see the key."""
    offs_n = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s_layout))
    return gl.where(offs_n[None, :] < limit[:, None], s, -float("inf"))


@gluon.jit
def _scores(q, k_smem, k_full, step, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, s_layout: gl.constexpr):
    """Begin S = Q K^T with the block of keys number ``step``."""
    rows: gl.constexpr = q.shape[0]
    head_dim: gl.constexpr = q.shape[1]
    k = k_smem.index(step % STAGES).reshape([BLOCK_N, head_dim]).permute((1, 0))
    zeros = gl.zeros([rows, BLOCK_N], gl.float32, s_layout)
    return warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)


@gluon.jit
def _pass(
    barriers, step, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr
):
    """Give a block of keys and values back unread; not before it is there, or it would count for the one before it."""
    _, _, k_full, k_empty, v_full, v_empty, turns = barriers
    slot = step % STAGES
    mbarrier.wait(k_full.index(slot), step // STAGES & 1)
    mbarrier.arrive(k_empty.index(slot), count=1)
    mbarrier.wait(v_full.index(slot), step // STAGES & 1)
    mbarrier.arrive(v_empty.index(slot), count=1)
    if PINGPONG:
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)


@gluon.jit
def _seen(
    blocks, first, len_k, CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, s_layout: gl.constexpr
):  # fmt: skip
    """What ROWS queries from ``first`` on see: (their numbers, how many keys each, of how many blocks, how many whole).

    Of ``blocks`` some may be for later groups alone; whole are those that every query of the group sees all of.
    """
    offs_m = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    limit = gl.zeros_like(offs_m) + len_k
    mine = blocks
    whole = len_k // BLOCK_N
    if CAUSAL:
        limit = gl.minimum(limit, offs_m + 1)
        whole = gl.minimum(whole, (first + 1) // BLOCK_N)
        mine = gl.minimum(blocks, gl.cdiv(first + ROWS, BLOCK_N))
    return offs_m, limit, mine, whole


@gluon.jit
def _first_scores(
    q, k_smem, barriers, step, first_n, limit, MASKED: gl.constexpr, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, s_layout: gl.constexpr,
):  # fmt: skip
    """S of a tile's first block of keys, which runs under nothing."""
    _, _, k_full, k_empty, _, _, turns = barriers
    mbarrier.wait(k_full.index(step % STAGES), step // STAGES & 1)
    if PINGPONG:
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
    s = _scores(q, k_smem, k_full, step, BLOCK_N, STAGES, s_layout)
    if PINGPONG:
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(step % STAGES), count=1)
    if MASKED:
        s = _masked(s, first_n, limit, BLOCK_N, s_layout)
    return s


@gluon.jit
def _write(o, o_desc, out, place, heads, first):
    """Write a group's rows of a tile, by way of shared memory, once those of the tile before have left it."""
    tma.store_wait(0)
    out.reshape([o.shape[0], o.shape[1]]).store(o.to(o_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [place // heads, place % heads, first, 0], out)


@gluon.jit
def _block(
    o, p, m, sums, q, buffers, barriers, step, scale, first_n, limit,
    MASKED: gl.constexpr, OVERLAP: gl.constexpr, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, s_layout: gl.constexpr,
    o_layout: gl.constexpr,
):  # fmt: skip
    """One block of keys after the first: S of it, P V of the block before it, and the softmax of S."""
    _, k_smem, v_smem, _, notes = buffers
    _, _, k_full, k_empty, v_full, v_empty, turns = barriers
    rows: gl.constexpr = q.shape[0]
    head_dim: gl.constexpr = q.shape[1]
    slot = step % STAGES
    slot_v = (step - 1) % STAGES
    v = v_smem.index(slot_v).reshape([BLOCK_N, head_dim])
    mbarrier.wait(k_full.index(slot), step // STAGES & 1)
    if PINGPONG:  # the first group's n-th turn comes after the last group's n-1-th
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
    s = _scores(q, k_smem, k_full, step, BLOCK_N, STAGES, s_layout)
    if not OVERLAP:
        s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.wait(v_full.index(slot_v), (step - 1) // STAGES & 1)
    o = warpgroup_mma(p, v, o, is_async=True)
    if PINGPONG:
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)
    if OVERLAP:
        s = warpgroup_mma_wait(1, deps=[s])
    else:
        o, p = warpgroup_mma_wait(0, deps=[o, p])
        mbarrier.arrive(v_empty.index(slot_v), count=1)
    mbarrier.arrive(k_empty.index(slot), count=1)
    if MASKED:
        s = _masked(s, first_n, limit, BLOCK_N, s_layout)
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    alpha = gl.exp2(m - m_new)
    e = gl.exp2(s * scale - m_new[:, None])
    alpha_4 = gl.convert_layout(alpha, gl.SliceLayout(1, sums.type.layout))[:, None]
    sums = sums * alpha_4 + _partial_sums(e, rows, BLOCK_N)
    if OVERLAP:
        # The assembler would move the wait up, to before the exponentials, for nothing in the registers ties the two;
        # but it moves no wait over a store to shared memory, and this one needs their sum.
        notes.index(CONSUMER).store(sums)
        o, p = warpgroup_mma_wait(0, deps=[o, p])
        mbarrier.arrive(v_empty.index(slot_v), count=1)
    o = o * gl.convert_layout(alpha, gl.SliceLayout(1, o_layout))[:, None]
    p = gl.convert_layout(e.to(k_smem.dtype), gl.DotOperandLayout(0, o_layout, 2))
    return o, p, m_new, sums


@gluon.jit
def _consume(
    o_desc, buffers, barriers, lse_ptr, scale, sizes,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    TAIL: gl.constexpr, OVERLAP: gl.constexpr, PINGPONG: gl.constexpr, Q_REGISTERS: gl.constexpr,
    CONSUMER: gl.constexpr,
):  # fmt: skip
    """Group ``CONSUMER`` of four warps: its ROWS rows of each tile."""
    q_smem, k_smem, v_smem, o_smem, _ = buffers
    q_full, q_empty, _, _, v_full, v_empty, _ = barriers
    len_q, len_k, heads, _, m_blocks, all_heads, section = sizes
    head_dim: gl.constexpr = o_desc.block_shape[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, head_dim, 16])
    q_tile = q_smem.index(CONSUMER).reshape([ROWS, head_dim])
    step = 0
    done = 0
    for turn in range(gl.cdiv(m_blocks * all_heads, gl.num_programs(0))):
        block_m, place, there = _tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        if there:
            blocks = _blocks_of(block_m, len_k, CAUSAL, ROWS * CONSUMERS, BLOCK_N)
            first = (block_m * CONSUMERS + CONSUMER) * ROWS
            offs_m, limit, mine, whole = _seen(blocks, first, len_k, CAUSAL, ROWS, BLOCK_N, s_layout)
            if CAUSAL:
                for _skipped in range(mine, blocks):  # only the groups after this one see these keys
                    _pass(barriers, step, PINGPONG, CONSUMER, CONSUMERS, STAGES)
                    step += 1

            mbarrier.wait(q_full.index(CONSUMER), done & 1)
            if Q_REGISTERS:
                q = q_tile.load(gl.DotOperandLayout(0, s_layout, 2))
                mbarrier.arrive(q_empty.index(CONSUMER), count=1)
            else:
                q = q_tile
            s = _first_scores(
                q, k_smem, barriers, step, (mine - 1) * BLOCK_N, limit,
                CAUSAL or TAIL, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, s_layout,
            )  # fmt: skip
            m = gl.maximum(gl.max(s, 1) * scale, LOWEST)
            e = gl.exp2(s * scale - m[:, None])
            sums = _partial_sums(e, ROWS, BLOCK_N)
            p = gl.convert_layout(e.to(k_smem.dtype), gl.DotOperandLayout(0, o_layout, 2))
            o = gl.zeros([ROWS, head_dim], gl.float32, o_layout)
            step += 1

            masked = 1
            if CAUSAL and BLOCK_N % (ROWS * CONSUMERS) != 0:
                masked = gl.minimum(gl.maximum(mine - whole, 1), mine)
                for i in range(1, masked):
                    o, p, m, sums = _block(
                        o, p, m, sums, q, buffers, barriers, step, scale, (mine - 1 - i) * BLOCK_N, limit,
                        True, OVERLAP, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, s_layout, o_layout,
                    )  # fmt: skip
                    step += 1
            for _i in range(masked, mine):
                o, p, m, sums = _block(
                    o, p, m, sums, q, buffers, barriers, step, scale, 0, limit,
                    False, OVERLAP, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, s_layout, o_layout,
                )  # fmt: skip
                step += 1
            if not Q_REGISTERS:
                mbarrier.arrive(q_empty.index(CONSUMER), count=1)

            slot = (step - 1) % STAGES
            mbarrier.wait(v_full.index(slot), (step - 1) // STAGES & 1)
            v = v_smem.index(slot).reshape([BLOCK_N, head_dim])
            o = warpgroup_mma(p, v, o, is_async=True)
            total = gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, s_layout))
            lse_ptrs = lse_ptr + place.to(gl.int64) * len_q + offs_m
            gl.store(lse_ptrs, (m + gl.log2(total)) * LN2, mask=offs_m < len_q)
            o, p = warpgroup_mma_wait(0, deps=[o, p])
            mbarrier.arrive(v_empty.index(slot), count=1)
            o = o * (1.0 / gl.convert_layout(total, gl.SliceLayout(1, o_layout)))[:, None]
            _write(o, o_desc, o_smem.index(CONSUMER), place, heads, first)
            done += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["len_q", "len_k", "heads", "group", "m_blocks", "all_heads", "section"])
def attention_forward_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, len_q, len_k, heads, group, m_blocks, all_heads, section,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    TAIL: gl.constexpr, OVERLAP: gl.constexpr, PINGPONG: gl.constexpr, Q_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], in blocks of a head's rows; ``scale`` has log2(e) in it; lse is contiguous."""
    dtype: gl.constexpr = q_desc.dtype
    head_dim: gl.constexpr = q_desc.block_shape[3]
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_smem = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, ROWS, head_dim], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, head_dim], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, head_dim], v_desc.layout)
    o_smem = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, ROWS, head_dim], o_desc.layout)
    notes = gl.allocate_shared_memory(gl.float32, [CONSUMERS, ROWS, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for c in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(c), count=1)
        mbarrier.init(q_empty.index(c), count=1)
        mbarrier.init(turns.index(c), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=CONSUMERS)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(v_empty.index(slot), count=CONSUMERS)
    fence_async_shared()
    buffers = (q_smem, k_smem, v_smem, o_smem, notes)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty, turns)
    sizes = (len_q, len_k, heads, group, m_blocks, all_heads, section)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, OVERLAP, PINGPONG, Q_REGISTERS, 0)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, OVERLAP, PINGPONG, Q_REGISTERS, 1)),
                (_produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, False)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.static_assert(CONSUMERS == 3)
        gl.warp_specialize(
            [
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, OVERLAP, PINGPONG, Q_REGISTERS, 0)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, OVERLAP, PINGPONG, Q_REGISTERS, 1)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, OVERLAP, PINGPONG, Q_REGISTERS, 2)),
                (_produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, False)),
            ],
            [4, 4, 1],
            [160, 160, 32],
        )  # fmt: skip


_DTYPES = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv,
}


def _strides(x):
    """Strides of x [b, h, l, d]; a dimension of one element may have any, for none is taken along it."""
    strides = [x.shape[3] if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True)]
    return [*strides[:3], 1]


def _descriptor(x, rows, columns):
    """Blocks of so many rows and columns of one head of x, as the copy engine and wgmma want them in shared memory."""
    block = [1, 1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, _DTYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), _strides(x), block, layout)


def _section(m_blocks, programs):
    """The least number of heads whose tiles fill an even number of turns."""
    return 2 * programs // math.gcd(2 * programs, m_blocks)


def shared_bytes(config, head_dim):
    """Shared memory of a config, in bytes: Q and out of each group, the rings of K and V, notes and barriers."""
    return 2 * head_dim * (2 * config["CONSUMERS"] * ROWS + 2 * config["STAGES"] * KEYS) + 4096


def forward(q, k, v, causal, scale, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d]; d is 64 or 128, rows are contiguous and begin at 16 bytes.

    With ``causal`` query i sees keys up to i.  out lies in memory as q does, as far as q leaves no gaps.
    """
    batch, heads, len_q, head_dim = q.shape
    heads_k, len_k = k.shape[1:3]
    out = torch.empty_like(q)
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    m_blocks = -(-len_q // (ROWS * config["CONSUMERS"]))
    programs = min(gpu_of(q.device).sms, batch * heads * m_blocks)
    launch(
        attention_forward_kernel, (programs,),
        _descriptor(q, ROWS, head_dim), _descriptor(k, KEYS, head_dim), _descriptor(v, KEYS, head_dim),
        _descriptor(out, ROWS, head_dim), lse, scale * LOG2_E,
        len_q, len_k, heads, heads // heads_k, m_blocks, batch * heads, _section(m_blocks, programs),
        CAUSAL=causal, ROWS=ROWS, BLOCK_N=KEYS, TAIL=len_k % KEYS != 0, num_warps=4, **config,
    )  # fmt: skip
    return out, lse
