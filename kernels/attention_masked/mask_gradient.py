"""The gradient of an added mask: dS = P * (dout V^T - D), summed over what the mask is the same for.

A program owns a block of the mask itself and goes through the heads, queries and keys that it is broadcast to: sums
are in registers and in a fixed order, and no matrix of all scores is written.  Computed where a mask wants a gradient.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.attention.backward import launch_statistics
from kernels.attention.blocks import block_d, head_of, read_rows, strides_of

from .backward import lse_of, weights
from .blocks import inside, mask_of, mask_strides, read_mask, step_of, tail_of
from .forward import kinds_of, window_of


@triton.jit(
    do_not_specialize=[
        "left",
        "right",
        "heads",
        "group",
        "len_q",
        "len_k",
        "own_h",
        "own_m",
        "own_n",
        "more_h",
        "more_m",
        "more_n",
        "repeats",
    ]
)
def _mask_kernel(
    q, k, v, dout, stats_ptr, mask_ptr, dmask_ptr, scale, left, right, heads, group, len_q, len_k,
    own_h, own_m, own_n, more_h, more_m, more_n, repeats,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_gb, stride_gh, stride_gs, stride_part, stride_sb, stride_sh,
    stride_mb, stride_mh, stride_mm, stride_mn, stride_db, stride_dh, stride_dm, stride_dn,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    MASK: tl.constexpr, WINDOW: tl.constexpr, TAIL: tl.constexpr, STEP: tl.constexpr,
    ONE_QUERY: tl.constexpr, ONE_KEY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The mask has ``own`` heads and blocks of queries and keys; each is for ``more`` of scores, ``repeats`` in all."""
    pid = tl.program_id(0)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in tl.range(0, repeats, num_stages=1):
        m = pid // own_n % own_m + i // more_n % more_m  # one of the two is 0
        n = pid % own_n + i % more_n
        head = pid // own_n // own_m % own_h + i // more_n // more_m % more_h
        b = (pid // own_n // own_m // own_h + i // more_n // more_m // more_h).to(tl.int64)
        head_k = head // group
        first_m, first_n = m * BLOCK_M, n * BLOCK_N
        offs_m, offs_n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
        q_h = head_of(q, b, head, 0, stride_qb, stride_qh, stride_qs, False)
        k_h = head_of(k, b, head_k, 0, stride_kb, stride_kh, stride_ks, False)
        v_h = head_of(v, b, head_k, 0, stride_vb, stride_vh, stride_vs, False)
        dout_h = head_of(dout, b, head, 0, stride_gb, stride_gh, stride_gs, False)
        stats_h = stats_ptr + b * stride_sb + tl.cast(head, tl.int64) * stride_sh
        mask_h, stride_m = mask_of(mask_ptr, b, head, stride_mb, stride_mh, stride_mm, STEP)
        q_m = read_rows(q_h, 0, 0, first_m, len_q - first_m, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, False)
        k_n = read_rows(k_h, 0, 0, first_n, len_k - first_n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, True, False)
        s = tl.dot(q_m, tl.trans(k_n), input_precision=PRECISION)
        mask = read_mask(
            mask_h, first_m, first_n, len_q, len_k, stride_m, stride_mn, MASK, BLOCK_M, BLOCK_N, TAIL, False
        )  # fmt: skip
        p = weights(s, mask, lse_of(stats_h, offs_m)[:, None], scale, MASK)
        p = tl.where(inside(offs_m[:, None], offs_n[None, :], len_k, 0, left, right, WINDOW), p, 0.0)
        dout_m = read_rows(dout_h, 0, 0, first_m, len_q - first_m, stride_gs, HEAD_DIM, BLOCK_M, BLOCK_D, True, False)
        v_n = read_rows(v_h, 0, 0, first_n, len_k - first_n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, True, False)
        dp = tl.dot(dout_m, tl.trans(v_n), input_precision=PRECISION)
        total += p * (dp - tl.load(stats_h + stride_part + offs_m)[:, None])
    # Of a dimension of one element the sum stands in the first place.
    rows, columns = len_q, len_k
    if ONE_QUERY:
        total = tl.broadcast_to(tl.sum(total, axis=0)[None, :], (BLOCK_M, BLOCK_N))
        rows = 1
    if ONE_KEY:
        total = tl.broadcast_to(tl.sum(total, axis=1)[:, None], (BLOCK_M, BLOCK_N))
        columns = 1
    offs_m = (pid // own_n % own_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None].to(tl.int64)
    offs_n = (pid % own_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :].to(tl.int64)
    head = pid // own_n // own_m % own_h
    b = (pid // own_n // own_m // own_h).to(tl.int64)
    dmask_ptr, stride_dm = mask_of(dmask_ptr, b, head, stride_db, stride_dh, stride_dm, STEP)
    dmask_ptrs = dmask_ptr + offs_m * stride_dm + offs_n * stride_dn
    tl.store(dmask_ptrs, total.to(dmask_ptr.dtype.element_ty), mask=(offs_m < rows) & (offs_n < columns))


def launch_mask_gradient(q, k, v, mask, out, lse, dout, dlse, scale, left, right):
    """dmask, of the mask's shape and dtype, contiguous."""
    # Not like the mask, which may be expanded: its elements then lie in one place.
    dmask = as_interpreted(torch.empty(mask.shape, dtype=mask.dtype, device=mask.device))
    (batch, heads, len_q, head_dim), (heads_k, len_k) = q.shape, k.shape[1:3]
    lengths = batch, len_q, len_k
    stats = launch_statistics((q, k, v, out, lse, dout, dlse), None, None, lengths)
    block = _block(head_dim, q.element_size(), gpu_of(q.device))
    q, k, v, dout = (as_interpreted(x) for x in (q, k, v, dout))
    masked = kinds_of(mask, left, right)
    all_of = batch, heads, triton.cdiv(len_q, block), triton.cdiv(len_k, block)
    own = [1 if size == 1 else count for size, count in zip(mask.shape, all_of, strict=True)]
    more = [count // mine for count, mine in zip(all_of, own, strict=True)]
    launch(
        _mask_kernel, (math.prod(own),),
        q, k, v, dout, stats, mask, dmask, scale / math.log(2), *window_of(masked, lengths, left, right),
        heads, heads // heads_k, len_q, len_k, *own[1:], *more[1:], math.prod(more),
        *strides_of(q), *strides_of(k), *strides_of(v), *strides_of(dout), *stats.stride()[:3],
        *mask_strides(mask), *mask_strides(dmask),
        HEAD_DIM=head_dim, BLOCK_M=block, BLOCK_N=block, BLOCK_D=block_d(head_dim), **masked,
        TAIL=tail_of(mask, len_k, block), STEP=math.gcd(step_of(mask), step_of(dmask)),
        ONE_QUERY=mask.shape[2] == 1, ONE_KEY=mask.shape[3] == 1, PRECISION="ieee",
        num_warps=8 if q.element_size() == 4 else 4,
    )  # fmt: skip
    return dmask.to(mask.dtype)


def _block(head_dim, size, gpu):
    """Queries and keys of a block, of which four tensors should take half of the shared memory at most."""
    most = gpu.shared_bytes // (8 * block_d(head_dim) * size)
    return 16 if size == 4 or most < 32 else 32 if most < 64 else 64
