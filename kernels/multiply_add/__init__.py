"""Multiply-add: out = input + value * tensor1 * tensor2, elementwise, on tensors of one shape.

Forward reads three tensors and writes one, 4 N elements; backward, of dout,

    dinput = dout,  dtensor1 = value * dout * tensor2,  dtensor2 = value * dout * tensor1

reads three and writes two, 5 N (dinput is dout itself and costs nothing).  A handful of operations an element, so
memory bounds both.  Arithmetic is fp32 whatever the dtype, rounded once.

Variants: `blocks` for tensors without gaps; for rows with gaps between them, such as the halves of a wide matrix, which
need not be copied first, `rows` where tiles end with them, else `flat`.
"""

import torch
from atlas.declaration import cases, elementwise
from atlas.operators import Differentiable, Operator, as_laid_out, autocast, autocasting, contiguous

from kernels.broadcast import broadcast, is_alike

from .declaration import DECLARATION


def _case_of(*arguments):
    *tensors, _ = arguments
    n = tensors[0].shape[-1] if tensors[0].dim() else 1
    gaps = not all(tensor.is_contiguous() for tensor in tensors)
    return cases.case(DECLARATION.dtype_of(tensors[0]), m=tensors[0].numel() // n, n=n, gaps=gaps)


def _contiguous_like(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor input, Tensor tensor1, Tensor tensor2, float value) -> Tensor",
    case_of=_case_of,
    fake=lambda input, tensor1, tensor2, value: _contiguous_like(input),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor dout, Tensor tensor1, Tensor tensor2, float value) -> (Tensor, Tensor)",
    case_of=_case_of,
    fake=lambda dout, tensor1, tensor2, value: (_contiguous_like(dout), _contiguous_like(dout)),
)


def _setup(ctx, inputs, output):
    _, tensor1, tensor2, ctx.value = inputs
    ctx.save_for_backward(tensor1, tensor2)


def _pull_back(ctx, dout):
    if dout is None or not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
        return dout, None, None, None
    tensor1, tensor2 = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return dout, ctx.value * dout * tensor2, ctx.value * dout * tensor1, None
    return dout, *_backward(contiguous(dout), tensor1, tensor2, ctx.value), None


_differentiable = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
def multiply_add(
    input: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    """``torch.addcmul(input, tensor1, tensor2, value=value)`` in fp32, fp16 or bf16, of one dtype and device.

    Shapes are broadcast.  Tensors of one shape that all lie in memory in one other order of dimensions (transposed,
    channels last) are taken as they lie, and so are rows with gaps between them; the result is contiguous, or in that
    other order.  Their other layouts are copied first.  A tensor without axes may have another of the dtypes.  Second
    derivatives go through torch's operations.  Raises TypeError for other or mixed dtypes, ValueError for shapes or
    devices that do not fit.
    """
    if autocasting():
        input, tensor1, tensor2 = autocast("addcmul", input, tensor1, tensor2)
    elif (found := _differentiable.again(input, tensor1, tensor2, float(value))) is not None:
        return found
    if not is_alike(input, tensor1, tensor2):
        return broadcast(input, tensor1, tensor2, "multiply_add", value, "multiply_add")
    elementwise.check(DECLARATION, input, tensor1, tensor2)
    if not input.numel():
        return torch.addcmul(input, tensor1, tensor2, value=value)  # nothing to launch for
    return as_laid_out(lambda *tensors: _differentiable(*tensors, float(value)), input, tensor1, tensor2)
