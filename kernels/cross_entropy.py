"""Cross-entropy of rows of logits against class indices, with label smoothing s, ignored targets and a z-loss.

With lse_i = log sum_j exp(x[i, j]) and t_i the target of row i, of m rows and n classes:

    loss_i = lse_i - (1 - s) x[i, t_i] - s / n sum_j x[i, j] + z lse_i^2          (0 where t_i is ignore_index)
    dx[i, j] = g_i ((1 + 2 z lse_i) exp(x[i, j] - lse_i) - s / n - (1 - s) [j = t_i])

loss is the mean of the loss_i that count, their sum, or all of them; g_i is the gradient that arrives at loss_i.
Forward reads x, MN, once and keeps lse, M.  Backward reads x again and writes dx, 2 MN: what exp(x - lse) takes is
there without a sum.  Where the gradient is wanted at once (``gradient=True``), forward reads x, keeps as much of it as
cache holds, reads that again and writes dx: 2 MN for both passes in the place of 3.  Arithmetic is fp32 whatever the
dtype.  How many targets count is summed on the GPU, in a fixed order: nothing waits for the host.

Variants: `one_pass` holds whole rows in registers; `stream` reads a row of any length, with a running maximum and sum
for each lane (Milakov and Gimelshein, arXiv:1805.02867), and `stream_gradient` reads it twice and writes the gradient.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled_gradients,
    element_size,
    gradients,
    torch_dtype,
)
from atlas.declaration.rows import REGISTERS, VECTOR_BYTES, block_n, fits_stream, rows_obstacle, stream_default
from atlas.operators import (
    FP32,
    CustomOperator,
    Differentiable,
    autocast_rule,
    autocasting,
    launch,
    torch_gradients,
    transformed,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32.  A running maximum starts here and not at -inf: exp(-inf - LOWEST) is 0, while
exp(-inf - -inf) would be NaN and spoil rows that merely begin with -inf."""


@triton.jit
def _target_of(x_ptr, target, n, ignore_index):
    """(counted, valid, logit) of a target, with x_ptr at its row's first element; an impossible one has a NaN."""
    counted = target != ignore_index
    valid = counted & (target >= 0) & (target < n)
    return counted, valid, tl.load(x_ptr + target, mask=valid, other=float("nan")).to(tl.float32)


@triton.jit
def _loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING: tl.constexpr):
    """(loss, lse) of rows from their maximum, sum of exp(x - maximum), sum and target's logit; 0 where not counted.

    The maximum is subtracted from logits before log(row_sum) is added: lse itself is rounded to its own size.
    """
    log_l = tl.log(row_sum)
    lse = row_max + log_l
    below = row_max - logit
    if SMOOTHING:
        below = (1.0 - label_smoothing) * below + label_smoothing * (row_max - total / n)
    loss = below + log_l + z_loss * lse * lse
    lse = tl.where(valid, lse, float("nan"))  # so that the gradient is NaN, too, where the target is impossible
    return tl.where(counted, loss, 0.0), tl.where(counted, lse, 0.0)


@triton.jit
def _factors_of(lse, n, label_smoothing, z_loss):
    """(weight, floor, peak) with dx = g (weight exp(x - lse) - floor - peak [at the target])."""
    return 1.0 + 2.0 * z_loss * lse, label_smoothing / n, 1.0 - label_smoothing


@triton.jit
def _gradient(x, shift, weight, floor, peak, g, at_target, counted):
    """dx; multiplied by g last and once, since an infinite g times a term that is 0 would be NaN."""
    dx = tl.exp(x - shift) * weight - floor - tl.where(at_target, peak, 0.0)
    return tl.where(counted, dx * g, 0.0)


@triton.jit
def _one_pass_kernel(
    x_ptr, target_ptr, rows_ptr, lse_ptr, scale_ptr, dx_ptr, m, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, GRADIENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers: loss_i and lse_i, with GRADIENT dx."""
    if WIDTH > 1:  # multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
        n = n // WIDTH * WIDTH
        stride_xm = stride_xm // WIDTH * WIDTH
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask_m = offs_m < m
    row = x_ptr + offs_m * stride_xm
    target = tl.load(target_ptr + offs_m, mask=mask_m, other=ignore_index)
    counted, valid, logit = _target_of(row, target, n, ignore_index)
    mask = counted[:, None] & (offs_n < n)  # rows past the last one do not count
    # -inf is the identity of max and becomes 0, the identity of the sum.
    x = tl.load(row[:, None] + offs_n, mask=mask, other=-float("inf")).to(tl.float32)
    row_max = tl.maximum(tl.max(x, axis=1), LOWEST)
    row_sum = tl.sum(tl.exp(x - row_max[:, None]), axis=1)
    total = tl.sum(tl.where(mask, x, 0.0), axis=1) if SMOOTHING else row_sum
    loss, lse = _loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + offs_m, loss, mask=mask_m)
    if GRADIENT:
        weight, floor, peak = _factors_of(lse, n, label_smoothing, z_loss)
        weight, g = weight / row_sum, tl.load(scale_ptr)
        at_target = offs_n == target[:, None]
        tl.debug_barrier()  # dx may lie where x does: every thread has read its target's logit
        dx = _gradient(x, row_max[:, None], weight[:, None], floor, peak, g, at_target, counted[:, None])
        tl.store(dx_ptr + (offs_m * stride_xm)[:, None] + offs_n, dx, mask=mask_m[:, None] & (offs_n < n))
    else:
        tl.store(lse_ptr + offs_m, lse, mask=mask_m)


@triton.jit
def _lanes_of(row, n, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """(base, begin, body, end) of a row whose first element is number `row` of the tensor.

    `base` is the first of its elements that starts a lane, WIDTH neighbours on 16 bytes; relative to it the row reaches
    from `begin` <= 0 to `end`, and its whole lanes from 0 to `body`.  What lies outside those are its edges, fewer than
    WIDTH elements at either end.
    """
    if ALIGNED:
        base = row // WIDTH * WIDTH
        begin, body, end = 0, n // WIDTH * WIDTH, n
    else:
        base = (row + WIDTH - 1) // WIDTH * WIDTH
        begin = (row - base).to(tl.int32)
        end = begin + n
        body = tl.maximum(end, 0) // WIDTH * WIDTH
    return base, begin, body, end


@triton.jit
def _edges(body, WIDTH: tl.constexpr):
    """Where a row's edges may lie: WIDTH elements before its whole lanes, and WIDTH behind them."""
    offs = tl.arange(0, 2 * WIDTH)
    return tl.where(offs < WIDTH, offs - WIDTH, body + offs - WIDTH)


@triton.jit
def _statistics(
    x_ptr, begin, body, end,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, SMOOTHING: tl.constexpr, POLICY: tl.constexpr,
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
    for start in tl.range(0, body, LANES * WIDTH, num_stages=1):  # a prefetch through shared memory is slower
        whole = start + lane < body
        # -inf is the identity of max and becomes 0, the identity of the sum.
        x = tl.load(x_ptr + start + offs, mask=whole[:, None], other=-float("inf"), eviction_policy=POLICY)
        x = x.to(tl.float32)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
        if SMOOTHING:
            s_i += tl.where(whole, tl.sum(x, axis=1), 0.0)
    row_max, total = tl.max(m_i, axis=0), tl.sum(s_i, axis=0)
    if not ALIGNED:
        edge = _edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end)
        x = tl.load(x_ptr + edge, mask=inside, other=-float("inf")).to(tl.float32)
        row_max = tl.maximum(row_max, tl.max(x, axis=0))
        total += tl.sum(tl.where(inside, x, 0.0), axis=0)
    row_sum = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        row_sum += tl.sum(tl.exp(x - row_max), axis=0)
    return row_max, row_sum, total


@triton.jit
def _stream_kernel(
    x_ptr, target_ptr, rows_ptr, lse_ptr, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: loss_i and lse_i.  A row that does not count is not read."""
    pid = tl.program_id(0)
    row = pid.to(tl.int64) * stride_xm
    counted, valid, logit = _target_of(x_ptr + row, tl.load(target_ptr + pid), n, ignore_index)
    base, begin, body, end = _lanes_of(row, n, WIDTH, ALIGNED)
    body, end = tl.where(counted, body, 0), tl.where(counted, end, begin)
    row_max, row_sum, total = _statistics(x_ptr + base, begin, body, end, LANES, WIDTH, ALIGNED, SMOOTHING, "")
    loss, lse = _loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + pid, loss)
    tl.store(lse_ptr + pid, lse)


@triton.jit
def _stream_gradient_kernel(
    x_ptr, target_ptr, rows_ptr, scale_ptr, dx_ptr, n, stride_xm, ignore_index, label_smoothing, z_loss,
    SMOOTHING: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length: loss_i, then dx in a second sweep; dx may lie where x does.

    The second sweep goes backwards: what was read last is in cache.  Stores are marked as streaming, so that they do
    not displace what is still to be read again.
    """
    pid = tl.program_id(0)
    row = pid.to(tl.int64) * stride_xm
    target = tl.load(target_ptr + pid)
    counted, valid, logit = _target_of(x_ptr + row, target, n, ignore_index)
    base, begin, body, end = _lanes_of(row, n, WIDTH, ALIGNED)
    x_ptr += base
    dx_ptr += base
    read = tl.where(counted, body, 0)
    row_max, row_sum, total = _statistics(
        x_ptr, begin, read, tl.where(counted, end, begin), LANES, WIDTH, ALIGNED, SMOOTHING, "evict_last"
    )
    loss, lse = _loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + pid, loss)
    weight, floor, peak = _factors_of(lse, n, label_smoothing, z_loss)
    weight, g = weight / row_sum, tl.load(scale_ptr)
    at = (begin + target).to(tl.int32)
    lane = tl.arange(0, LANES) * WIDTH
    offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
    last = (body - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    tl.debug_barrier()  # dx may lie where x does: every thread has read its target's logit and the edges
    for done in tl.range(0, body, LANES * WIDTH):
        start = last - done
        mask = (start + lane < read)[:, None]
        x = tl.load(x_ptr + start + offs, mask=mask, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
        dx = _gradient(x, row_max, weight, floor, peak, g, start + offs == at, counted)
        tl.store(dx_ptr + start + offs, dx, mask=(start + lane < body)[:, None], cache_modifier=".cs")
    if not ALIGNED:
        edge = _edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end)
        x = tl.load(x_ptr + edge, mask=inside & counted, other=-float("inf")).to(tl.float32)
        tl.store(dx_ptr + edge, _gradient(x, row_max, weight, floor, peak, g, edge == at, counted), mask=inside)


@triton.jit
def _backward_kernel(
    x_ptr, target_ptr, lse_ptr, scale_ptr, dloss_ptr, dx_ptr, n, stride_xm, blocks,
    ignore_index, label_smoothing, z_loss,
    PER_ROW: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """One program owns one block of LANES x WIDTH elements of one row's dx, the row's first one its edges as well."""
    pid = tl.program_id(0)
    i = pid // blocks
    base, begin, body, end = _lanes_of(i.to(tl.int64) * stride_xm, n, WIDTH, ALIGNED)
    x_ptr += base
    dx_ptr += base
    target = tl.load(target_ptr + i)
    counted = target != ignore_index
    lane = (pid - i * blocks) * (LANES * WIDTH) + tl.arange(0, LANES) * WIDTH
    offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
    # A row that does not count is not read: -inf becomes 0.
    x = tl.load(x_ptr + offs, mask=((lane < body) & counted)[:, None], other=-float("inf")).to(tl.float32)
    lse = tl.load(lse_ptr + i)
    g = tl.load(scale_ptr) * tl.load(dloss_ptr + i * PER_ROW).to(tl.float32)
    weight, floor, peak = _factors_of(lse, n, label_smoothing, z_loss)
    at = (begin + target).to(tl.int32)
    tl.store(dx_ptr + offs, _gradient(x, lse, weight, floor, peak, g, offs == at, counted), mask=(lane < body)[:, None])
    if not ALIGNED:
        edge = _edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end) & (pid == i * blocks)
        x = tl.load(x_ptr + edge, mask=inside & counted, other=-float("inf")).to(tl.float32)
        tl.store(dx_ptr + edge, _gradient(x, lse, weight, floor, peak, g, edge == at, counted), mask=inside)


@triton.jit
def _total_kernel(
    rows_ptr, target_ptr, loss_ptr, scale_ptr, m, ignore_index,
    MEAN: tl.constexpr, TOTAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program owns all rows: scale = 1 / (targets that count) for the MEAN, else 1; with TOTAL the loss as well."""
    total, count = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, m, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        if MEAN:
            target = tl.load(target_ptr + offs, mask=offs < m, other=ignore_index)
            count += (target != ignore_index).to(tl.int32)
        if TOTAL:
            total += tl.load(rows_ptr + offs, mask=offs < m, other=0.0)
    scale = 1.0
    if MEAN:
        scale = 1.0 / tl.sum(count, axis=0).to(tl.float32)
    tl.store(scale_ptr, scale)
    if TOTAL:
        tl.store(loss_ptr, tl.sum(total, axis=0) * scale)


def _stride(x):
    """Elements from one row to the next."""
    return x.stride(0) if x.shape[0] > 1 else x.shape[1]


def _lanes(x, config):
    width = VECTOR_BYTES // x.element_size()
    aligned = _stride(x) % width == 0 and x.shape[1] % width == 0
    return {"LANES": config["BLOCK_N"] // width, "WIDTH": width, "ALIGNED": aligned}


def _empty_like(x):
    """A matrix with the rows as far apart as those of ``x``, so that lanes are the same in both."""
    return torch.empty((x.shape[0], _stride(x)), dtype=x.dtype, device=x.device)[:, : x.shape[1]]


def _rows_and_scale(x, reduction, wide_loss):
    """Losses of the rows, in fp32 where they are still to be summed, and what they are multiplied by."""
    rows = torch.empty(x.shape[0], dtype=_loss_dtype(x, wide_loss or reduction != "none"), device=x.device)
    return rows, torch.empty(1, dtype=torch.float32, device=x.device)


def _loss_dtype(x, wide_loss):
    return torch.float32 if wide_loss else x.dtype


def _total(rows, target, scale, ignore_index, reduction, dtype):
    """The loss; ``scale`` is written."""
    loss = rows if reduction == "none" else torch.empty((), dtype=dtype, device=rows.device)
    _launch_total(rows, target, loss, scale, ignore_index, reduction, reduction != "none")
    return loss


def _launch_total(rows, target, loss, scale, ignore_index, reduction, total):
    m = target.shape[0]
    block = min(4096, max(128, triton.next_power_of_2(m)))
    launch(
        _total_kernel, (1,), rows, target, loss, scale, m, ignore_index,
        MEAN=reduction == "mean", TOTAL=total, BLOCK=block, num_warps=max(4, block // 256),
    )  # fmt: skip


def _launch_one_pass(
    x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, dx=None, wide_loss=False
):
    m, n = x.shape
    rows, scale = _rows_and_scale(x, reduction, wide_loss)
    if gradient:
        saved = _empty_like(x) if dx is None else dx
        _launch_total(rows, target, rows, scale, ignore_index, reduction, total=False)
    else:
        saved = torch.empty(m, dtype=torch.float32, device=x.device)
    vector = VECTOR_BYTES // x.element_size()
    launch(
        _one_pass_kernel, (triton.cdiv(m, config["BLOCK_M"]),),
        x, target, rows, saved, scale, saved, m, n, _stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, GRADIENT=gradient, BLOCK_M=config["BLOCK_M"],
        BLOCK_N=triton.next_power_of_2(n), WIDTH=1 if n % vector or _stride(x) % vector else vector,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return _total(rows, target, scale, ignore_index, reduction, _loss_dtype(x, wide_loss)), saved, scale


def _launch_stream(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, wide_loss=False):
    m, n = x.shape
    rows, scale = _rows_and_scale(x, reduction, wide_loss)
    lse = torch.empty(m, dtype=torch.float32, device=x.device)
    launch(
        _stream_kernel, (m,), x, target, rows, lse, n, _stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, **_lanes(x, config), num_warps=config["num_warps"],
    )  # fmt: skip
    return _total(rows, target, scale, ignore_index, reduction, _loss_dtype(x, wide_loss)), lse, scale


def _launch_stream_gradient(
    x, target, ignore_index, reduction, label_smoothing, z_loss, gradient, *, config, dx=None, wide_loss=False
):
    rows, scale = _rows_and_scale(x, reduction, wide_loss)
    dx = _empty_like(x) if dx is None else dx
    _launch_total(rows, target, rows, scale, ignore_index, reduction, total=False)
    launch(
        _stream_gradient_kernel, (x.shape[0],),
        x, target, rows, scale, dx, x.shape[1], _stride(x), ignore_index, label_smoothing, z_loss,
        SMOOTHING=label_smoothing != 0, **_lanes(x, config), num_warps=config["num_warps"],
    )  # fmt: skip
    return _total(rows, target, scale, ignore_index, reduction, _loss_dtype(x, wide_loss)), dx, scale


def _launch_backward(x, target, lse, scale, dloss, ignore_index, reduction, label_smoothing, z_loss, *, config):
    m, n = x.shape
    dx = _empty_like(x)
    blocks = triton.cdiv(n, config["BLOCK_N"])
    launch(
        _backward_kernel, (m * blocks,),
        x, target, lse, scale, dloss, dx, n, _stride(x), blocks, ignore_index, label_smoothing, z_loss,
        PER_ROW=dloss.dim(), **_lanes(x, config), num_warps=config["num_warps"],
    )  # fmt: skip
    return dx


def _run_forward(x, target, *parameters):
    *parameters, wide_loss = parameters
    variant, config = choose(DECLARATION, "forward", _case_of(x), x.device)
    return variant.launch(x, target, *parameters, False, config=config, wide_loss=wide_loss)


def _fake_forward(x, target, ignore_index, reduction, label_smoothing, z_loss, wide_loss):
    loss = x.new_empty((x.shape[0],) if reduction == "none" else (), dtype=_loss_dtype(x, wide_loss))
    return loss, x.new_empty((x.shape[0],), dtype=torch.float32), x.new_empty((1,), dtype=torch.float32)


def _run_backward(x, *others):
    variant, config = choose(DECLARATION, "backward", _case_of(x), x.device)
    return variant.launch(x, *others, config=config)


def _setup(ctx, inputs, output):
    x, target, *ctx.parameters, _ = inputs
    ctx.save_for_backward(x, target, *output[1:])
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dloss, dlse, dscale):
    x, target, lse, scale = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        (dx,) = torch_gradients(lambda x: _torch_loss(x.float(), target, *ctx.parameters), (x,), dloss.float())
    else:
        dx = _backward(x, target, lse, scale, dloss.contiguous(), *ctx.parameters)
    return dx, *(None,) * 6


_PARAMETERS = "int ignore_index, str reduction, float label_smoothing, float z_loss"

_forward = CustomOperator(
    "cross_entropy_forward",
    f"(Tensor x, Tensor target, {_PARAMETERS}, bool wide_loss) -> (Tensor, Tensor, Tensor)",
    run=_run_forward,
    fake=_fake_forward,
)
_backward = CustomOperator(
    "cross_entropy_backward",
    f"(Tensor x, Tensor target, Tensor lse, Tensor scale, Tensor dloss, {_PARAMETERS}) -> Tensor",
    run=_run_backward,
    fake=lambda x, *_: x.new_empty((x.shape[0], _stride(x)))[:, : x.shape[1]],
)
_cross_entropy = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@triton.jit
def _scale_kernel(dx_ptr, dloss_ptr, n, stride_xm, blocks, BLOCK: tl.constexpr):
    """One program owns BLOCK elements of a row of dx: multiplied by dloss in place, unless that is 1."""
    pid = tl.program_id(0)
    i = pid // blocks
    offs = (pid - i * blocks) * BLOCK + tl.arange(0, BLOCK)
    dloss = tl.load(dloss_ptr).to(tl.float32)
    if dloss != 1.0:
        dx_ptr += i.to(tl.int64) * stride_xm
        dx = tl.load(dx_ptr + offs, mask=offs < n).to(tl.float32)
        tl.store(dx_ptr + offs, dx * dloss, mask=offs < n)


class _GradientInPlace(torch.autograd.Function):
    """Forward leaves dx where the logits were; backward multiplies it by the gradient of the loss, if that is not 1."""

    @staticmethod
    def forward(ctx, x, target, *parameters):
        *parameters, wide_loss = parameters
        variant, config = choose(DECLARATION, "forward", _case_of(x, gradient=True), x.device)
        loss, *_ = variant.launch(x, target, *parameters, True, config=config, dx=x, wide_loss=wide_loss)
        torch.autograd.graph.increment_version(x)  # who saved the logits is told that they are gone
        ctx.save_for_backward(x)
        return loss

    @staticmethod
    def backward(ctx, dloss):
        if torch.is_grad_enabled():
            raise NotImplementedError("cross_entropy: inplace_gradient=True has no second derivatives")
        (dx,) = ctx.saved_tensors
        dloss = dloss.resolve_neg()
        blocks = triton.cdiv(dx.shape[1], 4096)
        launch(_scale_kernel, (dx.shape[0] * blocks,), dx, dloss, dx.shape[1], _stride(dx), blocks, BLOCK=4096)
        torch.autograd.graph.increment_version(dx)  # a second backward would scale it again
        return dx.detach(), *(None,) * 6


def _case_of(x, **flags):
    return case(_NAMES[x.dtype], m=x.shape[0], n=x.shape[1], **flags)


def _is_matrix(x):
    """Whether kernels take ``x`` as it is: rows of neighbours, not much farther apart than they are long."""
    return x.is_contiguous() or (x.stride(1) == 1 and x.shape[1] <= x.stride(0) <= 2 * x.shape[1])


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    inplace_gradient: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.cross_entropy`` of logits [m, n] or [n] in fp32, fp16 or bf16 and class indices.

    ``z_loss`` adds z_loss * logsumexp(row)^2 to the loss of each row that counts.  With ``inplace_gradient``, in eager
    mode, the gradient takes the place of the logits while the loss is computed: a third less traffic and half the
    memory, but the logits are lost; where no gradient is wanted it changes nothing.  Rows may be farther apart than
    they are long (a padded vocabulary); other layouts are copied first.  A target outside [0, n) makes its row NaN.
    Second derivatives go through torch's operations.

    Raises NotImplementedError for class weights, targets that are probabilities, logits of more dimensions and the
    deprecated ``size_average`` and ``reduce``; TypeError for other dtypes; ValueError for what does not fit together.
    """
    if weight is not None or size_average is not None or reduce is not None or input.dim() != 2 or target.dim() != 1:
        _refuse(input, target, weight, size_average, reduce)
        row = cross_entropy(
            input[None], target[None], None, None, ignore_index, None, reduction, label_smoothing, z_loss,
            inplace_gradient,
        )  # fmt: skip
        return row.view(())
    if input.dtype not in _NAMES or target.dtype != torch.int64:
        raise TypeError(
            f"cross_entropy takes logits in {', '.join(_DTYPES)} and targets in int64: {input.dtype}, {target.dtype}"
        )
    if target.shape[0] != input.shape[0] or target.device != input.device:
        raise ValueError(
            f"cross_entropy takes a target a row, on one device: logits {tuple(input.shape)} on {input.device}, "
            f"targets {tuple(target.shape)} on {target.device}"
        )
    if reduction not in _REDUCTIONS or not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(
            f"cross_entropy takes a reduction out of {', '.join(_REDUCTIONS)} and a label_smoothing in [0, 1]: "
            f"{reduction!r}, {label_smoothing}"
        )
    # Where torch takes logits in 16 bits and gives a loss in fp32, the loss alone is: nothing has to be copied.
    wide_loss = autocasting() and autocast_rule("nll_loss", input.device) == FP32
    parameters = (ignore_index, reduction, float(label_smoothing), float(z_loss))
    if not input.numel():
        return _torch_loss(input.float() if wide_loss else input, target, *parameters)  # nothing to launch for
    if inplace_gradient and torch.is_grad_enabled() and input.requires_grad and _is_plain(input):
        _check_in_place(input, reduction)
        return _GradientInPlace.apply(input, target.contiguous(), *parameters, wide_loss)
    if not _is_matrix(input):
        input = input.contiguous()
    return _cross_entropy(input, target.contiguous(), *parameters, wide_loss)[0]


def _is_plain(x):
    """Whether memory of the logits can be written over: they have some, and it holds what they are."""
    return not (x.is_meta or x.is_neg() or transformed())


def _refuse(input, target, weight, size_average, reduce):
    """Raise for what torch takes and this does not; what is left is a single row."""
    if weight is not None:
        raise NotImplementedError("cross_entropy has no class weights: weight must be None")
    if size_average is not None or reduce is not None:
        raise NotImplementedError("cross_entropy has no size_average and reduce, deprecated in torch: use reduction")
    if target.is_floating_point():
        raise NotImplementedError("cross_entropy takes class indices: a target of probabilities is not supported")
    if input.dim() not in (1, 2):
        raise NotImplementedError(
            f"cross_entropy takes logits [m, n] or [n]: {tuple(input.shape)}; move classes last and flatten the rest"
        )
    if target.dim() != input.dim() - 1:
        raise ValueError(f"cross_entropy takes a target a row: {tuple(target.shape)} for logits {tuple(input.shape)}")


def _check_in_place(x, reduction):
    """Raise where the logits cannot be overwritten by their gradient."""
    if torch.compiler.is_compiling():
        raise NotImplementedError("cross_entropy: inplace_gradient=True is for eager mode, not for torch.compile")
    if reduction == "none":
        raise NotImplementedError("cross_entropy: inplace_gradient=True needs a single loss, not reduction='none'")
    if x.is_leaf:
        raise ValueError("cross_entropy: inplace_gradient=True would overwrite a leaf that requires a gradient")
    if not _is_matrix(x):
        raise ValueError(f"cross_entropy: inplace_gradient=True takes rows of neighbours, not strides {x.stride()}")


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_REDUCTIONS = ("mean", "sum", "none")


def _torch_loss(x, target, ignore_index, reduction, label_smoothing, z_loss):
    """The loss as a user would write it in torch."""
    loss = torch.nn.functional.cross_entropy(
        x, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    if not z_loss:
        return loss
    counted = target != ignore_index
    square = z_loss * torch.where(counted, torch.logsumexp(x, dim=-1).square(), 0.0)
    if reduction == "none":
        return loss + square
    return loss + (square.sum() / counted.sum() if reduction == "mean" else square.sum())


def _reference(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient):
    """(loss, lse or, with ``gradient``, dx, scale), term by term."""
    counted = target != ignore_index
    lse = torch.logsumexp(x, dim=-1)
    logit = x.gather(1, torch.where(counted, target, 0)[:, None])[:, 0]
    rows = lse - (1 - label_smoothing) * logit
    if label_smoothing:
        rows = rows - label_smoothing * x.mean(dim=-1)
    rows = torch.where(counted, rows + z_loss * lse.square(), 0.0)
    scale = 1 / counted.sum(dim=0, keepdim=True).to(x.dtype) if reduction == "mean" else x.new_ones(1)
    loss = rows if reduction == "none" else (rows.sum() * scale).view(())
    if not gradient:
        return loss, torch.where(counted, lse, 0.0), scale
    dloss = torch.ones_like(loss)
    parameters = (ignore_index, reduction, label_smoothing, z_loss)
    return loss, _backward_reference(x, target, lse, scale, dloss, *parameters), scale


def _backward_reference(x, target, lse, scale, dloss, ignore_index, reduction, label_smoothing, z_loss):
    counted = (target != ignore_index)[:, None]
    dx = torch.exp(x - lse[:, None]) * (1 + 2 * z_loss * lse[:, None]) - label_smoothing / x.shape[1]
    index = torch.where(counted, target[:, None], 0)
    dx = dx.scatter_add(1, index, torch.full_like(dx[:, :1], label_smoothing - 1))
    return torch.where(counted, dx * (dloss * scale)[:, None], 0.0)


def _torch(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient):
    return _torch_loss(x, target, ignore_index, reduction, label_smoothing, z_loss)


def _torch_forward(x, target, lse, scale, ignore_index, reduction, label_smoothing, z_loss):
    return _torch_loss(x, target, ignore_index, reduction, label_smoothing, z_loss)


def _liger(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient):
    from liger_kernel.transformers.functional import liger_cross_entropy

    return liger_cross_entropy(
        x, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
        lse_square_scale=z_loss,
    )  # fmt: skip


def _user(function, compiles=False, overwrites=False):
    """``prepare`` of a peer: the loss and, with ``gradient``, its derivative by autograd.

    A peer that ``overwrites`` the logits has a copy of them: right the first time, and later just as fast.
    """

    def prepare(x, target, **parameters):
        call = function
        if compiles:
            torch._dynamo.reset()
            call = torch.compile(function, dynamic=False)
        if not parameters["gradient"]:
            return lambda: call(x, target, **parameters)
        logits = x.clone() if overwrites else x

        def both():
            with torch.enable_grad():
                leaf = logits.detach().requires_grad_()
                loss = call(leaf, target, **parameters)
                return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]

        return both

    return prepare


_FLAGS = {"pitch": 0, "ignored": False, "reduction": "mean", "smoothing": 0.0, "z_loss": 0.0, "gradient": False}
"""Of a case that does not say otherwise: how far rows are apart (0: as long as they are), whether each third target is
ignored, the function's arguments, and whether the forward pass computes the gradient as well."""

_IGNORED = -100
"""torch's default, in all cases."""


def _inputs(problem: Case, device, generator):
    m, n = problem["m"], problem["n"]
    flags = _FLAGS | dict(problem.sizes)
    shape = (m, flags["pitch"] or n)
    x = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)[:, :n]
    target = torch.randint(0, n, (m,), device=device, generator=generator)
    if flags["ignored"]:
        target[::3] = _IGNORED
    return {
        "x": x, "target": target, "ignore_index": _IGNORED, "reduction": flags["reduction"],
        "label_smoothing": flags["smoothing"], "z_loss": flags["z_loss"], "gradient": flags["gradient"],
    }  # fmt: skip


def _backward_inputs(problem: Case, device, generator):
    inputs = _inputs(problem, device, generator)
    del inputs["gradient"]
    x, reduction = inputs["x"], inputs["reduction"]
    counted = inputs["target"] != _IGNORED
    shape = (problem["m"],) if reduction == "none" else ()
    scale = torch.ones(1, device=device)
    dloss = torch.randn(shape, dtype=x.dtype, device=device, generator=generator)
    return inputs | {
        "lse": torch.where(counted, torch.logsumexp(x.float(), dim=-1), 0.0),
        "scale": scale / counted.sum() if reduction == "mean" else scale,
        "dloss": dloss,
    }


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024, {}),  # the launch is the cost
            (8192, 1000, {}),  # the classes of ImageNet
            (4096, 32000, {}),
            (16384, 32000, {}),
            (4096, 50257, {}),  # a vocabulary of odd length: no row but each eighth starts on 16 bytes
            (4096, 50257, {"pitch": 50304}),  # the same as part of a padded one
            (4096, 128256, {}),
            (1024, 262144, {}),
            (8192, 1000, {"gradient": True}),
            (4096, 32000, {"gradient": True}),
            (4096, 50257, {"gradient": True}),
            (4096, 128256, {"gradient": True}),
            (1024, 262144, {"gradient": True}),
        ),
        "fp16": ((4096, 32000, {}), (4096, 128256, {}), (4096, 32000, {"gradient": True})),
        "fp32": ((4096, 32000, {}), (4096, 128256, {}), (4096, 32000, {"gradient": True})),
    }
    largest = gpu.memory_bytes // 8 // 3  # logits, gradient and a peer's copy in an eighth of the memory
    return [
        case(d, m=m, n=n, **flags)
        for d, triples in shapes.items()
        for m, n, flags in triples
        if m * n * element_size(d) <= largest
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, **flags)
    for dtype in _DTYPES
    for m, n, flags, reason in (
        (1, 1, {}, "one class: the loss is 0 whatever the logit"),
        (7, 1, {"reduction": "none"}, "rows of one class, a loss each"),
        (1, 1000, {"reduction": "sum", "gradient": True}, "one row, not a power of two"),
        (37, 129, {"ignored": True}, "odd rows, of which a third is ignored; no row but the first starts on 16 bytes"),
        (33, 64, {"smoothing": 0.1}, "one row more than whole tiles of rows; smoothed labels"),
        (3, 4097, {"reduction": "none", "z_loss": 1e-2}, "rows one element longer than a block: a tail of one; z-loss"),
        (9, 2049, {"gradient": True, "ignored": True}, "odd rows, each beginning elsewhere in a lane of 16 bytes"),
        (6, 40, {"pitch": 43, "smoothing": 0.1, "gradient": True}, "short rows apart, none a whole number of vectors"),
        (4, 5, {"ignored": True, "reduction": "none", "gradient": True}, "rows shorter than a vector, a loss each"),
        (2, 20_000, {"smoothing": 0.1, "z_loss": 1e-2}, "several blocks and a tail; all terms of the loss"),
        (5, 9000, {"pitch": 9024, "z_loss": 1e-2, "gradient": True, "ignored": True}, "padded rows of several blocks"),
    )
)

_HUGE_CASES = (
    case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**14 + 1, n=2**17),
    case("bf16", "the same, with the gradient", m=2**14 + 1, n=2**17, gradient=True),
)

_LIVE = {False: 1, True: 2}
"""Registers for each element of a tile in registers: the logit; with the gradient the logit and its exponential."""


def _only(gradient: bool, problem: Case) -> str:
    wanted = (_FLAGS | dict(problem.sizes))["gradient"]
    if wanted == gradient:
        return ""
    return "the forward pass computes the gradient" if wanted else "no gradient is asked for"


def _handles_rows(problem: Case, gpu: GPU) -> str:
    """Rows that fill at most half of an SM's registers: a program that fills more runs alone, and memory idles."""
    longest = REGISTERS // 4 // _LIVE[(_FLAGS | dict(problem.sizes))["gradient"]]
    return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""


def _fits_rows(config, problem: Case, gpu: GPU) -> str:
    return rows_obstacle(config, problem, _LIVE[(_FLAGS | dict(problem.sizes))["gradient"]])


def _fits_stream(config, problem: Case, gpu: GPU) -> str:
    return fits_stream(config, problem, gpu, _BLOCKS[0])


def _rows_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread; short rows share the four warps that an SM's schedulers take at once."""
    size, two_vectors = element_size(problem.dtype), 2 * 32 * VECTOR_BYTES
    block_m = max(1, min(4 * two_vectors // (block_n(problem) * size), triton.next_power_of_2(problem["m"]), 16))
    warps = block_m * problem["n"] * size // two_vectors
    return {"BLOCK_M": block_m, "num_warps": 1 << max(1, min(_most_warps(gpu), warps)).bit_length() - 1}


def _stream_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread of 8 warps, of more where the rows are too few to fill the SMs."""
    wanted = triton.next_power_of_2(gpu.sms * gpu.warps_per_sm // max(problem["m"], 1))
    warps = max(8, min(_most_warps(gpu), wanted))
    longest = max(block_n(problem), _BLOCKS[0])
    block = min(warps * 2 * 32 * VECTOR_BYTES // element_size(problem.dtype), longest, _BLOCKS[-1])
    return {"BLOCK_N": block, "num_warps": max(4, block * element_size(problem.dtype) // (2 * 32 * VECTOR_BYTES))}


def _most_warps(gpu: GPU) -> int:
    """Of the 1024 threads of the largest program; a warp of AMD's has 64."""
    return 16 if gpu.backend == "hip" else 32


_BLOCKS = (1024, 2048, 4096, 8192, 16384)
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)}
_BLOCKS_SPACE = {"BLOCK_N": _BLOCKS, "num_warps": (4, 8, 16, 32)}


def _forward_bytes(c: Case) -> dict[str, int]:
    logits = c["m"] * c["n"] * element_size(c.dtype)
    rows = {"target": c["m"] * element_size("int64")}
    if (_FLAGS | dict(c.sizes))["gradient"]:
        return {"x": logits, "dx": logits} | rows
    return {"x": logits} | rows | {"lse": c["m"] * element_size("fp32")}


def _forward_flops(c: Case) -> dict[str, int]:
    elements = c["m"] * c["n"]
    terms = {"max": elements, "exp(x - max)": 2 * elements, "sum": elements}
    return terms | ({"dx": 3 * elements} if (_FLAGS | dict(c.sizes))["gradient"] else {})


DECLARATION = Declaration(
    name="cross_entropy",
    family="losses",
    summary="loss = logsumexp(x) - x[target] over rows",
    function=cross_entropy,
    call=lambda function, inputs: function(
        inputs["x"],
        inputs["target"],
        ignore_index=inputs["ignore_index"],
        reduction=inputs["reduction"],
        label_smoothing=inputs["label_smoothing"],
        z_loss=inputs["z_loss"],
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("loss", "saved", "scale"),  # saved for the backward pass: lse, or the gradient itself
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program; the gradient where it is asked for",
                launch=_launch_one_pass,
                space=_ROWS_SPACE,
                default=_rows_default,
                fits=_fits_rows,
                handles=_handles_rows,
            ),
            Variant(
                name="stream",
                summary="rows of any length read once, with a running maximum and sum for each lane",
                launch=_launch_stream,
                space=_BLOCKS_SPACE,
                default=_stream_default,
                fits=_fits_stream,
                handles=lambda problem, gpu: _only(False, problem),
            ),
            Variant(
                name="stream_gradient",
                summary="loss and gradient in one launch: rows of any length streamed twice, then from cache",
                launch=_launch_stream_gradient,
                space=_BLOCKS_SPACE,
                default=stream_default(1, _BLOCKS),
                fits=_fits_stream,
                handles=lambda problem, gpu: _only(True, problem),
            ),
        ),
        peers={
            "torch": Peer(_user(_torch)),
            "torch.compile": Peer(_user(_torch, compiles=True), compiles=True),
            "liger": Peer(_user(_liger, overwrites=True), requires="liger_kernel"),
        },
        bytes=_forward_bytes,
        flops=_forward_flops,
        reduction=lambda c: max(c["m"], c["n"]),
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="blocks",
                summary="one block of a row a program, from the logits and lse",
                launch=_launch_backward,
                space=_BLOCKS_SPACE,
                default=_stream_default,
                fits=_fits_stream,
                handles=lambda problem, gpu: _only(False, problem),
            ),
        ),
        # Liger's has nothing to do: its forward pass, timed with gradient=True, leaves the gradient behind.
        peers={
            "torch": gradients(_torch_forward, ("x",), cotangent="dloss"),
            "torch.compile": compiled_gradients(_torch_forward, ("x",), cotangent="dloss"),
        },
        bytes=lambda c: (
            {name: c["m"] * c["n"] * element_size(c.dtype) for name in ("x", "dx")}
            | {"target": c["m"] * element_size("int64"), "lse": c["m"] * element_size("fp32")}
        ),
        flops=lambda c: {"exp(x - lse)": 2 * c["m"] * c["n"], "weight, target": 2 * c["m"] * c["n"]},
        reduction=lambda c: c["n"],
    ),
)
