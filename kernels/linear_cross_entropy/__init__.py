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
elements (and small layers still fill the GPU, with 1024 rows), or logits of 1/256 of the GPU's memory; chunks are of
equal length, but for the last.  dweight is summed up over several chunks in fp32: in 16 bits what cancels between
chunks would keep the rounding of its parts.  That takes 2 n k bytes more, for which up to twice as many rows are one
chunk, with nothing to add up.
"""

import torch
from atlas.declaration import case
from atlas.operators import (
    CustomOperator,
    Differentiable,
    Operator,
    autocast,
    autocasting,
    autocasts_to_fp32,
    derivative_wanted,
    torch_gradients,
)

from .chunks import multiply
from .declaration import DECLARATION
from .references import torch_loss

REDUCTIONS = ("mean", "sum", "none")


def _case_of(hidden, weight, *parameters):
    of_hidden, of_weight = parameters[-4:-2]
    flags = {"gradient": True} if of_hidden or of_weight else {}
    return case(DECLARATION.dtype_of(hidden), m=hidden.shape[0], k=hidden.shape[1], n=weight.shape[0], **flags)


def _fake(hidden, weight, bias, target, dloss, ignore_index, reduction, *parameters):
    _, _, gradient, of_weight, _, wide_loss = parameters
    of_loss = torch.float32 if wide_loss else hidden.dtype
    return (
        hidden.new_empty((hidden.shape[0],) if reduction == "none" else (), dtype=of_loss),
        torch.empty_like(hidden) if gradient else hidden.new_empty((0,)),
        torch.empty_like(weight) if of_weight else hidden.new_empty((0,)),
        torch.empty_like(bias) if of_weight and bias is not None else hidden.new_empty((0,)),
    )


_operator = Operator(
    DECLARATION,
    "forward",
    "(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? dloss, int ignore_index, str reduction,"
    " float label_smoothing, float z_loss, bool gradient, bool weight_gradient, int chunk_rows, bool wide_loss)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    case_of=_case_of,
    fake=_fake,
)


_scale = CustomOperator(
    "linear_cross_entropy_scale", "(Tensor(a!) x, Tensor dloss) -> ()", run=multiply, fake=lambda x, dloss: None
)


def _setup(ctx, inputs, output):
    hidden, weight, bias, target, _, *ctx.parameters, _, _, ctx.chunk_rows, ctx.wide_loss = inputs
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
        lambda hidden, weight, bias: torch_loss(hidden, weight, bias, target, *parameters).to(dloss.dtype),
        (hidden, weight, bias),
        dloss,
    )


def _scaled(gradient, dloss):
    """The gradient times that of the loss, in place in eager mode: weight's is too large to have twice."""
    if not gradient.numel():
        return gradient
    if type(gradient) is not torch.Tensor or gradient.is_meta or torch.compiler.is_compiling():
        return gradient * dloss
    _scale(gradient, dloss.resolve_neg())
    torch.autograd.graph.increment_version(gradient)  # a second backward would scale it again
    return gradient.detach()


_linear_cross_entropy = Differentiable(_operator, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
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
    ignore_index = -100 if ignore_index is None else int(ignore_index)
    if options is not None:
        raise NotImplementedError("linear_cross_entropy takes none of torch's options: chunk_rows sets a chunk's size")
    wide = autocasts_to_fp32("nll_loss", input.device)
    if autocasting():
        input, linear_weight, linear_bias = autocast("linear", input, linear_weight, linear_bias)
    of_input = reduction != "none" and derivative_wanted(input)
    of_weight = reduction != "none" and derivative_wanted(linear_weight, linear_bias)
    parameters = (ignore_index, reduction, float(label_smoothing), float(z_loss))
    flags = (of_input, of_weight, chunk_rows, wide)
    if weight is None:
        found = _linear_cross_entropy.again(input, linear_weight, linear_bias, target, None, *parameters, *flags)
        if found is not None:
            return found[0]
    _check(input, linear_weight, target, linear_bias, weight)
    if reduction not in REDUCTIONS or not 0.0 <= label_smoothing <= 1.0 or chunk_rows < 0:
        raise ValueError(
            f"linear_cross_entropy takes a reduction out of {', '.join(REDUCTIONS)}, a label_smoothing in [0, 1] and "
            f"chunk_rows >= 0: {reduction!r}, {label_smoothing}, {chunk_rows}"
        )
    if not input.numel() or not linear_weight.numel():
        return torch_loss(input, linear_weight, linear_bias, target, *parameters)  # nothing to launch for
    bias = None if linear_bias is None else linear_bias.contiguous()
    return _linear_cross_entropy(
        input.contiguous(), linear_weight.contiguous(), bias, target.contiguous(), None, *parameters, *flags
    )[0]


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
    DECLARATION.dtype_of(input, linear_weight, linear_bias)
    if target.dtype != torch.int64:
        raise TypeError(f"linear_cross_entropy takes class indices in int64: {target.dtype}")
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
