"""Loss of a chunk's logits, and their gradient in their place: the device code."""

import triton
import triton.language as tl

from kernels.common.lanes import edges, lanes_of
from kernels.common.rows import LOWEST
from kernels.cross_entropy.row import factors_of, gradient_of, loss_of, target_of


@triton.jit
def _logits(x_ptr, bias_ptr, offs, mask, POLICY: tl.constexpr):
    """Logits of a row whose first element is at x_ptr, in fp32, with the bias; -inf where the mask is not.

    cuBLAS rounds the product to its dtype, and the bias to that again where it adds it: in bf16 two roundings of 1 in
    256 in the exponent of a probability.
    """
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf"), eviction_policy=POLICY).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit
def _statistics(
    x_ptr, bias_ptr, begin, body, end,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, SMOOTHING: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """(maximum, sum of exp(x - maximum), sum) of a row, in blocks of LANES x WIDTH elements.

    Each lane, which one thread loads at once, has a running maximum m_i and sum l_i of its own, so that the sweep needs
    no exchange between threads.
    """
    lane = tl.arange(0, LANES) * WIDTH
    offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    s_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, body, LANES * WIDTH):
        whole = start + lane < body
        # -inf is the identity of max and becomes 0, the identity of the sum.
        x = _logits(x_ptr, bias_ptr, start + offs, whole[:, None], POLICY)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
        if SMOOTHING:
            s_i += tl.where(whole, tl.sum(x, axis=1), 0.0)
    row_max, total = tl.max(m_i, axis=0), tl.sum(s_i, axis=0)
    if not ALIGNED:
        edge = edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end)
        x = _logits(x_ptr, bias_ptr, edge, inside, "")
        row_max = tl.maximum(row_max, tl.max(x, axis=0))
        total += tl.sum(tl.where(inside, x, 0.0), axis=0)
    row_sum = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        row_sum += tl.sum(tl.exp(x - row_max), axis=0)
    return row_max, row_sum, total


@triton.jit
def chunk_kernel(
    x_ptr, bias_ptr, target_ptr, rows_ptr, g_ptr, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, GRADIENT: tl.constexpr, PER_ROW: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns one row of logits, which begins on a lane: loss_i, then, with GRADIENT, dx in their place.

    The second sweep goes backwards: what was read last is in cache.
    """
    pid = tl.program_id(0)
    row = pid.to(tl.int64) * stride_xm
    target = tl.load(target_ptr + pid)
    counted, valid, logit = target_of(x_ptr + row, target, n, ignore_index)
    if bias_ptr is not None:
        logit += tl.load(bias_ptr + target, mask=valid, other=0.0).to(tl.float32)
    base, begin, body, end = lanes_of(row, n, WIDTH, ALIGNED)
    x_ptr += base
    read = tl.where(counted, body, 0)
    row_max, row_sum, total = _statistics(
        x_ptr, bias_ptr, begin, read, tl.where(counted, end, begin), LANES, WIDTH, ALIGNED, SMOOTHING, "evict_last"
    )
    loss, lse = loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + pid, loss)
    if GRADIENT:
        g = tl.load(g_ptr + pid * PER_ROW).to(tl.float32)
        weight, floor, peak = factors_of(lse, n, label_smoothing, z_loss)
        weight /= row_sum
        at = (begin + target).to(tl.int32)
        lane = tl.arange(0, LANES) * WIDTH
        offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
        last = (body - 1) // (LANES * WIDTH) * (LANES * WIDTH)
        tl.debug_barrier()  # every thread has read the target's logit and the edges before any is overwritten
        for done in tl.range(0, body, LANES * WIDTH):
            start = last - done
            x = _logits(x_ptr, bias_ptr, start + offs, (start + lane < read)[:, None], "")
            dx = gradient_of(x, row_max, weight, floor, peak, g, start + offs == at, counted)
            tl.store(x_ptr + start + offs, dx, mask=(start + lane < body)[:, None])
        if not ALIGNED:
            edge = edges(body, WIDTH)
            inside = (edge >= begin) & (edge < end)
            x = _logits(x_ptr, bias_ptr, edge, inside & counted, "")
            tl.debug_barrier()
            tl.store(x_ptr + edge, gradient_of(x, row_max, weight, floor, peak, g, edge == at, counted), mask=inside)


@triton.jit
def scale_kernel(x_ptr, dloss_ptr, count, BLOCK: tl.constexpr):
    """One program owns BLOCK elements, multiplied by dloss in place, unless that is 1."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dloss = tl.load(dloss_ptr).to(tl.float32)
    if dloss != 1.0:
        x = tl.load(x_ptr + offs, mask=offs < count).to(tl.float32)
        tl.store(x_ptr + offs, x * dloss, mask=offs < count)
