"""What the loss is, in plain torch, and the peers' calls."""

import torch


def torch_loss(x, target, ignore_index, reduction, label_smoothing, z_loss):
    """The loss as a user would write it in torch."""
    loss = torch.nn.functional.cross_entropy(
        x, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    if not z_loss:
        return loss
    counted = target != ignore_index
    square = z_loss * torch.where(counted, torch.logsumexp(x, dim=-1).square(), 0.0)
    if reduction == "none":
        return loss + square
    return loss + (square.sum() / counted.sum() if reduction == "mean" else square.sum())


def reference(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient):
    """(loss, lse or, with ``gradient``, dx, scale), term by term."""
    counted = target != ignore_index
    lse = torch.logsumexp(x, dim=-1)
    logit = x.gather(1, torch.where(counted, target, 0)[:, None])[:, 0]
    rows = lse - (1 - label_smoothing) * logit
    if label_smoothing:
        rows = rows - label_smoothing * x.mean(dim=-1)
    rows = torch.where(counted, rows + z_loss * lse.square(), 0.0)
    scale = 1 / counted.sum(dim=0, keepdim=True).to(x.dtype) if reduction == "mean" else x.new_ones(1)
    loss = rows if reduction == "none" else (rows.sum() * scale).view(())
    if not gradient:
        return loss, torch.where(counted, lse, 0.0), scale
    dloss = torch.ones_like(loss)
    parameters = (ignore_index, reduction, label_smoothing, z_loss)
    return loss, backward_reference(x, target, lse, scale, dloss, *parameters), scale


def backward_reference(x, target, lse, scale, dloss, ignore_index, reduction, label_smoothing, z_loss):
    counted = (target != ignore_index)[:, None]
    dx = torch.exp(x - lse[:, None]) * (1 + 2 * z_loss * lse[:, None]) - label_smoothing / x.shape[1]
    index = torch.where(counted, target[:, None], 0)
    dx = dx.scatter_add(1, index, torch.full_like(dx[:, :1], label_smoothing - 1))
    return torch.where(counted, dx * (dloss * scale)[:, None], 0.0)


def of_torch(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient):
    return torch_loss(x, target, ignore_index, reduction, label_smoothing, z_loss)


def of_torch_with_lse(x, target, lse, scale, ignore_index, reduction, label_smoothing, z_loss):
    return torch_loss(x, target, ignore_index, reduction, label_smoothing, z_loss)


def liger(x, target, ignore_index, reduction, label_smoothing, z_loss, gradient):
    from liger_kernel.transformers.functional import liger_cross_entropy

    return liger_cross_entropy(
        x, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
        lse_square_scale=z_loss,
    )  # fmt: skip


def user(function, compiles=False, overwrites=False):
    """``prepare`` of a peer: the loss and, with ``gradient``, its derivative by autograd.

    A peer that ``overwrites`` the logits has a copy of them: right the first time, and later just as fast.
    """

    def prepare(x, target, **parameters):
        call = function
        if compiles:
            torch._dynamo.reset()
            call = torch.compile(function, dynamic=False)
        if not parameters["gradient"]:
            return lambda: call(x, target, **parameters)
        logits = x.clone() if overwrites else x

        def both():
            with torch.enable_grad():
                leaf = logits.detach().requires_grad_()
                loss = call(leaf, target, **parameters)
                return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]

        return both

    return prepare
