"""Reductions over one axis or over all elements: sum, mean, amax, and max with the indices of the maxima.

A contiguous tensor is [outer, n, inner], and for each o and i

    sum = sum_j x[o, j, i],  mean = sum / n,  amax = max_j x[o, j, i],  max = amax and the least j that attains it.

Forward reads x once and writes outer * inner results, so memory bounds it; what there is to lose is time in which too
few bytes are in flight: few outputs, of which each must be shared by many programs, and their combination.  Arithmetic
is fp32 whatever the dtype.  A NaN is the maximum wherever it stands, as in torch.

Backward of sum and mean is dout as a view with strides of 0, as in torch: nothing is read or written.  Of amax it is
dx = [x = out] * dout / ties, where `ties`, how many elements attain the maximum, comes from the forward pass: it reads
x and writes dx.  Of max it is dx = [j = index] * dout, which writes dx alone.

Variants: `rows` holds whole rows in registers (inner = 1); `stream` reads rows of any length, or parts of them, block
after block (inner = 1); `columns` does so with blocks of rows and columns (inner > 1), `blocks` with blocks of several
matrices, too, in which each thread adds up columns of its own; `folded` reads rows of no whole 16-byte vectors several
at once, as one line (inner > 1).  Where there are few outputs each is shared by several programs, and the last of them
to end combines their partial results: one launch.  `stream_twice` and `columns_twice` combine them in a second launch.
Either order of combining is fixed, so two runs agree bit by bit.  `strided` takes axes that are no neighbours in
memory, and tensors with gaps: both as five axes with strides, of which two are reduced.  `whole` holds all
that is reduced in one program at once, of these and of odd columns, where there is little to read.
"""

import math

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, autocasts_to_fp32, contiguous, derivative_wanted, step

from kernels.common.axes import axis_of

from .declaration import DECLARATION
from .layout import flattened, laid_out, result_shape, sizes_around
from .results import BESIDE
from .strided_operators import strided_amax, strided_amax_with_ties, strided_max, strided_sum

__all__ = ["amax", "max", "mean", "sum"]


def _case_of(x, begin, end, op):
    outer, n, inner = sizes_around(x.shape, begin, end)
    return case(DECLARATION.dtype_of(x), outer=outer, n=n, inner=inner, op=op)


def _forward(name, parameters, results, op_of, dtypes_of):
    """The operator of x and the axes from ``begin`` up to ``end`` to reduce; ``parameters`` and ``results`` in torch's
    words.  Of the parameters ``op_of`` says the operation, with x before them ``dtypes_of`` the dtypes of the results.
    """

    def run(launch, x, begin, end, keepdim, *rest):
        shape, dtype = result_shape(x, begin, end, keepdim), dtypes_of(x, *rest)[0]
        found = launch(flattened(x, begin, end), op_of(*rest), dtype if dtype != x.dtype else None)
        # Tensors of their own: autograd lets nobody change a view in place that was made where it does not look.
        return tuple(one.view(shape).data for one in found) if isinstance(found, tuple) else found.view(shape).data

    def fake(x, begin, end, keepdim, *rest):
        shape = result_shape(x, begin, end, keepdim)
        found = tuple(x.new_empty(shape, dtype=dtype) for dtype in dtypes_of(x, *rest))
        return found if len(found) > 1 else found[0]

    return Operator(
        DECLARATION,
        "forward",
        f"(Tensor x, int begin, int end, bool keepdim{parameters}) -> {results}",
        name=name,
        case_of=lambda x, begin, end, keepdim, *rest: _case_of(x, begin, end, op_of(*rest)),
        run=run,
        fake=fake,
    )


def _run_amax_backward(launch, x, out, ties, dout, begin, end):
    outer, _, inner = sizes_around(x.shape, begin, end)
    out, ties, dout = (t.view(outer, inner) for t in (out, ties, dout))
    return launch(op="amax", x=flattened(x, begin, end), out=out, ties=ties, dout=dout).view(x.shape)


def _run_max_backward(launch, indices, dout, outer, n, inner):
    return launch(op="max", indices=indices.view(outer, inner), dout=dout.view(outer, inner), n=n)


_amax_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor x, Tensor out, Tensor ties, Tensor dout, int begin, int end) -> Tensor",
    name="reduction_amax_backward",
    case_of=lambda x, out, ties, dout, begin, end: _case_of(x, begin, end, "amax"),
    run=_run_amax_backward,
    fake=lambda x, out, ties, dout, begin, end: torch.empty_like(x),
)
_max_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor indices, Tensor dout, SymInt outer, SymInt n, SymInt inner) -> Tensor",
    name="reduction_max_backward",
    case_of=lambda indices, dout, outer, n, inner: case(
        DECLARATION.dtype_of(dout), outer=outer, n=n, inner=inner, op="max"
    ),
    run=_run_max_backward,
    fake=lambda indices, dout, outer, n, inner: dout.new_empty((outer, n, inner)),
)


def _setup_sum(ctx, inputs, output):
    x, begin, end, keepdim, mean, _ = inputs
    ctx.shape, ctx.begin, ctx.end, ctx.keepdim, ctx.mean, ctx.dtype = x.shape, begin, end, keepdim, mean, x.dtype


def _pull_back_sum(ctx, dout):
    if ctx.mean:
        dout = step(torch.div, dout, math.prod(ctx.shape[ctx.begin : ctx.end]))
    kept = (*ctx.shape[: ctx.begin], *(1,) * (ctx.end - ctx.begin), *ctx.shape[ctx.end :])
    return dout.to(ctx.dtype).reshape(kept).expand(ctx.shape), None, None, None, None, None


def _setup_ties(ctx, inputs, output):
    x, begin, end, _ = inputs
    ctx.save_for_backward(x, *output)
    ctx.begin, ctx.end = begin, end
    ctx.set_materialize_grads(False)


def _setup_max(ctx, inputs, output):
    x, begin, end, _ = inputs
    ctx.save_for_backward(output[1])
    ctx.shape, ctx.begin, ctx.end = x.shape, begin, end
    ctx.set_materialize_grads(False)


def _pull_back_ties(ctx, dout, _):
    if dout is None:
        return None, None, None, None
    x, out, ties = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        kept = result_shape(x, ctx.begin, ctx.end, True)
        share = dout.reshape(kept).float() / ties.reshape(kept)
        return ((x == out.reshape(kept)) * share).to(x.dtype), None, None, None
    return _amax_backward(x, out, ties, contiguous(dout), ctx.begin, ctx.end), None, None, None


def _pull_back_max(ctx, dout, _):
    if dout is None:
        return None, None, None, None
    (indices,) = ctx.saved_tensors
    outer, n, inner = sizes_around(ctx.shape, ctx.begin, ctx.end)
    if torch.is_grad_enabled():
        at, dout = indices.view(outer, 1, inner), dout.reshape(outer, 1, inner)
        return dout.new_zeros((outer, n, inner)).scatter(1, at, dout).view(ctx.shape), None, None, None
    dx = _max_backward(indices, contiguous(dout), outer, n, inner)
    return dx.view(ctx.shape), None, None, None


_sum = Differentiable(
    _forward(
        "reduction_sum",
        ", bool mean, bool widen",
        "Tensor",
        op_of=lambda mean, widen: "mean" if mean else "sum",
        dtypes_of=lambda x, mean, widen: (torch.float32 if widen else x.dtype,),
    ),
    setup_context=_setup_sum,
    backward=_pull_back_sum,
)
_amax = _forward("reduction_amax", "", "Tensor", op_of=lambda: "amax", dtypes_of=lambda x: (x.dtype,))
_amax_with_ties = Differentiable(
    _forward(
        "reduction_amax_with_ties",
        "",
        "(Tensor, Tensor)",
        op_of=lambda: "ties",
        dtypes_of=lambda x: (x.dtype, BESIDE["ties"]),
    ),
    setup_context=_setup_ties,
    backward=_pull_back_ties,
)
_max = Differentiable(
    _forward(
        "reduction_max",
        "",
        "(Tensor, Tensor)",
        op_of=lambda: "max",
        dtypes_of=lambda x: (x.dtype, BESIDE["max"]),
    ),
    setup_context=_setup_max,
    backward=_pull_back_max,
)


def sum(input: torch.Tensor, dim=None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.sum(input, dim, keepdim, dtype=dtype)`` in fp32, fp16 or bf16, over one, several or all axes.

    ``dim`` is an int or several; None and none of them are all axes.  With ``dtype`` the input is cast first; 16 bits
    to fp32 without a copy.  Any axes of any layout are read where they lie, unless those to reduce lie in more than two
    places, or the others in more than three: then x is copied first.  Raises TypeError for another dtype; TypeError,
    IndexError and RuntimeError for a ``dim`` as torch does.
    """
    return _summed(input, dim, keepdim, dtype, False)


def mean(input: torch.Tensor, dim=None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.mean(input, dim, keepdim, dtype=dtype)``; see :func:`sum`."""
    return _summed(input, dim, keepdim, dtype, True)


def amax(input: torch.Tensor, dim=(), keepdim: bool = False) -> torch.Tensor:
    """``torch.amax(input, dim, keepdim)`` in fp32, fp16 or bf16: ties share the gradient evenly.  See :func:`sum`.

    Without gradients nothing but the maxima is written; else forward also writes how many ties each has.
    """
    _check(input, "amax")
    if not input.numel():
        return torch.amax(input, dim, keepdim)
    wanted = derivative_wanted(input)
    x, begin, end, restore = laid_out("amax", input, dim, keepdim)
    if begin is None:
        out = strided_amax_with_ties(x)[0] if wanted else strided_amax(x)
    else:
        out = _amax_with_ties(x, begin, end, keepdim)[0] if wanted else _amax(x, begin, end, keepdim)
    return out if restore is None else restore(out)


def max(input: torch.Tensor, dim: int | None = None, keepdim: bool = False):
    """``torch.max(input)`` over all elements, or ``torch.max(input, dim, keepdim)``: (values, indices) of the first
    maximum along one axis, a NaN before any number.

    The gradient over all elements is that of :func:`amax`: NaN everywhere where the maximum is NaN.  Raises TypeError
    for a ``keepdim`` without a ``dim``, as torch does, and NotImplementedError for the maximum of two tensors and for
    indices along an axis of 2^31 elements or more.
    """
    if isinstance(dim, torch.Tensor):
        raise NotImplementedError("max takes an int as dim: the larger elements of two tensors are torch.maximum's")
    _check(input, "max")
    if dim is None:
        if keepdim:
            raise TypeError("max keeps a dim that is named: name one, or use amax(input, keepdim=True)")
        return amax(input) if input.numel() else torch.max(input)
    dim = axis_of("max", dim, input.dim())
    if not input.numel():
        return torch.max(input, dim, keepdim)
    x, begin, end, restore = laid_out("max", input, dim, keepdim)
    out, indices = strided_max(x) if begin is None else _max(x, begin, end, keepdim)
    if restore is not None:
        out, indices = restore(out), restore(indices)
    return torch.return_types.max((out, indices))


def _summed(input, dim, keepdim, dtype, average):
    x, name = input, "mean" if average else "sum"
    if not isinstance(x, torch.Tensor):
        _check(x, name)
    if dtype is None and not average and autocasts_to_fp32("sum.dim_IntList", x.device):
        dtype = torch.float32
    if dtype is not None and dtype != x.dtype and (dtype != torch.float32 or x.dtype not in DECLARATION.dtype_names):
        x = x.to(dtype)
    _check(x, name)
    if not x.numel():
        return (torch.mean if average else torch.sum)(input, dim, keepdim, dtype=dtype)
    widen = dtype is torch.float32 and x.dtype is not dtype
    x, begin, end, restore = laid_out(name, x, dim, keepdim)
    out = strided_sum(x, average, widen) if begin is None else _sum(x, begin, end, keepdim, average, widen)
    return out if restore is None else restore(out)


def _check(x, name):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} takes a tensor: {x!r}")
    if x.dtype not in DECLARATION.dtype_names:
        names = ", ".join(DECLARATION.dtypes)
        raise TypeError(f"{name} takes {names}: {x.dtype}; cast the input, or name one as dtype= where {name} has it")


_FUNCTIONS = {"sum": sum, "mean": mean, "amax": amax, "ties": amax, "max": max}


@DECLARATION.public
def reduce(x: torch.Tensor, op: str):
    """The public function of an operation on x [outer, n, inner], whose middle axis is reduced, or on
    x [k0, n1, k1, n2, k2], of which n1 and n2 are."""
    if x.dim() == 3:
        return _FUNCTIONS[op](x, 1)
    return max(x.squeeze(1), 2) if op == "max" else _FUNCTIONS[op](x, (1, 3))
