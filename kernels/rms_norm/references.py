"""What rms_norm is checked against, in plain torch, and what it is timed against."""

from collections.abc import Callable

import torch
from atlas.declaration import Peer

from .cases import EPS


def reference(x, residual, weight, eps):
    """(out, rstd), with a residual (out, sum, rstd)."""
    added = x if residual is None else x + residual
    rstd = (added.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    out = added * rstd * weight
    return (out, rstd.flatten()) if residual is None else (out, added, rstd.flatten())


def backward_reference(x, weight, rstd, dy, dsum):
    rstd = rstd.reshape(-1, 1) if rstd.dim() == 1 else rstd
    xhat = x * rstd
    g = dy if weight is None else dy * weight
    dx = (g - xhat * (g * xhat).mean(dim=-1, keepdim=True)) * rstd
    return dx if dsum is None else dx + dsum, (dy * xhat).flatten(0, -2).sum(dim=0)


def as_users_write(x, residual, weight, eps):
    """What a user writes without a fused kernel."""
    if residual is None:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    added = x + residual
    return torch.nn.functional.rms_norm(added, x.shape[-1:], weight, eps), added


def liger(x, residual, weight, eps):
    from liger_kernel.transformers.functional import liger_fused_add_rms_norm, liger_rms_norm

    if residual is None:
        return liger_rms_norm(x, weight, eps, in_place=False)
    return liger_fused_add_rms_norm(x, residual, weight, eps, in_place=False)


def pulled_back(forward: Callable, requires: str = "", compiles: bool = False) -> Peer:
    """A peer that times only the backward of ``forward``: (dx, dweight), pulled back from dy and dsum.

    With dsum the x that was normalised is the sum of itself and a residual of 0, and dx that of either.
    """

    def prepare(x, weight, rstd, dy, dsum):
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        residual = None if dsum is None else torch.zeros_like(x).requires_grad_()
        upstream = dy if dsum is None else (dy, dsum)

        def gradients(function):
            outputs = function(leaves[0], residual, leaves[1], EPS)
            wanted = leaves if residual is None else (*leaves, residual)
            return lambda: torch.autograd.grad(outputs, wanted, upstream, retain_graph=True)[:2]

        if not compiles:
            return gradients(forward)
        torch._dynamo.reset()
        # Donated buffers forbid retain_graph=True, which lets one forward serve every timed backward.
        with torch._functorch.config.patch(donated_buffer=False):
            thunk = gradients(torch.compile(forward, dynamic=False))
            thunk()
        return thunk

    return Peer(prepare, requires, compiles)
