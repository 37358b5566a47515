"""Layer normalisation, then a linear layer: y = ((x - mean) * rstd * weight + bias) @ W^T + c, in one product.

x[m, k] has a mean and rstd per row; W[n, k] and c[n] are the linear layer's.  A first kernel reads x and writes mean
(in two parts) and rstd, 3 M; a product then normalises each tile of x on its way to ``tl.dot``.  Against the two layers
one after the other this spares writing and reading the normalised matrix, 2 MK elements, and costs the normalisation of
a tile once for each tile of columns of y.  2 M N K floating-point operations.

Why not y = rstd * (x @ (weight * W)^T - mean * colsum) + …, a product of x as it is?  Because it subtracts two large
numbers where the mean of a row is large against its deviation: 16-bit products of x lose the digits that the centred
values keep, and weight * W would be rounded once more.  Tiles of centred values, rounded to the dtype as the layer
itself would round them, give what the two layers give.

Variants: `fused` as above; `separate` writes the normalised matrix and leaves the product to torch (cuBLAS): the better
way where a product is large, so that its speed is worth more than the traffic.  The backward pass is two plain
products of torch's around kernels of layer_norm and reduction; the normalised matrix is computed again, not kept.
"""

import torch
from atlas.declaration import case, gpu_of
from atlas.operators import (
    Differentiable,
    Operator,
    autocast_rule,
    autocasting,
    contiguous,
    step,
    torch_gradients,
)

import kernels.matmul_epilogue  # registers linear_few_rows
import kernels.reduction  # registers reduction_sum
from kernels.common.norms import checked, in_one_dtype, parameter
from kernels.common.products import check_sizes
from kernels.matmul_epilogue.spaces import many_rows

from .declaration import DECLARATION


def _case_of(x, weight, bias, eps, w, c):
    n, k = w.shape
    check_sizes("layer_norm_linear", x.numel() // k, n, k)
    return case(DECLARATION.dtype_of(x), m=x.numel() // k, n=n, k=k)


def _run(launch, x, weight, bias, eps, w, c):
    out = launch(x.view(-1, w.shape[1]), weight, bias, eps, w, c).view(*x.shape[:-1], w.shape[0])
    return out.data  # no view: autograd lets nobody change one in place that was made where it does not look


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor? weight, Tensor? bias, float eps, Tensor w, Tensor? c) -> Tensor",
    name="layer_norm_linear",
    case_of=_case_of,
    run=_run,
    fake=lambda x, weight, bias, eps, w, c: x.new_empty((*x.shape[:-1], w.shape[0])),
)


def _setup(ctx, inputs, output):
    x, weight, bias, eps, w, c = inputs
    ctx.save_for_backward(x, weight, bias, w, c)
    ctx.eps = eps


def _pull_back(ctx, dy):
    """Two products of torch's around kernels of layer_norm, which normalise x again, and of reduction.

    Of few rows linear's kernel makes both products and the sum in one launch.  Keeping the normalised matrix would cost
    its memory.
    """
    x, weight, bias, w, c = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_backward(x, weight, bias, ctx.eps, w, c, dy)
    (n, k), operators = w.shape, torch.ops.kernel_atlas  # which the kernels registered when they were imported
    out, mean, rstd = operators.layer_norm_forward(x, k, weight, bias, ctx.eps)
    rows_of_dy, out = contiguous(dy).view(-1, n), out.view(-1, k)
    dx = dweight = dbias = dout = dw = dc = None
    wants_dout, (wants_dw, wants_dc) = any(ctx.needs_input_grad[:3]), ctx.needs_input_grad[4:]
    if (wants_dout or wants_dw) and not many_rows(*out.shape, n, out.dtype, "none", gpu_of(out.device)):
        dout, dw, dc = operators.linear_few_rows(
            None, rows_of_dy, out, w, "none", 1.0, wants_dc, wants_dout, wants_dw
        )  # fmt: skip
    else:
        dout = step(torch.mm, rows_of_dy, w) if wants_dout else None
        dw = step(torch.mm, rows_of_dy.t(), out) if wants_dw else None
        dc = operators.reduction_sum(rows_of_dy, 0, 1, False, False, False) if wants_dc else None
    if wants_dout:
        dout = dout.view(x.shape)
        dx, dweight, dbias = operators.layer_norm_backward(x, k, weight, bias, mean, rstd, dout, None)
    dw, dc = dw if wants_dw else None, dc if wants_dc else None
    return dx, None if weight is None else dweight, None if bias is None else dbias, None, dw, dc


def _differentiable_backward(x, weight, bias, eps, w, c, dy):
    def y(x, weight, bias, w, c):
        wide, weight, bias = in_one_dtype(x, weight, bias)
        out = torch.nn.functional.layer_norm(wide, wide.shape[-1:], weight, bias, eps)
        return torch.nn.functional.linear(out.to(x.dtype), w, c)

    dx, dweight, dbias, dw, dc = torch_gradients(y, (x, weight, bias, w, c), dy)
    return dx, dweight, dbias, None, dw, dc


_layer_norm_linear = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
def layer_norm_linear(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    linear_bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``F.linear(F.layer_norm(input, (k,), weight, bias, eps), linear_weight, linear_bias)`` in fp32, fp16 or bf16.

    ``input`` is [..., k], ``linear_weight`` [n, k], ``linear_bias`` [n], all of one dtype, ``weight`` and ``bias`` [k]
    of any of these, on one device; biases and ``weight`` may be None.  Returns [..., n].  Statistics and sums are fp32;
    fp32 operands are multiplied in IEEE precision.  Inputs that are not contiguous are copied first.  Raises TypeError
    for another dtype and ValueError for shapes or devices that do not fit, and for sizes of 2^31 - 1024 or more.
    """
    if autocasting() and autocast_rule("linear", input.device):
        return _in_two_dtypes(input, linear_weight, linear_bias, weight, bias, eps)
    if (found := _layer_norm_linear.again(input, weight, bias, eps, linear_weight, linear_bias)) is not None:
        return found
    DECLARATION.dtype_of(input)
    if not input.dim() or linear_weight.dim() != 2 or linear_weight.shape[1] != input.shape[-1]:
        raise ValueError(
            "layer_norm_linear takes a linear_weight [n, k] for an input [..., k]: "
            f"{tuple(linear_weight.shape)} for {tuple(input.shape)}"
        )
    n, k = linear_weight.shape
    check_sizes("layer_norm_linear", input.numel() // max(k, 1), n, k)
    linear_weight = checked("layer_norm_linear", "linear_weight", linear_weight, (n, k), input)
    linear_bias = checked("layer_norm_linear", "linear_bias", linear_bias, (n,), input)
    weight = parameter("layer_norm_linear", "weight", weight, (k,), input)
    bias = parameter("layer_norm_linear", "bias", bias, (k,), input)
    if not input.numel() or not n:  # nothing to launch for
        wide, *parameters = in_one_dtype(input, weight, bias)
        out = torch.nn.functional.layer_norm(wide, wide.shape[-1:], *parameters, eps)
        return torch.nn.functional.linear(out.to(input.dtype), linear_weight, linear_bias)
    return _layer_norm_linear(input.contiguous(), weight, bias, eps, linear_weight, linear_bias)


def _in_two_dtypes(input, linear_weight, linear_bias, weight, bias, eps):
    """Under autocast torch normalises in fp32 and multiplies in 16 bits: two kernels, each with its own rule."""
    out = kernels.layer_norm(input, (input.shape[-1],), weight, bias, eps)
    return kernels.linear(out, linear_weight, linear_bias)
