"""Attention under masks and windows: out = softmax(scale Q K^T + mask) V for each head, as :mod:`kernels.attention`.

A mask says of each pair of query and key whether it takes part (bool), or is added to its score (a number); a window
[i - left, i + right] says which keys query i sees by their places alone.  With Q [b, h, l, d] and K, V [b, g, s, d],

    S = scale Q K^T + mask,    S_ij = -inf outside the window,    P = exp(S - lse),    out = P V

A mask is read by blocks beside the scores, where it lies: what it is broadcast over has strides of 0 and is read from
cache, and one that is the same for all queries is read once for a block of them.  Blocks of scores that no window
reaches are not visited, and only those at its borders are compared with it.

Forward takes 4 b h d operations a pair of the window, backward 3.5 / 2 times as many; a mask of its own for each head
is b h l s elements of traffic, which from some length on is the bound: 2 bytes for 4 d operations.
"""

import torch
from atlas.operators import autocast, autocasting

from kernels.attention.arguments import (
    as_given,
    batched,
    empty,
    in_batch,
    in_four,
    in_one_batch,
    narrowed,
    one_size,
    one_wide,
    scale_of,
    scaled,
    window_of,
)

from .declaration import DECLARATION
from .operators import masked_operator

__all__ = ["masked_attention"]


@DECLARATION.public
def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of :func:`kernels.scaled_dot_product_attention` under a mask and in a window; lse as there.

    ``attn_mask`` is broadcast to (batch, heads, length, length of key), of whatever strides.  Of bools it says which
    pairs take part; numbers, of query's dtype or fp32, are added to the scores, and have a gradient if they want one.

    ``window`` is (keys before, keys after) a query's own, which is the one of its number; None or -1 for all.  So
    (None, 0) is a causal mask.  What lies outside takes no time.

    A query that sees no key has an output of 0, an lse of -inf and gradients of 0, as in torch.  One whose mask is
    finite but below some -1e6 for all keys has torch's output, but no true gradient, for its lse has no digits left for
    weights: use bools, or -inf, where that matters.

    Raises as :func:`kernels.scaled_dot_product_attention`; TypeError for a mask of another dtype, ValueError for one
    that does not fit, and for a window that is no window.
    """
    return attended(query, key, value, attn_mask, window, scale, enable_gqa)


def attended(query, key, value, attn_mask, window, scale, enable_gqa):
    """What :func:`masked_attention` does, for :mod:`kernels.attention`.

    If that imported the public function, this kernel would count as one that its launches call (:mod:`atlas.catalog`).
    """
    if not in_one_batch(query, key, value):
        *heads, leading = in_four("masked_attention", query, key, value)
        if attn_mask is not None and attn_mask.dim() > 3:
            _check_broadcast(attn_mask, (*leading, query.shape[-2], key.shape[-2]))
            attn_mask = in_batch(attn_mask, leading[:-1])
        out, lse = attended(*heads, attn_mask, window, scale, enable_gqa)
        return as_given(leading, out, lse)
    query, key, value = batched("masked_attention", query, key, value, enable_gqa)
    mask = None if attn_mask is None else _checked_mask(query, key, attn_mask)
    left, right = window_of("masked_attention", window, False, query.shape[2], key.shape[2])
    return attend(query, key, value, mask, scale, left, right)


def attend(query, key, value, mask, scale, left, right):
    """The same of checked arguments: a mask of four dimensions, and the window that kernels take."""
    if query.shape[-1] != value.shape[-1]:
        alike, scale = one_size(query, key, value), scale_of(query, scale)
        out, lse = attend(*alike, mask, scale, left, right)
        return narrowed(out, value.shape[-1]), lse
    if not query.shape[-1]:
        out, lse = attend(*one_wide(query, key, value), mask, 1.0, left, right)
        return narrowed(out, 0), lse
    query, scale = scaled(query, scale)
    if query.numel() and key.numel():
        return masked_operator(query, key, value, mask, scale, left, right)
    out, lse = empty(query, key, value, query.shape[:3])
    if mask is not None and mask.requires_grad:
        out = out + torch.where(torch.zeros_like(out, dtype=torch.bool), mask.sum().to(out.dtype), 0.0)
    return out, lse


def _checked_mask(query, key, mask):
    """The mask of four dimensions, in the dtype that autocast gives it; raises for one that does not fit."""
    if autocasting():
        mask = autocast("scaled_dot_product_attention", query, mask)[1]
    if mask.dtype not in (torch.bool, torch.float32, query.dtype) or mask.device != query.device:
        raise TypeError(
            f"attn_mask is of bools, {query.dtype} as query, or torch.float32, on {query.device}: {mask.dtype} on "
            f"{mask.device}"
        )
    _check_broadcast(mask, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
    lacking = 4 - mask.dim()
    return mask.reshape((1,) * lacking + tuple(mask.shape)) if lacking else mask


def _check_broadcast(mask, shape):
    """Raise ValueError for a mask that cannot be broadcast to (..., queries, keys)."""
    lacking = len(shape) - mask.dim()
    # By comparing: for torch.compile a number is not among sizes that it does not know, whatever these are.
    if lacking < 0 or any(size != 1 and size != full for size, full in zip(mask.shape, shape[lacking:], strict=True)):
        raise ValueError(f"attn_mask cannot be broadcast to (batch, heads, queries, keys) {shape}: {tuple(mask.shape)}")
