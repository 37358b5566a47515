"""Operators of reductions on a view [k0, n1, k1, n2, k2] with any strides, of which n1 and n2 are reduced; gradients.

``laid_out`` makes the view.  Results are [k0, k1, k2].
"""

import torch
from atlas.declaration import case, dtype_name
from atlas.operators import Differentiable, Operator, contiguous, step

from .declaration import DECLARATION
from .results import BESIDE


def _forward(name, parameters, results, op_of, dtypes_of):
    """The operator of a view; ``parameters`` and ``results`` in torch's words.

    Of the parameters ``op_of`` says the operation, with x before them ``dtypes_of`` the dtypes of the results.
    """

    def run(launch, x, *rest):
        dtype = dtypes_of(x, *rest)[0]
        return launch(x, op_of(*rest), dtype if dtype != x.dtype else None)

    def fake(x, *rest):
        found = tuple(x.new_empty(x.shape[::2], dtype=dtype) for dtype in dtypes_of(x, *rest))
        return found if len(found) > 1 else found[0]

    return Operator(
        DECLARATION,
        "forward",
        f"(Tensor x{parameters}) -> {results}",
        name=name,
        case_of=lambda x, *rest: _case_of(x.dtype, x.shape, op_of(*rest)),
        run=run,
        fake=fake,
    )


def _case_of(dtype, shape, op):
    k0, n1, k1, n2, k2 = shape
    return case(dtype_name(dtype), outer=k0, n=n1 * n2, inner=k1 * k2, op=op, far=n1, between=k1, gap=0)


def _among(result):
    """Results [k0, k1, k2] as [k0, 1, k1, 1, k2]."""
    return result[:, None, :, None]


_amax_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor x, Tensor out, Tensor ties, Tensor dout) -> Tensor",
    name="reduction_amax_backward",
    case_of=lambda x, out, ties, dout: _case_of(x.dtype, x.shape, "amax"),
    run=lambda launch, x, out, ties, dout: launch(op="amax", x=x, out=out, ties=ties, dout=dout),
    fake=lambda x, out, ties, dout: x.new_empty(x.shape),
)
_max_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor indices, Tensor dout, SymInt n) -> Tensor",
    name="reduction_max_backward",
    case_of=lambda indices, dout, n: _case_of(dout.dtype, _with_axis(dout, n), "max"),
    run=lambda launch, indices, dout, n: launch(op="max", indices=indices, dout=dout, n=n),
    fake=lambda indices, dout, n: dout.new_empty(_with_axis(dout, n)),
)


def _with_axis(dout, n):
    return dout.shape[0], 1, dout.shape[1], n, dout.shape[2]


def _setup_strided_sum(ctx, inputs, output):
    x, mean, _ = inputs
    ctx.shape, ctx.mean, ctx.dtype = x.shape, mean, x.dtype


def _pull_strided_sum(ctx, dout):
    if ctx.mean:
        dout = step(torch.div, dout, ctx.shape[1] * ctx.shape[3])
    return _among(dout.to(ctx.dtype)).expand(ctx.shape), None, None


def _setup_strided_ties(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _setup_strided_max(ctx, inputs, output):
    ctx.save_for_backward(output[1])
    ctx.shape = inputs[0].shape
    ctx.set_materialize_grads(False)


def _pull_strided_ties(ctx, dout, _):
    if dout is None:
        return (None,)
    x, out, ties = ctx.saved_tensors
    if torch.is_grad_enabled():
        return (((x == _among(out)) * (_among(dout).float() / _among(ties))).to(x.dtype),)
    return (_amax_backward(x, out, ties, contiguous(dout)),)


def _pull_strided_max(ctx, dout, _):
    if dout is None:
        return (None,)
    (indices,) = ctx.saved_tensors
    if torch.is_grad_enabled():
        return (dout.new_zeros(ctx.shape).scatter(3, _among(indices), _among(dout)),)
    return (_max_backward(indices, contiguous(dout), ctx.shape[3]),)


strided_sum = Differentiable(
    _forward(
        "reduction_strided_sum",
        ", bool mean, bool widen",
        "Tensor",
        op_of=lambda mean, widen: "mean" if mean else "sum",
        dtypes_of=lambda x, mean, widen: (torch.float32 if widen else x.dtype,),
    ),
    setup_context=_setup_strided_sum,
    backward=_pull_strided_sum,
)
strided_amax = _forward("reduction_strided_amax", "", "Tensor", lambda: "amax", lambda x: (x.dtype,))
strided_amax_with_ties = Differentiable(
    _forward(
        "reduction_strided_amax_with_ties", "", "(Tensor, Tensor)", lambda: "ties", lambda x: (x.dtype, BESIDE["ties"])
    ),
    setup_context=_setup_strided_ties,
    backward=_pull_strided_ties,
)
strided_max = Differentiable(
    _forward("reduction_strided_max", "", "(Tensor, Tensor)", lambda: "max", lambda x: (x.dtype, BESIDE["max"])),
    setup_context=_setup_strided_max,
    backward=_pull_strided_max,
)
