"""Cross-entropy of rows of logits against class indices, with label smoothing s, ignored targets and a z-loss.

Class weights, probabilities as targets and classes along another axis are `weighted_cross_entropy`'s.

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
from atlas.declaration import case, choose
from atlas.operators import (
    Differentiable,
    Operator,
    autocasts_to_fp32,
    contiguous,
    shaped,
    torch_gradients,
    transformed,
)

from kernels.weighted_cross_entropy import weighted_cross_entropy

from .arguments import check_parameters, check_targets, check_weight, in_columns, is_rows, refuse_deprecated
from .backward import multiply
from .declaration import DECLARATION
from .references import torch_loss
from .total import loss_dtype, stride


def _case_of(x, **flags):
    return case(DECLARATION.dtype_of(x), m=x.shape[0], n=x.shape[1], **flags)


def _fake_forward(x, target, ignore_index, reduction, label_smoothing, z_loss, wide_loss):
    loss = x.new_empty((x.shape[0],) if reduction == "none" else (), dtype=loss_dtype(x, wide_loss))
    return loss, x.new_empty((x.shape[0],), dtype=torch.float32), x.new_empty((1,), dtype=torch.float32)


_PARAMETERS = "int ignore_index, str reduction, float label_smoothing, float z_loss"

_forward = Operator(
    DECLARATION,
    "forward",
    f"(Tensor x, Tensor target, {_PARAMETERS}, bool wide_loss) -> (Tensor, Tensor, Tensor)",
    case_of=lambda x, *_: _case_of(x),
    fake=_fake_forward,
    run=lambda launch, *arguments: launch(*arguments[:-1], False, wide_loss=arguments[-1]),
)
_backward = Operator(
    DECLARATION,
    "backward",
    f"(Tensor x, Tensor target, Tensor lse, Tensor scale, Tensor dloss, {_PARAMETERS}) -> Tensor",
    case_of=lambda x, *_: _case_of(x),
    fake=lambda x, *_: x.new_empty((x.shape[0], stride(x)))[:, : x.shape[1]],
)


def _setup(ctx, inputs, output):
    x, target, *ctx.parameters, _ = inputs
    ctx.save_for_backward(x, target, *output[1:])
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dloss, dlse, dscale):
    x, target, lse, scale = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        (dx,) = torch_gradients(lambda x: torch_loss(x.float(), target, *ctx.parameters), (x,), dloss.float())
    else:
        dx = _backward(x, target, lse, scale, contiguous(dloss), *ctx.parameters)
    return dx, *(None,) * 6


_cross_entropy = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


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
        multiply(dx, dloss.resolve_neg())
        torch.autograd.graph.increment_version(dx)  # a second backward would scale it again
        return dx.detach(), *(None,) * 6


def is_matrix(x):
    """Whether kernels take ``x`` as it is: rows of neighbours, not much farther apart than they are long."""
    return x.is_contiguous() or (x.stride(1) == 1 and x.shape[1] <= x.stride(0) <= 2 * x.shape[1])


@DECLARATION.public
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
    """``torch.nn.functional.cross_entropy`` of logits [n], [m, n] or [m, n, ...] in fp32, fp16 or bf16.

    ``target`` are class indices, or probabilities of the logits' shape, which may have a gradient; ``weight`` [n] is of
    the classes.  Layouts are read as they lie, unless the axes behind the classes do not lie as one: those are copied.
    ``z_loss`` adds z_loss * logsumexp(row)^2 to the loss of each row that counts, before the reduction.  With
    ``inplace_gradient``, in eager mode, for rows of logits and class indices without weights, the gradient takes the
    place of the logits while the loss is computed: a third less traffic and half the memory, but the logits are lost;
    where no gradient is wanted it changes nothing.  A target outside [0, n) makes its row NaN.  Second derivatives go
    through torch's operations.

    Raises NotImplementedError for a gradient of class weights and the deprecated ``size_average`` and ``reduce``;
    TypeError for other dtypes; ValueError for what does not fit together.
    """
    plain = weight is None and size_average is None and reduce is None
    # Where torch takes logits in 16 bits and gives a loss in fp32, the loss alone is: nothing has to be copied.
    wide_loss = autocasts_to_fp32("nll_loss", input.device)
    ignore_index = int(ignore_index)
    parameters = (ignore_index, reduction, float(label_smoothing), float(z_loss))
    if plain and not inplace_gradient:
        found = _cross_entropy.again(input, target, *parameters, wide_loss)
        if found is not None:
            return found[0]
    if not plain or input.dim() != 2 or target.dim() != 1:
        refuse_deprecated(size_average, reduce)
        return _along_any_axis(
            input, target, weight, ignore_index, reduction, label_smoothing, z_loss, inplace_gradient
        )
    DECLARATION.dtype_of(input)
    if target.dtype != torch.int64:
        raise TypeError(f"cross_entropy takes class indices in int64: {target.dtype}")
    if target.shape[0] != input.shape[0] or target.device != input.device:
        raise ValueError(
            f"cross_entropy takes a target a row, on one device: logits {tuple(input.shape)} on {input.device}, "
            f"targets {tuple(target.shape)} on {target.device}"
        )
    check_parameters(reduction, label_smoothing)
    if not input.numel():
        return torch_loss(input.float() if wide_loss else input, target, *parameters)  # nothing to launch for
    if inplace_gradient and torch.is_grad_enabled() and input.requires_grad and _is_plain(input):
        _check_in_place(input, reduction)
        return _GradientInPlace.apply(input, target.contiguous(), *parameters, wide_loss)
    if not is_matrix(input):
        return _along_any_axis(input, target, None, ignore_index, reduction, label_smoothing, z_loss, False)
    return _cross_entropy(input, target.contiguous(), *parameters, wide_loss)[0]


def _is_plain(x):
    """Whether memory of the logits can be written over: they have some, and it holds what they are."""
    return not (x.is_meta or x.is_neg() or transformed())


def _along_any_axis(input, target, weight, ignore_index, reduction, label_smoothing, z_loss, inplace_gradient):
    """The loss of logits [n], [m, n] or [m, n, ...] in any layout, with class weights or probabilities as targets."""
    DECLARATION.dtype_of(input)
    check_parameters(reduction, label_smoothing)
    probabilities = check_targets(input, target, ignore_index)
    if weight is not None:
        check_weight(input, weight)
    shape = input.shape[:1] + input.shape[2:] if input.dim() > 1 else ()
    if weight is None and not probabilities and input.numel():
        rows = input[None] if input.dim() == 1 else input.movedim(1, -1).flatten(0, -2) if is_rows(input) else input
        if rows.dim() == 2 and is_matrix(rows):
            loss = cross_entropy(
                rows, target.flatten(), None, None, ignore_index, None, reduction, label_smoothing, z_loss,
                inplace_gradient,
            )  # fmt: skip
            return shaped(loss, shape) if reduction == "none" else loss
    if inplace_gradient and torch.is_grad_enabled() and input.requires_grad and _is_plain(input):
        raise NotImplementedError("cross_entropy: inplace_gradient=True is for class indices of rows, without weights")
    dtype = input.dtype
    if probabilities:
        of_weight = input.dtype if weight is None else weight.dtype
        dtype = torch.promote_types(torch.promote_types(dtype, target.dtype), of_weight)
    wide = dtype != input.dtype or autocasts_to_fp32("nll_loss", input.device)
    parameters = (ignore_index, reduction, label_smoothing, z_loss, wide)
    x, target = in_columns(input, input), in_columns(target, input) if probabilities else target
    if not probabilities:
        target = target.reshape(x.shape[0], x.shape[2])
    loss = weighted_cross_entropy(x, target, weight if weight is None else weight.contiguous(), *parameters)
    return shaped(loss, shape) if reduction == "none" else loss


def _check_in_place(x, reduction):
    """Raise where the logits cannot be overwritten by their gradient."""
    if torch.compiler.is_compiling():
        raise NotImplementedError("cross_entropy: inplace_gradient=True is for eager mode, not for torch.compile")
    if reduction == "none":
        raise NotImplementedError("cross_entropy: inplace_gradient=True needs a single loss, not reduction='none'")
    if x.is_leaf:
        raise ValueError("cross_entropy: inplace_gradient=True would overwrite a leaf that requires a gradient")
    if not is_matrix(x):
        raise ValueError(f"cross_entropy: inplace_gradient=True takes rows of neighbours, not strides {x.stride()}")
