"""The operator of attention with values of another size, and its gradient."""

import torch
from atlas.operators import Differentiable, Operator

from kernels.attention.blocks import out_for
from kernels.attention.operators import fake_backward, gradients_by

from .cases import case_of
from .declaration import DECLARATION


def _fake_forward(q, k, v, *others):
    return out_for(q, v), q.new_empty(q.shape[:3], dtype=torch.float32)


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
latent_operator = Differentiable(_forward, **gradients_by(_backward))
