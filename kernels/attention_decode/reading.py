"""What a program of any variant does with a part of a cache.

All heads of q that share a head of the cache, and their tokens, are rows of one product: a program reads its part of
the cache once for all of them.  Tensor cores take 16 rows at least; those that are missing cost nothing here.  A
program keeps maximum, sum and weighted sum of V as in flash attention.

A block's columns are a power of two: heads of 80 in 128 would ask for 1.6 times the copies, and as much shared memory.
They are computed in two parts, of 64 and 32.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.declaration.rows import VECTOR_BYTES

from kernels.attention.blocks import LN2
from kernels.common.rows import LOWEST


@triton.jit
def _read(ptrs, offs_n, last, FIRST: tl.constexpr, HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """COLUMNS columns of rows of the cache from FIRST on, those of the head; of MASKED blocks rows before ``last``."""
    mask_d = FIRST + tl.arange(0, COLUMNS)[None, :] < HEAD_DIM
    if MASKED:
        # Zeros instead of what lies behind the cache's end: a weight of 0 times a NaN would be one.
        block = tl.load(ptrs, mask=(offs_n < last)[:, None] & mask_d, other=0.0)
    elif HEAD_DIM < FIRST + COLUMNS:
        block = tl.load(ptrs, mask=mask_d, other=0.0)
    else:
        block = tl.load(ptrs)
    return block


@triton.jit
def _fold(
    q, q_rest, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, acc_rest, scale, stride_ks, stride_vs,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """State (maximum m_i, sum l_i of exp2, weighted sums of V) after the cache's rows from ``start`` on.

    Of MASKED blocks each row of q sees the keys before its ``limit``, and those from ``last`` on are not read.
    """
    offs_n = start + tl.arange(0, BLOCK_N)
    k_block = k_ptrs + tl.cast(start, tl.int64) * stride_ks
    v_block = v_ptrs + tl.cast(start, tl.int64) * stride_vs
    offs_d, offs_rest = tl.arange(0, BLOCK_D)[None, :], BLOCK_D + tl.arange(0, REST if REST else 16)[None, :]
    k = _read(k_block + offs_d, offs_n, last, 0, HEAD_DIM, BLOCK_D, MASKED)
    v = _read(v_block + offs_d, offs_n, last, 0, HEAD_DIM, BLOCK_D, MASKED)
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if REST:
        k_rest = _read(k_block + offs_rest, offs_n, last, BLOCK_D, HEAD_DIM, REST, MASKED)
        v_rest = _read(v_block + offs_rest, offs_n, last, BLOCK_D, HEAD_DIM, REST, MASKED)
        s = tl.dot(q_rest, tl.trans(k_rest), s, input_precision="ieee")
    s *= scale
    if MASKED:
        s = tl.where(offs_n[None, :] < limit[:, None], s, -float("inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1))
    p = tl.exp2(s - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    p = p.to(v.dtype)
    acc = tl.dot(p, v, acc * alpha[:, None], input_precision="ieee")
    if REST:
        acc_rest = tl.dot(p, v_rest, acc_rest * alpha[:, None], input_precision="ieee")
    return m_new, l_i, acc, acc_rest


@triton.jit
def attend(
    q_ptr, k_ptr, v_ptr, sequence, head, first, last, length, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(out, its REST last columns, lse to base 2) of a head of a cache's rows from ``first``, in blocks, to ``last``.

    BLOCK_M rows are the GROUP heads of q that use the head, QUERIES tokens each; the cache holds ``length`` rows.
    Columns are computed in BLOCK_D and REST; if that is 0, the second result means nothing.  The cache's strides are
    multiples of WIDTH elements.
    """
    # So said, since the compiler knows of multiples of 16 alone: rows of 72 would be read by 2 bytes, into registers.
    stride_kb, stride_kh, stride_ks = stride_kb // WIDTH * WIDTH, stride_kh // WIDTH * WIDTH, stride_ks // WIDTH * WIDTH
    stride_vb, stride_vh, stride_vs = stride_vb // WIDTH * WIDTH, stride_vh // WIDTH * WIDTH, stride_vs // WIDTH * WIDTH
    offs_m = tl.arange(0, BLOCK_M)
    offs_d, offs_rest = tl.arange(0, BLOCK_D), BLOCK_D + tl.arange(0, REST if REST else 16)
    member, query = offs_m // QUERIES, offs_m % QUERIES
    mask_m = (offs_m < GROUP * QUERIES)[:, None]
    limit = length - (QUERIES - 1) + query
    b, h = sequence.to(tl.int64), head.to(tl.int64)
    q_ptr += b * stride_qb + h * GROUP * stride_qh
    q_ptrs = q_ptr + (member * stride_qh + query * stride_qt)[:, None]
    q = tl.load(q_ptrs + offs_d[None, :], mask=mask_m & (offs_d < HEAD_DIM)[None, :], other=0.0)
    q_rest = q
    if REST:
        q_rest = tl.load(q_ptrs + offs_rest[None, :], mask=mask_m & (offs_rest < HEAD_DIM)[None, :], other=0.0)
    offs_n = tl.arange(0, BLOCK_N)[:, None]
    k_ptrs = k_ptr + b * stride_kb + h * stride_kh + offs_n * stride_ks
    v_ptrs = v_ptr + b * stride_vb + h * stride_vh + offs_n * stride_vs
    m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    acc_rest = tl.zeros([BLOCK_M, REST if REST else 16], tl.float32)
    # Whole blocks that every row sees, then those with the ends of some.
    seen = tl.maximum(tl.minimum(last, length - (QUERIES - 1)) - first, 0) // BLOCK_N * BLOCK_N + first
    for start in tl.range(first, seen, BLOCK_N):
        m_i, l_i, acc, acc_rest = _fold(
            q, q_rest, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, acc_rest, scale, stride_ks, stride_vs,
            BLOCK_N, HEAD_DIM, BLOCK_D, REST, False,
        )  # fmt: skip
    for start in tl.range(seen, last, BLOCK_N, num_stages=1):
        m_i, l_i, acc, acc_rest = _fold(
            q, q_rest, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, acc_rest, scale, stride_ks, stride_vs,
            BLOCK_N, HEAD_DIM, BLOCK_D, REST, True,
        )  # fmt: skip
    # A row that saw no key has the sum 0: its result is 0, of weight 0.
    none = l_i == 0.0
    total = tl.where(none, 1.0, l_i)
    lse = tl.where(none, -float("inf"), m_i + tl.log2(total))
    return acc / total[:, None], acc_rest / total[:, None], lse


@triton.jit
def write(out_ptr, lse_ptr, place, out, rest, lse, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, REST: tl.constexpr):
    """Write ROWS rows of ``out``, of its ``rest`` and of ``lse`` where those of number ``place`` are."""
    offs_m = tl.arange(0, out.shape[0])
    offs_d = tl.arange(0, out.shape[1])
    row = place * ROWS + offs_m
    mask_m = (offs_m < ROWS)[:, None]
    out_ptrs = out_ptr + row[:, None] * HEAD_DIM
    tl.store(out_ptrs + offs_d[None, :], out, mask=mask_m & (offs_d < HEAD_DIM)[None, :])
    if REST:
        offs_rest = out.shape[1] + tl.arange(0, REST)
        tl.store(out_ptrs + offs_rest[None, :], rest, mask=mask_m & (offs_rest < HEAD_DIM)[None, :])
    tl.store(lse_ptr + row, lse, mask=offs_m < ROWS)


@triton.jit
def weigh(m_i, l_i, acc, out, lse):
    """State (maximum m_i, sum l_i of weights, weighted sum acc of out), a line for each part, after more of them."""
    m_new = tl.maximum(m_i, lse)
    alpha, weight = tl.exp2(m_i - m_new), tl.exp2(lse - m_new)
    return m_new, l_i * alpha + weight, acc * alpha[:, None] + out * weight[:, None]


@triton.jit
def weighed(m_i, l_i, acc):
    """(out, lse) of all lines of such a state together; of parts that saw no key out is 0 and lse minus infinity."""
    top = tl.max(m_i, axis=0)
    share = tl.exp2(m_i - top)
    total = tl.sum(l_i * share, axis=0)
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    return tl.sum(acc * share[:, None], axis=0) / total, tl.where(none, -float("inf"), (top + tl.log2(total)) * LN2)


def _columns(head_dim, rows):
    """(columns of a head's first part, of its second one), of which the second has 0 where it would spare none.

    It has more than the product's ``rows``: else Triton gives each warp rows of its own, of which 16 are one's (3.7.1).
    """
    whole = triton.next_power_of_2(head_dim)
    rest = max(2 * rows, triton.next_power_of_2(head_dim - whole // 2))
    return (whole // 2, rest) if whole // 2 + rest < whole else (whole, 0)


def prepared(q, k, v, scale, config):
    """(out and lse to be filled, what kernels read, the scale to base 2, the constants of their launch)."""
    batch, heads, queries, head_dim = q.shape
    group = heads // k.shape[1]
    rows = max(triton.next_power_of_2(group * queries), 16)
    columns, rest = _columns(head_dim, rows)
    apart = (step for x in (k, v) for size, step in zip(x.shape[:3], x.stride()[:3], strict=True) if size > 1)
    out = torch.empty((batch, heads, queries, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    constants = {
        "GROUP": group, "QUERIES": queries, "HEAD_DIM": head_dim,
        "BLOCK_M": rows, "BLOCK_D": columns, "REST": rest, "WIDTH": math.gcd(VECTOR_BYTES // k.element_size(), *apart),
        **{name: value for name, value in config.items() if name != "PROGRAMS"},
    }  # fmt: skip
    return (out, lse), tuple(map(as_interpreted, (q, k, v))), scale * math.log2(math.e), constants
