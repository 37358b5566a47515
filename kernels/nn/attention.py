"""Self-attention as a module."""

from collections.abc import Callable

import torch

import kernels


class SelfAttention(torch.nn.Module):
    """Multi-head self-attention of [batch, length, embed_dim], causal unless said otherwise.

    One projection makes queries, keys and values, which are read where they lie in it; ``num_kv_heads`` fewer heads of
    keys and values serve groups of heads of queries.  ``window`` is (keys before, keys after) that each sees; a causal
    module sees none after.  There is no dropout: see :func:`kernels.scaled_dot_product_attention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        bias: bool = False,
        is_causal: bool = True,
        device=None,
        dtype=None,
        window: tuple[int | None, int | None] | None = None,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if min(num_heads, num_kv_heads) < 1 or embed_dim % num_heads or num_heads % num_kv_heads:
            raise ValueError(
                f"SelfAttention takes heads that divide embed_dim, and heads of keys that divide them: {embed_dim}, "
                f"{num_heads}, {num_kv_heads}"
            )
        self.num_heads, self.num_kv_heads, self.is_causal, self.window = num_heads, num_kv_heads, is_causal, window
        self.head_dim = embed_dim // num_heads
        projected = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.in_proj = torch.nn.Linear(embed_dim, projected, bias=bias, device=device, dtype=dtype)
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)

    def forward(
        self,
        x: torch.Tensor,
        rotary: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None,
        attn_mask: torch.Tensor | None = None,
    ):
        """The output, [batch, length, embed_dim]; ``rotary`` turns (queries, keys) of [batch, length, heads, d] first.

        A :class:`kernels.nn.RotaryEmbedding` will do.  ``attn_mask`` is that of the function: of a padded batch
        [batch, 1, 1, length], True where a key is none of the padding.
        """
        if x.dim() != 3:
            raise ValueError(f"SelfAttention takes [batch, length, embed_dim], x[None] of one sequence: {[*x.shape]}")
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = self.in_proj(x).unflatten(-1, (sum(heads), self.head_dim)).split(heads, dim=-2)
        if rotary is not None:
            q, k = rotary(q, k)
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        is_causal, window = self.is_causal, self.window
        if is_causal and attn_mask is not None:  # which exclude each other
            is_causal, window = False, (window[0] if window else None, 0)
        out = kernels.scaled_dot_product_attention(
            q, k, v, attn_mask, is_causal=is_causal, enable_gqa=True, window=window
        )
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        """What ``repr`` says beside the projections."""
        window = "" if self.window is None else f", window={self.window}"
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, is_causal={self.is_causal}{window}"
