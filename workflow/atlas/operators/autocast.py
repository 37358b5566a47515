"""Autocast: public functions take and give the dtypes that torch's function of the same name would under it.

What torch does is asked of torch where it can be: whether the version at hand has a rule for an operation on a type of
device.  The rule itself is of the lists in torch's documentation of ``torch.amp``.
"""

from __future__ import annotations

import functools

import torch

LOWER = "lower"
"""Floating inputs are cast to autocast's dtype."""
FP32 = "fp32"
"""Floating inputs are cast to fp32."""
FIRST = "first"
"""Floating inputs are cast to the dtype of the first."""
WIDEST = "widest"
"""Floating inputs are cast to the widest of their dtypes."""

_RULES = {
    "linear": LOWER,
    "matmul": LOWER,
    "bmm": LOWER,
    "scaled_dot_product_attention": LOWER,
    "softmax.int": FP32,
    "log_softmax.int": FP32,
    "sum.dim_IntList": FP32,
    "layer_norm": FP32,
    "rms_norm": FP32,
    "nll_loss": FP32,
    "addcmul": WIDEST,
}

_RULES_ON = {
    (device, operation): rule
    for device, key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU"))
    for operation, rule in _RULES.items()
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operation}", key)
}
"""Of these rules the ones that torch has on a type of device, by both names."""

for _device, _norm in (("cpu", "layer_norm"), ("cpu", "rms_norm"), ("cuda", "rms_norm")):
    # Where torch has no rule its kernels take parameters of another dtype (on a GPU those of torch 2.11 do).
    _RULES_ON.setdefault((_device, _norm), FIRST)

autocasting = torch._C._is_any_autocast_enabled
"""Whether the caller is in an autocast context of any device; cheap, to ask first."""


def autocast_rule(operation: str, device: torch.device) -> str | None:
    """What autocast does, now and on this device, with the inputs of torch's ``operation``; None for nothing."""
    if not autocasting() or not torch.is_autocast_enabled(device.type):
        return None
    return _RULES_ON.get((device.type, operation))


def autocasts_to_fp32(operation: str, device: torch.device) -> bool:
    """Whether torch's ``operation`` would compute in fp32, and give that, because of the caller's autocast."""
    return autocasting() and autocast_rule(operation, device) == FP32


def autocast(operation: str, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """``tensors`` as torch's ``operation`` would compute with them where the caller is; differentiable casts.

    The first says on which device.  None, fp64, integers and tensors of other devices stay as they are.
    """
    device = tensors[0].device
    rule = autocast_rule(operation, device)
    if rule is None:
        return tensors
    casts = [
        tensor is not None
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
        and tensor.device.type == device.type
        for tensor in tensors
    ]
    if rule == LOWER:
        dtype = torch.get_autocast_dtype(device.type)
    elif rule == FP32:
        dtype = torch.float32
    elif rule == FIRST:
        dtype = tensors[0].dtype
    else:
        dtype = functools.reduce(
            torch.promote_types, (tensor.dtype for tensor, cast in zip(tensors, casts, strict=True) if cast)
        )
    return tuple(tensor.to(dtype) if cast else tensor for tensor, cast in zip(tensors, casts, strict=True))
