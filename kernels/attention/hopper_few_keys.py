"""The forward pass of few keys on Hopper (sm_90) in Gluon: a head's keys are one block, and a program one tile.

Such heads are bound by memory, and each is short: what counts is how many are on their way.  A program asks for its
Q, K and V at once and needs no maximum of blocks before; a multiprocessor holds several, so that one's loads run under
another's products.
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

from kernels.common.rows import LOWEST

from .blocks import LN2, LOG2E, out_for, wide
from .hopper_tiles import ROWS, corner_of, descriptor_of, mask_scores, ragged_descriptor_of


def forward_takes_few_keys(len_k, head_dim):
    """Whether one block holds all keys, and is sooner done than blocks that fetch the next one meanwhile (H200)."""
    return len_k <= (64 if head_dim <= 64 else 128) and head_dim <= 128


@gluon.jit
def _attend(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, batch, head, head_k, first, first_q, len_q, first_k, len_k,
    CAUSAL: gl.constexpr, PACKED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A block of queries of one head; ``lse_ptr`` is that of its first query."""
    dtype: gl.constexpr = q_desc.dtype
    dims: gl.constexpr = len(q_desc.block_shape)
    rows: gl.constexpr = q_desc.block_shape[dims - 2]
    keys: gl.constexpr = k_desc.block_shape[dims - 2]
    head_dim: gl.constexpr = q_desc.block_shape[dims - 1]
    value_dim: gl.constexpr = v_desc.block_shape[dims - 1]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, keys, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, value_dim, 16])
    q_smem = gl.allocate_shared_memory(dtype, q_desc.block_shape, q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, k_desc.block_shape, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, v_desc.block_shape, v_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    of_queries = corner_of(batch, head, first, 0, first_q, len_q, PACKED)
    of_keys = corner_of(batch, head_k, 0, 0, first_k, len_k, PACKED)
    mbarrier.expect(ready.index(0), q_desc.block_type.nbytes + k_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, of_queries, ready.index(0), q_smem)
    tma.async_copy_global_to_shared(k_desc, of_keys, ready.index(0), k_smem)
    mbarrier.expect(ready.index(1), v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, of_keys, ready.index(1), v_smem)
    mbarrier.wait(ready.index(0), 0)
    s = gl.zeros([rows, keys], gl.float32, s_layout)
    k = k_smem.reshape([keys, head_dim]).permute((1, 0))
    s = warpgroup_mma(q_smem.reshape([rows, head_dim]), k, s, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    offs_m = first + gl.arange(0, rows, layout=gl.SliceLayout(1, s_layout))
    limit = gl.zeros_like(offs_m) + len_k
    if CAUSAL:
        limit = gl.minimum(limit, offs_m + 1 + (len_k - len_q if PACKED else 0))
    s = mask_scores(s, 0, limit, keys, s_layout)
    m = gl.maximum(gl.max(s, 1) * scale, LOWEST)
    p = gl.exp2(s * scale - m[:, None])
    total = gl.sum(p, 1)
    gl.store(lse_ptr + offs_m, (m + gl.log2(total)) * LN2, mask=offs_m < len_q)
    if PACKED:  # a query may see no key
        total = gl.where(total == 0.0, 1.0, total)
    p = gl.convert_layout((p / total[:, None]).to(dtype), gl.DotOperandLayout(0, o_layout, 2))
    mbarrier.wait(ready.index(1), 0)
    o = gl.zeros([rows, value_dim], gl.float32, o_layout)
    o = warpgroup_mma(p, v_smem.reshape([keys, value_dim]), o, use_acc=False, is_async=True)
    o = warpgroup_mma_wait(0, deps=[o])
    o_smem = q_smem  # all of the group have read Q
    if value_dim < head_dim:
        o_smem = q_smem._reinterpret(dtype, o_desc.block_shape, o_desc.layout)
    elif value_dim > head_dim:
        o_smem = gl.allocate_shared_memory(dtype, o_desc.block_shape, o_desc.layout)
    o_smem.reshape([rows, value_dim]).store(o.to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, of_queries, o_smem)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["len_q", "len_k", "heads", "group", "m_blocks"])
def few_keys_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, cu_q_ptr, cu_k_ptr, scale, len_q, len_k, heads, group, m_blocks,
    CAUSAL: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Descriptors are of [b, h, l, d], in blocks of a head's rows; ``scale`` has log2(e) in it; lse is contiguous.

    With ``cu_q_ptr`` and ``cu_k_ptr`` sequences lie behind one another, of ``len_q`` queries in all.
    """
    place = gl.program_id(0) // m_blocks
    first = gl.program_id(0) % m_blocks * q_desc.block_shape[len(q_desc.block_shape) - 2]
    batch = place // heads
    head = place % heads
    if cu_q_ptr is None:
        _attend(
            q_desc, k_desc, v_desc, o_desc, lse_ptr + place.to(gl.int64) * len_q, scale, batch, head, head // group,
            first, 0, len_q, 0, len_k, CAUSAL, False, num_warps,
        )  # fmt: skip
    else:
        first_q = gl.load(cu_q_ptr + batch)
        rows_q = gl.load(cu_q_ptr + batch + 1) - first_q
        first_k = gl.load(cu_k_ptr + batch)
        rows_k = gl.load(cu_k_ptr + batch + 1) - first_k
        if first < rows_q:
            lse_ptr += head.to(gl.int64) * len_q + first_q
            _attend(
                q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, batch, head, head // group,
                first, first_q, rows_q, first_k, rows_k, CAUSAL, True, num_warps,
            )  # fmt: skip


def _blocks(len_q, len_k):
    """(queries of a block, keys of a block)."""
    return ROWS if len_q <= ROWS else 2 * ROWS, max(ROWS, 1 << (len_k - 1).bit_length())


def forward_few_keys(q, k, v, causal, scale):
    """(out, lse) of q [b, h, l, d], k [b, g, s, d] and v [b, g, s, e], as the copy engine can read them.

    s, d and e are at most 128; out lies as :func:`.blocks.out_for` says.
    """
    batch, heads, len_q, head_dim = q.shape
    heads_k, len_k = k.shape[1:3]
    width, of_values = wide(head_dim), wide(v.shape[3])
    rows, keys = _blocks(len_q, len_k)
    out = out_for(q, v)
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    m_blocks = -(-len_q // rows)
    launch(
        few_keys_kernel, (batch * heads * m_blocks,),
        descriptor_of(q, rows, width), descriptor_of(k, keys, width), descriptor_of(v, keys, of_values),
        descriptor_of(out, rows, of_values), lse, None, None, scale * LOG2E.value, len_q, len_k, heads,
        heads // heads_k, m_blocks, CAUSAL=causal, num_warps=rows // 16,
    )  # fmt: skip
    return out, lse


def packed_few_keys(q, k, v, out, lse, cu_q, cu_k, max_q, max_k, causal, scale):
    """Fill out and lse [h, rows] of packed q [rows, h, d], k and v [keys, g, d], that descriptors can be of."""
    total, heads, head_dim = q.shape
    width = wide(head_dim)
    rows, keys = _blocks(max_q, max_k)
    m_blocks = -(-max_q // rows)
    launch(
        few_keys_kernel, ((cu_q.shape[0] - 1) * heads * m_blocks,),
        ragged_descriptor_of(q, rows, width), ragged_descriptor_of(k, keys, width),
        ragged_descriptor_of(v, keys, width), ragged_descriptor_of(out, rows, width), lse, cu_q, cu_k,
        scale * LOG2E.value, total, 0, heads, heads // k.shape[1], m_blocks, CAUSAL=causal, num_warps=rows // 16,
    )  # fmt: skip
