"""Variant `gluon`: for Hopper (sm_90), beside :mod:`kernels.attention.hopper_forward`.

The programs, warps, rings and barriers are that kernel's.  Three things are not:

    V      comes transposed (:mod:`.transposing`).
    P      is rounded to e4m3 between the products.  exp2(S - m) is at most 1 and comes 2^LIFT times as large, into the
           middle of e4m3's range; the sum that out is divided by carries the same factor.  A thread's elements of P are
           not those that wgmma wants from it: V's keys are written in the order in which they would be.
    O      Hopper's tensor cores add fp8 products with some 14 bits.  With PROMOTE they sum one block of keys, and the
           sums of blocks are added in fp32 registers, by the multiplication that rescales them anyway.
"""

import torch
from atlas.declaration import GPU, Case, Config, gpu_of
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.blocks import LN2, LOG2E, describable
from kernels.attention.cases import case_of
from kernels.attention.hopper_forward import keys_of_block
from kernels.attention.hopper_tiles import (
    ROWS,
    begin_scores,
    blocks_of,
    descriptor_of,
    first_scores,
    mask_scores,
    partial_sums,
    pass_block,
    produce,
    section_for,
    seen_by,
    shared_memory,
    tile_of,
    write_tile,
)
from kernels.attention.spaces import too_much_shared
from kernels.common.rows import LOWEST

from .tiled import LIFT, launch_tiled, tiled_default
from .transposing import transposed

_PACK = gl.constexpr("""{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}""")


@gluon.jit
def _words(e, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """P [ROWS, BLOCK_N] in e4m3, four keys to a word: [ROWS, BLOCK_N / 16, 4].

    Of 16 columns of S the c-th of four threads has 2 c, 2 c + 1, 8 + 2 c and 9 + 2 c; of P wgmma wants 4 c … 4 c + 3
    from it, in one register.  Named like that, they are there already: no element moves.  From one block to the next
    they go as words, for as bytes the compiler takes each out of one register and puts it into another.
    """
    even, odd = e.reshape([ROWS, BLOCK_N // 16, 2, 4, 2]).split()
    first, third = even.permute((0, 1, 3, 2)).split()
    second, fourth = odd.permute((0, 1, 3, 2)).split()
    four = [first, second, third, fourth]
    return gl.inline_asm_elementwise(_PACK, "=r,f,f,f,f", four, dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _bytes(words, o):
    """The words of :func:`_words` as wgmma takes P for ``o``: a register's four elements are one word."""
    layout: gl.constexpr = gl.DotOperandLayout(0, o.type.layout, 4)
    twice = gl.join(words, words)
    each = gl.join(twice, twice).reshape([words.shape[0], words.shape[1] * words.shape[2] * 4])
    each = gl.convert_layout(each, layout)
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r,r,r", [each], dtype=gl.float8e4nv, is_pure=True, pack=4)


@gluon.jit
def _values(v_smem, v_full, step, STAGES: gl.constexpr):
    """The block of values number ``step`` once it is there, [keys, head_dim]."""
    slot = step % STAGES
    mbarrier.wait(v_full.index(slot), step // STAGES & 1)
    v = v_smem.index(slot)
    return v.reshape([v.shape[2], v.shape[3]]).permute((1, 0))


@gluon.jit
def _begin_output(words, v, o, PROMOTE: gl.constexpr):
    """Begin P V: by itself, or added to ``o``."""
    p = _bytes(words, o)
    if PROMOTE:
        part = warpgroup_mma(p, v, gl.zeros_like(o), use_acc=False, is_async=True)
    else:
        part = warpgroup_mma(p, v, o, is_async=True)
    return part


@gluon.jit
def _weights(s, m, scale, ROWS: gl.constexpr, BLOCK_N: gl.constexpr):
    """(P's words, sums of its rows in fp32) of scores and their running maxima."""
    e = gl.exp2(s * scale - (m - LIFT)[:, None])
    return _words(e, ROWS, BLOCK_N), partial_sums(e, ROWS, BLOCK_N)


@gluon.jit
def _block(
    o, p, m, sums, alpha, q, buffers, barriers, step, scale, first_n, limit,
    MASKED: gl.constexpr, PROMOTE: gl.constexpr, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr,
    CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, s_layout: gl.constexpr,
    o_layout: gl.constexpr,
):  # fmt: skip
    """One block of keys after the first: S of it, P V of the block before it, and the softmax of S under P V.

    ``o`` and ``alpha`` lag behind: o is of the blocks before that one, and alpha what it has yet to be multiplied by.
    """
    _, k_smem, v_smem, _, notes = buffers
    _, _, k_full, k_empty, v_full, v_empty, turns = barriers
    rows: gl.constexpr = q[0].shape[0]
    slot = step % STAGES
    mbarrier.wait(k_full.index(slot), step // STAGES & 1)
    if PINGPONG:  # the first group's n-th turn comes after the last group's n-1-th
        mbarrier.wait(turns.index(CONSUMER), (step & 1) ^ (1 if CONSUMER == 0 else 0))
    s = begin_scores(q, k_smem, step, BLOCK_N, STAGES, 0, s_layout)
    part = _begin_output(p, _values(v_smem, v_full, step - 1, STAGES), o, PROMOTE)
    if PINGPONG:
        mbarrier.arrive(turns.index((CONSUMER + 1) % CONSUMERS), count=1)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(slot), count=1)
    if MASKED:
        s = mask_scores(s, first_n, limit, BLOCK_N, s_layout)
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    alpha_new = gl.exp2(m - m_new)
    next_p, next_sums = _weights(s, m_new, scale, rows, BLOCK_N)
    alpha_4 = gl.convert_layout(alpha_new, gl.SliceLayout(1, sums.type.layout))[:, None]
    sums = sums * alpha_4 + next_sums
    # As in attention_forward: the assembler moves no wait over this store, and would move it over the exponentials.
    notes.index(CONSUMER).store(sums)
    part, p = warpgroup_mma_wait(0, deps=[part, p])
    mbarrier.arrive(v_empty.index((step - 1) % STAGES), count=1)
    alpha_o = gl.convert_layout(alpha_new, gl.SliceLayout(1, o_layout))
    o = o * alpha[:, None] + part if PROMOTE else part * alpha_o[:, None]
    return o, next_p, m_new, sums, alpha_o


@gluon.jit
def _consume(
    o_desc, buffers, barriers, lse_ptr, scales, sizes,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    TAIL: gl.constexpr, PROMOTE: gl.constexpr, PINGPONG: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Group ``CONSUMER`` of four warps: its ROWS rows of each tile."""
    q_smem, k_smem, v_smem, o_smem, _ = buffers
    q_full, q_empty, _, _, v_full, v_empty, _ = barriers
    scale_of_all, q_scale_ptr, k_scale_ptr, v_scale_ptr = scales
    len_q, len_k, heads, group, m_blocks, all_heads, section = sizes
    head_dim: gl.constexpr = o_desc.block_shape[3]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, head_dim, 32])
    q = (q_smem.index(CONSUMER).reshape([ROWS, head_dim]),)
    step = 0
    done = 0
    for turn in range(gl.cdiv(m_blocks * all_heads, gl.num_programs(0))):
        block_m, place, there = tile_of(turn, m_blocks, all_heads, section, CAUSAL)
        if there:
            place_k = place // group  # heads are whole groups, so this goes for all batches
            scale = scale_of_all * gl.load(q_scale_ptr + place) * gl.load(k_scale_ptr + place_k)
            v_scale = gl.load(v_scale_ptr + place_k)
            blocks = blocks_of(block_m, len_k, CAUSAL, ROWS * CONSUMERS, BLOCK_N)
            first = (block_m * CONSUMERS + CONSUMER) * ROWS
            offs_m, limit, mine, whole = seen_by(blocks, first, len_k, CAUSAL, ROWS, BLOCK_N, s_layout)
            if CAUSAL:
                for _skipped in range(mine, blocks):  # only the groups after this one see these keys
                    pass_block(barriers, step, PINGPONG, CONSUMER, CONSUMERS, STAGES)
                    step += 1

            mbarrier.wait(q_full.index(CONSUMER), done & 1)
            s = first_scores(
                q, k_smem, barriers, step, (mine - 1) * BLOCK_N, limit,
                CAUSAL or TAIL, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, 0, s_layout,
            )  # fmt: skip
            m = gl.maximum(gl.max(s, 1) * scale, LOWEST)
            p, sums = _weights(s, m, scale, ROWS, BLOCK_N)
            o = gl.zeros([ROWS, head_dim], gl.float32, o_layout)
            alpha = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, o_layout))
            step += 1

            masked = 1
            if CAUSAL and BLOCK_N % (ROWS * CONSUMERS) != 0:
                masked = gl.minimum(gl.maximum(mine - whole, 1), mine)
                for i in range(1, masked):
                    o, p, m, sums, alpha = _block(
                        o, p, m, sums, alpha, q, buffers, barriers, step, scale, (mine - 1 - i) * BLOCK_N, limit,
                        True, PROMOTE, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, s_layout, o_layout,
                    )  # fmt: skip
                    step += 1
            for _i in range(masked, mine):
                o, p, m, sums, alpha = _block(
                    o, p, m, sums, alpha, q, buffers, barriers, step, scale, 0, limit,
                    False, PROMOTE, PINGPONG, CONSUMER, CONSUMERS, BLOCK_N, STAGES, s_layout, o_layout,
                )  # fmt: skip
                step += 1
            mbarrier.arrive(q_empty.index(CONSUMER), count=1)

            part = _begin_output(p, _values(v_smem, v_full, step - 1, STAGES), o, PROMOTE)
            total = gl.convert_layout(gl.sum(sums, 1), gl.SliceLayout(1, s_layout))
            lse_ptrs = lse_ptr + place.to(gl.int64) * len_q + offs_m
            gl.store(lse_ptrs, (m + (gl.log2(total) - LIFT)) * LN2, mask=offs_m < len_q)
            part = warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(v_empty.index((step - 1) % STAGES), count=1)
            if PROMOTE:
                part = o * alpha[:, None] + part
            part = part * (v_scale / gl.convert_layout(total, gl.SliceLayout(1, o_layout)))[:, None]
            write_tile(part, o_desc, o_smem.index(CONSUMER), place, heads, first, 0, 0, False)
            done += 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["len_q", "len_k", "heads", "group", "m_blocks", "all_heads", "section"])
def attention_fp8_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, q_scale_ptr, k_scale_ptr, v_scale_ptr,
    len_q, len_k, heads, group, m_blocks, all_heads, section,
    CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
    TAIL: gl.constexpr, PROMOTE: gl.constexpr, PINGPONG: gl.constexpr,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], V's of [b, g, d, s]; ``scale`` has log2(e) in it, the others multiply it."""
    buffers, barriers = shared_memory(q_desc, k_desc, v_desc, o_desc, gl.float32, ROWS, CONSUMERS, STAGES)
    scales = (scale, q_scale_ptr, k_scale_ptr, v_scale_ptr)
    sizes = (len_q, len_k, heads, group, m_blocks, all_heads, section)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (o_desc, buffers, barriers, lse_ptr, scales, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, PROMOTE, PINGPONG, 0)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scales, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, PROMOTE, PINGPONG, 1)),
                (produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, True, False)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.static_assert(CONSUMERS == 3)
        gl.warp_specialize(
            [
                (_consume, (o_desc, buffers, barriers, lse_ptr, scales, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, PROMOTE, PINGPONG, 0)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scales, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, PROMOTE, PINGPONG, 1)),
                (_consume, (o_desc, buffers, barriers, lse_ptr, scales, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, TAIL, PROMOTE, PINGPONG, 2)),
                (produce, (q_desc, k_desc, v_desc, buffers, barriers, sizes,
                            CAUSAL, ROWS, BLOCK_N, CONSUMERS, STAGES, True, False)),
            ],
            [4, 4, 1],
            [160, 160, 32],
        )  # fmt: skip


def launch_by_tma(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d] of e4m3; rows begin at 16 bytes.

    The scales are fp32 and contiguous, [b, h] of q and [b, g] of k and v.  out lies in memory as q does, as far as q
    leaves no gaps.
    """
    batch, heads, len_q, head_dim = q.shape
    heads_k, len_k = k.shape[1:3]
    out = torch.empty_like(q, dtype=out_dtype)
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    keys = keys_of_block(head_dim)
    m_blocks = -(-len_q // (ROWS * config["CONSUMERS"]))
    gpu = gpu_of(q.device)
    programs = min(gpu.sms, batch * heads * m_blocks)
    launch(
        attention_fp8_kernel, (programs,),
        descriptor_of(q, ROWS, head_dim), descriptor_of(k, keys, head_dim),
        descriptor_of(transposed(v), head_dim, keys), descriptor_of(out, ROWS, head_dim), lse,
        scale * LOG2E.value, q_scale, k_scale, v_scale,
        len_q, len_k, heads, heads // heads_k, m_blocks, batch * heads,
        section_for(m_blocks, programs, batch * heads, heads // heads_k, 2 * len_k * head_dim, gpu.l2_bytes),
        CAUSAL=causal, ROWS=ROWS, BLOCK_N=keys, TAIL=len_k % keys != 0, PROMOTE=head_dim <= 128, num_warps=4, **config,
    )  # fmt: skip
    return out, lse


def launch_hopper(q, k, v, scales, causal, scale, out_dtype=torch.bfloat16, *, config):
    """:func:`launch_tiled` in Gluon; what the copy engine cannot read goes the way of pointers.

    So does out in fp32, whose blocks would take more shared memory than the configs count with.
    """
    if out_dtype.itemsize == 2 and all(map(describable, (q, k, v))):
        return launch_by_tma(q, k, v, *scales, causal, scale, out_dtype, config=config)
    plain = tiled_default(case_of(q, k, causal), gpu_of(q.device))
    return launch_tiled(q, k, v, scales, causal, scale, out_dtype, config=plain)


def shared_bytes(config, head_dim):
    """Shared memory of a config, in bytes: Q and out of each group, the rings of K and V, notes and barriers."""
    return head_dim * (3 * config["CONSUMERS"] * ROWS + 2 * config["STAGES"] * keys_of_block(head_dim)) + 4096


HOPPER_SPACE = {"CONSUMERS": (2, 3), "STAGES": (2, 3, 4), "PINGPONG": (False, True)}


def _stages(problem: Case) -> int:
    return 4 if problem["d"] == 64 else 3


def _rows_in_turn(problem: Case, gpu: GPU, groups: int) -> int:
    """How many queries the busiest multiprocessor goes through."""
    tiles = problem["b"] * problem["h"] * -(-problem["l"] // (ROWS * groups))
    return ROWS * groups * -(-tiles // gpu.sms)


def hopper_default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Three groups read the keys of small heads for more queries: 0.83 and 0.96 of the time where loops are long.

    Where their larger tiles leave more of the last ones, or of the last turn, empty, two are faster.
    """
    three = problem["d"] == 64 and problem["s"] > 4096
    three = three and _rows_in_turn(problem, gpu, 3) <= _rows_in_turn(problem, gpu, 2)
    turns = three and not problem["causal"]
    return {"CONSUMERS": 3 if three else 2, "STAGES": _stages(problem), "PINGPONG": turns}


def fits_hopper(config: Config, problem: Case, gpu: GPU) -> str:
    if reason := too_much_shared(shared_bytes(config, problem["d"]), gpu):
        return reason
    if config["CONSUMERS"] == 3 and problem["d"] > 64:
        return "three groups have 160 registers a thread, which would spill"
    # 494 and 602 queries: 1.25 and 1.17 times as many, 1.18 and 1.27 of the time.  Of one turn either is as soon done.
    three, two = (_rows_in_turn(problem, gpu, groups) for groups in (3, 2))
    if config["CONSUMERS"] == 3 and three > max(3 * ROWS, 1.1 * two):
        return "tiles of three groups leave more of the last ones, or of the last turn, empty"
    return "" if config["STAGES"] == _stages(problem) else "shared memory holds more blocks of keys"
