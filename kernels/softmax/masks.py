"""Masks of scores: where a row of a broadcast mask lies, and how a kernel applies it."""

import torch
import triton
import triton.language as tl

_MASK_ROWS = ("group", "groups", "stride_group", "cycle", "stride_cycle")


@triton.jit
def masked(x, mask_ptr, offs, inside):
    """x where a boolean mask is true and -inf elsewhere, or x plus an additive one."""
    if mask_ptr.dtype.element_ty == tl.int1:
        x = tl.where(tl.load(mask_ptr + offs, mask=inside, other=0), x, -float("inf"))
    else:
        x += tl.load(mask_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    return x


def mask_rows(shape: torch.Size, mask: torch.Tensor) -> dict[str, int]:
    """Where the mask's row for row r of scores of ``shape`` begins, in elements, as arguments of a kernel:

        r // group % groups * stride_group + r % cycle * stride_cycle

    So a mask may repeat over leading dimensions and over a run of others.  Raises ValueError for what needs more, or
    whose rows are not contiguous or of another length.
    """
    dims: list[tuple[int, int]] = []  # (size, stride) of the leading dimensions, neighbours merged
    for size, stride in _expanded_rows(shape, mask):
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        elif size > 1:
            dims.append((size, stride))
    if len(dims) > 1 and not dims[0][1]:
        dims = dims[1:]
    if len(dims) > 3 or (len(dims) == 3 and dims[1][1]):
        raise _unfit(shape, mask)
    dims += [(1, 0)] * (2 - len(dims))
    (groups, stride_group), (cycle, stride_cycle) = dims[0], dims[-1]
    between = dims[1][0] if len(dims) == 3 else 1
    rows = between * cycle, groups, stride_group, cycle, stride_cycle
    return dict(zip(_MASK_ROWS, rows, strict=True))


def _expanded_rows(shape, mask):
    """Size and stride of each leading dimension of the mask when expanded to ``shape``."""
    fits = mask.dim() and mask.shape[-1] == shape[-1] and (mask.stride(-1) == 1 or shape[-1] == 1)
    lacking = len(shape) - mask.dim()
    fits = fits and lacking >= 0 and all(m in (1, s) for m, s in zip(mask.shape, shape[lacking:], strict=True))
    if not fits:
        raise _unfit(shape, mask)
    return list(zip(shape, mask.expand(shape).stride(), strict=True))[:-1]


def _unfit(shape, mask):
    return ValueError(
        f"softmax: a mask of shape {tuple(mask.shape)} and strides {mask.stride()} for scores of shape {tuple(shape)}: "
        "its rows must be as long as the scores', and it may be broadcast over leading dimensions and one run of "
        "others; expand it and make it contiguous"
    )


def extent(mask):
    """Elements from the mask's first to past its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(mask.shape, mask.stride(), strict=True))


def mask_arguments(x, mask):
    return mask_rows(x.shape, mask) if mask is not None else dict.fromkeys(_MASK_ROWS)
