"""What the loss is, in plain torch, and the peers' calls."""

import torch
from atlas.declaration.peers import MAX_AUTOTUNE


def torch_loss(hidden, weight, bias, target, ignore_index, reduction, label_smoothing, z_loss):
    """The loss as a user would write it in torch."""
    x = torch.nn.functional.linear(hidden, weight, bias)
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


def reference(
    hidden, weight, bias, target, dloss, ignore_index, reduction, label_smoothing, z_loss, gradient, weight_gradient,
    chunk_rows,
):  # fmt: skip
    """(loss and, with ``gradient``, dhidden, dweight, dbias), term by term."""
    x = hidden @ weight.t() + (0.0 if bias is None else bias)
    counted = target != ignore_index
    lse = torch.logsumexp(x, dim=-1)
    index = torch.where(counted, target, 0)[:, None]
    rows = lse - (1 - label_smoothing) * x.gather(1, index)[:, 0] - label_smoothing * x.mean(dim=-1)
    rows = torch.where(counted, rows + z_loss * lse.square(), 0.0)
    scale = 1 / counted.sum().to(x.dtype) if reduction == "mean" else x.new_ones(())
    loss = rows if reduction == "none" else rows.sum() * scale
    if not gradient:
        return (loss,)
    dx = torch.exp(x - lse[:, None]) * (1 + 2 * z_loss * lse[:, None]) - label_smoothing / x.shape[1]
    dx = dx.scatter_add(1, index, torch.full_like(dx[:, :1], label_smoothing - 1))
    dx = torch.where(counted[:, None], dx * scale, 0.0)
    return (loss, dx @ weight, dx.t() @ hidden, *(() if bias is None else (dx.sum(dim=0),)))


def of_torch(hidden, weight, bias, target, **parameters):
    return torch_loss(hidden, weight, bias, target, **parameters)


def of_torch_in_chunks(hidden, weight, bias, target, ignore_index, reduction, label_smoothing, z_loss):
    if z_loss or label_smoothing:
        raise NotImplementedError("torch's chunks have neither label smoothing nor z-loss")
    return torch.nn.functional.linear_cross_entropy(
        hidden, weight, target, linear_bias=bias, reduction=reduction, ignore_index=ignore_index,
        options=torch.nn.LinearCrossEntropyOptions(),
    )  # fmt: skip


def liger(hidden, weight, bias, target, ignore_index, reduction, label_smoothing, z_loss):
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(
        hidden, weight, target, bias=bias, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, lse_square_scale=z_loss,
    )  # fmt: skip


def searched(**inputs):
    """``prepare`` of torch.compile that tries Triton's products beside cuBLAS's, and is through with it."""
    thunk = user(torch.compile(of_torch, dynamic=False, mode=MAX_AUTOTUNE))(**inputs)
    thunk()
    return thunk


def user(function, compiles=False):
    """``prepare`` of a peer: the loss and, with ``gradient``, its derivatives by autograd."""

    def prepare(hidden, weight, bias, target, dloss, gradient, weight_gradient, chunk_rows, **parameters):
        call = function
        if compiles:
            torch._dynamo.reset()
            call = torch.compile(function, dynamic=False)
        if not gradient:
            return lambda: call(hidden, weight, bias, target, **parameters)

        def both():
            with torch.enable_grad():
                leaves = [None if t is None else t.detach().requires_grad_() for t in (hidden, weight, bias)]
                loss = call(*leaves, target, **parameters)
                wanted = [leaf for leaf in leaves if leaf is not None]
                return loss.detach(), *torch.autograd.grad(loss.sum(), wanted)

        return both

    return prepare
