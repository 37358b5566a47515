"""The operators of attention under masks and windows, and their gradients."""

import torch
from atlas.declaration import case, gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import CustomOperator, Differentiable, Operator

from kernels.attention.operators import fake_backward, fake_forward, fake_varlen, gradients_by, incoming, once

from .backward import into_backward
from .cases import case_of
from .declaration import DECLARATION
from .forward import into_forward
from .mask_gradient import launch_mask_gradient


def _run_varlen(q, k, v, cu_q, cu_k, max_q, max_k, scale, left, right):
    out = as_interpreted(torch.empty_like(q))
    lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
    config = _packed_config("forward", q, k, cu_q, max_q, max_k, left, right)
    lengths = cu_q.shape[0] - 1, max_q, max_k
    into_forward(False, q, k, v, None, out, lse, cu_q, cu_k, lengths, scale, left, right, config)
    return out.to(q.dtype), lse


def _run_varlen_backward(q, k, v, out, lse, dout, dlse, cu_q, cu_k, max_q, max_k, scale, left, right):
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    config = _packed_config("backward", q, k, cu_q, max_q, max_k, left, right)
    lengths, saved = (cu_q.shape[0] - 1, max_q, max_k), (q, k, v, out, lse, dout, dlse)
    into_backward(False, saved, None, gradients, cu_q, cu_k, lengths, scale, left, right, config)
    return gradients


def _packed_config(direction, q, k, cu_q, max_q, max_k, left, right):
    """The untuned config of the variant that reads through pointers, for as many sequences of the longest length."""
    sizes = {"b": cu_q.shape[0] - 1, "h": q.shape[1], "g": k.shape[1], "l": max_q, "s": max_k, "d": q.shape[-1]}
    problem = case(DECLARATION.dtype_of(q), **sizes, mask="none", left=left, right=right)
    return DECLARATION.passes[direction].variant("tiled").default(problem, gpu_of(q.device))


def _fake_mask_gradient(q, k, v, mask, *others):
    return mask.new_empty(mask.shape)


def _setup(ctx, inputs, output):
    q, k, v, mask, *ctx.parameters = inputs
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dout, dlse):
    if dout is None and dlse is None:
        return (None,) * 7
    q, k, v, mask, out, lse = ctx.saved_tensors
    given = (q, k, v, mask, out, lse, *incoming(out, dout, dlse), *ctx.parameters)
    gradients = _backward(*given)
    if mask is None or not ctx.needs_input_grad[3]:
        return *once((q, k, v), gradients), None, None, None, None
    return *once((q, k, v), (*gradients, _mask_gradient(*given))), None, None, None


_SAVED = (
    "(Tensor q, Tensor k, Tensor v, Tensor{} mask, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, float scale, "
    "int left, int right)"
)
_backward = Operator(
    DECLARATION,
    "backward",
    f"{_SAVED.format('?')} -> (Tensor, Tensor, Tensor)",
    case_of=lambda q, k, v, mask, out, lse, dout, dlse, scale, left, right: case_of(q, k, mask, left, right),
    fake=fake_backward,
)
_mask_gradient = CustomOperator(
    "attention_mask_gradient",
    f"{_SAVED.format('')} -> Tensor",
    run=launch_mask_gradient,
    fake=_fake_mask_gradient,
)
_varlen_backward = CustomOperator(
    "attention_window_varlen_backward",
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, Tensor cu_q, Tensor cu_k, "
    "int max_q, int max_k, float scale, int left, int right) -> (Tensor, Tensor, Tensor)",
    run=_run_varlen_backward,
    fake=fake_backward,
)
_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, int left, int right) -> (Tensor, Tensor)",
    case_of=lambda q, k, v, mask, scale, left, right: case_of(q, k, mask, left, right),
    fake=fake_forward,
)
_varlen_forward = CustomOperator(
    "attention_window_varlen_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_k, int max_q, int max_k, float scale, int left, int right)"
    " -> (Tensor, Tensor)",
    run=_run_varlen,
    fake=fake_varlen,
)
masked_operator = Differentiable(_forward, setup_context=_setup, backward=_pull_back)
window_varlen_operator = Differentiable(_varlen_forward, **gradients_by(_varlen_backward, packed=True))
