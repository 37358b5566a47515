"""Elementwise functions of operands that are broadcast or lie in any layout: add, multiply-add and swiglu.

    add = a + b,    multiply_add = a + value b c,    swiglu = silu(a) b

Shapes are broadcast as torch broadcasts them, and the result lies in memory as torch's does.  Axes are merged into as
few as possible; a tile of the two fastest holds a number, a column, a row or all of an operand, so what is broadcast is
read as it lies and not written out first.  Forward reads each operand once and writes out; memory bounds it.

Gradients are elementwise, too, and summed along what was broadcast: that of add is a sum of dout alone.  Arithmetic is
fp32 whatever the dtype, rounded once.  `vector_add`, `multiply_add` and `swiglu` call it where shapes differ; tensors
of one shape are theirs.
"""

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator

from .declaration import DECLARATION, reference
from .shapes import empty_result, merged, summed_axes

__all__ = []


def _case_of(a, b, c, op, value):
    operands = [x for x in (a, b, c) if x is not None]
    sizes, strides = merged(operands)
    letters = "".join(_letter(known) for known in strides)
    m = 1
    for size in sizes[:-1]:
        m *= size
    return case(DECLARATION.dtype_of(_typed(operands)), m=m, n=sizes[-1], op=op, of=letters)


def _letter(strides):
    if not any(strides):
        return "s"
    if not strides[-1]:
        return "c"
    if strides[-1] > 1:
        return "t"
    return "r" if not any(strides[:-1]) and len(strides) > 1 else "f"


def _typed(operands):
    """The operand that says the result's dtype: one with axes, where there is one."""
    return next((x for x in operands if x.dim()), operands[0])


def _fake(a, b, c, op, value):
    operands = [x for x in (a, b, c) if x is not None]
    return empty_result(operands, _typed(operands).dtype)


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor a, Tensor b, Tensor? c, str op, float value) -> Tensor",
    case_of=_case_of,
    fake=_fake,
)


def _setup(ctx, inputs, output):
    *tensors, ctx.op, ctx.value = inputs
    ctx.shapes = [None if x is None else (x.shape, x.dtype) for x in tensors]
    keeps = [None if x is None or ctx.op == "add" else x for x in tensors]
    ctx.save_for_backward(*keeps)


def _pull_back(ctx, dout):
    a, b, c = ctx.saved_tensors
    wanted, op, value = ctx.needs_input_grad, ctx.op, ctx.value
    apply = _differentiable if torch.is_grad_enabled() else _forward

    def product(y, turn):
        return apply(dout, y, None, "multiply", value) if turn else None

    if op == "add":
        found = dout, dout, None
    elif op == "multiply":
        found = product(b, wanted[0]), product(a, wanted[1]), None
    elif op == "multiply_add":
        found = dout, product(c, wanted[1]), product(b, wanted[2])
    elif op == "swiglu":
        of_gate = apply(dout, a, b, "swiglu_gate", 1.0) if wanted[0] else None
        found = of_gate, apply(a, dout, None, "swiglu", 1.0) if wanted[1] else None, None
    else:
        raise NotImplementedError("broadcast: the gradient of a gate's gradient is torch's")
    pairs = zip(found, ctx.shapes, wanted, strict=False)
    return *(_reduced(x, *shape) if w and x is not None else None for x, shape, w in pairs), None, None


def _differentiable(a, b, c, op, value):
    """The same by torch's operations, which are differentiable in turn."""
    wide = [x if x is None else x.float() for x in (a, b, c)]
    return reference(*wide, op, value).to(_typed([x for x in (a, b, c) if x is not None]).dtype)


def _reduced(gradient, shape, dtype):
    """The gradient of an operand of this shape: summed along what was broadcast."""
    # Not by name: a kernel whose function is imported so counts as one that a launch calls.
    import kernels.reduction

    axes = summed_axes(shape, gradient.shape)
    if axes:
        total = torch.sum(gradient, axes) if torch.is_grad_enabled() else kernels.sum(gradient, axes)
        gradient = total.reshape(shape)
    return gradient.to(dtype)


_broadcast = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


def is_alike(first, *others):
    """Whether operands are tensors of one shape, none of which has but one element for all of a row."""
    for x in (first, *others):
        if not isinstance(x, torch.Tensor) or x.shape != first.shape or (x.dim() and x.stride(-1) == 0):
            return False
    return True


@DECLARATION.public
def broadcast(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, op: str, value: float = 1.0, function: str = "broadcast"
) -> torch.Tensor:
    """An operation ("add", "multiply_add", "swiglu") on operands of any shapes that torch broadcasts, in any layout.

    All have one dtype of fp32, fp16 and bf16, but those without axes, which may have another of them, and one device.
    ``function`` is named in errors.  Raises TypeError for dtypes, ValueError for shapes and devices that do not fit.
    """
    operands = [a, b, c] if op == "multiply_add" else [a, b]
    if not all(isinstance(x, torch.Tensor) for x in operands):
        raise TypeError(f"{function} takes tensors, and no numbers: {', '.join(type(x).__name__ for x in operands)}")
    known = all(x.dtype in DECLARATION.dtype_names for x in operands)
    DECLARATION.dtype_of(*(([x for x in operands if x.dim()] if known else []) or operands), function=function)
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in operands))
    except RuntimeError:
        shape = None
    if shape is None or any(x.device != operands[0].device for x in operands):
        found = "; ".join(f"{tuple(x.shape)} on {x.device}" for x in operands)
        raise ValueError(f"{function} takes shapes that can be broadcast, on one device: {found}")
    if not shape.numel():
        return reference(a, b, c, op, value)  # nothing to launch for
    return _broadcast(a, b, c, op, float(value))
