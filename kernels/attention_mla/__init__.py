"""Attention whose values have heads of another size: that of multi-head latent attention in training and prompts.

With Q [b, h, l, d], K [b, g, s, d] and V [b, g, s, e] the formulas are those of :mod:`kernels.attention`: out
[b, h, l, e] = softmax(scale Q K^T) V, scale 1 / sqrt(d).  DeepSeek's models have d = 192, of which 64 carry the
position, and e = 128.

Forward takes 2 b h l s (d + e) operations, half of them under a causal mask; the five products of backward take
2 b h l s (3 d + 2 e).  Kernels are those of attention: blocks of V, dout and dV have columns of their own, or, where a
kernel has one width for all, TMA fills the narrower heads up with zeros on their way into shared memory.
"""

import torch
from atlas.operators import autocasting

from kernels.attention.arguments import (
    as_given,
    batched,
    empty,
    in_four,
    in_one_batch,
    narrowed,
    one_wide,
    scale_of,
    scaled,
)

from .declaration import DECLARATION
from .operators import latent_operator

__all__ = []
"""Users come here through :func:`kernels.scaled_dot_product_attention` and :func:`kernels.attention_with_lse`."""


@DECLARATION.public
def latent_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of :func:`kernels.scaled_dot_product_attention` for heads of value of another size than query's.

    query is [batch, heads, length, d], key [batch, heads, length of its own, d] and value the same with e for d; both
    are at most 256.  output is [batch, heads, length, e] and lies in memory as query does; lse [batch, heads, length]
    is each query's log-sum-exp, in fp32.  Groups, scales, dtypes and gradients are those of that function.  It comes
    here by itself, as :func:`kernels.attention_with_lse` does; heads of one size have kernels of their own there.

    Raises as that function does.
    """
    return attended(query, key, value, is_causal, scale, enable_gqa)


def attended(query, key, value, is_causal, scale, enable_gqa):
    """What :func:`latent_attention` does, for :mod:`kernels.attention`.

    If that imported the public function, this kernel would count as one that its launches call (:mod:`atlas.catalog`).
    """
    if not in_one_batch(query, key, value):
        *heads, leading = in_four("latent_attention", query, key, value)
        return as_given(leading, *attended(*heads, is_causal, scale, enable_gqa))
    if not autocasting() and (enable_gqa or query.shape[1] == key.shape[1]):
        found = latent_operator.again(query, key, value, is_causal, scale_of(query, scale))
        if found is not None:
            return found
    query, key, value = batched("latent_attention", query, key, value, enable_gqa)
    if not (query.shape[-1] and value.shape[-1]):
        wide, scale = one_wide(query, key, value), scale_of(query, scale)
        out, lse = attended(*wide, is_causal, scale, enable_gqa)
        return narrowed(out, value.shape[-1]), lse
    query, scale = scaled(query, scale)
    if not (query.numel() and key.numel()):
        return empty(query, key, value, query.shape[:3])
    return latent_operator(query, key, value, is_causal, scale)
