"""The forward pass for Hopper (sm_90) in Gluon: variant `gluon`.

Programs, warps and barriers are those of :mod:`.hopper_tiles`.  S = Q K^T and O += P V run on the tensor cores (wgmma)
while the group works at the softmax.

    OVERLAP    S of the next block is begun before P V of this one, and its softmax runs while P V does
    PINGPONG   the groups take turns at issuing products, so that one's softmax runs under the other's products

Heads are computed in 64, 128 or 256 columns, those of 65 to 96 and of 129 to 192 in two parts of these: of the second
one, RIGHT, they have few.  Heads of more than 128 have blocks of half as many keys, and their out leaves by halves:
there is memory for no more.  That of all heads in two parts does.
"""

import torch
from atlas.declaration import GPU, Case, Config, gpu_of
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from kernels.common.rows import LOWEST

from .blocks import LN2, LOG2E, describable, out_for, wide
from .cases import case_of
from .forward import launch_forward
from .hopper_few_keys import forward_few_keys, forward_takes_few_keys
from .hopper_parts import add_products, halves_of, no_sums, operands_of, right_of, scaled_rows, wait_for_sums
from .hopper_tiles import (
    ROWS,
    begin_scores,
    blocks_within,
    descriptor_of,
    first_scores,
    mask_scores,
    partial_sums,
    pass_block,
    produce,
    section_for,
    seen_by,
    shared_memory,
    tile_within,
    turns_of,
    write_parts,
    write_tile,
)
from .spaces import forward_default, too_much_shared

HEADS = range(40, 257, 8)
"""Heads that there is a kernel for; of 32 `descriptor` is as fast, for it adds no columns."""


@gluon.jit
def _begin_output(p, v_smem, v_full, step, o, STAGES: gl.constexpr, RIGHT: gl.constexpr):
    """Begin O += P V with the block of values number ``step``."""
    slot = step % STAGES
    v = v_smem.index(slot)  # before the wait: behind it three groups' registers spill (Triton 3.6)
    mbarrier.wait(v_full.index(slot), step // STAGES & 1)
    return add_products(o, p, v, RIGHT)


@gluon.jit
def _output(p, o, v_empty, step, STAGES: gl.constexpr, RIGHT: gl.constexpr):
    """(P, O) once P V is computed; the block of values number ``step`` is given back."""
    o, p = wait_for_sums(0, o, p, RIGHT)
    mbarrier.arrive(v_empty.index(step % STAGES), count=1)
    return p, o


@gluon.jit
def _block(
    o, p, m, sums, q, buffers, barriers, step, scale, first_n, limit, MASKED: gl.constexpr,
    OVERLAP: gl.constexpr, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr, CONSUMERS: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, RIGHT: gl.constexpr, OUT_RIGHT: gl.constexpr,
    s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """One block of keys after the first: S of it, P V of the block before it, and its softmax."""
    _, k_smem, v_smem, _, notes = buffers
    _, _, k_full, k_empty, v_full, v_empty, turns = barriers
    rows: gl.constexpr = q[0].shape[0]
    slot = step % STAGES
    mbarrier.wait(k_full.index(slot), step // STAGES & 1)
    if PINGPONG:  # the first group's n-th turn comes after the last group's n-1-th
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
    s = begin_scores(q, k_smem, step, BLOCK_N, STAGES, RIGHT, s_layout)
    if not OVERLAP:
        s = warpgroup_mma_wait(0, deps=[s])
    o = _begin_output(p, v_smem, v_full, step - 1, o, STAGES, OUT_RIGHT)
    if PINGPONG:
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)
    if OVERLAP:
        s = warpgroup_mma_wait(1 if OUT_RIGHT == 0 else 2, deps=[s])
    else:
        p, o = _output(p, o, v_empty, step - 1, STAGES, OUT_RIGHT)
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
        notes.index(CONSUMER).store(sums.to(notes.dtype))
        p, o = _output(p, o, v_empty, step - 1, STAGES, OUT_RIGHT)
    o = scaled_rows(o, alpha, OUT_RIGHT)
    p = gl.convert_layout(e.to(k_smem.dtype), gl.DotOperandLayout(0, o_layout, 2))
    return o, p, m_new, sums


@gluon.jit
def _consume(
    o_desc, buffers, barriers, lse_ptr, scale, sizes,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    TAIL: gl.constexpr, RIGHT: gl.constexpr, OUT_RIGHT: gl.constexpr, OVERLAP: gl.constexpr, PINGPONG: gl.constexpr,
    Q_REGISTERS: gl.constexpr, PACKED: gl.constexpr, Q_STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Group ``CONSUMER`` of four warps: its ROWS rows of each tile."""
    q_smem, k_smem, v_smem, o_smem, _ = buffers
    q_full, q_empty, _, _, v_full, v_empty, _ = barriers
    len_q, heads, _ = sizes[0], sizes[2], sizes[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    value_dim: gl.constexpr = v_smem.shape[len(v_smem.shape) - 1]
    columns: gl.constexpr = value_dim if OUT_RIGHT == 0 else value_dim // 2
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    step = 0
    done = 0
    for turn in range(turns_of(sizes, PACKED)):
        block_m, place, there, span = tile_within(turn, sizes, CAUSAL, PACKED)
        if there:
            first_q, rows_q, _first_k, len_k = span
            blocks = blocks_within(block_m, rows_q, len_k, CAUSAL, ROWS * CONSUMERS, BLOCK_N, PACKED)
            first = (block_m * CONSUMERS + CONSUMER) * ROWS
            shifted = first
            if PACKED:
                shifted += len_k - rows_q
            offs_m, limit, mine, _ = seen_by(blocks, shifted, len_k, CAUSAL, ROWS, BLOCK_N, s_layout)
            if PACKED:
                mine = gl.maximum(mine, 1)
                offs_m -= len_k - rows_q
            if CAUSAL:
                for _skipped in range(mine, blocks):  # only the groups after this one see these keys
                    pass_block(barriers, step, PINGPONG, CONSUMER, CONSUMERS, STAGES)
                    step += 1

            q_slot = done % Q_STAGES * CONSUMERS + CONSUMER
            mbarrier.wait(q_full.index(q_slot), done // Q_STAGES & 1)
            q = operands_of(q_smem.index(q_slot), s_layout, RIGHT, Q_REGISTERS)
            s = first_scores(
                q, k_smem, barriers, step, (mine - 1) * BLOCK_N, limit,
                CAUSAL or TAIL, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, RIGHT, s_layout,
            )  # fmt: skip
            if Q_REGISTERS:  # behind its first use: TMA waits for no load that is still under way
                mbarrier.arrive(q_empty.index(q_slot), count=1)
            m = gl.maximum(gl.max(s, 1) * scale, LOWEST)
            e = gl.exp2(s * scale - m[:, None])
            sums = partial_sums(e, ROWS, BLOCK_N)
            p = gl.convert_layout(e.to(k_smem.dtype), gl.DotOperandLayout(0, o_layout, 2))
            o = no_sums(ROWS, value_dim, OUT_RIGHT)
            step += 1

            if PACKED and CAUSAL:  # noqa: SIM102 (settled when compiled, unlike the other)
                if mine > 1:  # the diagonal, which begins anywhere, may go through two blocks
                    o, p, m, sums = _block(
                        o, p, m, sums, q, buffers, barriers, step, scale, (mine - 2) * BLOCK_N, limit, True,
                        OVERLAP, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, RIGHT, OUT_RIGHT, s_layout, o_layout,
                    )  # fmt: skip
                    step += 1
            for _i in range(2 if PACKED and CAUSAL else 1, mine):  # whose blocks no mask touches
                o, p, m, sums = _block(
                    o, p, m, sums, q, buffers, barriers, step, scale, 0, limit, False,
                    OVERLAP, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, RIGHT, OUT_RIGHT, s_layout, o_layout,
                )  # fmt: skip
                step += 1
            if not Q_REGISTERS:
                mbarrier.arrive(q_empty.index(q_slot), count=1)

            o = _begin_output(p, v_smem, v_full, step - 1, o, STAGES, OUT_RIGHT)
            total = gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, s_layout))
            lse_ptrs = lse_ptr + place.to(gl.int64) * len_q + offs_m
            if PACKED:
                lse_ptrs += first_q
            gl.store(lse_ptrs, (m + gl.log2(total)) * LN2, mask=offs_m < rows_q)
            p, o = _output(p, o, v_empty, step - 1, STAGES, OUT_RIGHT)
            if PACKED:  # a query may see no key
                total = gl.where(total == 0.0, 1.0, total)
            o = scaled_rows(o, 1.0 / total, OUT_RIGHT)
            if o_desc.block_shape[len(o_desc.block_shape) - 1] == value_dim:
                write_tile(o[0], o_desc, o_smem.index(CONSUMER), place, heads, first, first_q, rows_q, PACKED)
            else:
                if OUT_RIGHT == 0:
                    o = halves_of(o[0])
                write_parts(o, o_desc, o_smem.index(CONSUMER), place, heads, first, first_q, rows_q, PACKED)
            done += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["len_q", "len_k", "heads", "group", "m_blocks", "all_heads", "section"])
def attention_forward_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, len_q, len_k, heads, group, m_blocks, all_heads, section,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    TAIL: gl.constexpr, RIGHT: gl.constexpr, OUT_RIGHT: gl.constexpr, OVERLAP: gl.constexpr, PINGPONG: gl.constexpr,
    Q_REGISTERS: gl.constexpr, PACKED: gl.constexpr = False, Q_STAGES: gl.constexpr = 1,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], in blocks of a head's rows; ``scale`` has log2(e) in it; lse is contiguous.

    Of the second part of heads there are RIGHT columns in Q and K, and OUT_RIGHT in V and out.  There is memory for Q
    of Q_STAGES tiles.
    """
    head_dim: gl.constexpr = q_desc.block_shape[len(q_desc.block_shape) - 1]
    noted: gl.constexpr = gl.float32 if head_dim <= 128 else q_desc.dtype
    buffers, barriers = shared_memory(q_desc, k_desc, v_desc, o_desc, noted, ROWS, CONSUMERS, STAGES, Q_STAGES)
    sizes = (len_q, len_k, heads, group, m_blocks, all_heads, section)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, RIGHT, OUT_RIGHT, OVERLAP, PINGPONG,
                            Q_REGISTERS, PACKED, Q_STAGES, 0)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, RIGHT, OUT_RIGHT, OVERLAP, PINGPONG,
                            Q_REGISTERS, PACKED, Q_STAGES, 1)),
                (produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, False, PACKED, Q_STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.static_assert(CONSUMERS == 3)
        gl.warp_specialize(
            [
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, RIGHT, OUT_RIGHT, OVERLAP, PINGPONG,
                            Q_REGISTERS, PACKED, Q_STAGES, 0)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, RIGHT, OUT_RIGHT, OVERLAP, PINGPONG,
                            Q_REGISTERS, PACKED, Q_STAGES, 1)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scale, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, RIGHT, OUT_RIGHT, OVERLAP, PINGPONG,
                            Q_REGISTERS, PACKED, Q_STAGES, 2)),
                (produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, False, PACKED, Q_STAGES)),
            ],
            [4, 4, 1],
            [160, 160, 32],
        )  # fmt: skip


def keys_of_block(head_dim):
    """Keys of a block: of 64 queries and 128 keys a thread has 64 scores, beside the sums of a head of 256 but 32."""
    return 128 if head_dim <= 128 else 64


def right_columns(head_dim):
    """Columns of a head's second part, or 0 where it has one alone, as the widest have: 4 % faster than two."""
    return right_of(head_dim) if head_dim <= 192 else 0


def out_columns(head_dim):
    """Columns of out that a group's shared memory holds: half of those of a head in two parts, and of the widest."""
    return wide(head_dim) // 2 if right_of(head_dim) else wide(head_dim)


SHORT = 512
"""Keys up to which a tile is so short that waiting for its Q counts."""


def tiles_of_queries(len_k, columns):
    """For how many tiles there is memory for Q: with two the next one's comes under this one.

    Heads up to 64 have Q in registers and give it back at once; beyond 128 there is no room.  H200: 0.92 to 0.99 of the
    time (22x40 causal heads, 256 keys, 96 and 64, 66 us before, 62 now; 8x40, 512 62, 58).
    """
    return 2 if len_k <= SHORT and 64 < columns <= 128 else 1


def launch_by_tma(q, k, v, causal, scale, *, config):
    """(out, lse) of q [b, h, l, d], k [b, g, s, d], v [b, g, s, e]; rows are contiguous and begin at 16 bytes.

    With ``causal`` query i sees keys up to i.  out lies in memory as :func:`.blocks.out_for` says.
    """
    batch, heads, len_q, d = q.shape
    heads_k, len_k, e = v.shape[1:]
    width, keys = wide(d), keys_of_block(max(d, e))
    out = out_for(q, v)
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    m_blocks = -(-len_q // (ROWS * config["CONSUMERS"]))
    gpu = gpu_of(q.device)
    programs = min(gpu.sms, batch * heads * m_blocks)
    launch(
        attention_forward_kernel, (programs,),
        descriptor_of(q, ROWS, width), descriptor_of(k, keys, width), descriptor_of(v, keys, wide(e)),
        descriptor_of(out, ROWS, out_columns(e)), lse, scale * LOG2E.value,
        len_q, len_k, heads, heads // heads_k, m_blocks, batch * heads,
        section_for(m_blocks, programs, batch * heads, heads // heads_k, len_k * (d + e) * k.itemsize, gpu.l2_bytes),
        CAUSAL=causal, ROWS=ROWS, BLOCK_N=keys, TAIL=len_k % keys != 0, RIGHT=right_columns(d),
        OUT_RIGHT=right_columns(e), Q_STAGES=tiles_of_queries(len_k, max(d, e)), num_warps=4, **config,
    )  # fmt: skip
    return out, lse


def launch_hopper(q, k, v, causal, scale, *, config):
    """:func:`launch_forward` in Gluon; what the copy engine cannot read goes the way of pointers."""
    if all(map(describable, (q, k, v))):
        if forward_takes_few_keys(k.shape[2], q.shape[3]):
            return forward_few_keys(q, k, v, causal, scale)
        return launch_by_tma(q, k, v, causal, scale, config=config)
    plain = forward_default(case_of(q, k, causal), gpu_of(q.device), pointers=True)
    return launch_forward(False, q, k, v, causal, scale, config=plain)


def shared_bytes(config, head_dim):
    """Shared memory of a config, at most, in bytes: Q and out of each group, rings of K and V, notes and barriers."""
    width = wide(head_dim)
    own = config["CONSUMERS"] * ROWS * (tiles_of_queries(1, head_dim) * width + out_columns(head_dim))
    return 2 * (own + 2 * config["STAGES"] * keys_of_block(head_dim) * width) + 3072


HOPPER_SPACE = {
    "CONSUMERS": (2, 3),
    "STAGES": (2, 3, 4),
    "OVERLAP": (False, True),
    "PINGPONG": (False, True),
    "Q_REGISTERS": (False, True),
}


def hopper_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """The best on an H200 and an H100, but for three groups, which spill under Triton 3.7.1.

    Up to 64 columns exponentials take as long as products, and each group runs its softmax under the other's products
    anyhow: two blocks of scores at a time, and turns, gain nothing in the mean (16384 keys, H200: 0.95 of the time
    without; H100: 1.01).  Wider heads take turns, 2 to 6 % faster where loops are short or, by a causal mask, of
    different lengths.
    """
    small = problem["d"] <= 64
    turns = not small and problem["d"] <= 128 and (problem["causal"] or problem["s"] <= 2048)
    return dict(zip(HOPPER_SPACE, (2, 4 if small else 2, not small, turns, small), strict=True))


def fits_hopper(config: Config, problem: Case, gpu: GPU) -> str:
    if reason := too_much_shared(shared_bytes(config, problem["d"]), gpu):
        return reason
    small = problem["d"] <= 64
    if config["CONSUMERS"] == 3 and not small:
        return "three groups have 160 registers a thread, which would spill"
    if config["Q_REGISTERS"] != (config["CONSUMERS"] == 2 and small):
        return "Q in registers spilled with three groups, and won nothing with larger heads"
    if config["STAGES"] != {2: 4 if small else 2, 3: 3}[config["CONSUMERS"]]:
        return "shared memory holds more blocks of keys, or a group waits for its next one"
    if config["PINGPONG"] and not config["OVERLAP"]:
        return "a group's turn would last until its softmax is done"
    return ""
