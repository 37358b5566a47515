"""The forward pass for Hopper (sm_90) in Gluon: variant `gluon`.

Programs, warps and barriers are those of :mod:`.hopper_tiles`.  S = Q K^T and O += P V run on the tensor cores (wgmma)
while the group works at the softmax.

    OVERLAP    S of the next block is begun before P V of this one, and its softmax runs while P V does
    PINGPONG   the groups take turns at issuing products, so that one's softmax runs under the other's products
"""

import torch
from atlas.declaration import GPU, Case, Config, gpu_of
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

from kernels.common.rows import LOWEST

from .blocks import LN2, LOG2E, describable
from .cases import case_of
from .forward import launch_forward
from .hopper_tiles import (
    ROWS,
    begin_scores,
    blocks_of,
    descriptor_of,
    first_scores,
    mask_scores,
    partial_sums,
    pass_block,
    produce,
    section_of,
    seen_by,
    tile_of,
    write_tile,
)
from .spaces import forward_default, too_much_shared

HEADS = (64, 128)
"""Heads that there is a kernel for."""

KEYS = 128
"""Keys of a block: scores of 64 queries and 128 keys are 64 registers of each thread of a group."""


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
    s = begin_scores(q, k_smem, k_full, step, BLOCK_N, STAGES, s_layout)
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
        s = mask_scores(s, first_n, limit, BLOCK_N, s_layout)
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    alpha = gl.exp2(m - m_new)
    e = gl.exp2(s * scale - m_new[:, None])
    alpha_4 = gl.convert_layout(alpha, gl.SliceLayout(1, sums.type.layout))[:, None]
    sums = sums * alpha_4 + partial_sums(e, rows, BLOCK_N)
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
        block_m, place, there = tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        if there:
            blocks = blocks_of(block_m, len_k, CAUSAL, ROWS * CONSUMERS, BLOCK_N)
            first = (block_m * CONSUMERS + CONSUMER) * ROWS
            offs_m, limit, mine, whole = seen_by(blocks, first, len_k, CAUSAL, ROWS, BLOCK_N, s_layout)
            if CAUSAL:
                for _skipped in range(mine, blocks):  # only the groups after this one see these keys
                    pass_block(barriers, step, PINGPONG, CONSUMER, CONSUMERS, STAGES)
                    step += 1

            mbarrier.wait(q_full.index(CONSUMER), done & 1)
            if Q_REGISTERS:
                q = q_tile.load(gl.DotOperandLayout(0, s_layout, 2))
                mbarrier.arrive(q_empty.index(CONSUMER), count=1)
            else:
                q = q_tile
            s = first_scores(
                q, k_smem, barriers, step, (mine - 1) * BLOCK_N, limit,
                CAUSAL or TAIL, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, s_layout,
            )  # fmt: skip
            m = gl.maximum(gl.max(s, 1) * scale, LOWEST)
            e = gl.exp2(s * scale - m[:, None])
            sums = partial_sums(e, ROWS, BLOCK_N)
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
            write_tile(o, o_desc, o_smem.index(CONSUMER), place, heads, first)
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
                (produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
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
                (produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, False)),
            ],
            [4, 4, 1],
            [160, 160, 32],
        )  # fmt: skip


def launch_by_tma(q, k, v, causal, scale, *, config):
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
        descriptor_of(q, ROWS, head_dim), descriptor_of(k, KEYS, head_dim), descriptor_of(v, KEYS, head_dim),
        descriptor_of(out, ROWS, head_dim), lse, scale * LOG2E.value,
        len_q, len_k, heads, heads // heads_k, m_blocks, batch * heads, section_of(m_blocks, programs),
        CAUSAL=causal, ROWS=ROWS, BLOCK_N=KEYS, TAIL=len_k % KEYS != 0, num_warps=4, **config,
    )  # fmt: skip
    return out, lse


def launch_hopper(q, k, v, causal, scale, *, config):
    """:func:`launch_forward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    if all(map(describable, (q, k, v))):
        return launch_by_tma(q, k, v, causal, scale, config=config)
    plain = forward_default(case_of(q, k, causal), gpu_of(q.device), pointers=True)
    return launch_forward(False, q, k, v, causal, scale, config=plain)


def shared_bytes(config, head_dim):
    """Shared memory of a config, in bytes: Q and out of each group, the rings of K and V, notes and barriers."""
    return 2 * head_dim * (2 * config["CONSUMERS"] * ROWS + 2 * config["STAGES"] * KEYS) + 4096


HOPPER_SPACE = {
    "CONSUMERS": (2, 3),
    "STAGES": (2, 3, 4),
    "OVERLAP": (False, True),
    "PINGPONG": (False, True),
    "Q_REGISTERS": (False, True),
}


def hopper_default(problem: Case, gpu: GPU) -> dict[str, int]:
    stages, in_registers = 256 // problem["d"], problem["d"] == 64
    return {"CONSUMERS": 2, "STAGES": stages, "OVERLAP": True, "PINGPONG": False, "Q_REGISTERS": in_registers}


def fits_hopper(config: Config, problem: Case, gpu: GPU) -> str:
    if reason := too_much_shared(shared_bytes(config, problem["d"]), gpu):
        return reason
    if config["CONSUMERS"] == 3 and problem["d"] == 128:
        return "three groups have 160 registers a thread, which would spill"
    if config["Q_REGISTERS"] != (config["CONSUMERS"] == 2 and problem["d"] == 64):
        return "Q in registers spilled with three groups, and won nothing with larger heads"
    if config["STAGES"] != {2: 256 // problem["d"], 3: 3}[config["CONSUMERS"]]:
        return "shared memory holds more blocks of keys, or a group waits for its next one"
    if config["PINGPONG"] and not config["OVERLAP"]:
        return "a group's turn would last until its softmax is done"
    return ""
