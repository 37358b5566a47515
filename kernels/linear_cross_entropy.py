"""Linear layer and cross-entropy in one: the loss of hidden @ weight.T + bias, logits never there all at once.

With hidden [m, k], weight [n, k] and logits x = hidden @ weight.T + bias the loss is that of `cross_entropy` (label
smoothing s, ignored targets, z-loss z).  Its gradient

    dx[i, j] = g_i ((1 + 2 z lse_i) exp(x[i, j] - lse_i) - s / n - (1 - s) [j = t_i])

makes dhidden = dx @ weight, dweight = dx.T @ hidden and dbias = sum_i dx[i].  Rows go through in chunks: their logits,
the loss with dx in the place of the logits, their share of the gradients.  So the gradients are known after the forward
pass, and backward only multiplies them by that of the loss, unless that is 1.

*Whose work it is*: the three matrix products of a chunk (6 mnk flops in all) are cuBLAS's, by torch.mm.
What reads logits, adds the bias and writes their gradient is Triton, as are the number of targets that count, the sum
of the loss and the last multiplication.  dbias is a sum of torch's.

*Vocabularies of odd length*: cuBLAS wants sizes of whole 16 bytes, not only rows that lie so.  So the last n mod 64
rows of weight are multiplied on their own, filled up with zeros.

*Memory*: a chunk has at most max(k, 1024) rows, so that its logits take no more than weight and dweight do each, n k
elements (and small layers still fill the GPU, with 1024 rows); chunks are of equal length, but for the last.  dweight
is summed up over several chunks in fp32: in 16 bits what cancels between chunks would keep the rounding of its parts.
That takes 2 n k bytes more, for which up to twice as many rows are one chunk, with nothing to add up.
"""

import functools

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
    element_size,
    torch_dtype,
)
from atlas.declaration.rows import VECTOR_BYTES, fits_stream, stream_default
from atlas.operators import (
    FP32,
    CustomOperator,
    Differentiable,
    autocast,
    autocast_rule,
    autocasting,
    derivative_wanted,
    launch,
    torch_gradients,
)

from kernels.cross_entropy import _edges, _gradient, _lanes_of, _launch_total, _loss_of, _target_of

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32.  A running maximum starts here and not at -inf: exp(-inf - LOWEST) is 0, while
exp(-inf - -inf) would be NaN and spoil rows that merely begin with -inf."""


@triton.jit
def _factors_of(lse, n, label_smoothing, z_loss):
    """(weight, floor, peak) with dx = g (weight exp(x - lse) - floor - peak [at the target])."""
    return 1.0 + 2.0 * z_loss * lse, label_smoothing / n, 1.0 - label_smoothing


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
        edge = _edges(body, WIDTH)
        inside = (edge >= begin) & (edge < end)
        x = _logits(x_ptr, bias_ptr, edge, inside, "")
        row_max = tl.maximum(row_max, tl.max(x, axis=0))
        total += tl.sum(tl.where(inside, x, 0.0), axis=0)
    row_sum = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        row_sum += tl.sum(tl.exp(x - row_max), axis=0)
    return row_max, row_sum, total


@triton.jit
def _chunk_kernel(
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
    counted, valid, logit = _target_of(x_ptr + row, target, n, ignore_index)
    if bias_ptr is not None:
        logit += tl.load(bias_ptr + target, mask=valid, other=0.0).to(tl.float32)
    base, begin, body, end = _lanes_of(row, n, WIDTH, ALIGNED)
    x_ptr += base
    read = tl.where(counted, body, 0)
    row_max, row_sum, total = _statistics(
        x_ptr, bias_ptr, begin, read, tl.where(counted, end, begin), LANES, WIDTH, ALIGNED, SMOOTHING, "evict_last"
    )
    loss, lse = _loss_of(row_max, row_sum, total, logit, n, label_smoothing, z_loss, counted, valid, SMOOTHING)
    tl.store(rows_ptr + pid, loss)
    if GRADIENT:
        g = tl.load(g_ptr + pid * PER_ROW).to(tl.float32)
        weight, floor, peak = _factors_of(lse, n, label_smoothing, z_loss)
        weight /= row_sum
        at = (begin + target).to(tl.int32)
        lane = tl.arange(0, LANES) * WIDTH
        offs = lane[:, None] + tl.arange(0, WIDTH)[None, :]
        last = (body - 1) // (LANES * WIDTH) * (LANES * WIDTH)
        tl.debug_barrier()  # every thread has read the target's logit and the edges before any is overwritten
        for done in tl.range(0, body, LANES * WIDTH):
            start = last - done
            x = _logits(x_ptr, bias_ptr, start + offs, (start + lane < read)[:, None], "")
            dx = _gradient(x, row_max, weight, floor, peak, g, start + offs == at, counted)
            tl.store(x_ptr + start + offs, dx, mask=(start + lane < body)[:, None])
        if not ALIGNED:
            edge = _edges(body, WIDTH)
            inside = (edge >= begin) & (edge < end)
            x = _logits(x_ptr, bias_ptr, edge, inside & counted, "")
            tl.debug_barrier()
            tl.store(x_ptr + edge, _gradient(x, row_max, weight, floor, peak, g, edge == at, counted), mask=inside)


@triton.jit
def _scale_kernel(x_ptr, dloss_ptr, count, BLOCK: tl.constexpr):
    """One program owns BLOCK elements, multiplied by dloss in place, unless that is 1."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dloss = tl.load(dloss_ptr).to(tl.float32)
    if dloss != 1.0:
        x = tl.load(x_ptr + offs, mask=offs < count).to(tl.float32)
        tl.store(x_ptr + offs, x * dloss, mask=offs < count)


def _chunk_rows(m, k, adds_in_fp32=False):
    """Rows of a chunk: at most max(k, 1024), chunks of equal length in whole tiles of 128 rows.

    Where a second chunk would have dweight in fp32 and then in 16 bits, 6 n k bytes, up to twice as many rows are one
    chunk: their logits and dweight are no more.
    """
    most = max(k, 1024)
    if m <= most * (1 + adds_in_fp32):
        return m
    return min(most, triton.cdiv(triton.cdiv(m, triton.cdiv(m, most)), 128) * 128)


def _launch(
    hidden, weight, bias, target, dloss, ignore_index, reduction, label_smoothing, z_loss, gradient, weight_gradient,
    chunk_rows, wide_loss=False, *, config,
):  # fmt: skip
    """(loss, dhidden, dweight, dbias), of which what is not asked for has no elements.

    ``dloss`` [m] is the gradient of each row's loss; None: that of the whole loss is 1.  ``chunk_rows`` 0: by
    the rule.
    """
    (m, k), n = hidden.shape, weight.shape[0]
    wide = weight_gradient and _adds_in_fp32(hidden.device, hidden.dtype)
    chunk = min(m, chunk_rows or _chunk_rows(m, k, wide))
    width = VECTOR_BYTES // hidden.element_size()
    pitch = triton.cdiv(n, _PITCH) * _PITCH
    of_loss = torch.float32 if wide_loss else hidden.dtype
    rows = torch.empty(m, dtype=of_loss if reduction == "none" else torch.float32, device=hidden.device)
    scale = torch.empty(1, dtype=torch.float32, device=hidden.device)
    logits = torch.empty((chunk, pitch), dtype=hidden.dtype, device=hidden.device)
    blocks = _blocks(weight)
    dhidden = torch.empty_like(hidden) if gradient else hidden.new_empty(0)
    sums = torch.float32 if wide and chunk < m else hidden.dtype
    dweight = torch.empty_like(weight, dtype=sums) if weight_gradient else hidden.new_empty(0)
    dbias = torch.empty_like(bias, dtype=torch.float32) if weight_gradient and bias is not None else hidden.new_empty(0)
    _launch_total(rows, target, rows, scale, ignore_index, reduction, total=False)
    for start in range(0, m, chunk):
        part, padded = hidden[start : start + chunk], logits[: min(chunk, m - start)]
        x = padded[:, :n]
        for begin, end, block in blocks:
            torch.mm(part, block.t(), out=padded[:, begin:end])
        launch(
            _chunk_kernel, (x.shape[0],),
            x, bias, target[start : start + chunk], rows[start : start + chunk],
            scale if dloss is None else dloss[start:], n, pitch, ignore_index, label_smoothing, z_loss,
            SMOOTHING=label_smoothing != 0, GRADIENT=gradient or weight_gradient, PER_ROW=int(dloss is not None),
            LANES=config["BLOCK_N"] // width, WIDTH=width, ALIGNED=n % width == 0, num_warps=config["num_warps"],
        )  # fmt: skip
        if gradient:
            dpart = dhidden[start : start + chunk]
            for begin, end, block in blocks:
                dx = padded[:, begin:end]
                torch.addmm(dpart, dx, block, out=dpart) if begin else torch.mm(dx, block, out=dpart)
        if weight_gradient:
            _accumulate(padded, blocks, part, dweight, dbias, first=start == 0)
    del logits, padded, x  # before the sum is copied
    dweight = dweight.to(hidden.dtype)
    loss = rows
    if reduction != "none":
        loss = torch.empty((), dtype=of_loss, device=hidden.device)
        _launch_total(rows, target, loss, scale, ignore_index, reduction, total=True)
    return loss, dhidden, dweight, dbias.to(hidden.dtype)


def _blocks(weight):
    """[(begin, end, rows begin … end of weight)], the last one filled up with zeros to a multiple of _PITCH rows.

    One block where the length of a row of logits is a multiple of 16 bytes, or short; else two.
    """
    n = weight.shape[0]
    whole = n // _PITCH * _PITCH
    if n * weight.element_size() % VECTOR_BYTES == 0 or whole < _LEAST_WHOLE:
        return [(0, n, weight)]
    tail = weight.new_zeros((_PITCH, weight.shape[1]))
    tail[: n - whole] = weight[whole:]
    return [(0, whole, weight[:whole]), (whole, whole + _PITCH, tail)]


def _accumulate(dx, blocks, hidden, dweight, dbias, first):
    """Add a chunk's share to dweight, and to dbias where there is one; dx is as wide as ``blocks``."""
    wide = {} if dweight.dtype == dx.dtype else {"out_dtype": dweight.dtype}
    for begin, end, block in blocks:
        factor, rows = dx[:, begin:end].t(), dweight[begin:end]
        if len(rows) < len(block):  # zeros at the end
            share = torch.mm(factor, hidden, **wide)[: len(rows)]
            rows.copy_(share) if first else rows.add_(share)
        elif first:
            torch.mm(factor, hidden, **wide, out=rows)
        else:
            torch.addmm(rows, factor, hidden, **wide, out=rows)
    if dbias.numel():
        share = dx[:, : len(dbias)].sum(dim=0, dtype=torch.float32)
        dbias.copy_(share) if first else dbias.add_(share)


@functools.cache
def _adds_in_fp32(device, dtype):
    """Whether torch adds products of this 16-bit dtype to an fp32 matrix here; what it cannot is added in the dtype."""
    if dtype == torch.float32 or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return False
    factor, total = torch.ones((16, 16), dtype=dtype, device=device), torch.empty((16, 16), device=device)
    try:
        torch.mm(factor, factor, out_dtype=torch.float32, out=total)
        torch.addmm(total, factor, factor, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 32).all())


_LEAST_WHOLE = 1024
"""Rows of weight from which on it is worth the launches to multiply the last ones on their own."""

_PITCH = 64
"""Logits of a row begin a multiple of this many elements after those of the row before: on 16 bytes, as cuBLAS likes it
too, for any vocabulary."""


def _run(hidden, weight, bias, target, dloss, *parameters):
    *_, of_hidden, of_weight, _, _ = parameters
    gradient = of_hidden or of_weight
    variant, config = choose(DECLARATION, "forward", _case_of(hidden, weight, gradient), hidden.device)
    return variant.launch(hidden, weight, bias, target, dloss, *parameters, config=config)


def _fake(
    hidden,
    weight,
    bias,
    target,
    dloss,
    ignore_index,
    reduction,
    smoothing,
    z_loss,
    gradient,
    of_weight,
    chunk,
    wide_loss,
):
    of_loss = torch.float32 if wide_loss else hidden.dtype
    return (
        hidden.new_empty((hidden.shape[0],) if reduction == "none" else (), dtype=of_loss),
        torch.empty_like(hidden) if gradient else hidden.new_empty((0,)),
        torch.empty_like(weight) if of_weight else hidden.new_empty((0,)),
        torch.empty_like(bias) if of_weight and bias is not None else hidden.new_empty((0,)),
    )


def _setup(ctx, inputs, output):
    hidden, weight, bias, target, _, *ctx.parameters, ctx.gradient, ctx.of_weight, ctx.chunk_rows, ctx.wide_loss = (
        inputs
    )
    ctx.save_for_backward(hidden, weight, bias, target, *output[1:])
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dloss, *_):
    hidden, weight, bias, target, *gradients = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        found = _differentiable_backward(hidden, weight, bias, target, ctx.parameters, dloss)
    elif ctx.parameters[1] == "none":  # the gradient of each row's loss is known only now
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        found = _operator(
            hidden, weight, bias, target, dloss.contiguous(), *ctx.parameters, *wanted, ctx.chunk_rows,
            ctx.wide_loss,
        )[1:]  # fmt: skip
    else:
        found = [_scaled(gradient, dloss) for gradient in gradients]
    found = [gradient if needed else None for gradient, needed in zip(found, ctx.needs_input_grad, strict=False)]
    return *found, *(None,) * 10


def _differentiable_backward(hidden, weight, bias, target, parameters, dloss):
    return torch_gradients(
        lambda hidden, weight, bias: _torch_loss(hidden, weight, bias, target, *parameters).to(dloss.dtype),
        (hidden, weight, bias),
        dloss,
    )


def _scaled(gradient, dloss):
    """The gradient times that of the loss, in place in eager mode: weight's is too large to have twice."""
    if not gradient.numel():
        return gradient
    if type(gradient) is not torch.Tensor or gradient.is_meta or torch.compiler.is_compiling():
        return gradient * dloss
    dloss = dloss.resolve_neg()
    launch(
        _scale_kernel, (triton.cdiv(gradient.numel(), 4096),), gradient, dloss, gradient.numel(), BLOCK=4096
    )  # fmt: skip
    torch.autograd.graph.increment_version(gradient)  # a second backward would scale it again
    return gradient.detach()


_operator = CustomOperator(
    "linear_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? dloss, int ignore_index, str reduction,"
    " float label_smoothing, float z_loss, bool gradient, bool weight_gradient, int chunk_rows, bool wide_loss)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_linear_cross_entropy = Differentiable(_operator, setup_context=_setup, backward=_pull_back)


def _case_of(hidden, weight, gradient):
    flags = {"gradient": True} if gradient else {}
    return case(_NAMES[hidden.dtype], m=hidden.shape[0], k=hidden.shape[1], n=weight.shape[0], **flags)


def linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk_rows: int = 0,
    options=None,
) -> torch.Tensor:
    """``torch.nn.functional.linear_cross_entropy`` of input [m, k], linear_weight [n, k] and class indices.

    That is cross_entropy(input @ linear_weight.T + linear_bias, target) in fp32, fp16 or bf16; ``z_loss`` adds z_loss *
    logsumexp(logits)^2 to the loss of each row that counts.  The logits of ``chunk_rows`` rows are there at a time; 0
    chooses as many as make them about as large as the weight, 1024 at least.  The gradients are computed with the loss,
    so a forward serves one backward; with ``reduction="none"`` backward computes the logits again.  Second derivatives
    go through torch's operations, which have all logits at once.  A target outside [0, n) makes its row NaN.

    Raises NotImplementedError for class weights, probabilities as targets, other dimensions and torch's ``options``;
    TypeError for other dtypes; ValueError for what does not fit together.
    """
    ignore_index = -100 if ignore_index is None else ignore_index
    if options is not None:
        raise NotImplementedError("linear_cross_entropy takes none of torch's options: chunk_rows sets a chunk's size")
    wide = autocasting() and autocast_rule("nll_loss", input.device) == FP32
    if autocasting():
        input, linear_weight, linear_bias = autocast("linear", input, linear_weight, linear_bias)
    _check(input, linear_weight, target, linear_bias, weight)
    if reduction not in _REDUCTIONS or not 0.0 <= label_smoothing <= 1.0 or chunk_rows < 0:
        raise ValueError(
            f"linear_cross_entropy takes a reduction out of {', '.join(_REDUCTIONS)}, a label_smoothing in [0, 1] and "
            f"chunk_rows >= 0: {reduction!r}, {label_smoothing}, {chunk_rows}"
        )
    parameters = (ignore_index, reduction, float(label_smoothing), float(z_loss))
    if not input.numel() or not linear_weight.numel():
        return _torch_loss(input, linear_weight, linear_bias, target, *parameters)  # nothing to launch for
    of_input = reduction != "none" and derivative_wanted(input)
    of_weight = reduction != "none" and derivative_wanted(linear_weight, linear_bias)
    bias = None if linear_bias is None else linear_bias.contiguous()
    return _linear_cross_entropy(
        input.contiguous(), linear_weight.contiguous(), bias, target.contiguous(), None, *parameters,
        of_input, of_weight, chunk_rows, wide,
    )[0]  # fmt: skip


def _check(input, linear_weight, target, linear_bias, weight):
    """Raise for tensors that are not supported or do not fit together."""
    if weight is not None:
        raise NotImplementedError("linear_cross_entropy has no class weights: weight must be None")
    if target.is_floating_point():
        raise NotImplementedError("linear_cross_entropy takes class indices: probabilities are not supported")
    if input.dim() != 2 or linear_weight.dim() != 2 or target.dim() != 1:
        raise NotImplementedError(
            "linear_cross_entropy takes input [m, k], linear_weight [n, k], target [m]: "
            f"{tuple(input.shape)}, {tuple(linear_weight.shape)}, {tuple(target.shape)}"
        )
    bias_dtype = input.dtype if linear_bias is None else linear_bias.dtype
    if input.dtype not in _NAMES or not input.dtype == linear_weight.dtype == bias_dtype or target.dtype != torch.int64:
        raise TypeError(
            f"linear_cross_entropy takes {', '.join(_DTYPES)}, the same for input, weight and bias, and targets in "
            f"int64: {input.dtype}, {linear_weight.dtype}, {bias_dtype}, {target.dtype}"
        )
    shapes = input.shape[0] == target.shape[0] and input.shape[1] == linear_weight.shape[1]
    if not shapes or (linear_bias is not None and linear_bias.shape != linear_weight.shape[:1]):
        raise ValueError(
            f"linear_cross_entropy: input {tuple(input.shape)}, linear_weight {tuple(linear_weight.shape)}, target "
            f"{tuple(target.shape)} and linear_bias {linear_bias if linear_bias is None else tuple(linear_bias.shape)}"
            " do not fit together"
        )
    tensors = [tensor for tensor in (input, linear_weight, target, linear_bias) if tensor is not None]
    if len({tensor.device for tensor in tensors}) > 1:
        raise ValueError(
            f"linear_cross_entropy takes tensors of one device: {', '.join(str(tensor.device) for tensor in tensors)}"
        )


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_REDUCTIONS = ("mean", "sum", "none")


def _torch_loss(hidden, weight, bias, target, ignore_index, reduction, label_smoothing, z_loss):
    """The loss as a user would write it in torch."""
    x = torch.nn.functional.linear(hidden, weight, bias)
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


def _reference(
    hidden, weight, bias, target, dloss, ignore_index, reduction, label_smoothing, z_loss, gradient, weight_gradient,
    chunk_rows,
):  # fmt: skip
    """(loss and, with ``gradient``, dhidden, dweight, dbias), term by term."""
    x = hidden @ weight.t() + (0.0 if bias is None else bias)
    counted = target != ignore_index
    lse = torch.logsumexp(x, dim=-1)
    index = torch.where(counted, target, 0)[:, None]
    rows = lse - (1 - label_smoothing) * x.gather(1, index)[:, 0] - label_smoothing * x.mean(dim=-1)
    rows = torch.where(counted, rows + z_loss * lse.square(), 0.0)
    scale = 1 / counted.sum().to(x.dtype) if reduction == "mean" else x.new_ones(())
    loss = rows if reduction == "none" else rows.sum() * scale
    if not gradient:
        return (loss,)
    dx = torch.exp(x - lse[:, None]) * (1 + 2 * z_loss * lse[:, None]) - label_smoothing / x.shape[1]
    dx = dx.scatter_add(1, index, torch.full_like(dx[:, :1], label_smoothing - 1))
    dx = torch.where(counted[:, None], dx * scale, 0.0)
    return (loss, dx @ weight, dx.t() @ hidden, *(() if bias is None else (dx.sum(dim=0),)))


def _torch(hidden, weight, bias, target, **parameters):
    return _torch_loss(hidden, weight, bias, target, **parameters)


def _torch_chunked(hidden, weight, bias, target, ignore_index, reduction, label_smoothing, z_loss):
    if z_loss or label_smoothing:
        raise NotImplementedError("torch's chunks have neither label smoothing nor z-loss")
    return torch.nn.functional.linear_cross_entropy(
        hidden, weight, target, linear_bias=bias, reduction=reduction, ignore_index=ignore_index,
        options=torch.nn.LinearCrossEntropyOptions(),
    )  # fmt: skip


def _liger(hidden, weight, bias, target, ignore_index, reduction, label_smoothing, z_loss):
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(
        hidden, weight, target, bias=bias, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, lse_square_scale=z_loss,
    )  # fmt: skip


def _user(function, compiles=False):
    """``prepare`` of a peer: the loss and, with ``gradient``, its derivatives by autograd."""

    def prepare(hidden, weight, bias, target, dloss, gradient, weight_gradient, chunk_rows, **parameters):
        call = function
        if compiles:
            torch._dynamo.reset()
            call = torch.compile(function, dynamic=False)
        if not gradient:
            return lambda: call(hidden, weight, bias, target, **parameters)

        def both():
            with torch.enable_grad():
                leaves = [None if t is None else t.detach().requires_grad_() for t in (hidden, weight, bias)]
                loss = call(*leaves, target, **parameters)
                wanted = [leaf for leaf in leaves if leaf is not None]
                return loss.detach(), *torch.autograd.grad(loss.sum(), wanted)

        return both

    return prepare


_FLAGS = {
    "bias": False, "ignored": False, "reduction": "mean", "smoothing": 0.0, "z_loss": 0.0, "gradient": False,
    "chunk": 0,
}  # fmt: skip
"""Of a case that does not say otherwise: whether there is a bias, whether each third target is ignored, the function's
arguments, whether the gradients are computed as well, and the rows of a chunk (0: by the rule)."""


def _inputs(problem: Case, device, generator):
    m, k, n = problem["m"], problem["k"], problem["n"]
    flags = _FLAGS | dict(problem.sizes)

    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    hidden, weight = draw(m, k), draw(n, k) * max(k, 1) ** -0.5  # logits of size 1, as of a layer that starts to learn
    target = torch.randint(0, n, (m,), device=device, generator=generator)
    if flags["ignored"]:
        target[::3] = -100
    return {
        "hidden": hidden, "weight": weight, "bias": draw(n) if flags["bias"] else None, "target": target,
        "dloss": None, "ignore_index": -100, "reduction": flags["reduction"], "label_smoothing": flags["smoothing"],
        "z_loss": flags["z_loss"], "gradient": flags["gradient"], "weight_gradient": flags["gradient"],
        "chunk_rows": flags["chunk"],
    }  # fmt: skip


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (1024, 1024, 32000, {"gradient": True}),
            (4096, 2048, 50257, {"gradient": True}),  # a vocabulary of odd length
            (4096, 4096, 32000, {}),
            (4096, 4096, 32000, {"gradient": True}),
            (8192, 4096, 128256, {}),
            (8192, 4096, 128256, {"gradient": True}),
            (16384, 2048, 128256, {"gradient": True}),  # eight chunks
        ),
        "fp16": ((4096, 4096, 32000, {"gradient": True}),),
        "fp32": ((1024, 1024, 32000, {"gradient": True}),),
    }
    largest = gpu.memory_bytes // 8 // 3  # a peer's logits, gradient and copy in fp32 in an eighth of the memory
    return [
        case(d, m=m, k=k, n=n, **flags)
        for d, found in shapes.items()
        for m, k, n, flags in found
        if m * n * element_size(d) <= largest
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, k=k, n=n, **flags)
    for dtype in _DTYPES
    for m, k, n, flags, reason in (
        (1, 1, 1, {}, "one class: loss and gradients are 0"),
        (5, 8, 7, {"bias": True, "ignored": True, "reduction": "none"}, "rows shorter than a vector, a loss each"),
        (37, 24, 129, {"smoothing": 0.1}, "a vocabulary one past a power of two; smoothed labels"),
        (9, 16, 2049, {"z_loss": 1e-2, "reduction": "sum"}, "rows of more than a block; z-loss, sum"),
        (6, 16, 1000, {"gradient": False, "ignored": True, "bias": True}, "no gradient"),
        (11, 16, 40, {"chunk": 4, "ignored": True, "bias": True}, "three chunks, the last one shorter"),
    )
    for flags in ({"gradient": True} | flags,)
)


def _fits(config, problem: Case, gpu: GPU) -> str:
    return fits_stream(config, problem, gpu, _BLOCKS[0])


_BLOCKS = (1024, 4096, 8192, 16384)


def _bytes(c: Case) -> dict[str, int]:
    size, flags = element_size(c.dtype), _FLAGS | dict(c.sizes)
    inputs = {"hidden": c["m"] * c["k"] * size, "weight": c["n"] * c["k"] * size, "target": 8 * c["m"]}
    outputs = {"dhidden": inputs["hidden"], "dweight": inputs["weight"]} if flags["gradient"] else {}
    return inputs | outputs


def _flops(c: Case) -> dict[str, int]:
    products = ("hidden @ weight.T", "dx @ weight", "dx.T @ hidden")
    count = 3 if (_FLAGS | dict(c.sizes))["gradient"] else 1
    return dict.fromkeys(products[:count], 2 * c["m"] * c["k"] * c["n"])


DECLARATION = Declaration(
    name="linear_cross_entropy",
    family="losses",
    summary="cross-entropy of hidden @ weight.T, in chunks of rows",
    function=linear_cross_entropy,
    call=lambda function, inputs: function(
        inputs["hidden"],
        inputs["weight"],
        inputs["target"],
        linear_bias=inputs["bias"],
        reduction=inputs["reduction"],
        ignore_index=inputs["ignore_index"],
        label_smoothing=inputs["label_smoothing"],
        z_loss=inputs["z_loss"],
        chunk_rows=inputs["chunk_rows"],
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    differentiable=("hidden", "weight", "bias"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("loss", "dhidden", "dweight", "dbias"),
        variants=(
            Variant(
                name="chunks",
                summary="cuBLAS products of chunks of rows, loss and gradient of their logits in place",
                launch=_launch,
                space={"BLOCK_N": _BLOCKS, "num_warps": (4, 8, 16, 32)},
                default=stream_default(1, _BLOCKS),
                fits=_fits,
            ),
        ),
        peers={
            "torch": Peer(_user(_torch)),
            "torch.compile": Peer(_user(_torch, compiles=True), compiles=True),
            "torch.chunked": Peer(_user(_torch_chunked), requires="torch.nn.modules.linear_cross_entropy"),
            "liger": Peer(_user(_liger), requires="liger_kernel"),
        },
        bytes=_bytes,
        flops=_flops,
        reduction=lambda c: max(c["m"], c["k"], c["n"]),
        rounds_products=True,  # the logits
    ),
)
