"""The backward pass where all keys of a head are one block: that of :mod:`kernels.attention.few_keys`, with a mask."""

import itertools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, Config
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.attention.blocks import (
    aligned_rows,
    as_read,
    block_d,
    head_of,
    read_rows,
    strides_of,
    strides_of_lse,
    write_rows,
)
from kernels.attention.few_keys import FEW, ROWS, dealt_out, few_keys_config, gradients_of_block, read_queries
from kernels.attention.parts import add_parts, sums_for
from kernels.attention.spaces import describes

from .aligned import aligned
from .backward import weights
from .blocks import inside, mask_of, mask_strides, read_mask, step_of, tail_of
from .forward import kinds_of, window_of

SPACE = {"BLOCK_N": (64, 128), "num_warps": (4, 8), "num_stages": (1, 2)}


@triton.jit(do_not_specialize=["left", "right", "heads", "group", "parts", "steps", "len_q", "len_k"])
def _few_keys_kernel(
    q, k, v, dout, out, lse_ptr, dlse_ptr, mask_ptr, dq_ptr, dk_ptr, dv_ptr, scale, scale_out, left, right,
    heads, group, parts, steps, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_ob, stride_oh, stride_os, stride_dqb, stride_dqh, stride_dqs,
    stride_dkb, stride_dkh, stride_dks, stride_dvb, stride_dvh, stride_dvs, stride_lb, stride_lh,
    stride_mb, stride_mh, stride_mm, stride_mn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, TAIL: tl.constexpr, STEP: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PRECISION: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """A program owns ``steps`` blocks of queries of the heads that share one of the ``heads`` of K, ``parts`` of each.

    The last part has those that are left.  The gradients of keys are of ``heads`` times ``parts`` heads.
    """
    place = tl.program_id(0)
    batch, part = place // (heads * parts), place % (heads * parts)
    b, head_k = batch.to(tl.int64), part // parts
    k = head_of(k, b, head_k, 0, stride_kb, stride_kh, stride_ks, DESCRIPTORS)
    v = head_of(v, b, head_k, 0, stride_vb, stride_vh, stride_vs, DESCRIPTORS)
    k_n = read_rows(k, batch, head_k, 0, len_k, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    v_n = read_rows(v, batch, head_k, 0, len_k, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, True, DESCRIPTORS)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    offs_n = tl.arange(0, BLOCK_N)
    blocks, first = tl.cdiv(len_q, BLOCK_M), part % parts * steps
    for step in tl.range(first, tl.minimum(first + steps, group * blocks)):
        head, m = head_k * group + step // blocks, step % blocks * BLOCK_M
        q_m, dout_m, lse, delta = read_queries(
            q, dout, out, lse_ptr, dlse_ptr, batch, head, m, len_q, (stride_qb, stride_qh, stride_qs),
            (stride_gb, stride_gh, stride_gs), (stride_ob, stride_oh, stride_os), (stride_lb, stride_lh),
            HEAD_DIM, BLOCK_M, BLOCK_D, DESCRIPTORS,
        )  # fmt: skip
        mask = 0
        if MASK != "none":
            mask_h, stride_m = mask_of(mask_ptr, b, head, stride_mb, stride_mh, stride_mm, STEP)
            mask = read_mask(
                mask_h, m, 0, len_q, len_k, stride_m, stride_mn, MASK, BLOCK_M, BLOCK_N, TAIL, True
            )  # fmt: skip
        s = tl.dot(k_n, tl.trans(q_m), input_precision=PRECISION)
        offs_m = (m + tl.arange(0, BLOCK_M))[None, :]
        p = weights(s, mask, lse[None, :], scale, MASK)
        p = tl.where(inside(offs_m, offs_n[:, None], len_k, 0, left, right, WINDOW), p, 0.0)
        dq, dk, dv = gradients_of_block(p, k_n, v_n, q_m, dout_m, delta, dk, dv, PRECISION)
        dq_h = head_of(dq_ptr, b, head, 0, stride_dqb, stride_dqh, stride_dqs, False)
        write_rows(dq_h, dq * scale_out, m, len_q - m, stride_dqs, HEAD_DIM, BLOCK_M, BLOCK_D, ALIGNED)
    dk_ptr = head_of(dk_ptr, b, part, 0, stride_dkb, stride_dkh, stride_dks, False)
    dv_ptr = head_of(dv_ptr, b, part, 0, stride_dvb, stride_dvh, stride_dvs, False)
    write_rows(dk_ptr, dk * scale_out, 0, len_k, stride_dks, HEAD_DIM, BLOCK_N, BLOCK_D, ALIGNED)
    write_rows(dv_ptr, dv, 0, len_k, stride_dvs, HEAD_DIM, BLOCK_N, BLOCK_D, ALIGNED)


def handles_few_keys(problem: Case, gpu: GPU) -> str:
    """Why one block of keys is not for a case, or ``""``."""
    if problem["s"] > FEW or problem["d"] > FEW:
        return f"for at most {FEW} keys and heads of {FEW}"
    return describes(problem, gpu)


def fits_few_keys(config: Config, problem: Case, gpu: GPU) -> str:
    if config["BLOCK_N"] < problem["s"]:
        return "a block has all keys"
    if config["BLOCK_N"] >= max(FEW, 2 * problem["s"]):
        return "a block twice as large as K"
    wide = block_d(problem["d"]) > 64
    if (wide or config["BLOCK_N"] == 128) != (config["num_warps"] == 8):
        return "registers spill, or too little work a warp"
    return ""


def few_keys_default(problem: Case, gpu: GPU) -> dict[str, int]:
    return few_keys_config(problem["d"], problem["s"])


def launch_few_keys(q, k, v, mask, out, lse, dout, dlse, scale, left, right, *, config):
    """(dq, dk, dv) of at most 128 keys; the arguments are those of :func:`.backward.launch_backward`.

    A block of fewer keys than there are is widened: ``fits`` says what is worth a trial, not what is right.
    """
    dq, *of_keys = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    (batch, heads, len_q, head_dim), (heads_k, len_k) = q.shape, k.shape[1:3]
    columns = config["BLOCK_N"] if len_k <= config["BLOCK_N"] else FEW
    config = {**config, "BLOCK_N": columns}
    mask = aligned(mask, batch * heads * len_q * len_k)
    parts, steps = dealt_out(q, k, config["num_warps"])
    sums = of_keys if parts == 1 else sums_for(k, parts)
    q, k, v, dout, out = (as_interpreted(x) for x in (q, k, v, dout, out))
    read, descriptors = as_read((q, k, v, dout, out), (ROWS, columns, columns, ROWS, ROWS), True)
    masked = kinds_of(mask, left, right)
    launch(
        _few_keys_kernel, (batch * heads_k * parts,),
        *read, lse, dlse, mask, dq, *sums, scale / math.log(2), scale,
        *window_of(masked, (batch, len_q, len_k), left, right), heads_k, heads // heads_k, parts, steps, len_q, len_k,
        *itertools.chain.from_iterable(map(strides_of, (q, k, v, dout, out, dq, *sums))), *strides_of_lse(lse),
        *mask_strides(mask), HEAD_DIM=head_dim, BLOCK_M=ROWS, BLOCK_D=block_d(head_dim), **masked,
        TAIL=tail_of(mask, len_k, columns), STEP=step_of(mask), DESCRIPTORS=descriptors, PRECISION="ieee",
        ALIGNED=aligned_rows(dq, *of_keys), **config,
    )  # fmt: skip
    if parts > 1:
        add_parts(sums, of_keys, parts)
    return dq, *of_keys
