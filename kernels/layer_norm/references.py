"""What layer_norm is checked against, in plain torch, and what it is timed against."""

import torch
from atlas.declaration import Peer, compiled_gradients, gradients

from .cases import EPS

_PARAMETERS = ("x", "weight", "bias")
"""What the backward pass gives gradients of."""


def reference(x, weight, bias, eps, residual=None):
    total = x if residual is None else x + residual
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)  # torch mixes no dtypes
    out, mean, rstd = torch.native_layer_norm(total, x.shape[-1:], weight, bias, eps)
    return (out, mean.flatten(), rstd.flatten(), *(() if residual is None else (total,)))


def backward_reference(x, weight, bias, mean, rstd, dy, dsum=None):
    xhat = (x - mean[:, None]) * rstd[:, None]
    g = dy * weight
    along, level = (g * xhat).mean(dim=-1, keepdim=True), g.mean(dim=-1, keepdim=True)
    dx = (g - xhat * along - level) * rstd[:, None]
    return dx if dsum is None else dx + dsum, (dy * xhat).sum(dim=0), dy.sum(dim=0)


def _torch_forward(x, weight, bias, mean, rstd):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), EPS)


def _torch_forward_residual(x, weight, bias, mean, rstd):
    """Out, and the sum that was normalised: its own gradient is added to what comes back from out."""
    return _torch_forward(x, weight, bias, mean, rstd), x.view_as(x)


def pulled_back(peer):
    """A peer of the backward pass that pulls back dy and, where there is one, dsum."""

    def prepare(dsum=None, **inputs):
        if dsum is None:
            return peer(_torch_forward, _PARAMETERS).prepare(**inputs)
        inputs["dy"] = (inputs["dy"], dsum)
        return peer(_torch_forward_residual, _PARAMETERS).prepare(**inputs)

    return Peer(prepare, compiles=peer is compiled_gradients)


def liger(x, weight, bias, eps, residual=None):
    from liger_kernel.ops.layer_norm import layer_norm_forward

    total = x if residual is None else x + residual
    out, _, mean, rstd, *_ = layer_norm_forward(total, weight, bias, eps)
    return (out, mean, rstd, *(() if residual is None else (total,)))


def liger_backward(dsum=None, **inputs):
    def forward(x, weight, bias, mean, rstd):
        from liger_kernel.transformers.functional import liger_layer_norm

        out = liger_layer_norm(x, weight, bias, EPS)
        return out if dsum is None else (out, x.view_as(x))

    inputs["dy"] = inputs["dy"] if dsum is None else (inputs["dy"], dsum)
    return gradients(forward, _PARAMETERS).prepare(**inputs)
