"""Embedding: out[i, :] = weight[index[i], :], the rows of a table that m tokens name.

weight is [v, n].  Forward reads the rows that occur, once if the cache holds those that recur, and writes out, MN
elements.  Backward is dweight[r, :] = sum of dy[i, :] over the tokens i with index[i] = r: it reads dy, MN, and writes
dweight, VN, zeros where no token names the row.  Of 16 384 tokens and a vocabulary of 128 256 the writing is nine
tenths, so the sums are taken in the one pass that writes.
"""

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, contiguous

from .declaration import DECLARATION, backward_reference


def _setup_context(ctx, inputs, output):
    index, weight, padding_idx = inputs
    ctx.save_for_backward(index)
    ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx


def _pull_back(ctx, dy):
    (index,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return None, backward_reference(dy, index, ctx.rows, ctx.padding_idx), None
    return None, _backward(contiguous(dy), index, ctx.rows, ctx.padding_idx), None


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor index, Tensor weight, int padding_idx) -> Tensor",
    case_of=lambda index, weight, padding_idx: case(
        DECLARATION.dtype_of(weight), m=index.numel(), v=weight.shape[0], n=weight.shape[1]
    ),
    fake=lambda index, weight, padding_idx: weight.new_empty((*index.shape, weight.shape[1])),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor dy, Tensor index, SymInt rows, int padding_idx) -> Tensor",
    case_of=lambda dy, index, rows, padding_idx: case(
        DECLARATION.dtype_of(dy), m=index.numel(), v=rows, n=dy.shape[-1]
    ),
    fake=lambda dy, index, rows, padding_idx: dy.new_empty((rows, dy.shape[-1])),
)


def _push_forward(args, tangents):
    """Linear in the table; the row of ``padding_idx``, which has no gradient, is looked up as any other."""
    index, _, padding_idx = args
    return _embedding(index, tangents[1], padding_idx)


_embedding = Differentiable(_forward, _setup_context, _pull_back, _push_forward)


@DECLARATION.public
def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.embedding`` of int32 or int64 indices of any shape and an fp32, fp16 or bf16 table [v, n].

    The row ``padding_idx`` gets no gradient; a negative one counts from the end.  An index outside [0, v) is no error
    that a GPU could report in time: it reads nothing, its row of the result is NaN, and it adds to no gradient.  A
    table whose rows lie apart is read where it is; other layouts are copied first.  Second derivatives go through
    torch's operations.  Raises TypeError for other dtypes, ValueError for shapes and devices that do not fit, and
    NotImplementedError for ``max_norm``, ``scale_grad_by_freq`` and ``sparse``.
    """
    plain = padding_idx is None and max_norm is None and not scale_grad_by_freq and not sparse
    if plain and (found := _embedding.again(input, weight, -1)) is not None:
        return found
    DECLARATION.dtype_of(weight)
    if input.dtype != torch.int64 and input.dtype != torch.int32:
        raise TypeError(f"embedding takes int32 or int64 indices: {input.dtype}")
    if weight.dim() != 2 or input.device != weight.device:
        raise ValueError(
            f"embedding takes a table of two dimensions on the indices' device: {tuple(weight.shape)} on "
            f"{weight.device}, indices on {input.device}"
        )
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError("embedding has no max_norm, scale_grad_by_freq or sparse gradients")
    rows = weight.shape[0]
    if padding_idx is None:
        padding_idx = -1
    elif -rows <= padding_idx < rows:
        padding_idx = int(padding_idx % rows)
    else:
        raise ValueError(f"embedding: padding_idx {padding_idx} is outside a table of {rows} rows")
    if not input.numel():
        return torch.nn.functional.embedding(input, weight)  # nothing to launch for
    if weight.stride(1) != 1 or weight.stride(0) < weight.shape[1]:
        weight = weight.contiguous()
    return _embedding(input.contiguous(), weight, padding_idx)
