"""Root mean square normalisation over rows, after a residual add if asked: out = x * rstd * weight.

rstd_i = 1 / sqrt(mean_j x[i, j]^2 + eps) over the n elements of row i.  With a residual, x is first replaced by
sum = x + residual, rounded to its dtype, which is returned as well.  Forward reads x (and residual) and writes out (and
sum): 2 MN elements, 4 MN with a residual.  Backward, with xhat = x * rstd and g = dy * weight, x being the sum:

    dx = rstd * (g - xhat * sum_j(g * xhat) / n) + dsum,  dweight = sum_i dy * xhat

It reads x, dy (and dsum) and writes dx: 3 MN, 4 MN with a residual, whose gradient is dx too.  dweight crosses the
rows: each program sums that of the rows it owns into one partial row, and a last kernel adds the partial rows, always
in one order.  Arithmetic is fp32 whatever the dtype.

Variants: `one_pass`, `late` and backward's `rows` hold whole rows in registers; `stream` and backward's `reread`
read a row a second time while a cache still has it, `columns` when none has.
"""

import math
from collections.abc import Sequence

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, autocasting, contiguous

from kernels.common.norms import checked, parameter, shape_of, under_autocast

from .declaration import DECLARATION
from .forward import size_of
from .references import backward_reference

_DEFAULT_EPS = torch.finfo(torch.float32).eps
"""torch's: that of the dtype it computes in (seen in 2.11 on an H200 and in 2.13 on a CPU)."""


def _case_of(x, residual):
    m, n = size_of(x)
    return case(DECLARATION.dtype_of(x), m=m, n=n, residual=residual is not None)


def _run_backward(launch, x, weight, rstd, dy, dsum):
    dx, dweight = launch(x, weight, rstd, dy, dsum)
    return dx, torch.empty(0, dtype=x.dtype, device=x.device) if dweight is None else dweight


def _fake_rstd(x):
    return torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
    case_of=lambda x, weight, eps: _case_of(x, None),
    run=lambda launch, x, weight, eps: launch(x, None, weight, eps),
    fake=lambda x, weight, eps: (torch.empty_like(x), _fake_rstd(x)),
)
_forward_residual = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor, Tensor)",
    name="rms_norm_residual_forward",
    case_of=lambda x, residual, weight, eps: _case_of(x, residual),
    fake=lambda x, residual, weight, eps: (torch.empty_like(x), torch.empty_like(x), _fake_rstd(x)),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor x, Tensor? weight, Tensor rstd, Tensor dy, Tensor? dsum) -> (Tensor, Tensor)",
    case_of=lambda x, weight, rstd, dy, dsum: _case_of(x, dsum),
    run=_run_backward,
    fake=lambda x, weight, rstd, dy, dsum: (
        torch.empty_like(x),
        x.new_empty(0) if weight is None else torch.empty_like(weight),
    ),
)


def _save(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.set_materialize_grads(False)


def _save_residual(ctx, inputs, output):
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight, output[2])
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dy, drstd):
    return *_input_gradients(ctx, dy, None), None


def _pull_back_residual(ctx, dy, dsum, drstd):
    dx, dweight = _input_gradients(ctx, dy, dsum)
    return dx, dx, dweight, None


def _input_gradients(ctx, dy, dsum):
    """(dx, dweight) of the saved x, weight and rstd; a gradient that is None is that of an output nobody used."""
    x, weight, rstd = ctx.saved_tensors
    if dy is None:
        return dsum, None
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_gradients(x, weight, ctx.eps, dy, dsum)
    dx, dweight = _backward(x, weight, rstd, contiguous(dy), dsum if dsum is None else contiguous(dsum))
    return dx, None if weight is None else dweight


def _differentiable_gradients(x, weight, eps, dy, dsum):
    wide = x.float()
    rstd = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    dx, dweight = backward_reference(wide, weight if weight is None else weight.float(), rstd, dy.float(), dsum)
    return dx.to(x.dtype), None if weight is None else dweight.to(weight.dtype)


_rms_norm = Differentiable(_forward, setup_context=_save, backward=_pull_back)
_rms_norm_residual = Differentiable(_forward_residual, setup_context=_save_residual, backward=_pull_back_residual)


@DECLARATION.public
def rms_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """``torch.nn.functional.rms_norm`` in fp32, fp16 or bf16, in fp32 arithmetic; fused with an addition if asked.

    ``normalized_shape`` are the sizes of the last dimensions; ``weight`` has that shape and the input's device, or is
    None.  It may be in another of the dtypes, which its gradient then has; the result has the input's.  ``eps`` is by
    default fp32's machine epsilon in every dtype, as it is in torch, which documents the input's.  With a ``residual``,
    of the input's shape, dtype and device, returns (out, sum): ``sum = input + residual``, rounded to that dtype, and
    ``rms_norm(sum)``; either may be differentiated.  What is not contiguous is
    copied first.  Second derivatives go through torch's operations.  Raises TypeError for another dtype and ValueError
    for shapes or devices that do not fit.
    """
    if autocasting():
        input, total, weight = under_autocast("rms_norm", input, residual, weight)
        if total is not None:
            return rms_norm(input, normalized_shape, weight, eps), total
    shape = shape_of("rms_norm", normalized_shape, input)
    DECLARATION.dtype_of(input)
    weight = parameter("rms_norm", "weight", weight, shape, input)
    residual = checked("rms_norm", "residual", residual, input.shape, input)
    eps = _DEFAULT_EPS if eps is None else float(eps)  # of NumPy, or a tensor of one, as torch takes them
    if not input.numel():  # nothing to launch for
        added = input if residual is None else input + residual
        out = torch.nn.functional.rms_norm(added, shape, weight if weight is None else weight.to(added.dtype), eps)
        return out if residual is None else (out, added)
    whole, input = input.shape, input.contiguous()
    if len(shape) > 1:
        n = math.prod(shape)
        input, weight = input.view(-1, n), weight if weight is None else weight.view(n)
        residual = residual if residual is None else residual.view(-1, n)
    if residual is None:
        out = _rms_norm(input, weight, eps)[0]
        return out if len(shape) == 1 else out.view(whole)
    out, added, _ = _rms_norm_residual(input, residual, weight, eps)
    return (out, added) if len(shape) == 1 else (out.view(whole), added.view(whole))
