"""What softmax is checked against, in plain torch, and what it is timed against."""

import torch


def reference(x, mask=None, log=False, causal=False):
    if causal:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
    if mask is not None:
        x = x.masked_fill(~mask, -float("inf")) if mask.dtype == torch.bool else x + mask
    return torch.log_softmax(x, dim=-1) if log else torch.softmax(x, dim=-1)


def backward_reference(y, dy, log=False, causal=False):
    """Under a causal mask dy above the diagonal is not looked at, and dx is 0 there whatever the row holds."""
    if not causal:
        return user_backward(y, dy, log)
    above = torch.ones(y.shape[-2:], dtype=torch.bool, device=y.device).triu(1 + y.shape[-1] - y.shape[-2])
    return user_backward(y, dy.masked_fill(above, 0.0)).masked_fill(above, 0.0)


def user_backward(y, dy, log=False, causal=False):
    """The gradient as a user would write it: above a causal diagonal y is 0, so for finite rows dx is, too."""
    if log:
        return dy - y.exp() * dy.sum(dim=-1, keepdim=True)
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def torch_backward(y, dy, log=False, causal=False):
    if log:
        return torch.ops.aten._log_softmax_backward_data(dy, y, -1, y.dtype)
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def liger(x, mask=None, log=False, causal=False):
    from liger_kernel.transformers.functional import liger_softmax

    if mask is not None or log or causal:
        raise NotImplementedError("Liger has softmax alone, without a mask")
    return liger_softmax(x)


def liger_backward(y, dy, log=False, causal=False):
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    if log:
        raise NotImplementedError("Liger has no logarithm of softmax")
    return _softmax_backward(dy, y, *calculate_settings(y.shape[-1]), False)
