"""Linear layer with its epilogue in one kernel: y = act(scale * (x @ W^T) + bias) + residual.

x is [m, k], W [n, k], bias [n], residual and y [m, n]; act is relu, gelu (by erf, or by tanh), silu or nothing.  Sums,
activation and additions are fp32, rounded once to y's dtype.  Reads x, W, bias, residual and writes y: against a
product with operations after it that spares 2 MN elements of traffic for each of them, and a rounding.  2 M N K
floating-point operations; the epilogue's 10 to 30 an element are a few per cent of the product's unless K is small.

Backward, with z = scale * (x @ W^T) + bias and g = dy act'(z):

    dx = scale g @ W,    dW = scale g^T @ x,    dbias = sum_i g[i],    dresidual = dy

One pass reads z and dy and writes scale * g and, for strips of rows, the sums that become dbias, always in one order;
the products are those of `matmul`.  Of few rows all of it is one launch (`few_rows`).  z is written by the forward pass
as a second output where a gradient is wanted and act is not relu without a residual, whose y says as much.

Variants: `tiled` reads through pointers and runs everywhere; `descriptor` lets the copy engine (TMA) move blocks;
`persistent` has one program an SM, which loads blocks of its next tile while it finishes one, in parts; `specialized`
(Gluon) has a warp that only loads, and two groups of warps that share a tile, one behind the other;
`alternating` gives each group tiles of its own, so that one multiplies while the other is at its epilogue; `swizzled`
(Gluon, too) is for fp32, which FMA multiplies, `bf16x6` for much of it, on tensor cores, `few_rows` for few rows.
"""

import functools
import math

import torch
from atlas.declaration import case, gpu_of, torch_dtype
from atlas.declaration.products import fp32_precision, precision_of
from atlas.operators import (
    Differentiable,
    Operator,
    autocast,
    autocast_rule,
    autocasting,
    contiguous,
    derivative_wanted,
    shaped,
    torch_gradients,
)

from kernels.common.gradients import copies_gradient
from kernels.common.padded import padded_length
from kernels.common.products import check_sizes
from kernels.matmul import matmul

from .cases import ACTIVATIONS, reference
from .declaration import DECLARATION
from .few_rows import launch_gradients
from .pull import launch_pull
from .spaces import many_rows

__all__ = ["linear"]


def case_of(x, weight, bias, residual, activation, *_):
    """The case of a call."""
    check_sizes("linear", *x.shape, weight.shape[0])
    dtype = DECLARATION.dtype_of(x, tf32=fp32_precision() == "tf32")
    return case(
        dtype, activation=activation, bias=bias is not None, residual=residual is not None,
        m=x.shape[0], n=weight.shape[0], k=x.shape[1],
    )  # fmt: skip


def _case_of_pull(z, dy, x, weight, activation, scale, has_bias):
    return case_of(x, weight, weight if has_bias else None, None, activation)


def _run(launch, x, weight, bias, residual, activation, scale, out, keep=False):
    return launch(x, weight, bias, residual, activation, scale, torch_dtype(out), keep)


def _case_of_few_rows(z, dy, x, weight, activation, scale, has_bias, *_):
    return _case_of_pull(z, dy, x, weight, activation, scale, has_bias)


def _run_few_rows(launch, *args):
    """All gradients that are wanted."""
    return launch_gradients(*args, **launch.keywords)


def _run_pull(launch, z, dy, x, weight, activation, scale, has_bias):
    """The part of the chosen launcher that is no product: those are operators of their own."""
    return launch_pull(z, dy, activation, scale, has_bias, x, **launch.keywords)


def _fake(x, weight, bias, residual, activation, scale, out):
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch_dtype(out))


def _fake_pull(z, dy, x, weight, activation, scale, has_bias):
    m, n = dy.shape
    if copies_gradient(m, n, x):
        g = x.new_empty_strided((m, n), (padded_length(n, x.element_size()), 1))
    else:
        g = x.new_empty((m, n) if activation != "none" or scale != 1.0 else (1,))
    return g, x.new_empty((n,) if has_bias else (1,))


def _fake_few_rows(z, dy, x, weight, activation, scale, has_bias, wants_dx, wants_dw):
    shapes = ((wants_dx, x.shape), (wants_dw, weight.shape), (has_bias, (dy.shape[1],)))
    return tuple(x.new_empty(shape if wanted else (1,)) for wanted, shape in shapes)


def _setup(ctx, inputs, output):
    """Save the inputs and what tells act': z where it was kept, else y."""
    x, weight, bias, residual, ctx.activation, ctx.scale, _ = inputs
    kept = None
    if isinstance(output, tuple):
        kept = output[1]
        ctx.mark_non_differentiable(kept)
    elif ctx.activation != "none":
        kept = output
    ctx.save_for_backward(x, weight, bias, residual, kept)


def _pull_back(ctx, dy, _=None):
    """Gradients of the operator's seven arguments."""
    x, weight, bias, residual, kept = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return _differentiable_backward(x, weight, bias, residual, ctx.activation, ctx.scale, dy)
    activation, scale = ctx.activation, ctx.scale
    wants_dx, wants_dw, has_bias, wants_dresidual = ctx.needs_input_grad[:4]
    dresidual = dy.to(residual.dtype) if wants_dresidual else None
    if not (wants_dx or wants_dw or has_bias):
        return None, None, None, dresidual, None, None, None
    if not many_rows(*x.shape, weight.shape[0], x.dtype, activation, gpu_of(x.device)):
        dx, dweight, dbias = _few_rows(
            kept, contiguous(dy), contiguous(x), contiguous(weight), activation, scale, has_bias, wants_dx, wants_dw
        )  # fmt: skip
        found = (dx if wants_dx else None, dweight if wants_dw else None, dbias if has_bias else None)
        return *found, dresidual, None, None, None
    g, dbias = dy.to(x.dtype), None
    if activation != "none" or scale != 1.0 or has_bias or copies_gradient(*dy.shape, x):
        found, dbias = _pull(kept, contiguous(dy), x, weight, activation, scale, has_bias)
        g = g if found.dim() == 1 else found
    dx = matmul(g, weight) if wants_dx else None
    dweight = matmul(g.t(), x) if wants_dw else None
    return dx, dweight, dbias if has_bias else None, dresidual, None, None, None


def _differentiable_backward(x, weight, bias, residual, activation, scale, dy):
    def y(*tensors):
        return reference(*tensors, activation, scale).to(dy.dtype)

    return *torch_gradients(y, (x, weight, bias, residual), dy), None, None, None


_SCHEMA = "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str activation, float scale, str out)"
_linear = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        f"{_SCHEMA} -> Tensor",
        name="linear",
        case_of=case_of,
        run=_run,
        fake=_fake,
        state=precision_of,
    ),
    _setup,
    _pull_back,
)
_kept_linear = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        f"{_SCHEMA} -> (Tensor, Tensor)",
        name="linear_kept",
        case_of=case_of,
        run=functools.partial(_run, keep=True),
        fake=lambda *arguments: (_fake(*arguments), _fake(*arguments)),
        state=precision_of,
    ),
    _setup,
    _pull_back,
)
_pull = Operator(
    DECLARATION,
    "backward",
    "(Tensor? z, Tensor dy, Tensor x, Tensor weight, str activation, float scale, bool has_bias) -> (Tensor, Tensor)",
    name="linear_pull",
    case_of=_case_of_pull,
    run=_run_pull,
    fake=_fake_pull,
)
_few_rows = Operator(
    DECLARATION,
    "backward",
    "(Tensor? z, Tensor dy, Tensor x, Tensor weight, str activation, float scale, bool has_bias, bool wants_dx, "
    "bool wants_dw) -> (Tensor, Tensor, Tensor)",
    name="linear_few_rows",
    case_of=_case_of_few_rows,
    run=_run_few_rows,
    fake=_fake_few_rows,
)


@DECLARATION.public
def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``act(scale * F.linear(input, weight) + bias) + residual``, rounded once, as ``out_dtype`` (input's, if None).

    ``input`` is [..., k], ``weight`` [n, k], ``bias`` [n], ``residual`` [..., n] as the result; ``activation`` is one
    of "relu", "gelu" (by erf), "gelu_tanh", "silu", or None.  Dtypes are fp32, fp16, bf16; those of input and weight
    are one, bias and residual may have another of them.  Input and weight may have any strides (by columns they may be
    copied), residual and bias are copied if not contiguous.  fp32 operands are multiplied as
    ``torch.set_float32_matmul_precision`` says.

    Differentiable in the four tensors; second derivatives go through torch's operations.  Raises TypeError for other
    dtypes, ValueError for another activation, shapes or devices that do not fit, and sizes of 2^31 - 1024 or more.
    """
    if activation is None:
        activation = "none"
        if residual is None and out_dtype is None and not autocasting():
            out = DECLARATION.dtype_names.get(input.dtype)
            if (found := _linear.again(input, weight, bias, None, activation, scale, out)) is not None:
                return found
    if activation not in ACTIVATIONS:
        raise ValueError(f"linear: activation is None or one of {', '.join(ACTIVATIONS[1:])}: {activation!r}")
    if autocasting():
        input, weight, bias = autocast("linear", input, weight, bias)
        if residual is not None and out_dtype is None and autocast_rule("linear", input.device):
            out_dtype = torch.promote_types(input.dtype, residual.dtype)  # as torch adds what it does not cast
    DECLARATION.dtype_of(input, weight)
    if not input.dim() or weight.dim() != 2 or weight.shape[1] != input.shape[-1]:
        raise ValueError(f"linear takes a weight [n, k] for an input [..., k]: "
                         f"{tuple(weight.shape)} for {tuple(input.shape)}")  # fmt: skip
    if weight.device != input.device:
        raise ValueError(f"linear takes tensors of one device: {input.device}, {weight.device}")
    shape, rows = (*input.shape[:-1], weight.shape[0]), math.prod(input.shape[:-1])
    if bias is not None:
        bias = _checked("bias", bias, shape[-1:], input)
    if residual is not None:
        residual = _checked("residual", residual, shape, input).reshape(rows, shape[-1])
    out = DECLARATION.dtype_names.get(out_dtype or input.dtype)
    if out is None:
        raise TypeError(f"linear takes an out_dtype out of {', '.join(DECLARATION.dtypes)}: {out_dtype}")
    x = input if input.dim() == 2 else input.reshape(rows, input.shape[-1])
    check_sizes("linear", *x.shape, shape[-1])
    if not (x.numel() and shape[-1]):  # nothing to launch for
        y = reference(x, weight, bias, residual, activation, scale).to(torch_dtype(out))
    elif _keeps(activation, residual) and derivative_wanted(x, weight, bias, residual):
        y = _kept_linear(x, weight, bias, residual, activation, scale, out)[0]
    else:
        y = _linear(x, weight, bias, residual, activation, scale, out)
    return y if input.dim() == 2 else shaped(y, shape)


def _keeps(activation, residual):
    """Whether backward needs z: y says whether z was positive, which is all that relu needs."""
    return activation != "none" and (activation != "relu" or residual is not None)


def _checked(name, tensor, shape, input):
    """The tensor, contiguous, if it has this shape, a dtype of the kernel's and the input's device."""
    if tensor.dtype not in DECLARATION.dtype_names:
        raise TypeError(f"linear takes a {name} of {', '.join(DECLARATION.dtypes)}: {tensor.dtype}")
    if tensor.shape != shape or tensor.device != input.device:
        raise ValueError(
            f"linear takes a {name} of shape {tuple(shape)} on {input.device}: {tuple(tensor.shape)} on {tensor.device}"
        )
    return tensor.contiguous()
