"""Softmax over rows: y[i, j] = exp(x[i, j] - m_i) / l_i, with m_i = max_j x[i, j] and l_i = sum_j exp(x[i, j] - m_i).

Its logarithm is y = x - m_i - log(l_i).  Under a causal mask row i of each matrix of q rows takes the columns
j <= i + n - q alone; under a mask those that a boolean says, or x plus a bias.

Forward reads x and writes y, MN elements each.  Backward is dx = y * (dy - sum_j y * dy), of the logarithm
dx = dy - exp(y) * sum_j dy: it reads y and dy and writes dx, 3 MN.  Both do a handful of operations an element, so
memory bounds them: a row should be read once and enough bytes kept in flight.  Arithmetic is fp32 whatever the dtype.

Variants: `one_pass` holds whole rows in registers, backward's `held` those of dy; `online` and backward's `stream` read
a row of any length twice, the second time from cache as far as it reaches, forward with the running maximum and sum of
Milakov and Gimelshein (arXiv:1805.02867).
"""

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, autocasts_to_fp32, contiguous

from kernels.common.axes import axis_of

from .declaration import DECLARATION
from .masks import mask_rows
from .references import backward_reference
from .tiling import matrix_of

__all__ = ["log_softmax", "softmax"]


def _case_of(x, mask, log, causal):
    m, n, _ = matrix_of(x, causal)
    flags = {"log": True} if log else {"causal": True} if causal else {}
    if mask is not None:
        flags["mask"] = "bool" if mask.dtype == torch.bool else "added"
    if causal or mask is not None:
        flags["q"] = x.shape[-2] if x.dim() > 1 else 1
    return case(DECLARATION.dtype_of(x), **flags, m=m, n=n)


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor? mask, bool log, bool causal) -> Tensor",
    case_of=_case_of,
    fake=lambda x, mask, log, causal: torch.empty_like(x),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor y, Tensor dy, bool log, bool causal) -> Tensor",
    case_of=lambda y, dy, log, causal: _case_of(y, None, log, causal),
    fake=lambda y, dy, log, causal: torch.empty_like(y),
)


def _setup(ctx, inputs, output):
    _, mask, ctx.log, ctx.causal = inputs
    ctx.save_for_backward(output)
    ctx.mask = None if mask is None else (mask.shape, mask.dtype)


def _pull_back(ctx, dy):
    (y,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        dx = backward_reference(y.float(), dy.float(), ctx.log).to(dy.dtype)
    else:
        dx = _backward(y, contiguous(dy), ctx.log, ctx.causal)
    dmask = dx.sum_to_size(ctx.mask[0]).to(ctx.mask[1]) if ctx.needs_input_grad[1] else None
    return dx, dmask, None, None


_softmax = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
def softmax(
    input: torch.Tensor,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.softmax(input, dim, dtype=dtype)`` in fp32, fp16 or bf16, for any ``dim`` and shape.

    With ``dtype`` the input is cast first.  The result is contiguous; an input whose rows along ``dim`` do not lie one
    after the other is copied first.

    ``mask`` is as of ``torch.nn.functional.scaled_dot_product_attention``: a boolean one says which elements take part,
    a floating one is added.  It is broadcast over leading dimensions and one run of others, so (q, k), (b, 1, q, k) and
    (b, 1, 1, k) will do for scores of (b, h, q, k).  ``causal`` leaves to row i of each (q, k) the columns
    j <= i + k - q.  Both go with the last ``dim`` alone.  A row of which nothing takes part is NaN, as in torch.

    Second derivatives go through torch's operations.  Raises TypeError for another dtype and a ``dim`` that is no int,
    IndexError for one that the input does not have, ValueError for a mask that does not fit.
    """
    _check("softmax", input)
    if dtype is None and autocasts_to_fp32("softmax.int", input.device):
        dtype = torch.float32
    plain = mask is None and not causal and dtype is None
    if (
        plain
        and type(dim) is int
        and dim == -1
        and input.is_contiguous()
        and input.dtype in DECLARATION.dtype_names
        and input.numel()
    ):
        return _softmax(input, None, False, False)
    return _any_layout("softmax", input, dim, dtype, mask, False, causal)


def log_softmax(input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.nn.functional.log_softmax(input, dim, dtype=dtype)``; all else as for :func:`softmax`."""
    _check("log_softmax", input)
    if dtype is None and autocasts_to_fp32("log_softmax.int", input.device):
        dtype = torch.float32
    plain = type(dim) is int and dim == -1 and dtype is None
    if plain and input.is_contiguous() and input.dtype in DECLARATION.dtype_names and input.numel():
        return _softmax(input, None, True, False)
    return _any_layout("log_softmax", input, dim, dtype, None, True, False)


def _check(name, input):
    if not isinstance(input, torch.Tensor):
        raise TypeError(f"{name} takes a tensor: {input!r}")


def _any_layout(name, input, dim, dtype, mask, log, causal):
    """The general case of both functions: checks, a cast, rows along any dimension."""
    x = input if dtype is None else input.to(dtype)
    if x.dtype not in DECLARATION.dtype_names:
        raise TypeError(
            f"{name} takes {', '.join(DECLARATION.dtypes)}: {x.dtype}; name one of them as dtype= to cast the input"
        )
    dim = axis_of(name, dim, x.dim())  # a scalar is a row of one, as in torch
    last = dim == max(x.dim(), 1) - 1
    if mask is not None:
        mask = _checked_mask(x, mask)
    if (mask is not None or causal) and (not last or x.dim() < 2):
        raise ValueError(
            f"{name}: mask and causal are for the last dim of scores (…, q, k): {tuple(x.shape)}, dim {dim}"
        )
    if not x.numel():
        return x.clone()
    if last:
        return _softmax(x.contiguous(), mask, log, causal)
    return _softmax(x.movedim(dim, -1).contiguous(), None, log, False).movedim(-1, dim).contiguous()


def _checked_mask(x, mask):
    """The mask with contiguous rows; ValueError where it does not fit the scores."""
    if (mask.dtype != torch.bool and mask.dtype not in DECLARATION.dtype_names) or mask.device != x.device:
        raise ValueError(
            f"softmax: a mask is bool or {', '.join(DECLARATION.dtypes)} on {x.device}: {mask.dtype} on {mask.device}"
        )
    if mask.dim() and mask.stride(-1) != 1 and mask.shape[-1] > 1:
        mask = mask.contiguous()
    mask_rows(x.shape, mask)
    return mask
