"""What the loss is, in plain torch, and the peers' calls."""

import torch

from .row import saved_rows


def torch_loss(x, target, weight, ignore_index, reduction, label_smoothing, z_loss):
    """The loss of x [b, n, s] as a user would write it in torch; one of each row as [b * s].

    Rows are given as [b, n]: of [b, n, s] torch adds up losses and weights of samples in their dtype on a GPU, so that
    2048 weights in bf16 come to 512 (pytorch#61523).
    """
    if x.shape[2] == 1:
        x, target = x.squeeze(2), target.squeeze(-1)
    options = {} if target.is_floating_point() else {"ignore_index": ignore_index}
    loss = torch.nn.functional.cross_entropy(
        x, target, weight, reduction=reduction, label_smoothing=label_smoothing, **options
    )
    loss = loss.reshape(-1) if reduction == "none" else loss
    if not z_loss:
        return loss
    counted, weights = _counted(target, weight, ignore_index, x.dtype)
    square = (z_loss * torch.where(counted, torch.logsumexp(x, dim=1).square(), 0.0)).reshape(-1)
    if reduction == "none":
        return loss + square
    return loss + square.sum() / (weights.sum() if reduction == "mean" else 1)


def _counted(target, weight, ignore_index, dtype):
    """Which rows count, and how much each counts for the mean."""
    if target.is_floating_point():
        counted = torch.ones_like(target[:, 0], dtype=torch.bool)
        return counted, counted.to(dtype)
    counted = target != ignore_index
    weights = counted.to(dtype) if weight is None else weight.to(dtype)[torch.where(counted, target, 0)] * counted
    return counted, weights


def _coefficients(x, target, weight, ignore_index, label_smoothing):
    """c [b, n, s] with loss = sum_j c_j (lse - x_j), 0 where a row does not count."""
    counted, _ = _counted(target, weight, ignore_index, x.dtype)
    if target.is_floating_point():
        c = (1 - label_smoothing) * target
    else:
        c = torch.zeros_like(x).scatter(1, torch.where(counted, target, 0)[:, None], 1 - label_smoothing)
    c = c + label_smoothing / x.shape[1]
    return torch.where(counted[:, None], c if weight is None else c * weight[:, None], 0.0)


def reference(x, target, weight, ignore_index, reduction, label_smoothing, z_loss):
    """(loss, saved, scale), term by term; saved are of each row maximum, log of the sum, and the sum of c if needed."""
    counted, weights = _counted(target, weight, ignore_index, x.dtype)
    c = _coefficients(x, target, weight, ignore_index, label_smoothing)
    lse = torch.where(counted, torch.logsumexp(x, dim=1), 0.0)
    rows = (c * (lse[:, None] - x)).sum(1) + z_loss * lse.square()
    scale = (1 / weights.sum() if reduction == "mean" else x.new_ones(())).view(1)
    loss = rows.reshape(-1) if reduction == "none" else (rows.sum() * scale).view(())
    row_max = torch.where(counted, x.amax(1), 0.0)
    log_l = lse - row_max
    row_max = torch.where(log_l.isnan(), log_l, row_max)
    saved = (row_max, log_l, c.sum(1))[: saved_rows(target, label_smoothing)]
    return loss, torch.stack([one.reshape(-1) for one in saved]), scale


def backward_reference(x, target, weight, saved, scale, dloss, ignore_index, reduction, label_smoothing, z_loss):
    counted, _ = _counted(target, weight, ignore_index, x.dtype)
    c = _coefficients(x, target, weight, ignore_index, label_smoothing)
    row_max, log_l = (one.view(x.shape[0], 1, x.shape[2]) for one in saved[:2])
    lse, total = row_max + log_l, c.sum(1, keepdim=True)
    g = (dloss * scale).expand(lse.numel()).view(lse.shape)
    return torch.where(counted[:, None], g * (torch.exp(x - lse) * (total + 2 * z_loss * lse) - c), 0.0)


def of_torch_with_saved(x, target, weight, saved, scale, ignore_index, reduction, label_smoothing, z_loss):
    return torch_loss(x, target, weight, ignore_index, reduction, label_smoothing, z_loss)
