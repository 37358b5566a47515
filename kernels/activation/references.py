"""What the activations compute, in plain torch, and the peers' calls."""

import math

import torch
from atlas.declaration import peers


def reference(x, up, kind):
    if kind == "swiglu":
        gate, up = x.chunk(2, dim=-1) if up is None else (x, up)
        return torch.nn.functional.silu(gate) * up
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def backward_reference(x, up, dy, kind):
    if kind != "swiglu":
        return dy * _slope(x, kind)
    gate, factor = x.chunk(2, dim=-1) if up is None else (x, up)
    dgate, dup = dy * factor * _slope(gate, "silu"), dy * torch.nn.functional.silu(gate)
    return torch.cat((dgate, dup), dim=-1) if up is None else (dgate, dup)


def _slope(x, kind):
    """The derivative in plain torch, in the accuracy and differentiable as ``x`` is."""
    if kind == "gelu":
        phi = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        return phi + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    inner, growth = x, x
    if kind == "gelu_tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        inner, growth = scale * (x + 0.044715 * x**3), scale * x * (1 + 3 * 0.044715 * x * x)
    return torch.sigmoid(inner) * (1 + growth * torch.sigmoid(-inner))


def pulled_back(make, compiles):
    """A backward peer by autograd, of the inputs that the case has."""

    def prepare(**inputs):
        wrt = tuple(name for name in ("x", "up") if inputs[name] is not None)
        return make(reference, wrt).prepare(**inputs)

    return peers.Peer(prepare, compiles=compiles)


def liger(x, up, kind):
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction, LigerSiLUMulFunction

    if kind != "swiglu":
        raise NotImplementedError(f"Liger has no {kind} without a second factor")
    return LigerFusedGateUpSiLUMulFunction.apply(x) if up is None else LigerSiLUMulFunction.apply(x, up)


def prepare_liger_backward(x, up, dy, kind):
    from liger_kernel.ops.swiglu import swiglu_backward, swiglu_fused_gate_up_backward

    if kind != "swiglu":
        raise NotImplementedError(f"Liger has no {kind} without a second factor")
    if up is None:
        return lambda: swiglu_fused_gate_up_backward(x, dy)
    gate, up = x.clone(), up.clone()  # Liger writes the gradients over them
    return lambda: swiglu_backward(gate, up, dy)
