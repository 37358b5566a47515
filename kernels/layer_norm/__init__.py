"""Layer normalisation over rows: out[i, j] = (x[i, j] - mean_i) * rstd_i * weight[j] + bias[j].

mean_i and var_i are over the n elements of row i, rstd_i = 1 / sqrt(var_i + eps).  Forward reads x and writes out, MN
elements each; everything else is M or N.  With a residual, the row that is normalised is sum = x + residual, rounded to
the input's dtype and written too: 4 MN.  Backward, with xhat = (x - mean) * rstd and g = dy * weight:

    dx = rstd * (g - xhat * sum_j(g * xhat) / n - sum_j(g) / n) + dsum,  dweight = sum_i dy * xhat,  dbias = sum_i dy

It reads x and dy (and dsum, the gradient of a residual's sum) and writes dx, 3 MN (4 MN).  dweight and dbias cross the
rows: each program sums those of the rows it owns and writes one partial row; a last kernel adds the partial rows,
always in one order.  Arithmetic is fp32 whatever the dtype.

Variants.  Forward: `one_pass` holds whole rows in registers, `stream` reads rows of any length twice,
several at a time so that they share weight and bias.  Backward: `rows` holds rows and the partial sums in registers,
`helped` holds longer rows and the sums for dweight alone, `columns` reads rows of any length twice.
"""

import math
from collections.abc import Sequence

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, autocasting, contiguous, torch_gradients

from kernels.common.norms import checked, in_one_dtype, parameter, shape_of, under_autocast

from .declaration import DECLARATION


def _case_of(x, n, residual):
    flags = {} if residual is None else {"residual": True}
    return case(DECLARATION.dtype_of(x), m=x.numel() // n, n=n, **flags)


def _run_forward(launch, x, residual, n, weight, bias, eps):
    plain = (x.view(-1, n), weight, bias, eps, *(() if residual is None else (residual.view(-1, n),)))
    out, mean, rstd, *total = launch(*plain)
    # Tensors of their own: autograd lets nobody change a view in place that was made where it does not look.
    return out.view(x.shape).data, *(t.view(x.shape).data for t in total), mean, rstd


def _fake_forward(x, residual, n, weight, bias, eps):
    matrices = (torch.empty_like(x) for _ in range(1 if residual is None else 2))
    return *matrices, *(x.new_empty(x.numel() // n, dtype=torch.float32) for _ in range(2))


def _run_backward(launch, x, n, weight, bias, mean, rstd, dy, dsum):
    dsum = dsum if dsum is None else dsum.view(-1, n)
    dx, *columns = launch(x.view(-1, n), weight, bias, mean, rstd, dy.view(-1, n), dsum)
    found = (d if p is None else d.view(p.shape) for d, p in zip(columns, (weight, bias), strict=True))
    return dx.view(x.shape), *found


def _fake_backward(x, n, weight, bias, mean, rstd, dy, dsum):
    found = (x.new_empty(1, dtype=torch.float32) if p is None else torch.empty_like(p) for p in (weight, bias))
    return torch.empty_like(x), *found


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, int n, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    case_of=lambda x, n, weight, bias, eps: _case_of(x, n, None),
    run=lambda launch, x, n, weight, bias, eps: _run_forward(launch, x, None, n, weight, bias, eps),
    fake=lambda x, n, weight, bias, eps: _fake_forward(x, None, n, weight, bias, eps),
)
_forward_residual = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor residual, int n, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    name="layer_norm_residual_forward",
    case_of=lambda x, residual, n, weight, bias, eps: _case_of(x, n, residual),
    run=_run_forward,
    fake=_fake_forward,
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor x, int n, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, Tensor dy, Tensor? dsum)"
    " -> (Tensor, Tensor, Tensor)",
    case_of=lambda x, n, weight, bias, mean, rstd, dy, dsum: _case_of(x, n, dsum),
    run=_run_backward,
    fake=_fake_backward,
)


def _setup(ctx, inputs, output):
    x, n, weight, bias, eps = inputs
    ctx.save_for_backward(x, weight, bias, *output[1:])
    ctx.n, ctx.eps = n, eps
    ctx.set_materialize_grads(False)


def _setup_residual(ctx, inputs, output):
    _, _, n, weight, bias, eps = inputs
    _, total, mean, rstd = output
    _setup(ctx, (total, n, weight, bias, eps), (None, mean, rstd))


def _gradients(ctx, dy, dsum=None):
    """Gradients of what was normalised, weight and bias; dy and dsum may be None."""
    x, weight, bias, mean, rstd = ctx.saved_tensors
    if dy is None:
        return dsum, None, None
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_backward(x, weight, bias, ctx.n, ctx.eps, dy, dsum)
    dsum = dsum if dsum is None else contiguous(dsum)
    dx, dweight, dbias = _backward(x, ctx.n, weight, bias, mean, rstd, contiguous(dy), dsum)
    return dx, None if weight is None else dweight, None if bias is None else dbias


def _pull_back(ctx, dy, dmean, drstd):
    dx, dweight, dbias = _gradients(ctx, dy)
    return dx, None, dweight, dbias, None


def _pull_back_residual(ctx, dy, dsum, dmean, drstd):
    dx, dweight, dbias = _gradients(ctx, dy, dsum)
    return dx, dx, None, dweight, dbias, None


def _differentiable_backward(x, weight, bias, n, eps, dy, dsum):
    shape = (n,) if weight is None and bias is None else (bias if weight is None else weight).shape

    def normalised(x, weight, bias):
        rows_of = x if tuple(x.shape[-len(shape) :]) == tuple(shape) else x.view(-1, n)
        rows_of, weight, bias = in_one_dtype(rows_of, weight, bias)
        return torch.nn.functional.layer_norm(rows_of, shape, weight, bias, eps).to(x.dtype).view(x.shape)

    dx, dweight, dbias = torch_gradients(normalised, (x, weight, bias), dy)
    return dx if dsum is None else dx + dsum, dweight, dbias


_layer_norm = Differentiable(_forward, setup_context=_setup, backward=_pull_back)
_layer_norm_residual = Differentiable(_forward_residual, setup_context=_setup_residual, backward=_pull_back_residual)


@DECLARATION.public
def layer_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``torch.nn.functional.layer_norm`` in fp32, fp16 or bf16; statistics are fp32.

    ``normalized_shape`` are the sizes of the last dimensions; ``weight`` and ``bias`` have that shape and the input's
    device, or are None.  They may be in another of the dtypes, which their gradients then have; the result has the
    input's.  With a ``residual``, of the input's shape, dtype and device, ``input + residual``
    (rounded to the dtype) is normalised, and ``(out, input + residual)`` returned.  Inputs that are not contiguous are
    copied first.  Second derivatives go through torch's operations.  Raises TypeError for another dtype and ValueError
    for shapes or devices that do not fit.
    """
    if type(eps) is not float:
        eps = float(eps)  # of NumPy, or a tensor of one, as torch takes them
    if autocasting():
        input, total, weight, bias = under_autocast("layer_norm", input, residual, weight, bias)
        if total is not None:
            return layer_norm(input, normalized_shape, weight, bias, eps), total
    shape = shape_of("layer_norm", normalized_shape, input)
    of_shape = (weight is None or weight.shape == shape) and (bias is None or bias.shape == shape)
    if residual is None and of_shape:
        found = _layer_norm.again(input, math.prod(shape), weight, bias, eps)
        if found is not None:
            return found[0]
    DECLARATION.dtype_of(input)
    weight = parameter("layer_norm", "weight", weight, shape, input)
    bias = parameter("layer_norm", "bias", bias, shape, input)
    residual = checked("layer_norm", "residual", residual, input.shape, input)
    if not input.numel():  # nothing to launch for
        total = input if residual is None else input + residual
        wide, *parameters = in_one_dtype(total, weight, bias)
        out = torch.nn.functional.layer_norm(wide, shape, *parameters, eps).to(total.dtype)
        return out if residual is None else (out, total)
    if residual is None:
        return _layer_norm(input.contiguous(), math.prod(shape), weight, bias, eps)[0]
    return _layer_norm_residual(input.contiguous(), residual, math.prod(shape), weight, bias, eps)[:2]
