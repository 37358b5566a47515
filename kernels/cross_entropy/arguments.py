"""What cross_entropy is given: checks, and layouts of logits."""

from itertools import pairwise

import torch

REDUCTIONS = ("mean", "sum", "none")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def refuse_deprecated(size_average, reduce):
    if size_average is not None or reduce is not None:
        raise NotImplementedError("cross_entropy has no size_average and reduce, deprecated in torch: use reduction")


def check_parameters(reduction, label_smoothing):
    if reduction not in REDUCTIONS or not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(
            f"cross_entropy takes a reduction out of {', '.join(REDUCTIONS)} and a label_smoothing in [0, 1]: "
            f"{reduction!r}, {label_smoothing}"
        )


def in_columns(x, logits):
    """x of the logits' shape, [n], [m, n] or [m, n, ...], as [b, n, s], the same way for all x and copying no logits.

    Only axes behind the classes that do not lie as one are copied.
    """
    if x.dim() == 1:
        return x[None, :, None]
    if x.dim() == 2:
        by_columns = logits.stride(0) == 1 and logits.shape[0] > 1
        return x.t()[None] if by_columns else x[:, :, None]
    return x.flatten(2)


def is_rows(x):
    """Whether the classes of [m, n, ...] lie together and all other axes are one in memory."""
    if x.dim() < 3 or x.stride(1) != 1:
        return False
    others = [(x.shape[axis], x.stride(axis)) for axis in range(x.dim()) if axis != 1 and x.shape[axis] > 1]
    return all(stride == size * step for (_, stride), (size, step) in pairwise(others))


def check_targets(input, target, ignore_index):
    """Whether targets are probabilities; raises TypeError or ValueError for what are no targets of the logits."""
    if not input.dim():
        raise ValueError("cross_entropy takes logits [n], [m, n] or [m, n, ...]: these have no axis")
    expected = input.shape[:1] + input.shape[2:] if input.dim() > 1 else ()
    probabilities = target.is_floating_point()
    if probabilities and target.dtype not in DTYPES:
        raise TypeError(f"cross_entropy takes probabilities in fp32, fp16 and bf16: {target.dtype}")
    if not probabilities and target.dtype != torch.int64:
        raise TypeError(f"cross_entropy takes class indices in int64, or probabilities: {target.dtype}")
    if target.shape != (input.shape if probabilities else expected) or target.device != input.device:
        raise ValueError(
            f"cross_entropy takes a target a row, or probabilities of the logits' shape, on one device: logits "
            f"{tuple(input.shape)} on {input.device}, targets {tuple(target.shape)} on {target.device}"
        )
    if probabilities and ignore_index >= 0:
        raise ValueError(
            f"cross_entropy ignores no rows of probabilities: ignore_index is negative then: {ignore_index}"
        )
    return probabilities


def check_weight(input, weight):
    n = input.shape[1] if input.dim() > 1 else input.shape[0]
    if weight.dtype not in DTYPES:
        raise TypeError(f"cross_entropy takes class weights in fp32, fp16 and bf16: {weight.dtype}")
    if weight.shape != (n,) or weight.device != input.device:
        raise ValueError(
            f"cross_entropy takes a weight for each of {n} classes on {input.device}: {tuple(weight.shape)} on "
            f"{weight.device}"
        )
    if weight.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("cross_entropy has no gradient of class weights: detach them")
