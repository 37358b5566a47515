"""Cross-entropy with class weights, of probabilities, or of logits whose classes lie along any axis: [b, n, s].

With lse = log sum_j exp(x_j) of the n classes of a row, and coefficients c of them,

    loss = sum_j c_j (lse - x_j) + z lse^2,    dx_j = g ((sum_k c_k + 2 z lse) exp(x_j - lse) - c_j)
    c_j = w_j (s / n + (1 - s) p_j)

for weights w, label smoothing s and targets p, probabilities of which a class index is one that is 1.  Rows that are
ignored count 0.  The mean divides by the sum of the targets' weights, that of probabilities by the number of rows.

Forward reads x (and p) once, MN each, and keeps lse in two parts and, of probabilities, sum_k c_k: 2 or 3 M; backward
reads x again and writes dx, and for probabilities dp_j = g (1 - s) w_j (lse - x_j).  Arithmetic is fp32 whatever the
dtype.

Variants: `stream` reads rows, whose classes are neighbours, or columns, whose places are: each lane of a block has a
running maximum and sums, so nothing is exchanged until the end.  `kernels.cross_entropy` calls it; logits by rows with
class indices alone it reads by itself.
"""

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, contiguous, torch_gradients

from .declaration import DECLARATION
from .references import torch_loss
from .row import is_last, loss_dtype, saved_rows

__all__ = []


def _case_of(x, target, weight, *_):
    b, n, s = x.shape
    flags = {"last": is_last(x), "weight": weight is not None, "probabilities": target.dim() == 3}
    return case(DECLARATION.dtype_of(x), b=b, n=n, s=s, **flags)


def _fake_forward(x, target, weight, ignore_index, reduction, label_smoothing, z_loss, wide_loss):
    rows = x.shape[0] * x.shape[2]
    loss = x.new_empty((rows,) if reduction == "none" else (), dtype=loss_dtype(x, wide_loss))
    saved = x.new_empty((saved_rows(target, label_smoothing), rows), dtype=torch.float32)
    return loss, saved, x.new_empty((1,), dtype=torch.float32)


def _fake_backward(x, target, *rest):
    return torch.empty_like(x), torch.empty_like(target) if rest[-1] else x.new_empty((0,), dtype=target.dtype)


def _run_backward(launch, x, target, *rest):
    found = launch(x, target, *rest)
    return found if isinstance(found, tuple) else (found, x.new_empty((0,), dtype=target.dtype))


_PARAMETERS = "int ignore_index, str reduction, float label_smoothing, float z_loss"

_forward = Operator(
    DECLARATION,
    "forward",
    f"(Tensor x, Tensor target, Tensor? weight, {_PARAMETERS}, bool wide_loss) -> (Tensor, Tensor, Tensor)",
    case_of=_case_of,
    fake=_fake_forward,
    run=lambda launch, *arguments: launch(*arguments[:-1], wide_loss=arguments[-1]),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor x, Tensor target, Tensor? weight, Tensor saved, Tensor scale, Tensor dloss, "
    f"{_PARAMETERS}, bool of_target) -> (Tensor, Tensor)",
    case_of=_case_of,
    fake=_fake_backward,
    run=_run_backward,
)


def _setup(ctx, inputs, output):
    x, target, weight, *ctx.parameters, _ = inputs
    ctx.save_for_backward(x, target, weight, *output[1:])
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dloss, dsaved, dscale):
    x, target, weight, saved, scale = ctx.saved_tensors
    wanted = target.is_floating_point() and ctx.needs_input_grad[1]
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        turning = (x, target if wanted else None)
        dx, dtarget = torch_gradients(
            lambda *given: _wide(*given, target, weight, ctx.parameters), turning, dloss.float()
        )
    else:
        dx, dtarget = _backward(x, target, weight, saved, scale, contiguous(dloss), *ctx.parameters, wanted)
    return dx, dtarget if wanted else None, *(None,) * 6


def _wide(x, turning, target, weight, parameters):
    """The loss in fp32, by torch."""
    target = target if turning is None else turning
    target = target.float() if target.is_floating_point() else target
    return torch_loss(x.float(), target, weight if weight is None else weight.float(), *parameters)


_cross_entropy = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
def weighted_cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    wide_loss: bool = False,
) -> torch.Tensor:
    """The loss of logits [b, n, s] with any strides, n the classes: a scalar, or [b * s] with ``reduction="none"``.

    ``target`` are class indices [b, s] or probabilities [b, n, s], ``weight`` [n] or None; ``wide_loss`` gives the loss
    in fp32.  :func:`kernels.cross_entropy` checks what it is given, and calls this.
    """
    parameters = (ignore_index, reduction, float(label_smoothing), float(z_loss))
    if not x.numel():  # nothing to launch for
        x = x.float() if wide_loss else x
        return torch_loss(x, target, weight if weight is None else weight.to(x.dtype), *parameters)
    return _cross_entropy(x, target, weight, *parameters, wide_loss)[0]
