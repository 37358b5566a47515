"""The operator of attention with values of another size, and its gradient."""

import torch
from atlas.operators import Differentiable, Operator

from kernels.attention.blocks import out_for
from kernels.attention.operators import fake_backward, incoming, once

from .cases import case_of
from .declaration import DECLARATION


def _fake_forward(q, k, v, *others):
    return out_for(q, v), q.new_empty(q.shape[:3], dtype=torch.float32)


def _setup(ctx, inputs, output):
    q, k, v, *ctx.parameters = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _pull_back(ctx, dout, dlse):
    if dout is None and dlse is None:
        return (None,) * 5
    saved = ctx.saved_tensors
    gradients = _backward(*saved, *incoming(saved[3], dout, dlse), *ctx.parameters)
    return *once(saved, gradients), None, None


_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, bool causal, float scale)"
    " -> (Tensor, Tensor, Tensor)",
    case_of=lambda q, k, v, out, lse, dout, dlse, causal, scale: case_of(q, k, v, causal),
    fake=fake_backward,
)
_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)",
    case_of=lambda q, k, v, causal, scale: case_of(q, k, v, causal),
    fake=_fake_forward,
)
latent_operator = Differentiable(_forward, setup_context=_setup, backward=_pull_back)
